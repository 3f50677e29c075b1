//! Renders the events and deltas of a followed run as text for people: what the model says, its calls, their output,
//! questions, and the answer.
//!
//! It keeps what was shown, so that the output of a call is shown while it executes, or from its result, and never
//! both.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use harness_protocol::event::{Delta, DeltaStream, Ending, Event, EventBody, ProviderFault};
use harness_protocol::id::CallId;
use harness_protocol::interaction::Resolution;
use harness_protocol::rpc::OutputStream;
use harness_protocol::run::{CallRequest, CallResult, StreamInfo, exit};

use crate::render::colour::Paint;
use crate::render::live::{Piece, Stream};
use crate::render::quote::{Quote, behind, further_lines};
use crate::render::style::Look;
use crate::render::text::{clean_painted, cut, first_line, one_line, why};
use crate::render::transcript::{self, command};

/// Behind the command whose output goes on after that of another one.
const GOES_ON: &str = " (goes on)";

/// Fetches missed bytes of a stream, from an offset on; `None` where that is impossible.
pub(crate) type Fetch<'a> = &'a mut dyn FnMut(CallId, OutputStream, u64) -> Option<Vec<u8>>;

/// The end of a followed run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ended {
    /// The exit code.
    pub(crate) code: u8,
    /// The run's answer, if it succeeded.
    pub(crate) answer: Option<Arc<str>>,
    /// The run's error, if it has no answer.
    pub(crate) error: Option<Arc<str>>,
}

impl Ended {
    /// The ending, from the last event.
    pub(crate) fn of(ending: &Ending) -> Self {
        match ending {
            Ending::Succeeded { answer } => Self { code: exit::SUCCEEDED, answer: Some(answer.clone()), error: None },
            Ending::Failed { error, exit_code } => Self { code: *exit_code, answer: None, error: Some(error.clone()) },
            Ending::Cancelled { error } => Self { code: exit::CANCELLED, answer: None, error: Some(error.clone()) },
        }
    }
}

/// The source of the latest text. Its unfinished line is ended before another source writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Model,
    Call(CallId, OutputStream),
    Ours,
}

#[derive(Debug)]
struct Live {
    request: CallRequest,
    begun: bool,
    /// Whether the question is shown already; then its answer will be shown as well.
    asked: bool,
    stdout: Stream,
    stderr: Stream,
}

/// Renders the events of one run as text.
#[derive(Debug)]
pub(crate) struct Follower {
    look: Look,
    notes: Paint,
    /// Whether prompts and messages of people are shown.
    prompts: bool,
    source: Source,
    /// What others say, row by row.
    quote: Quote,
    /// The text of the model's present answer that was shown.
    text: String,
    text_stream: Stream,
    calls: BTreeMap<CallId, Live>,
    last_text: Option<Arc<str>>,
}

impl Follower {
    /// A renderer in the style `look`, with notes in the style `notes`.
    pub(crate) fn new(look: Look, notes: Paint, prompts: bool) -> Self {
        Self {
            look,
            notes,
            prompts,
            source: Source::Ours,
            quote: Quote::new(look),
            text: String::new(),
            text_stream: Stream::default(),
            calls: BTreeMap::new(),
            last_text: None,
        }
    }

    /// Renders a piece of live output.
    pub(crate) fn delta(&mut self, out: &mut dyn Write, delta: &Delta, fetch: Fetch<'_>) -> io::Result<()> {
        let stream = match (delta.stream, delta.call) {
            (DeltaStream::Text, _) => return self.model_delta(out, delta),
            (DeltaStream::Reasoning, _) => return Ok(()),
            (DeltaStream::Stdout, Some(call)) => (call, OutputStream::Stdout),
            (DeltaStream::Stderr, Some(call)) => (call, OutputStream::Stderr),
            (_, None) => return Ok(()),
        };
        let (call, stream) = stream;
        // A call with a result was shown whole; a call that has not begun here begins with its event.
        let Some(seen) = self.calls.get(&call).filter(|live| live.begun) else { return Ok(()) };
        let mut seen = if stream == OutputStream::Stdout { seen.stdout.clone() } else { seen.stderr.clone() };
        if let Piece::Missing(from) = seen.piece(delta.offset, &delta.text) {
            self.catch_up(out, (call, stream), &mut seen, from, delta.offset, fetch)?;
        }
        if let Piece::Show(text) = seen.piece(delta.offset, &delta.text) {
            self.show_output(out, call, stream, text)?;
            seen.shown(delta.offset, &delta.text);
        }
        if let Some(live) = self.calls.get_mut(&call) {
            *(if stream == OutputStream::Stdout { &mut live.stdout } else { &mut live.stderr }) = seen;
        }
        Ok(())
    }

