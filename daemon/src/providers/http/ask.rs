//! One inference over HTTP: the request, and whatever comes back for it.
//!
//! Dropping the future drops the request and its connection.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use harness_protocol::run::Usage;
use harness_protocol::sse::Decoder;
use harness_protocol::time::Timestamp;
use reqwest::Response;
use tokio::time::timeout;

use super::body::{Body, Next};
use super::client::{Client, told};
use super::key::Scrubber;
use crate::catalogue::ToolSpec;
use crate::prompt::{Completion, ErrorClass, InferenceError, Prompt};
use crate::providers::dialect::{Ended, Piece, Reader, Settings, Thinking, too_early};
use crate::providers::refusal::{self, broken};

/// Bytes of one event, and of an answer that came as one.
const MOST: usize = 40 * 1024 * 1024;
/// How long more is waited for once the answer may be over.
const AFTER_THE_LAST: Duration = Duration::from_secs(5);

/// Tokens that an answer has beside what may be thought, or else nothing is thought.
const LEAST_BESIDE_THINKING: u32 = 1_024;

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'q> {
    /// The model, where the run names one.
    pub model: Option<&'q str>,
    /// The prompt.
    pub prompt: &'q Prompt,
    /// The tools that the model may call.
    pub tools: &'q [ToolSpec],
    /// Most tokens of the answer, where the run has no more to spend.
    pub max_output_tokens: Option<u32>,
}

/// What came of an answer so far, for whoever gives it up.
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

/// Whoever is shown the pieces of an answer as they arrive. What came at once is shown at once.
pub type Sink<'s> = &'s mut (dyn FnMut(Piece<'_>) + Send);

impl Client {
    /// Asks, and gives the answer once it is whole.
    ///
    /// # Errors
    /// Whatever kept the provider from answering: nothing of such an answer counts.
    pub async fn ask(&self, question: &Question<'_>, sink: Sink<'_>) -> Result<Completion, InferenceError> {
        let limit = self.endpoint.answer_timeout.to_std();
        let (scrubber, seen) = (self.scrubber(), Seen::default());
        let answer = match timeout(limit, self.exchange(question, &scrubber, sink, &seen)).await {
            Ok(answer) => answer,
            Err(_) => Err(broken(format!("the provider's answer took longer than {} s", limit.as_secs_f64()))),
        };
        answer.map_err(|error| {
            let error = refusal::dated(error, self.now());
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
        let never = |message: String| InferenceError::new(ErrorClass::Never, message);
        let key = self.key().map_err(|message| InferenceError::new(ErrorClass::NoKey, message))?;
        let settings = self.settings(question)?;
        let body = self.dialect.body(&settings, question.prompt, question.tools)?;
        let headers = self.headers(key.as_ref()).map_err(never)?;
        let request = self.http.post(self.url.clone()).headers(headers).body(body);
        let limit = self.endpoint.first_byte_timeout.to_std();
        let begun = async {
            let mut response = request.send().await.map_err(|error| self.transport(&error))?;
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
        let sign = first.iter().flatten().find(|byte| !byte.is_ascii_whitespace()).copied();
        let mut body = Body::new(response, first, self.endpoint.idle_timeout.to_std());
        // By what it is, not by what it says it is: servers mislabel either as the other. No line of an event stream begins so.
        let mut completion = match sign {
            Some(b'{' | b'[') => self.plain(&mut body, sink).await,
            Some(b'<') => Err(refusal::in_answer(&scrubber.scrub(body.beginning().await))),
            _ => self.stream(&mut body, sink, seen).await,
        }?;
        // llama.cpp calls a response complete that its limit ended; by the number of its tokens it is told apart.
        completion.cut |= settings.max_output_tokens.map(u64::from) == Some(completion.usage.output_tokens);
        Ok(completion)
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
        // Thinking beyond what the run can pay for is left out.
        let affordable = |thinking: &Thinking| match thinking {
            Thinking::Budget(tokens) => {
                question.max_output_tokens.is_none_or(|most| tokens.saturating_add(LEAST_BESIDE_THINKING) <= most)
            }
            Thinking::Adaptive => true,
        };
        Ok(Settings {
            model: model.into(),
            max_output_tokens: limits.into_iter().flatten().min(),
            temperature: endpoint.temperature,
            thinking: endpoint.thinking.filter(affordable),
            effort: endpoint.effort.clone(),
            cache: endpoint.cache,
            quirks: endpoint.quirks,
            extra: endpoint.body.clone(),
        })
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
        let headers = response.headers().clone();
        let headers: Vec<(&str, &str)> =
            headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))).collect();
        let now: Timestamp = self.now();
        let mut body = Body::new(response, first, self.endpoint.idle_timeout.to_std());
        let text = scrubber.scrub(body.beginning().await);
        refusal::classify(status, &headers, &text, now)
    }

    /// An answer that came in one piece, though a stream was asked for.
    async fn plain(&self, body: &mut Body, sink: Sink<'_>) -> Result<Completion, InferenceError> {
        let Some((bytes, ended)) = body.whole(MOST).await else { return Err(too_large()) };
        if ended != Ended::Clean {
            return Err(early(ended, body));
        }
        let text = String::from_utf8_lossy(&bytes);
        let completion = self.dialect.plain(&text, self.endpoint.quirks)?;
        if !completion.text.is_empty() {
            sink(Piece::Text(&completion.text));
        }
        Ok(completion)
    }

    async fn stream(&self, body: &mut Body, sink: Sink<'_>, seen: &Seen) -> Result<Completion, InferenceError> {
        let mut decoder = Decoder::new(MOST);
        let mut reader = self.dialect.reader(self.endpoint.quirks);
        let mut shown = Shown::default();
        let ended = loop {
            let at_most = if reader.may_be_over() { AFTER_THE_LAST } else { Duration::MAX };
            let bytes = match body.next(at_most).await {
                Next::Bytes(bytes) => bytes,
                Next::End(ended) => break ended,
            };
            let mut events = decoder.push(&bytes);
            while let Some(event) = events.next() {
                let event = event.map_err(|_| too_large())?;
                let taken = reader.event(event.name, event.data, &mut |piece| shown.add(piece, &mut *sink));
                if taken.is_err() {
                    seen.note(&reader);
                }
                taken?;
            }
            seen.note(&reader);
            shown.flush(&mut *sink);
            if reader.is_over() {
                break Ended::Clean;
            }
        };
        reader.finish(ended).map_err(|error| match body.why() {
            Some(why) if ended == Ended::Broken => {
                InferenceError { message: format!("{}: {why}", error.message), ..error }
            }
            _ => error,
        })
    }
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
