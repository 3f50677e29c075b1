//! Defines the dialects that use HTTP, behind one interface: a prompt becomes a request body, events become deltas, and
//! the end of the stream becomes a completion.
//!
//! ```text
//! body, path, auth, headers ──▶ request          status ≥ 400 ──▶ classify
//!                                                JSON, no events ──▶ plain
//! reader ──▶ event, event, … is_over? ──▶ finish ──▶ completion, or why there is none
//! ```
//!
//! Pure. A reader belongs to one attempt. No part of an answer may be executed or recorded before [`Reader::finish`]
//! has returned it.

mod anthropic;
mod openai_chat;
mod openai_responses;
mod registered;

use std::sync::Arc;

use harness_protocol::run::Usage;
use harness_protocol::time::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use self::registered::AnyReader;
pub use self::registered::HttpDialect;
use super::errors::classify;
use crate::config::DialectRules;
pub use crate::config::{Quirks, Thinking};
use crate::prompt::context::BYTES_OF_A_TOKEN;
use crate::prompt::{Completion, ErrorClass, InferenceError, Prompt};
use crate::tools::ToolSpec;

/// What is asked for beside the prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// The model, by the provider's name for it.
    pub model: Arc<str>,
    /// Most tokens of the answer, thinking included.
    pub max_output_tokens: Option<u32>,
    /// Temperature. Not sent where the model thinks and its API allows only one.
    pub temperature: Option<f64>,
    /// How much the model may think (Anthropic).
    pub thinking: Option<Thinking>,
    /// How hard it shall think, in the provider's own word.
    pub effort: Option<Arc<str>>,
    /// Whether to mark what a cache may keep (Anthropic).
    pub cache: bool,
    /// Where a server departs from the others.
    pub quirks: Quirks,
    /// Further fields of the body, as they are. They may not repeat one that is there anyway.
    pub extra: Map<String, Value>,
}

