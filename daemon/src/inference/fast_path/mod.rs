//! Reads the most frequent events of a stream without the JSON parser. Every event that it cannot read, it leaves to
//! the parser.

pub(super) mod repeated_form;
pub(super) mod skim;
pub(super) mod varying_values;
