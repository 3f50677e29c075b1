//! Performs one inference over HTTP, from the request to the answer. If its future is dropped, the request and its
//! connection are dropped.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use harness_protocol::run::Usage;
use harness_protocol::sse::Decoder;
use harness_protocol::time::Timestamp;
use reqwest::header::CONTENT_ENCODING;
use reqwest::{Request, Response};
use tokio::time::timeout;

use super::body::{Body, Next};
use super::client::{Client, told};
use super::key::Secret;
use super::redact_keys::{Filter, Scrubber};
use crate::inference::dialects::{Ended, Piece, Reader, Settings, Thinking, too_early};
use crate::inference::errors::classify::{self, broken};
use crate::prompt::{Completion, ErrorClass, InferenceError, Prompt};
use crate::tools::ToolSpec;

/// Bytes of one event, and of an answer that came as one.
const MOST: usize = 40 * 1024 * 1024;
/// How long more is waited for once the answer may be over.
const AFTER_THE_LAST: Duration = Duration::from_secs(5);

/// How often an answer may be paused by its provider, and goes on.
const MOST_PAUSES: u32 = 10;
/// Tokens that an answer has beside what may be thought, or else less is thought.
const LEAST_BESIDE_THINKING: u32 = 1_024;
/// Less thinking than this no server takes.
const LEAST_THINKING: u32 = 1_024;

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'q> {
    /// The model, where the run names one.
    pub model: Option<&'q str>,
    /// The conversation so far.
    pub prompt: &'q Prompt,
    /// The tools that the model may call.
    pub tools: &'q [ToolSpec],
    /// Most tokens of the answer, where the run has no more to spend or the model takes no more.
    pub max_output_tokens: Option<u32>,
    /// Whether a prompt that is sent once more is paid for from these tokens.
    pub is_budgeted: bool,
}

/// Usage and tokens of an answer so far, for the case that the answer is abandoned.
#[derive(Debug, Default)]
struct Seen(Mutex<Progress>);

#[derive(Debug, Default, Clone, Copy)]
struct Progress {
    used: Option<Usage>,
    answered: u64,
}

