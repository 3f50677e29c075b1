//! Decodes and encodes server-sent events (`text/event-stream`).
//!
//! The [`Decoder`] reads every incoming stream by the WHATWG rules, and on request also the error lines of some
//! servers; [`Frame`] writes our own streams. Both work on memory alone: they must not read from a socket or wait, and
//! the meaning of an event is the caller's.

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