    /// Shows the bytes from `from` on. If they cannot be fetched, says so, and continues at `to`.
    fn catch_up(
        &mut self,
        out: &mut dyn Write,
        (call, stream): (CallId, OutputStream),
        seen: &mut Stream,
        from: u64,
        to: u64,
        fetch: Fetch<'_>,
    ) -> io::Result<()> {
        let bytes = fetch(call, stream, from).unwrap_or_default();
        let whole = bytes.len() - harness_protocol::envelope::incomplete_suffix(&bytes);
        let text = String::from_utf8_lossy(&bytes[..whole]);
        self.show_output(out, call, stream, &text)?;
        let mut end = from + whole as u64;
        if end < to {
            self.say(
                out,
                &self.look.paint.dim(format!("[{} bytes are missing here: harnessctl logs has them]", to - end)),
            )?;
            end = to;
        }
        seen.caught_up(end);
        Ok(())
    }

    fn model_delta(&mut self, out: &mut dyn Write, delta: &Delta) -> io::Result<()> {
        if delta.offset == 0 && !self.text.is_empty() {
            self.drop_text(out)?;
        }
        // A missing piece is not fetched: the event brings the whole text.
        if let Piece::Show(text) = self.text_stream.piece(delta.offset, &delta.text) {
            self.text.push_str(text);
            self.raw(out, Source::Model, text)?;
            self.text_stream.shown(delta.offset, &delta.text);
        }
        Ok(())
    }

    /// Discards the shown text of the model: the answer starts over.
    fn drop_text(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if !self.text.is_empty() {
            self.say(out, &self.look.paint.dim("[the model starts over]"))?;
        }
        self.text.clear();
        self.text_stream = Stream::default();
        Ok(())
    }

    /// Whether prompts and messages of people are shown.
    pub(crate) const fn shows_prompts(&self) -> bool {
        self.prompts
    }

