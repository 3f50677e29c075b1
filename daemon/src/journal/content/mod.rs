//! The store of texts: what events name by its SHA-256 is kept here, each text once.
//!
//! ```text
//!   event with text and name ──▶ text: a row of `blob`, or above 256 KiB a file of `blobs/` ──▶ event with the name
//!   event with the name ──▶ text of that name, one in memory for all that are read together ──▶ event with both
//! ```
//!
//! Owns the table and the files, and how many runs name each text: a text is on disk before an event names it, and goes
//! with the last run that does. Must never choose what is a text with a name: [`crate::blob`] does.

mod attach;
mod files;
mod hold;
mod keep;
mod sweep;
mod whole;

pub(super) use self::attach::{Texts, read};
pub(super) use self::files::Files;
pub(super) use self::hold::Hold;
pub use self::hold::Holds;
pub(super) use self::keep::{Keeper, NotKept};
pub use self::sweep::{SweepError, sweep};
pub(super) use self::whole::{count_again, take_in};

/// Bytes of the longest text that is a row.
const LONGEST_ROW: usize = 256 * 1024;

#[cfg(test)]
mod tests;
