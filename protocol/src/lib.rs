//! Defines the types and formats that `harnessd` and its clients share.
//!
//! These are ids, run specifications, requests and replies, events, lane reports, the text of a finished call, and the
//! framing of newline-delimited JSON. The crate must not perform I/O, read a clock or start anything, so that both
//! programs can use all of it.
#![forbid(unsafe_code)]

pub mod blob;
pub mod envelope;
pub mod event;
mod exact_size_list;
pub mod folder;
pub mod framing;
mod hex;
pub mod id;
pub mod inside_run;
pub mod interaction;
pub mod json_size;
pub mod lane;
pub mod limit;
mod params;
pub mod paths;
mod provider;
mod reason;
pub mod rpc;
pub mod run;
#[cfg(feature = "schema")]
pub mod schema;
pub mod script;
pub mod spec;
pub mod splitmix64;
pub mod sse;
mod subject;
pub mod submit_key;
pub mod terminal_safe;
pub mod time;
pub mod variable;
pub mod waiting_words;

/// Version of the control protocol. Peers of the same major work together.
pub const PROTOCOL_MAJOR: u32 = 1;
/// Minor version: grows when something is added that older peers may ignore.
pub const PROTOCOL_MINOR: u32 = 4;
/// Upper bound of one frame on the control socket, in bytes, newline excluded.
pub const MAX_FRAME_BYTES: usize = 8 * 1024 * 1024;