    /// Renders an event. Returns the end of the run if this is its last event. `notes` gets the lines about states.
    pub(crate) fn event(
        &mut self,
        out: &mut dyn Write,
        notes: &mut dyn Write,
        event: &Event,
        fetch: Fetch<'_>,
    ) -> io::Result<Option<Ended>> {
        match &event.body {
            EventBody::RunSubmitted { spec, .. } => {
                if let Some(run) = event.run {
                    self.note(out, notes, &format!("run {run} submitted"))?;
                }
                if let Some(prompt) = spec.prompt.as_ref().filter(|_| self.prompts) {
                    self.user(out, prompt)?;
                }
            }
            EventBody::InferenceStarted { step, attempt } => {
                self.drop_text(out)?;
                let again = if *attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
                self.note(out, notes, &format!("thinking, step {step}{again}"))?;
            }
            EventBody::StepBegun { provider: Some(provider), .. } => {
                self.note(out, notes, &format!("its provider is left alone; {} stands in", one_line(provider)))?;
            }
            EventBody::InferenceFinished { text, calls, .. } => self.model_said(out, text, calls)?,
            EventBody::InferenceFailed { error, retry_at, fault, .. } => {
                self.drop_text(out)?;
                let next = if retry_at.is_some() { "; it is asked again" } else { "" };
                let note = match fault {
                    ProviderFault::ContextTooLong => format!("too long for the model: {}", first_line(error)),
                    // Another note shows the wait and its end.
                    ProviderFault::Quota => format!("quota: {}", first_line(error)),
                    ProviderFault::RateLimit => format!("rate-limit: {}", first_line(error)),
                    ProviderFault::NoKey => format!("key: {}", first_line(error)),
                    ProviderFault::Credentials => format!("credentials: {}", first_line(error)),
                    _ => format!("the provider failed: {}{next}", first_line(error)),
                };
                self.note(out, notes, &note)?;
            }
            EventBody::CompactionBegun { provider, .. } => {
                if let Some(provider) = provider {
                    self.note(out, notes, &format!("its provider is left alone; {provider} stands in"))?;
                }
                self.note(
                    out,
                    notes,
                    "its conversation is too long for the model: the older part is to be summarised",
                )?;
            }
            EventBody::CompactionFinished { entries, text, .. } => {
                let (entries, bytes) = (entries, text.len());
                self.note(out, notes, &format!("the first {entries} entries were summarised in {bytes} bytes"))?;
            }
            EventBody::StepPostponed { budget_of, provider, .. } => {
                let note = match provider {
                    Some(provider) => format!("waiting until the provider {provider} may be asked again"),
                    None => {
                        format!("what is left of the budget of {budget_of} is held for others; waiting for one of them")
                    }
                };
                self.note(out, notes, &note)?;
            }
            EventBody::BatchQueued => self.note(out, notes, "in the tool lane")?,
            EventBody::BatchParked => self.note(out, notes, "waiting")?,
            EventBody::CallStarted { call } => self.begin(out, *call)?,
            EventBody::CallWaiting { runs, .. } => {
                let runs: Vec<String> = runs.iter().map(ToString::to_string).collect();
                self.note(out, notes, &format!("waiting for {}", runs.join(" ")))?;
            }
            EventBody::CallFinished { result } => self.call_finished(out, result, fetch)?,
            EventBody::InteractionOpened { interaction, call, question, interaction_kind: kind, subject, .. } => {
                // Only of such a call the answer is the result.
                let asks_only = |live: &&mut Live| !live.begun && !kind.comes_first();
                if let Some(live) = self.calls.get_mut(call).filter(asks_only) {
                    live.asked = true;
                }
                let paint = self.look.paint;
                let asked = behind(self.look, "? ", &kind.asks(question));
                self.say(out, &asked.replacen('?', &paint.yellow("?"), 1))?;
                if let Some(subject) = subject.as_ref().filter(|_| kind.comes_first()) {
                    self.say(out, "  it is to execute:")?;
                    transcript::block(out, self.look, subject)?;
                }
                self.say(out, &paint.dim(format!("  answer it: {}", kind.how_to_settle(interaction))))?;
            }
            EventBody::InteractionSettled { answer, resolution, .. } => match resolution {
                Resolution::Answered => self.user(out, answer)?,
                Resolution::Allowed => self.note(out, notes, "allowed")?,
                Resolution::Denied => self.note(out, notes, &format!("denied by a person {}", first_line(answer)))?,
                Resolution::Expired => self.note(out, notes, "no person settled it in time")?,
            },
            EventBody::InteractionClosed { .. } => self.note(out, notes, "the question is closed")?,
            EventBody::Denied { what } => self.note(out, notes, &format!("denied: {}", first_line(what)))?,
            EventBody::MessageReceived { text, .. } => self.user(out, text)?,
            EventBody::RunPaused => self.note(out, notes, "paused")?,
            EventBody::RunResumed => self.note(out, notes, "resumed")?,
            EventBody::RunStopping { .. } => self.note(out, notes, "being ended")?,
            EventBody::RunFinished { ending } => return self.run_finished(out, notes, ending).map(Some),
            _ => {}
        }
        Ok(None)
    }

    /// The model's answer is complete. The part that was shown already is not repeated.
    fn model_said(&mut self, out: &mut dyn Write, text: &Arc<str>, calls: &[CallRequest]) -> io::Result<()> {
        let shown = std::mem::take(&mut self.text);
        self.text_stream = Stream::default();
        match text.strip_prefix(shown.as_str()) {
            Some(rest) => self.raw(out, Source::Model, rest)?,
            None => {
                self.say(out, &self.look.paint.dim("[the text, whole]"))?;
                self.raw(out, Source::Model, text)?;
            }
        }
        self.end_line(out)?;
        self.last_text = Some(text.clone());
        self.calls = calls
            .iter()
            .map(|request| {
                let (stdout, stderr) = (Stream::default(), Stream::default());
                (request.call, Live { request: request.clone(), begun: false, asked: false, stdout, stderr })
            })
            .collect();
        Ok(())
    }

    fn begin(&mut self, out: &mut dyn Write, call: CallId) -> io::Result<()> {
        let Some(live) = self.calls.get_mut(&call).filter(|live| !live.begun) else { return Ok(()) };
        live.begun = true;
        let line = self.look.paint.bold(command(&live.request, self.look));
        self.say(out, &line)?;
        self.source = Source::Call(call, OutputStream::Stdout);
        Ok(())
    }

