//! The meaning of commands: which runs they select, whether a run may be made, and how runs are ended.

pub(super) mod inherit;
pub(super) mod select;
pub(super) mod submit;
