//! The dialect of OpenAI's responses. Nothing is stored with the provider: every request brings all that was said.

mod fast;
mod items;
mod read;
mod request;

pub(in crate::inference) use self::read::{Reader, plain};
pub(in crate::inference) use self::request::body;

pub(in crate::inference) const NAME: &str = "responses";
