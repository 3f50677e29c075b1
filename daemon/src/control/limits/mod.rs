//! Limits connections: their number, and their memory.

pub mod connections;
pub mod memory;
pub mod request_permits;
pub(super) mod request_weight;
