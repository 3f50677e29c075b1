//! A run as it is shown, and what of it fits into an answer. Reads, and never changes anything.

pub(in crate::world) mod fit;
pub(in crate::world) mod run;

pub use fit::{REPLY_BYTES, fit, fit_list, leave_room, view_bytes};
pub(crate) use run::while_held;
