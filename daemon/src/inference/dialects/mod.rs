//! The dialects that use HTTP, behind one interface: a prompt becomes a request body, events become deltas, and the end
//! of the stream a completion.
//!
//! ```text
//! body, path, auth, headers ──▶ request          status ≥ 400 ──▶ classify
//!                                                JSON, no events ──▶ plain
//! reader ──▶ event, event, … is_over? ──▶ finish ──▶ completion, or why there is none
//! ```
//!
//! Pure. A reader belongs to one attempt. No part of an answer may be executed or recorded before [`Reader::finish`]
//! has returned it.

pub(super) mod anthropic;
pub(super) mod openai_chat;
pub(super) mod openai_responses;

use std::sync::Arc;

use harness_protocol::run::Usage;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::errors::classify;
pub use crate::config::{Quirks, Thinking};
use crate::prompt::context::BYTES_OF_A_TOKEN;
use crate::prompt::{Completion, ErrorClass, InferenceError, Prompt};
use crate::tools::ToolSpec;

/// Dialects that go over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpDialect {
    /// OpenAI's Chat Completions API, and the servers with a similar API.
    OpenAi,
    /// OpenAI's Responses API.
    Responses,
    /// Anthropic's Messages API.
    Anthropic,
}

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

impl HttpDialect {
    /// Every dialect, by its name.
    pub const NAMES: [(&str, Self); 3] =
        [("openai", Self::OpenAi), ("responses", Self::Responses), ("anthropic", Self::Anthropic)];

    /// The dialect's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => openai_chat::NAME,
            Self::Responses => openai_responses::NAME,
            Self::Anthropic => anthropic::NAME,
        }
    }

    /// Where requests go, below the base URL with its version.
    pub const fn path(self) -> &'static str {
        match self {
            Self::OpenAi => "/chat/completions",
            Self::Responses => "/responses",
            Self::Anthropic => "/messages",
        }
    }

    /// The header that proves who asks: its name, and its value for a key.
    pub fn auth(self, key: &str) -> (&'static str, String) {
        match self {
            Self::OpenAi | Self::Responses => ("authorization", format!("Bearer {key}")),
            Self::Anthropic => ("x-api-key", key.to_owned()),
        }
    }

    /// Headers of every request, beside the content type.
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::OpenAi | Self::Responses => &[],
            Self::Anthropic => &[("anthropic-version", "2023-06-01")],
        }
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
        match self {
            Self::OpenAi => openai_chat::body(settings, prompt, tools),
            Self::Responses => openai_responses::body(settings, prompt, tools),
            Self::Anthropic => anthropic::body(settings, prompt, tools, so_far),
        }
        .map_err(fault)
    }

    /// Who reads one streamed answer.
    pub fn reader(self, quirks: Quirks) -> Reader {
        Reader(match self {
            Self::OpenAi => Inner::OpenAi(Box::new(openai_chat::Reader::new(quirks))),
            Self::Responses => Inner::Responses(Box::default()),
            Self::Anthropic => Inner::Anthropic(Box::default()),
        })
    }

    /// The answer of a server that was asked to stream and did not.
    ///
    /// # Errors
    /// Where it is none: an error, a page of HTML, anything else.
    pub fn plain(self, body: &str, quirks: Quirks) -> Result<Completion, InferenceError> {
        match self {
            Self::OpenAi => openai_chat::plain(body, quirks),
            Self::Responses => openai_responses::plain(body),
            Self::Anthropic => anthropic::plain(body),
        }
    }
}

fn fault(error: impl std::fmt::Display) -> InferenceError {
    InferenceError::new(ErrorClass::Never, format!("a fault of the harness: {error}"))
}

/// Reads one streamed answer.
#[derive(Debug)]
pub struct Reader(Inner);

#[derive(Debug)]
enum Inner {
    OpenAi(Box<openai_chat::Reader>),
    Responses(Box<openai_responses::Reader>),
    Anthropic(Box<anthropic::Reader>),
}