/// A piece of an answer, as it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Of what the model says.
    Text(&'a str),
    /// Of what it thinks.
    Reasoning(&'a str),
}

/// A callback that gets the pieces of an answer as they arrive.
pub type Show<'s> = &'s mut dyn FnMut(Piece<'_>);

/// How a stream ended, as far as the transport can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// As it should.
    Clean,
    /// The connection broke.
    Broken,
    /// Nothing more came for as long as one is willing to wait.
    Stalled,
}

/// A dialect: all that is particular to an API. It stands in its folder, and is named once more, where it is
/// [registered](HttpDialect).
pub(super) trait Dialect {
    /// Its name, and what may be configured of it.
    const RULES: DialectRules;
    /// Where requests go, below the base URL with its version.
    const PATH: &'static str;
    /// Headers of every request, beside the content type.
    const HEADERS: &'static [(&'static str, &'static str)] = &[];
    /// Reads a streamed answer.
    type Reader: ReadAnswer;

    /// The header that proves who asks: its name, and its value for a key.
    fn auth(key: &str) -> (&'static str, String) {
        ("authorization", format!("Bearer {key}"))
    }

    /// The body of a request for a streamed answer, or for the rest of one that was paused, of which `so_far` has come.
    ///
    /// # Errors
    /// Where something cannot be written as JSON.
    fn body(
        settings: &Settings,
        prompt: &Prompt,
        tools: &[ToolSpec],
        so_far: &[Box<RawValue>],
    ) -> Result<Vec<u8>, serde_json::Error>;

    /// A reader at the start of an answer.
    fn reader(quirks: Quirks) -> Self::Reader;

    /// The answer of a server that was asked to stream and did not.
    ///
    /// # Errors
    /// Where it is none: an error, a page of HTML, anything else.
    fn plain(body: &str, quirks: Quirks) -> Result<Completion, InferenceError>;

    /// What a status that is none of success means, with the headers and the beginning of the body.
    fn refusal(status: u16, headers: &[(&str, &str)], body: &str, now: Timestamp) -> InferenceError {
        classify::classify(status, headers, body, now)
    }

    /// What an event named `error` means.
    fn error_event(data: &str) -> InferenceError {
        classify::in_answer(data)
    }
}

/// Reads one streamed answer, event by event.
pub(super) trait ReadAnswer: std::fmt::Debug {
    /// Takes one event, by the fast path where it has the form of the one before.
    ///
    /// # Errors
    /// As [`Reader::event`].
    fn event(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError>;

    /// Takes one event, in whatever form.
    ///
    /// # Errors
    /// As [`Reader::event`].
    fn any(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError>;

    /// Whether the answer is complete.
    fn is_over(&self) -> bool;

    /// Whether everything that an answer needs is there.
    fn may_be_over(&self) -> bool {
        false
    }

    /// Whether the provider wants to be sent what it has said so far.
    fn is_paused(&self) -> bool {
        false
    }

    /// The answer so far, as it is sent back, block by block.
    fn as_said(&self) -> Vec<Box<RawValue>> {
        Vec::new()
    }

    /// From here on the rest of a paused answer comes.
    fn go_on(&mut self) {}

    /// What the provider said so far that the answer used.
    fn used(&self) -> Usage;

    /// Bytes of what was said, thought and asked for so far.
    fn taken(&self) -> usize;

    /// The answer, once the stream has ended.
    ///
    /// # Errors
    /// Where it did not end well.
    fn finish(self, ended: Ended) -> Result<Completion, InferenceError>
    where
        Self: Sized;
}

impl HttpDialect {
    /// The dialect of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dialect| dialect.name() == name)
    }

    /// What may be configured of it.
    pub const fn rules(self) -> &'static DialectRules {
        self.registered().rules
    }

    /// The dialect's name in the configuration.
    pub const fn name(self) -> &'static str {
        self.registered().rules.name
    }

    /// Where requests go, below the base URL with its version.
    pub const fn path(self) -> &'static str {
        self.registered().path
    }

    /// The header that proves who asks: its name, and its value for a key.
    pub fn auth(self, key: &str) -> (&'static str, String) {
        (self.registered().auth)(key)
    }

    /// Headers of every request, beside the content type.
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        self.registered().headers
    }

    /// The body of a request for a streamed answer.
    ///
    /// # Errors
    /// Where the prompt breaks a rule, which is a fault of the harness.
    pub fn body(self, settings: &Settings, prompt: &Prompt, tools: &[ToolSpec]) -> Result<Vec<u8>, InferenceError> {
        self.body_of_rest(settings, prompt, tools, &[])
    }

    /// The same for the rest of an answer that was [paused](Reader::is_paused), of which this has come.
    ///
    /// # Errors
    /// As for [`body`](Self::body).
    pub fn body_of_rest(
        self,
        settings: &Settings,
        prompt: &Prompt,
        tools: &[ToolSpec],
        so_far: &[Box<RawValue>],
    ) -> Result<Vec<u8>, InferenceError> {
        prompt.check().map_err(fault)?;
        (self.registered().body)(settings, prompt, tools, so_far).map_err(fault)
    }

    /// A reader of one streamed answer.
    pub fn reader(self, quirks: Quirks) -> Reader {
        Reader((self.registered().reader)(quirks))
    }

    /// The answer of a server that was asked to stream and did not.
    ///
    /// # Errors
    /// Where it is none: an error, a page of HTML, anything else.
    pub fn plain(self, body: &str, quirks: Quirks) -> Result<Completion, InferenceError> {
        (self.registered().plain)(body, quirks)
    }

    /// What a status that is none of success means, with the headers and the beginning of the body.
    pub fn refusal(self, status: u16, headers: &[(&str, &str)], body: &str, now: Timestamp) -> InferenceError {
        (self.registered().refusal)(status, headers, body, now)
    }
}

