//! Builds the view of a run for clients, and limits its size. It reads the world, and must not change it.

pub(in crate::world) mod line;
pub(in crate::world) mod reads;
pub(in crate::world) mod run;
pub(in crate::world) mod size_limits;

pub(crate) use run::while_held;
pub use size_limits::{REPLY_BYTES, fit, leave_room};
