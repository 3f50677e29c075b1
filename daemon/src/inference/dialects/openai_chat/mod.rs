//! Implements the dialect of OpenAI's chat completions, and of the many servers with a similar API.

mod calls;
mod details;
mod fast;
mod read;
mod request;
mod wire;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use self::read::Reader;
use super::{Dialect, Quirks, Settings};
use crate::config::DialectRules;
use crate::prompt::{Completion, InferenceError, Prompt};
use crate::tools::ToolSpec;

const NAME: &str = "openai";

/// OpenAI's Chat Completions API.
pub(super) struct OpenAiChat;

impl Dialect for OpenAiChat {
    const RULES: DialectRules = DialectRules {
        name: NAME,
        home: "https://api.openai.com/v1",
        own_fields: &[
            "model",
            "messages",
            "tools",
            "stream",
            "stream_options",
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "reasoning_effort",
        ],
        takes_thinking: false,
        takes_quirks: true,
    };
    const PATH: &'static str = "/chat/completions";
    type Reader = Reader;

    fn body(
        settings: &Settings,
        prompt: &Prompt,
        tools: &[ToolSpec],
        _: &[Box<RawValue>],
    ) -> Result<Vec<u8>, serde_json::Error> {
        request::body(settings, prompt, tools)
    }

    fn reader(quirks: Quirks) -> Reader {
        Reader::new(quirks)
    }

    fn plain(body: &str, quirks: Quirks) -> Result<Completion, InferenceError> {
        read::plain(body, quirks)
    }
}

/// What an answer carries beside text and calls, for servers that want it back.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Returned<'a> {
    /// Sent back under that name to the provider that sent it, or to a provider that is configured to want it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<Cow<'a, str>>,
    /// Parts of the content that were thought, sent back as such a part (Mistral).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thinking: Option<Cow<'a, str>>,
    /// Sent back to the provider that sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_details: Option<Box<RawValue>>,
    /// Further reasoning. Sent back to the provider that sent it, under the name that the provider used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_text: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_opaque: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thinking_blocks: Option<Box<RawValue>>,
    /// What calls carry, by their places (Gemini: a signature without which it takes no results).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    extra_content: BTreeMap<usize, Box<RawValue>>,
    /// And what else they carry, by their places and its names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    call_fields: BTreeMap<usize, calls::Others>,
}

impl Returned<'_> {
    fn is_empty(&self) -> bool {
        let texts =
            [&self.reasoning_content, &self.thinking, &self.reasoning, &self.reasoning_text, &self.reasoning_opaque];
        let blocks = [&self.reasoning_details, &self.thinking_blocks];
        texts.iter().all(|text| text.is_none())
            && blocks.iter().all(|blocks| blocks.is_none())
            && self.extra_content.is_empty()
            && self.call_fields.is_empty()
    }
}
