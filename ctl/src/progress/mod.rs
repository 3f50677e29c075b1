//! The output of a command about runs, while it waits for them and when they end.

pub(crate) mod after_submit;
pub(crate) mod ask_inline;
pub(crate) mod follow_one;
pub(crate) mod line_writer;
pub(crate) mod report;
pub(crate) mod wait;
pub(crate) mod wait_many;