impl Reader {
    /// Takes one event of the stream, and shows what it adds to the answer.
    ///
    /// # Errors
    /// Where the provider says that it failed, or says what cannot be read: the answer is to be dropped whole.
    pub fn event(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        if self.is_over() || is_filler(name, data) {
            return Ok(());
        }
        if name == "error" {
            return Err(classify::in_answer(data));
        }
        match &mut self.0 {
            Inner::OpenAi(reader) => reader.event(data, show),
            Inner::Responses(reader) => reader.event(name, data, show),
            Inner::Anthropic(reader) => reader.event(name, data, show),
        }
    }

    /// As [`event`](Self::event), without the way ahead of the parser.
    #[cfg(test)]
    pub(super) fn event_by_the_parser(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        if self.is_over() || is_filler(name, data) {
            return Ok(());
        }
        if name == "error" {
            return Err(classify::in_answer(data));
        }
        match &mut self.0 {
            Inner::OpenAi(reader) => reader.any(data, show),
            Inner::Responses(reader) => reader.any(name, data, show),
            Inner::Anthropic(reader) => reader.any(name, data, show),
        }
    }

    /// Whether the answer is complete: what comes after is of no interest, and need not be waited for.
    pub fn is_over(&self) -> bool {
        match &self.0 {
            Inner::OpenAi(reader) => reader.is_over(),
            Inner::Responses(reader) => reader.is_over(),
            Inner::Anthropic(reader) => reader.is_over(),
        }
    }

    /// Whether it may be: everything that an answer needs is there, and what may still come is not worth a long wait.
    pub fn may_be_over(&self) -> bool {
        match &self.0 {
            Inner::OpenAi(reader) => reader.may_be_over(),
            Inner::Responses(_) | Inner::Anthropic(_) => false,
        }
    }

    /// Whether the provider wants to be sent what it has said so far, and goes on then. Only where the stream has ended
    /// well does that count.
    pub fn is_paused(&self) -> bool {
        match &self.0 {
            Inner::OpenAi(_) | Inner::Responses(_) => false,
            Inner::Anthropic(reader) => reader.is_paused(),
        }
    }

    /// The answer so far, as it is sent back, block by block.
    pub fn as_said(&self) -> Vec<Box<RawValue>> {
        match &self.0 {
            Inner::OpenAi(_) | Inner::Responses(_) => Vec::new(),
            Inner::Anthropic(reader) => reader.as_said(),
        }
    }

    /// From here on the rest of a paused answer comes: it is one answer with what has come.
    pub fn go_on(&mut self) {
        match &mut self.0 {
            Inner::OpenAi(_) | Inner::Responses(_) => {}
            Inner::Anthropic(reader) => reader.go_on(),
        }
    }

    /// What the provider said so far that the answer used, also of one that does not end well.
    pub fn used(&self) -> Option<Usage> {
        let usage = match &self.0 {
            Inner::OpenAi(reader) => reader.used(),
            Inner::Responses(reader) => reader.used(),
            Inner::Anthropic(reader) => reader.used(),
        };
        (usage.tokens() > 0).then_some(usage)
    }

    /// About how many tokens of an answer have come, by the bytes of what was said, thought and asked for.
    pub fn answered(&self) -> u64 {
        let bytes = match &self.0 {
            Inner::OpenAi(reader) => reader.taken(),
            Inner::Responses(reader) => reader.taken(),
            Inner::Anthropic(reader) => reader.taken(),
        };
        (bytes as u64).div_ceil(BYTES_OF_A_TOKEN)
    }

    /// The answer, once the stream has ended.
    ///
    /// # Errors
    /// Where it did not end well: then there is no answer, however much has been shown. Refusals of the model and of a
    /// content filter are errors, too.
    pub fn finish(self, ended: Ended) -> Result<Completion, InferenceError> {
        let used = self.used();
        match self.0 {
            Inner::OpenAi(reader) => reader.finish(ended),
            Inner::Responses(reader) => reader.finish(ended),
            Inner::Anthropic(reader) => reader.finish(ended),
        }
        .map_err(|error| InferenceError { usage: used, ..error })
    }
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
