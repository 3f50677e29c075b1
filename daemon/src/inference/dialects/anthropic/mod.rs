//! Implements the dialect of Anthropic's Messages API.

mod blocks;
mod fast;
mod read;
mod request;

use serde_json::value::RawValue;

use self::read::Reader;
use super::{Dialect, Quirks, Settings};
use crate::config::DialectRules;
use crate::prompt::{Completion, InferenceError, Prompt};
use crate::tools::ToolSpec;

const NAME: &str = "anthropic";

/// Anthropic's Messages API.
pub(super) struct Anthropic;

impl Dialect for Anthropic {
    const RULES: DialectRules = DialectRules {
        name: NAME,
        home: "https://api.anthropic.com/v1",
        own_fields: &[
            "model",
            "max_tokens",
            "system",
            "tools",
            "messages",
            "stream",
            "thinking",
            "temperature",
            "output_config",
        ],
        takes_thinking: true,
        takes_quirks: false,
    };
    const PATH: &'static str = "/messages";
    const HEADERS: &'static [(&'static str, &'static str)] = &[("anthropic-version", "2023-06-01")];
    type Reader = Reader;

    fn auth(key: &str) -> (&'static str, String) {
        ("x-api-key", key.to_owned())
    }

    fn body(
        settings: &Settings,
        prompt: &Prompt,
        tools: &[ToolSpec],
        so_far: &[Box<RawValue>],
    ) -> Result<Vec<u8>, serde_json::Error> {
        request::body(settings, prompt, tools, so_far)
    }

    fn reader(_: Quirks) -> Reader {
        Reader::default()
    }

    fn plain(body: &str, _: Quirks) -> Result<Completion, InferenceError> {
        read::plain(body)
    }
}