impl Seen {
    fn note(&self, reader: &Reader) {
        let progress = Progress { used: reader.used(), answered: reader.answered() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    fn progress(&self) -> Progress {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A callback that gets the pieces of an answer as they arrive. An answer that comes whole is passed on whole.
pub type Sink<'s> = &'s mut (dyn FnMut(Piece<'_>) + Send);

impl Client {
    /// Asks, and gives the answer once it is whole.
    ///
    /// # Errors
    /// Whatever kept the provider from answering: nothing of such an answer counts.
    pub async fn ask(&self, question: &Question<'_>, sink: Sink<'_>) -> Result<Completion, InferenceError> {
        let limit = self.endpoint.answer_timeout.to_std();
        let (scrubber, seen) = (self.scrubber(), Seen::default());
        let mut filter = Filter::new(&scrubber);
        let mut show = |piece: Piece<'_>| filter.show(piece, &mut *sink);
        let answer = match timeout(limit, self.exchange(question, &scrubber, &mut show, &seen)).await {
            Ok(answer) => answer,
            Err(_) => Err(broken(format!("the provider's answer took longer than {} s", limit.as_secs_f64()))),
        };
        if answer.is_ok() {
            filter.end(&mut *sink);
        }
        answer.map(|completion| scrubber.scrub_answer(completion)).map_err(|error| {
            let error = classify::dated(error, self.now());
            let Progress { used, answered } = seen.progress();
            let usage = error.usage.or(used);
            InferenceError { message: scrubber.scrub(error.message), usage, answered, ..error }
        })
    }

    async fn exchange(
        &self,
        question: &Question<'_>,
        scrubber: &Scrubber,
        sink: Sink<'_>,
        seen: &Seen,
    ) -> Result<Completion, InferenceError> {
        let key = self.key().map_err(|message| InferenceError::new(ErrorClass::NoKey, message))?;
        let mut settings = self.settings(question)?;
        let mut reader = self.dialect.reader(self.endpoint.quirks);
        let mut pauses = 0;
        loop {
            let so_far = reader.as_said();
            let body = self.dialect.body_of_rest(&settings, question.prompt, question.tools, &so_far)?;
            let mut body = self.begin(body, key.as_ref(), scrubber).await?;
            let sign = body.sign().await;
            // By what it is, not by what it says it is: servers mislabel either as the other. No line of an event
            // stream begins so.
            let came = match sign {
                Some(b'{' | b'[') if pauses == 0 => Came::Whole(self.plain(&mut body, sink).await?),
                Some(b'<') => return Err(classify::in_answer(&scrubber.scrub(body.beginning().await))),
                _ => self.stream(&mut body, &mut reader, sink, seen).await?,
            };
            let is_paused = came == Came::Streamed(Ended::Clean) && reader.is_paused();
            if is_paused && pauses < MOST_PAUSES && self.go_on(&mut settings, question, &reader) {
                pauses += 1;
                self.has_answered.store(true, Ordering::Release);
                reader.go_on();
                continue;
            }
            let mut completion = match came {
                Came::Whole(completion) => completion,
                Came::Streamed(ended) => reader.finish(ended).map_err(|error| broken_off(error, ended, &body))?,
            };
            // llama.cpp calls a response complete that its limit ended; by the number of its tokens it is told apart.
            let limit = settings.max_output_tokens.map(u64::from).filter(|_| pauses == 0);
            completion.cut |= limit == Some(completion.usage.output_tokens);
            self.has_answered.store(true, Ordering::Release);
            return Ok(completion);
        }
    }

    /// Sends a request, and gives what comes for it, once that has begun.
    async fn begin(&self, body: Vec<u8>, key: Option<&Secret>, scrubber: &Scrubber) -> Result<Body, InferenceError> {
        let never = |message: String| InferenceError::new(ErrorClass::Never, message);
        let headers = self.headers(key).map_err(never)?;
        let request = self.http.post(self.url.clone()).headers(headers).body(body).build();
        let request = request.map_err(|error| self.transport(&error))?;
        let limit = self.endpoint.first_byte_timeout.to_std();
        let begun = async {
            let mut response = self.send(request).await.map_err(|error| self.transport(&error))?;
            let first = response.chunk().await.map_err(|error| self.transport(&error))?;
            Ok::<_, InferenceError>((response, first.map(Vec::from)))
        };
        let Ok(begun) = timeout(limit, begun).await else {
            return Err(broken(format!("the provider said nothing for {} s", limit.as_secs_f64())));
        };
        let (response, first) = begun?;
        if !response.status().is_success() {
            return Err(self.refusal(response, first, scrubber).await);
        }
        if let Some(encoding) = encoding(&response) {
            return Err(broken(format!(
                "the provider sent its answer in the encoding {encoding}, which nobody asked for"
            )));
        }
        Ok(Body::new(response, first, self.endpoint.idle_timeout.to_std()))
    }

    /// Takes what a paused answer has used from what it may use. Says whether its rest is asked for. A budget holds one
    /// prompt and its answer: the prompt, and what has been said, are paid for once more from what that leaves.
    fn go_on(&self, settings: &mut Settings, question: &Question<'_>, reader: &Reader) -> bool {
        let Some(most) = question.max_output_tokens else { return true };
        let used = reader.used().unwrap_or_default();
        let again = if question.is_budgeted { used.tokens() } else { 0 };
        let left = u64::from(most).saturating_sub(used.output_tokens.saturating_add(again));
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        settings.max_output_tokens = settings.max_output_tokens.map(|limit| limit.min(left));
        settings.thinking = settings.thinking.and_then(|thinking| fitting(thinking, Some(left)));
        left > 0
    }

    fn settings(&self, question: &Question<'_>) -> Result<Settings, InferenceError> {
        let model = question.model.or(self.model.as_deref()).ok_or_else(|| {
            InferenceError::new(
                ErrorClass::Never,
                format!("no model is named: neither by the run nor as `provider.{}.model`", self.name),
            )
        })?;
        let endpoint = &self.endpoint;
        let limits = [endpoint.max_output_tokens, question.max_output_tokens];
        // What is configured goes together as it is.
        let less = question.max_output_tokens.filter(|most| endpoint.answer_tokens().is_none_or(|own| *most < own));
        let thinking = endpoint.thinking.and_then(|thinking| fitting(thinking, less));
        if thinking.is_none() && endpoint.thinking.is_some() {
            let most = question.max_output_tokens;
            let provider = &self.name;
            tracing::warn!(%provider, most, "an answer has too few tokens to think beside it: nothing is thought");
        }
        Ok(Settings {
            model: model.into(),
            max_output_tokens: limits.into_iter().flatten().min(),
            temperature: endpoint.temperature,
            thinking,
            effort: endpoint.effort.clone(),
            cache: endpoint.cache,
            quirks: endpoint.quirks,
            extra: endpoint.body.clone(),
        })
    }

    /// Sends a request. A kept connection may have been closed before its next use, which may show only after the
    /// request is written. In that case the request is sent once more, without an error.
    async fn send(&self, request: Request) -> Result<Response, reqwest::Error> {
        let again = request.try_clone().filter(|_| self.has_answered.load(Ordering::Acquire));
        match (self.http.execute(request).await, again) {
            (Err(error), Some(again)) if error.is_request() && !error.is_connect() && !error.is_timeout() => {
                let provider = &self.name;
                tracing::debug!(%provider, "a connection that was kept is dead: asked again over another one");
                self.has_answered.store(false, Ordering::Release);
                self.http.execute(again).await
            }
            (sent, _) => sent,
        }
    }

    /// What is told of a connection that was not made, or broke before there was an answer.
    fn transport(&self, error: &reqwest::Error) -> InferenceError {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let what = if error.is_connect() { "cannot connect to" } else { "the connection broke to" };
        broken(format!("{what} the provider at {host}{port}: {}", told(error)))
    }

    async fn refusal(&self, response: Response, first: Option<Vec<u8>>, scrubber: &Scrubber) -> InferenceError {
        let status = response.status().as_u16();
        let encoding = encoding(&response);
        let headers = response.headers().clone();
        let headers: Vec<(&str, &str)> =
            headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))).collect();
        let now: Timestamp = self.now();
        let mut body = Body::new(response, first, self.endpoint.idle_timeout.to_std());
        let text = match encoding {
            Some(encoding) => format!("(in the encoding {encoding}, which nobody asked for)"),
            None => scrubber.scrub(body.beginning().await),
        };
        self.dialect.refusal(status, &headers, &text, now)
    }

    /// An answer that came in one piece, though a stream was asked for.
    async fn plain(&self, body: &mut Body, sink: Sink<'_>) -> Result<Completion, InferenceError> {
        let Some((bytes, ended)) = body.whole(MOST).await else { return Err(too_large()) };
        if ended != Ended::Clean {
            return Err(early(ended, body));
        }
        let text = String::from_utf8_lossy(&bytes);
        let completion = self.dialect.plain(text.trim_start_matches(is_blank), self.endpoint.quirks)?;
        if !completion.text.is_empty() {
            sink(Piece::Text(&completion.text));
        }
        Ok(completion)
    }

    /// Takes an answer as it comes.
    async fn stream(
        &self,
        body: &mut Body,
        reader: &mut Reader,
        sink: Sink<'_>,
        seen: &Seen,
    ) -> Result<Came, InferenceError> {
        let mut decoder = Decoder::new(MOST).telling_errors();
        // All that came, as long as there was no event in it.
        let mut eventless = Some(Vec::new());
        let mut shown = Shown::default();
        let ended = loop {
            let at_most = if reader.may_be_over() { AFTER_THE_LAST } else { Duration::MAX };
            let bytes = match body.next(at_most).await {
                Next::Bytes(bytes) => bytes,
                Next::End(ended) => break ended,
            };
            if let Some(all) = eventless.as_mut().filter(|all| all.len() < MOST) {
                all.extend_from_slice(&bytes);
            }
            let mut events = decoder.push(&bytes);
            while let Some(event) = events.next() {
                eventless = None;
                let event = event.map_err(|_| too_large())?;
                let taken = reader.event(event.name, event.data, &mut |piece| shown.add(piece, &mut *sink));
                if taken.is_err() {
                    seen.note(reader);
                }
                taken?;
            }
            seen.note(reader);
            shown.flush(&mut *sink);
            if reader.is_over() {
                break Ended::Clean;
            }
        };
        if !reader.is_over() {
            // An error in the last line counts, though no blank line ends it; and so does an event that came to its
            // end, in a stream that did.
            let mut events = decoder.push(b"\n\n");
            while let Some(Ok(event)) = events.next() {
                if event.name == "error" || (ended == Ended::Clean && is_whole(event.data)) {
                    eventless = None;
                    reader.event(event.name, event.data, &mut |piece| shown.add(piece, &mut *sink))?;
                }
            }
            seen.note(reader);
            shown.flush(&mut *sink);
            if let Some(all) = eventless.filter(|_| ended == Ended::Clean)
                && let Some(json) = behind_comments(&String::from_utf8_lossy(&all))
            {
                let completion = self.dialect.plain(json, self.endpoint.quirks)?;
                sink(Piece::Text(&completion.text));
                return Ok(Came::Whole(completion));
            }
        }
        Ok(Came::Streamed(ended))
    }
}

/// What came for a request.
#[derive(Debug, PartialEq)]
enum Came {
    /// An answer in one piece.
    Whole(Completion),
    /// A stream, which its reader has taken.
    Streamed(Ended),
}

/// A stream that broke says why, where that is known.
fn broken_off(error: InferenceError, ended: Ended, body: &Body) -> InferenceError {
    match body.why() {
        Some(why) if ended == Ended::Broken => InferenceError { message: format!("{}: {why}", error.message), ..error },
        _ => error,
    }
}

/// As much thinking as there is room for beside an answer; none where that is less than any server takes.
pub(super) fn fitting(thinking: Thinking, most: Option<u32>) -> Option<Thinking> {
    let (Thinking::Budget(tokens), Some(most)) = (thinking, most) else { return Some(thinking) };
    let tokens = tokens.min(most.saturating_sub(LEAST_BESIDE_THINKING));
    (tokens >= LEAST_THINKING).then_some(Thinking::Budget(tokens))
}

/// The encoding of a body that is not the plain one.
fn encoding(response: &Response) -> Option<String> {
    let encoding = response.headers().get(CONTENT_ENCODING)?.to_str().ok()?.trim().to_ascii_lowercase();
    (!encoding.is_empty() && encoding != "identity").then(|| encoding.chars().take(40).collect())
}

/// Whether the data of an event that nothing ends are whole all the same: no beginning of an object is one.
fn is_whole(data: &str) -> bool {
    let data = data.trim();
    data.eq_ignore_ascii_case("[DONE]")
        || (data.starts_with('{') && serde_json::from_str::<&serde_json::value::RawValue>(data).is_ok())
}

fn is_blank(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{feff}'
}

/// The JSON of a body that has nothing but comments of an event stream ahead of it.
pub(super) fn behind_comments(body: &str) -> Option<&str> {
    let mut rest = body.trim_start_matches(is_blank);
    while rest.starts_with(':') {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start_matches(is_blank);
    }
    rest.starts_with('{').then_some(rest)
}

fn early(ended: Ended, body: &Body) -> InferenceError {
    let error = too_early(ended);
    match body.why() {
        Some(why) => InferenceError { message: format!("{}: {why}", error.message), ..error },
        None => error,
    }
}

fn too_large() -> InferenceError {
    let message = format!("the provider's answer has an event of more than {} MiB", MOST >> 20);
    InferenceError::new(ErrorClass::Never, message)
}

/// What came in one chunk, put together: ten thousand tiny pieces are a few larger ones.
#[derive(Default)]
struct Shown {
    text: String,
    reasoning: bool,
}

impl Shown {
    fn add(&mut self, piece: Piece<'_>, sink: Sink<'_>) {
        let (text, reasoning) = match piece {
            Piece::Text(text) => (text, false),
            Piece::Reasoning(text) => (text, true),
        };
        if reasoning != self.reasoning {
            self.flush(sink);
            self.reasoning = reasoning;
        }
        self.text.push_str(text);
    }

    fn flush(&mut self, sink: Sink<'_>) {
        if !self.text.is_empty() {
            sink(if self.reasoning { Piece::Reasoning(&self.text) } else { Piece::Text(&self.text) });
            self.text.clear();
        }
    }
}
