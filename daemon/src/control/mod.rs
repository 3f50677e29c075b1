//! The control socket: the door of the daemon, and who may come in.
//!
//! Owns the lock that makes a daemon the only one, the listener, and the check of a peer. Never looks into the world.

pub mod listener;
pub mod lock;
pub mod peer;
mod socket;

pub use socket::{Activated, BindError, Bound, LONGEST_PATH, adopt, lock_path};
