//! Renders texts for people: colours, tables, bars. Each function writes to the writer that it gets. It must not ask
//! the daemon or the user.

pub(crate) mod bar;
pub(crate) mod colour;
pub(crate) mod follow;
#[cfg(test)]
mod hostile_tests;
pub(crate) mod lane;
pub(crate) mod live;
pub(crate) mod quote;
pub(crate) mod result_line;
pub(crate) mod run;
pub(crate) mod screen;
pub(crate) mod status;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod time_and_usage;
pub(crate) mod transcript;
pub(crate) mod units;
