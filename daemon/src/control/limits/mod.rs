//! Limits of connections: their number, and their memory.

pub mod connections;
pub mod memory;
pub mod request_place;
pub(super) mod request_weight;
