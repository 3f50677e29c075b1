//! What connections may take: how many there are, and what they hold in memory.

pub mod connections;
pub mod memory;
pub mod request_place;
pub(super) mod request_weight;
