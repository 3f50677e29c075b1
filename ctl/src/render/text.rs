//! Makes texts of models and tools safe for a terminal: without control characters, on one line, or cut to a number of
//! columns. Pure.

use std::borrow::Cow;

pub(crate) use harness_protocol::terminal_safe::clean;
use harness_protocol::terminal_safe::{in_place_of, is_control, is_harmful};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Number of columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    if is_plain(text) { text.len() } else { text.width() }
}

/// Whether a text is visible ASCII and blanks, as most are: each byte is a column, and none is harmful.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// A text from outside on one line, fit for a terminal: like [`clean`], and control characters become blanks.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if is_plain(text) || !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| match c {
        c if is_control(c) => Some(' '),
        c if is_harmful(c) => in_place_of(c),
        c => Some(c),
    };
    Cow::Owned(text.chars().filter_map(shown).collect())
}

/// The first line that is not blank, fit for a terminal.
pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    one_line(line).trim_end().to_owned()
}

/// The same; its end says how many more there are.
pub(crate) fn brief(text: &str) -> String {
    match text.lines().filter(|line| !line.trim().is_empty()).count() {
        0 | 1 => first_line(text),
        2 => first_line(text) + "… (+1 line)",
        lines => format!("{}… (+{} lines)", first_line(text), lines - 1),
    }
}

/// A line that may have colours of ours, fit for a terminal: our colours stay, and everything else is cleaned.
pub(crate) fn clean_painted(line: &str) -> Cow<'_, str> {
    if !line.contains(|c: char| is_harmful(c) && c != '\n' && c != '\t') {
        return Cow::Borrowed(line);
    }
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\x1b') {
        shown.push_str(&clean(before));
        let colour = after.strip_prefix('[').and_then(|code| code.split_once('m'));
        match colour.filter(|(code, _)| matches!(*code, "0" | "1" | "2" | "31" | "32" | "33" | "36")) {
            Some((code, behind)) => {
                shown += &format!("\x1b[{code}m");
                rest = behind;
            }
            None => {
                shown.push('\u{FFFD}');
                rest = after;
            }
        }
    }
    shown.push_str(&clean(rest));
    Cow::Owned(shown)
}

/// A JSON text, fit for a terminal and the same for a program: harmful characters can only be in strings, and are
/// escaped.
pub(crate) fn harmless_json(json: &str) -> Cow<'_, str> {
    let harmful = |c: char| is_harmful(c) && c != '\n';
    if !json.contains(harmful) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if harmful(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                shown += &format!("\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Cuts a text to this number of columns, with an ellipsis where a part is missing.
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

/// Cuts a line with colours to this number of columns; colours take none, and end with the line.
pub(crate) fn cut_painted(line: &str, columns: usize) -> Cow<'_, str> {
    let mut kept = String::new();
    let (mut used, mut colour) = (0, false);
    // The place at which the line is cut if it is too long: one column is left for the ellipsis.
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

/// The reason of a run's end: its error, unless that equals the state.
pub(crate) fn why(state: &str, error: &str) -> String {
    if error.trim() == state { String::new() } else { format!(": {}", one_line(error.trim())) }
}

/// Ends a text with a line break, unless it has one.
pub(crate) fn with_newline(text: &str) -> Cow<'_, str> {
    if text.ends_with('\n') { Cow::Borrowed(text) } else { Cow::Owned(format!("{text}\n")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_single_line_says_how_many_it_leaves_out() {
        assert_eq!(brief("a\n\n"), "a");
        assert_eq!(brief("\na\nb"), "a… (+1 line)");
        assert_eq!(brief("a\n\nb\nc"), "a… (+2 lines)");
    }

    #[test]
    fn escapes_of_a_tool_do_not_reach_the_terminal() {
        assert_eq!(clean("a\tb\nc"), "a\tb\nc");
        assert_eq!(clean("a\x1b[2Jb\r\nc\rd"), "a\u{FFFD}[2Jb\nc\u{FFFD}d");
        assert_eq!(clean("\u{9b}2J"), "\u{FFFD}2J", "the one-character form too");
    }

    /// Entry A17 in `tests/README.md`.
    #[test]
    fn characters_that_change_the_order_or_are_invisible_are_shown_or_removed() {
        for (text, many_lines, line) in [
            ("a\u{202E}b", "a\u{FFFD}b", "a\u{FFFD}b"),
            ("a\u{2066}b\u{2069}", "a\u{FFFD}b\u{FFFD}", "a\u{FFFD}b\u{FFFD}"),
            ("a\u{200B}b\u{FEFF}", "a\u{FFFD}b\u{FFFD}", "a\u{FFFD}b\u{FFFD}"),
            ("a\u{2028}b\u{85}c", "a\u{FFFD}b\u{FFFD}c", "a b c"),
            ("\u{1F469}\u{200D}\u{1F680}", "\u{1F469}\u{1F680}", "\u{1F469}\u{1F680}"),
            ("a\u{E0041}\u{E0042}", "a\u{FFFD}\u{FFFD}", "a\u{FFFD}\u{FFFD}"),
            ("a\nb\tc", "a\nb\tc", "a b c"),
            ("l'été 日本 e\u{301}", "l'été 日本 e\u{301}", "l'été 日本 e\u{301}"),
        ] {
            assert_eq!((clean(text).as_ref(), one_line(text).as_ref()), (many_lines, line));
        }
        assert_eq!(
            clean_painted("\x1b[31mred\x1b[0m\x1b[2J\x1b]0;x\x07"),
            "\x1b[31mred\x1b[0m\u{FFFD}[2J\u{FFFD}]0;x\u{FFFD}"
        );
        assert_eq!(clean_painted("\x1b[31\x1b[1mx"), "\u{FFFD}[31\x1b[1mx");
    }

    /// Entry B12 in `tests/README.md`.
    #[test]
    fn json_on_a_terminal_says_the_same_and_drives_nothing() {
        for text in [
            "\u{9b}2Jgone",
            "a\u{85}b\u{9d}0;title\u{9c}",
            "\u{202e}txt.exe",
            "\u{2066}x\u{2069}",
            "\u{200b}\u{feff}\u{ad}",
            "\u{e0041}tag",
            "\u{7f}\u{80}\u{9f}",
            "\u{1b}[31m and \u{7}",
            "plain 日本 \u{1F469}",
        ] {
            let json = serde_json::to_string(&[text]).unwrap();
            let shown = harmless_json(&json);
            assert!(!shown.chars().any(is_harmful), "{shown}");
            assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap()[0], text);
        }
        assert!(matches!(harmless_json("{\"a\":\"日本\"}"), Cow::Borrowed(_)));
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
