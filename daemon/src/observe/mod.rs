//! How the daemon is seen from outside: its log, and what it tells systemd.
//!
//! Never changes anything, and never holds the daemon up.

pub mod happened;
mod lines;
pub mod log;
pub mod notify;
mod rotating;
pub mod usage;
