//! Observability: the daemon's log, and its messages to systemd.
//!
//! Must never change anything, and never delay the daemon.

pub mod happened;
mod lines;
pub mod log;
pub mod notify;
mod rotating;
pub mod usage;
