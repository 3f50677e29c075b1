//! The commands about questions, a file each.

pub(super) mod pending;
pub(super) mod reply;
