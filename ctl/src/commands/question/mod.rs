//! Contains the commands about questions of runs, a file each.

pub(super) mod pending;
pub(super) mod reply;
