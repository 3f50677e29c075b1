//! The dialect of OpenAI chat completions, and of the many servers that speak something like it.

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

pub(super) use self::read::{Reader, plain};
pub(super) use self::request::body;

pub(super) const NAME: &str = "openai";

/// What an answer carries beside text and calls, for servers that want it back.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Returned<'a> {
    /// Sent back to whoever sent it, under that name, or is configured as wanting it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<Cow<'a, str>>,
    /// Parts of the content that were thought, sent back as such a part (Mistral).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thinking: Option<Cow<'a, str>>,
    /// Sent back to whoever sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_details: Option<Box<RawValue>>,
    /// What calls carry, by their places (Gemini: a signature without which it takes no results).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    extra_content: BTreeMap<usize, Box<RawValue>>,
}

impl Returned<'_> {
    fn is_empty(&self) -> bool {
        let texts = [&self.reasoning_content, &self.thinking];
        texts.iter().all(|text| text.is_none()) && self.reasoning_details.is_none() && self.extra_content.is_empty()
    }
}
