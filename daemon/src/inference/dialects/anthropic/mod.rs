//! The dialect of Anthropic's Messages API.

mod blocks;
mod fast;
mod read;
mod request;

pub(in crate::inference) use self::read::{Reader, plain};
pub(in crate::inference) use self::request::body;

pub(in crate::inference) const NAME: &str = "anthropic";
