//! `text/event-stream`: a decoder and an encoder.
//!
//! The [`Decoder`] reads every incoming stream by the WHATWG rules; [`Frame`] writes our own streams. Both work on
//! memory alone: this module never reads, writes or waits, and knows no meaning of an event.

mod copied_fields;
mod cursor;
mod decoder;
mod event;
mod events;
mod field;
mod frame;
mod name;
#[cfg(test)]
mod web_platform;

pub use cursor::{Cursor, CursorError};
pub use decoder::{Decoder, EventTooLarge};
pub use event::Event;
pub use events::Events;
pub use frame::{Frame, keep_alive};
pub use name::{EventName, EventNameError};
