//! Writes the daemon's log, sends its messages to systemd, and measures its use of resources. It must not change
//! anything, and must not delay the daemon.

pub mod log;
pub mod log_events;
mod log_writer;
pub mod notify;
mod rotating;
pub mod usage;
