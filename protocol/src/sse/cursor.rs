//! Parses and prints the cursors of our own event streams: decimal numbers of events. A server sends one in the field
//! `id`, and the client sends it back in `Last-Event-ID`.
//!
//! A text that is no such number is an error. It must not be read as "from the start": the client would get everything
//! again.

use std::fmt;
use std::str::FromStr;

use crate::id::Seq;

/// The position of a reader of our events: the number of the last event that it has seen, 0 before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor(pub Seq);

/// A text is not a cursor. A server that read it as "from the start" would send everything again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cursor is a decimal number of at most 64 bits")]
pub struct CursorError;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;
    fn from_str(text: &str) -> Result<Self, CursorError> {
        // The parser of numbers accepts a sign as well.
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(CursorError);
        }
        text.parse().map(|number| Self(Seq(number))).map_err(|_| CursorError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_as_what_it_was() {
        for number in [0, 1, 42, u64::MAX] {
            assert_eq!(Cursor(Seq(number)).to_string().parse(), Ok(Cursor(Seq(number))));
        }
    }

    #[test]
    fn a_cursor_that_is_no_number_is_an_error_and_never_zero() {
        for text in ["", " ", "+1", "-1", " 1", "1 ", "0x1", "1e3", "1_000", "١", "18446744073709551616", "null", "1\n"]
        {
            assert_eq!(text.parse::<Cursor>(), Err(CursorError), "{text:?}");
        }
    }
}
