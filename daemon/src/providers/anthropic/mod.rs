//! The dialect of Anthropic's messages.

mod blocks;
mod fast;
mod read;
mod request;

pub(super) use self::read::{Reader, plain};
pub(super) use self::request::body;

pub(super) const NAME: &str = "anthropic";
