//! Serves the control socket: which processes may connect, which methods they may call, and the protocol.
//!
//! It has the lock that makes a daemon the only one, the listener, the check of a peer, the wire format of a connection
//! and its subscriptions. It must not look into the world: it asks the driver.

pub mod connection;
pub mod limits;
pub(super) mod outgoing;
mod provider_check;
mod refusals;
pub mod request;
pub mod rights;
pub mod services;
pub mod socket;
pub mod subscription;
mod workdir;

pub use socket::{Activated, BindError, Bound, LONGEST_PATH, adopt, lock_path};
