//! Observability: the daemon's log, and its messages to systemd.
//!
//! Must never change anything, and never delay the daemon.

pub mod log;
pub mod log_events;
mod log_writer;
pub mod notify;
mod rotating;
pub mod usage;
