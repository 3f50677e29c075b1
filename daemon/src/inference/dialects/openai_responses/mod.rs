//! The dialect of OpenAI's Responses API. The provider stores nothing: every request carries the whole conversation.

mod fast;
mod items;
mod read;
mod request;

pub(in crate::inference) use self::read::{Reader, plain};
pub(in crate::inference) use self::request::body;

pub(in crate::inference) const NAME: &str = "responses";
