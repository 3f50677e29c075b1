//! Counts the bytes of a value as JSON, and cuts texts to such a size.
//!
//! Pure. A frame is JSON, so every bound of a frame counts these bytes, and not the bytes of the text itself: one
//! control character takes six. The callers own the bounds.

use std::borrow::Cow;
use std::io;

use crate::terminal_safe::is_invisible;
use serde::Serialize;

/// Bytes of a text inside the quotes of a JSON string.
pub fn text_bytes(text: &str) -> usize {
    // The sizes of a piece add up to less than 256, so the processor can add many bytes at once.
    let more = |piece: &[u8]| usize::from(piece.iter().map(|&byte| escape(byte)).sum::<u8>());
    text.len() + text.as_bytes().chunks(PIECE).map(more).sum::<usize>()
}

/// Bytes of a text that are added up at once.
const PIECE: usize = 32;

/// Whether a text takes more than `most` bytes inside a JSON string. Most texts are far below, and are not scanned.
pub fn is_longer(text: &str, most: usize) -> bool {
    text.len() > most / 6 && text_bytes(text) > most
}

/// Bytes that a byte of a text takes in a JSON string in addition to itself: one for a short escape, five for a long
/// one.
fn escape(byte: u8) -> u8 {
    let is_short = matches!(byte, b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0C);
    let is_control = byte < 0x20;
    u8::from(is_short) + 5 * u8::from(is_control && !is_short)
}

/// Bytes that one byte of a text takes inside a JSON string.
fn byte_size(byte: u8) -> usize {
    1 + usize::from(escape(byte))
}

/// Bytes of a value as JSON; `usize::MAX` if it has no JSON form.
pub fn value_bytes<T: Serialize + ?Sized>(value: &T) -> usize {
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value).map_or(usize::MAX, |()| counter.0)
}

/// Counts the written bytes, and keeps none.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The beginning of a text that takes at most `most` bytes inside a JSON string. Cuts between characters.
pub fn prefix(text: &str, most: usize) -> &str {
    // No byte takes more than six.
    if text.len() <= most / 6 {
        return text;
    }
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += text.as_bytes()[at..at + c.len_utf8()].iter().map(|&byte| byte_size(byte)).sum::<usize>();
        if used > most {
            return &text[..at];
        }
    }
    text
}

/// A text of at most `most` bytes inside a JSON string. If a part is left out, a mark at the end says how many bytes.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    let fits = prefix(text, most);
    if fits.len() == text.len() {
        return Cow::Borrowed(text);
    }
    // The mark contains a number of at most 20 digits.
    let kept = prefix(text, most.saturating_sub(MARK_BYTES));
    Cow::Owned(format!("{kept}… [{} more bytes]", text.len() - kept.len()))
}

/// Bytes of the longest mark that [`cut`] adds.
const MARK_BYTES: usize = 40;

/// A text of a client as an error message quotes it: in quotes, escaped, at most 80 characters of it.
pub fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    let told = match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{:?}…", &text[..at]),
        None => format!("{text:?}"),
    };
    // Some invisible characters are not escaped by that.
    if !told.contains(is_invisible) {
        return told;
    }
    told.chars().map(|c| if is_invisible(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A6: the counted size is the size that is written.
        #[test]
        fn the_size_of_a_text_is_that_of_its_json(text in "[\\PC\\x00-\\x1f\"\\\\\u{7f}\u{2028}\u{1F600}]{0,60}") {
            let written = serde_json::to_string(&text).map_or(0, |json| json.len());
            prop_assert_eq!(text_bytes(&text) + 2, written);
            for most in [0, text.len() / 6, text.len(), written.saturating_sub(3), written - 2, written] {
                prop_assert_eq!(is_longer(&text, most), text_bytes(&text) > most, "{}", most);
            }
            prop_assert_eq!(value_bytes(&text), written);
        }

        #[test]
        fn a_text_that_is_cut_fits_and_is_a_begin(
            text in "[a\\x00-\\x1f\"\\\\é\u{1F600}]{0,200}",
            most in 0usize..300,
        ) {
            let kept = prefix(&text, most);
            prop_assert!(text.starts_with(kept) && text_bytes(kept) <= most);
            if let Some(next) = text[kept.len()..].chars().next() {
                prop_assert!(text_bytes(kept) + text_bytes(next.encode_utf8(&mut [0; 4])) > most);
            }
            prop_assert!(text_bytes(&cut(&text, most)) <= most.max(MARK_BYTES));
            prop_assert_eq!(cut(&text, most) == text, text_bytes(&text) <= most);
        }
    }

    #[test]
    fn a_mark_says_how_much_is_missing() {
        assert_eq!(cut(&"a".repeat(100), 60), format!("{}… [80 more bytes]", "a".repeat(20)));
        assert_eq!(quoted("a\u{7f}b"), "\"a\\u{7f}b\"");
        assert_eq!(quoted(&"x".repeat(81)), format!("\"{}\"…", "x".repeat(80)));
    }
}
