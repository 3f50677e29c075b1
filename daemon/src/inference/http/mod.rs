//! The only HTTP client: providers over the network.
//!
//! ```text
//! Providers ── by name ──▶ Client ── ask ──▶ request ─▶ status, headers ─▶ chunks ─▶ decoder ─▶ reader ─▶ completion
//!                            └─ key, from environment, file or credential; never shown, never logged
//! ```
//!
//! Owns keys, connections, time limits and bounds of what is read. What is said over them is the dialects' business,
//! and whether to ask again the world's.

mod ask;
mod body;
mod client;
mod key;
mod registry;
mod scrub;
#[cfg(test)]
mod tests;
mod timed_file;

pub use ask::{Question, Sink};
pub use client::{BuildError, Client};
pub use key::{Environment, Variables};
pub use registry::{Providers, Served};
