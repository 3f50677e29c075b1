//! Decides what commands mean: which runs they select, and whether a run may be made.

pub(super) mod inherit;
pub(super) mod select;
pub(super) mod submit;
