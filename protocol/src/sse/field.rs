//! Splits one line of an event stream into a field and its value: `data: x` is the field `data` with the value `x`.
//! Keeps no state between lines.

use std::time::Duration;

/// A line that is neither blank nor a comment, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field<'a> {
    Data(&'a [u8]),
    Event(&'a [u8]),
    /// An id without NUL.
    Id(&'a [u8]),
    Retry(Duration),
    /// An error in a line of its own, and its position in the line. The standard has no such field, so it is ignored
    /// unless the caller wants it.
    Error {
        /// Position of `error` in the line.
        word: usize,
        /// Text of the error.
        value: &'a [u8],
    },
    /// An unknown field, or a known one with a value that must be ignored.
    Ignored,
}

impl<'a> Field<'a> {
    #[inline]
    pub(super) fn parse(line: &'a [u8]) -> Self {
        if let Some(value) = value_of(b"data", line) {
            Self::Data(value)
        } else if let Some(value) = value_of(b"event", line) {
            Self::Event(value)
        } else {
            Self::parse_rare(line)
        }
    }

    fn parse_rare(line: &'a [u8]) -> Self {
        if let Some(id) = value_of(b"id", line) {
            return if id.contains(&0) { Self::Ignored } else { Self::Id(id) };
        }
        // `error: {…}` (llama.cpp), and a bare object in the stream.
        if line.starts_with(b"error:") {
            return value_of(b"error", line).map_or(Self::Ignored, |value| Self::Error { word: 0, value });
        }
        if line.starts_with(b"{\"error\"") {
            return Self::Error { word: 2, value: line };
        }
        value_of(b"retry", line).and_then(milliseconds).map_or(Self::Ignored, Self::Retry)
    }
}

/// The name of the event that is made from such a line.
pub(super) const ERROR: &[u8] = b"error";

/// The value, if the field has this name: the text after the colon and one space; empty if there is no colon.
#[inline]
fn value_of<'a, const N: usize>(name: &[u8; N], line: &'a [u8]) -> Option<&'a [u8]> {
    let (found, rest) = line.split_first_chunk::<N>()?;
    if found != name {
        return None;
    }
    match rest {
        [] => Some(rest),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

/// Milliseconds, of ASCII digits only. A number over 32 bits counts as the largest number of 32 bits, seven weeks: no
/// client waits longer, and sums with it cannot overflow.
fn milliseconds(value: &[u8]) -> Option<Duration> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = value.iter().fold(0u32, |sum, digit| sum.saturating_mul(10).saturating_add(u32::from(digit - b'0')));
    Some(Duration::from_millis(number.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_space_after_the_colon_is_framing() {
        assert_eq!(Field::parse(b"data: x"), Field::Data(b"x"));
        assert_eq!(Field::parse(b"data:x"), Field::Data(b"x"));
        assert_eq!(Field::parse(b"data:  x "), Field::Data(b" x "));
        assert_eq!(Field::parse(b"data:\tx"), Field::Data(b"\tx"));
        assert_eq!(Field::parse(b"event::"), Field::Event(b":"));
    }

    #[test]
    fn a_field_without_a_colon_is_empty() {
        assert_eq!(Field::parse(b"data"), Field::Data(b""));
        assert_eq!(Field::parse(b"event"), Field::Event(b""));
        assert_eq!(Field::parse(b"id"), Field::Id(b""));
        assert_eq!(Field::parse(b"retry"), Field::Ignored);
    }

    #[test]
    fn names_are_compared_exactly() {
        for line in
            ["Data:x", " data:x", "data :x", "datax", "dat", "data\0:x", "da-ta:x", "events:x", "ID:1", "identity", "x"]
        {
            assert_eq!(Field::parse(line.as_bytes()), Field::Ignored, "{line:?}");
        }
    }

    #[test]
    fn an_id_with_nul_is_ignored_and_any_other_is_opaque() {
        assert_eq!(Field::parse(b"id: a\0b"), Field::Ignored);
        assert_eq!(Field::parse(b"id:\xff 7"), Field::Id(b"\xff 7"));
    }

    #[test]
    fn a_line_of_an_error_has_a_colon_or_is_an_object() {
        let error = |word, value| Field::Error { word, value };
        assert_eq!(Field::parse(b"error: {}"), error(0, b"{}"));
        assert_eq!(Field::parse(b"error:x"), error(0, b"x"));
        assert_eq!(Field::parse(b"{\"error\":7}"), error(2, b"{\"error\":7}"));
        for line in ["error", "errors: x", " error: x", "Error: x", "{\"errors\":7}", "{}"] {
            assert_eq!(Field::parse(line.as_bytes()), Field::Ignored, "{line:?}");
        }
    }

    #[test]
    fn retry_takes_digits_only() {
        let after = |milliseconds| Field::Retry(Duration::from_millis(milliseconds));
        assert_eq!(Field::parse(b"retry: 03000"), after(3000));
        assert_eq!(Field::parse(b"retry:99999999999999999999"), after(u32::MAX.into()));
        for value in ["", " 1", "1000x", "-1", "+1", "1.5", "0x10", "１"] {
            assert_eq!(Field::parse(format!("retry: {value}").as_bytes()), Field::Ignored, "{value:?}");
        }
    }
}