    fn call_finished(&mut self, out: &mut dyn Write, result: &CallResult, fetch: Fetch<'_>) -> io::Result<()> {
        let call = result.call;
        if !self.calls.get(&call).is_some_and(|live| live.asked) {
            self.begin(out, call)?;
        }
        let (asked, stdout, stderr) = match self.calls.get(&call) {
            Some(live) => (live.asked, live.stdout.clone(), live.stderr.clone()),
            None => (false, Stream::default(), Stream::default()),
        };
        if asked && !result.is_error {
            self.calls.remove(&call);
            return Ok(());
        }
        if stdout.is_shown() || stderr.is_shown() {
            for (stream, mut seen, info) in
                [(OutputStream::Stdout, stdout, &result.stdout), (OutputStream::Stderr, stderr, &result.stderr)]
            {
                let total = info.as_ref().map_or(0, |info: &StreamInfo| info.bytes);
                if let Some(from) = seen.missing(total) {
                    self.catch_up(out, (call, stream), &mut seen, from, total, fetch)?;
                }
            }
        } else {
            self.raw(out, Source::Call(call, OutputStream::Stdout), transcript::body(result))?;
        }
        self.calls.remove(&call);
        let ending = transcript::ending(result);
        let Some(line) = ending else { return self.end_line(out) };
        let line = if result.is_error { self.look.paint.red(line) } else { self.look.paint.dim(line) };
        self.say(out, &line)
    }

    fn run_finished(&mut self, out: &mut dyn Write, notes: &mut dyn Write, ending: &Ending) -> io::Result<Ended> {
        self.end_line(out)?;
        match ending {
            Ending::Succeeded { answer } => {
                // The model's last text is shown already; text after it is not.
                let said = self.last_text.take().unwrap_or_default();
                let rest = answer.strip_prefix(&*said).map_or(&**answer, |rest| rest.trim_start_matches('\n'));
                if !rest.is_empty() {
                    transcript::block(out, self.look, rest)?;
                }
                self.note(out, notes, &self.notes.green("succeeded"))?;
            }
            Ending::Failed { error, exit_code } => {
                self.note(out, notes, &self.notes.red(format!("failed: {} (exit code {exit_code})", one_line(error))))?;
            }
            Ending::Cancelled { error } => {
                self.note(out, notes, &self.notes.red(format!("cancelled{}", why("cancelled", error))))?;
            }
        }
        Ok(Ended::of(ending))
    }

    fn show_output(&mut self, out: &mut dyn Write, call: CallId, stream: OutputStream, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let elsewhere = !matches!(self.source, Source::Call(last, _) if last == call);
        if elsewhere && let Some(live) = self.calls.get(&call) {
            let begun = command(&live.request, self.look);
            let first = begun.lines().next().unwrap_or_default();
            let room = self.look.width.map_or(usize::MAX, |width| width.saturating_sub(GOES_ON.len()));
            let line = self.look.paint.dim(format!("{}{GOES_ON}", cut(first, room)));
            self.say(out, &line)?;
        }
        self.raw(out, Source::Call(call, stream), text)
    }

    /// Continues on the row where this source stopped.
    fn raw(&mut self, out: &mut dyn Write, source: Source, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if self.source != source {
            self.end_line(out)?;
            self.source = source;
        }
        let paint = self.look.paint;
        let is_error = matches!(source, Source::Call(_, OutputStream::Stderr)) && self.look.terminal;
        let shown = self.quote.piece(text, |row| if is_error { paint.red(row) } else { row.to_owned() });
        out.write_all(shown.as_bytes())
    }

    /// Writes a line of its own.
    fn say(&mut self, out: &mut dyn Write, line: &str) -> io::Result<()> {
        self.end_line(out)?;
        self.source = Source::Ours;
        writeln!(out, "{line}")
    }

    fn user(&mut self, out: &mut dyn Write, text: &str) -> io::Result<()> {
        self.end_line(out)?;
        self.source = Source::Ours;
        transcript::user(out, self.look, text)
    }

    /// Writes a line about the state of the run.
    fn note(&mut self, out: &mut dyn Write, notes: &mut dyn Write, line: &str) -> io::Result<()> {
        if self.look.terminal {
            self.end_line(out)?;
            out.flush()?;
        }
        let line = clean_painted(line);
        // A closed standard error is ignored: no other place is left for the message.
        let _told = writeln!(notes, "{}", self.notes.dim(format!("[{}]", further_lines(&line))));
        Ok(())
    }

    fn end_line(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.quote.is_open() {
            writeln!(out)?;
        }
        self.quote.end();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
