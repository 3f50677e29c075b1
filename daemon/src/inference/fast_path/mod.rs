//! A fast path around the JSON parser, for the most frequent events of a stream.

pub(super) mod form;
pub(super) mod holes;
pub(super) mod skim;
