//! What commands mean: which runs are selected, whether a run may be made, and how runs are ended.

pub(super) mod inherit;
pub(super) mod select;
pub(super) mod submit;
