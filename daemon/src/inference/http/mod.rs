//! Asks providers over HTTP. It is the daemon's only HTTP client.
//!
//! ```text
//! Providers ── by name ──▶ Client ── ask ──▶ request ─▶ status, headers ─▶ chunks ─▶ decoder ─▶ reader ─▶ completion
//!                            └─ key, from environment, file or credential; never shown, never logged
//! ```
//!
//! The only place with keys, connections, time limits and the bounds on reading. It must not decide what is sent (the
//! dialects do) or whether to ask again (the world does).

mod body;
mod client;
mod exchange;
mod key;
mod redact_keys;
mod registry;
#[cfg(test)]
mod tests;

pub use client::{BuildError, Client};
pub use exchange::{Question, Sink};
pub use key::{Environment, Variables};
pub use registry::{Clients, Providers, Served};
