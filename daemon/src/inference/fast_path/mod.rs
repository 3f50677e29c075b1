//! A way ahead of the JSON parser for the events that come by the thousand.

pub(super) mod form;
pub(super) mod holes;
pub(super) mod skim;
