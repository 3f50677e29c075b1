//! Texts that come from models and tools, made fit for a terminal: no control characters, one line, so many columns.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Takes out control characters other than line breaks and tabs: what a tool prints must not drive our terminal.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    // A carriage return before a line break is only a line break; alone it would hide what stands before it.
    Cow::Owned(text.replace("\r\n", "\n").replace(harmful, "\u{FFFD}"))
}

/// The first line that is not blank, without control characters.
pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim_end().to_owned()
}

/// Cuts a text to so many columns, with an ellipsis where something is missing.
pub(crate) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used + 1 > columns {
            break;
        }
        kept.push(c);
    }
    if columns > 0 {
        kept.push('…');
    }
    Cow::Owned(kept)
}

/// Cuts a line with colours to so many columns; they take none, and end with it.
pub(crate) fn cut_painted(line: &str, columns: usize) -> Cow<'_, str> {
    let mut kept = String::new();
    let (mut used, mut colour) = (0, false);
    // Where the line has to end if it turns out too long: one column is left for the ellipsis.
    let mut fits = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\x1b' {
            let code: String = chars.by_ref().take_while(|&c| c != 'm').collect();
            colour = code != "[0";
            kept += &format!("\x1b{code}m");
            continue;
        }
        used += c.width().unwrap_or(0);
        if used + 1 > columns && fits.is_none() {
            fits = Some((kept.len(), colour));
        }
        if used > columns {
            let (end, colour) = fits.unwrap_or_default();
            kept.truncate(end);
            kept += if columns > 0 { "…" } else { "" };
            kept += if colour { "\x1b[0m" } else { "" };
            return Cow::Owned(kept);
        }
        kept.push(c);
    }
    Cow::Borrowed(line)
}

/// Why a run ended as it did: its error, unless that only says the same as its state.
pub(crate) fn why(state: &str, error: &str) -> String {
    if error.trim() == state { String::new() } else { format!(": {}", clean(error)) }
}

/// Ends a text with a line break, unless it has one.
pub(crate) fn with_newline(text: &str) -> Cow<'_, str> {
    if text.ends_with('\n') { Cow::Borrowed(text) } else { Cow::Owned(format!("{text}\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_a_tool_do_not_reach_the_terminal() {
        assert_eq!(clean("a\tb\nc"), "a\tb\nc");
        assert_eq!(clean("a\x1b[2Jb\r\nc\rd"), "a\u{FFFD}[2Jb\nc\u{FFFD}d");
        assert_eq!(clean("\u{9b}2J"), "\u{FFFD}2J", "the one-character form too");
    }

    #[test]
    fn a_cut_text_fits_and_says_that_it_was_cut() {
        assert_eq!(cut("hello", 5), "hello");
        assert_eq!(cut("hello!", 5), "hell…");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("hello", 0), "");
    }

    #[test]
    fn colours_take_no_columns_and_end_where_a_line_is_cut() {
        assert_eq!(cut_painted("\x1b[31mab\x1b[0mc", 3), "\x1b[31mab\x1b[0mc");
        assert_eq!(cut_painted("\x1b[31mabcd\x1b[0m", 3), "\x1b[31mab…\x1b[0m");
        assert_eq!(cut_painted("\x1b[31ma\x1b[0mbcd", 3), "\x1b[31ma\x1b[0mb…");
        assert_eq!(cut_painted("日本語", 5), "日本…");
        assert_eq!(cut_painted("abc", 0), "");
    }

    #[test]
    fn nothing_is_said_twice() {
        assert_eq!(why("cancelled", "cancelled"), "");
        assert_eq!(why("cancelled", "by uid 0"), ": by uid 0");
    }

    #[test]
    fn the_first_line_is_the_first_that_says_something() {
        assert_eq!(first_line("\n  \n one\x07two \nthree"), " one two");
        assert_eq!(first_line(""), "");
    }
}
