//! The dialect of OpenAI chat completions, and of the many servers that speak something like it.

mod calls;
mod fast;
mod read;
mod request;
mod wire;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub(super) use self::read::{Reader, plain};
pub(super) use self::request::body;

pub(super) const NAME: &str = "openai";

/// What an answer carries beside text and calls, for servers that want it back.
#[derive(Debug, Serialize, Deserialize)]
struct Returned<'a> {
    reasoning_content: Cow<'a, str>,
}
