//! The dialect of OpenAI's responses. Nothing is stored with the provider: every request brings all that was said.

mod fast;
mod items;
mod read;
mod request;

pub(super) use self::read::{Reader, plain};
pub(super) use self::request::body;

pub(super) const NAME: &str = "responses";
