//! The control socket: the door of the daemon, who may come in, and what is said through it.
//!
//! Owns the lock that makes a daemon the only one, the listener, the check of a peer, the wire of a connection and its
//! subscriptions. Never looks into the world: what it wants to know of it, it asks the driver.

pub mod connection;
pub mod crowd;
pub mod door;
mod effort;
pub mod listener;
pub mod lock;
pub mod memory;
mod outgoing;
pub mod peer;
mod provider_check;
mod reading;
pub mod request;
pub mod rights;
mod socket;
pub mod subscription;
mod weight;
mod wire;
mod workdir;

pub use socket::{Activated, BindError, Bound, LONGEST_PATH, adopt, lock_path};
