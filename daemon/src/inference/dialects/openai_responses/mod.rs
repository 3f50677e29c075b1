//! Implements the dialect of OpenAI's Responses API. The provider stores nothing: every request carries the whole
//! conversation.

mod fast;
mod items;
mod read;
mod request;

use serde_json::value::RawValue;

use self::read::Reader;
use super::{Dialect, Quirks, Settings};
use crate::config::DialectRules;
use crate::prompt::{Completion, InferenceError, Prompt};
use crate::tools::ToolSpec;

const NAME: &str = "responses";

/// OpenAI's Responses API.
pub(super) struct OpenAiResponses;

impl Dialect for OpenAiResponses {
    const RULES: DialectRules = DialectRules {
        name: NAME,
        home: "https://api.openai.com/v1",
        own_fields: &[
            "model",
            "instructions",
            "input",
            "tools",
            "stream",
            "store",
            "include",
            "max_output_tokens",
            "temperature",
            "reasoning",
        ],
        takes_thinking: false,
        takes_quirks: false,
    };
    const PATH: &'static str = "/responses";
    type Reader = Reader;

    fn body(
        settings: &Settings,
        prompt: &Prompt,
        tools: &[ToolSpec],
        _: &[Box<RawValue>],
    ) -> Result<Vec<u8>, serde_json::Error> {
        request::body(settings, prompt, tools)
    }

    fn reader(_: Quirks) -> Reader {
        Reader::default()
    }

    fn plain(body: &str, _: Quirks) -> Result<Completion, InferenceError> {
        read::plain(body)
    }
}
