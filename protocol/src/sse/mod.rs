//! `text/event-stream`: one codec, two faces.
//!
//! The [`Decoder`] serves every stream that comes in and follows the WHATWG rules; [`Frame`] writes our own. Both work
//! on memory alone: nothing here reads, writes or waits, and nothing here knows what an event means.

mod cursor;
mod decoder;
mod event;
mod events;
mod field;
mod frame;
mod held;
mod name;
#[cfg(test)]
mod web_platform;

pub use cursor::{Cursor, CursorError};
pub use decoder::{Decoder, EventTooLarge};
pub use event::Event;
pub use events::Events;
pub use frame::{Frame, keep_alive};
pub use name::{EventName, EventNameError};