fn fault(error: impl std::fmt::Display) -> InferenceError {
    InferenceError::new(ErrorClass::Never, format!("a fault of the harness: {error}"))
}

/// Reads one streamed answer.
#[derive(Debug)]
pub struct Reader(AnyReader);

impl Reader {
    /// Takes one event of the stream, and shows what it adds to the answer.
    ///
    /// # Errors
    /// Where the provider says that it failed, or says what cannot be read: the answer is to be dropped whole.
    pub fn event(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        self.0.event(name, data, show)
    }

    /// As [`event`](Self::event), without the way ahead of the parser.
    #[cfg(test)]
    pub(super) fn event_by_the_parser(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        self.0.any(name, data, show)
    }

    /// Whether the answer is complete: what comes after is of no interest, and need not be waited for.
    pub fn is_over(&self) -> bool {
        self.0.get().is_over()
    }

    /// Whether it may be: everything that an answer needs is there, and what may still come is not worth a long wait.
    pub fn may_be_over(&self) -> bool {
        self.0.get().may_be_over()
    }

    /// Whether the provider wants to be sent what it has said so far, and goes on then. Only where the stream has ended
    /// well does that count.
    pub fn is_paused(&self) -> bool {
        self.0.get().is_paused()
    }

    /// The answer so far, as it is sent back, block by block.
    pub fn as_said(&self) -> Vec<Box<RawValue>> {
        self.0.get().as_said()
    }

    /// From here on the rest of a paused answer comes: it is one answer with what has come.
    pub fn go_on(&mut self) {
        self.0.get_mut().go_on();
    }

    /// What the provider said so far that the answer used, also of one that does not end well.
    pub fn used(&self) -> Option<Usage> {
        let usage = self.0.get().used();
        (usage.tokens() > 0).then_some(usage)
    }

    /// About how many tokens of an answer have come, by the bytes of what was said, thought and asked for.
    pub fn answered(&self) -> u64 {
        (self.0.get().taken() as u64).div_ceil(BYTES_OF_A_TOKEN)
    }

    /// The answer, once the stream has ended.
    ///
    /// # Errors
    /// Where it did not end well: then there is no answer, however much has been shown. Refusals of the model and of a
    /// content filter are errors, too.
    pub fn finish(self, ended: Ended) -> Result<Completion, InferenceError> {
        let used = self.used();
        self.0.finish(ended).map_err(|error| InferenceError { usage: used, ..error })
    }
}

/// Whether an event changes nothing any more, or is an error by its name; the same for every dialect.
fn before_reading<D: Dialect>(reader: &D::Reader, name: &str, data: &str) -> Result<bool, InferenceError> {
    if reader.is_over() || is_filler(name, data) {
        return Ok(true);
    }
    if name == "error" { Err(D::error_event(data)) } else { Ok(false) }
}

/// What a server says that has nothing to say.
const WORDS: [&str; 4] = ["ping", "keepalive", "keep-alive", "heartbeat"];

/// Events that say nothing: they keep connections alive.
fn is_filler(name: &str, data: &str) -> bool {
    let is_word = |text: &str| WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    let is_nothing = |data: &str| data.is_empty() || data.starts_with(':') || data == "null" || is_word(data);
    is_word(name) || (!data.starts_with('{') && is_nothing(data.trim()))
}

/// Shows a piece, if there is one.
pub(super) fn shown<'a>(text: &'a str, piece: fn(&'a str) -> Piece<'a>, show: Show<'_>) {
    if !text.is_empty() {
        show(piece(text));
    }
}

/// What a stream that ended too early is told as.
pub(super) fn too_early(ended: Ended) -> InferenceError {
    classify::broken(match ended {
        Ended::Clean => "the provider's answer ended before it was complete",
        Ended::Broken => "the connection to the provider broke in the middle of its answer",
        Ended::Stalled => "the provider stopped in the middle of its answer and said nothing more",
    })
}
