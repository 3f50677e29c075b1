//! A fast path around the JSON parser, for the most frequent events of a stream.

pub(super) mod repeated_form;
pub(super) mod skim;
pub(super) mod varying_values;
