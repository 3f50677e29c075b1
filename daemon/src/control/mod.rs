//! The control socket: the door of the daemon, who may come in, and what is said through it.
//!
//! Owns the lock that makes a daemon the only one, the listener, the check of a peer, the wire of a connection and its
//! subscriptions. Never looks into the world: what it wants to know of it, it asks the driver.

pub mod connection;
mod effort;
pub mod limits;
pub(super) mod outgoing;
mod provider_check;
pub mod request;
pub mod rights;
pub mod services;
pub mod socket;
pub mod subscription;
mod workdir;

pub use socket::{Activated, BindError, Bound, LONGEST_PATH, adopt, lock_path};
