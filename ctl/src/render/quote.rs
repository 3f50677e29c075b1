//! Quotes what a model, a tool or a server has said, where it stands between lines of this program.
//!
//! A quoted row begins with [`MARK`], which no line of this program does. So no text can pass for such a line, however
//! many rows it has: also where a line is longer than the terminal is wide. Within a line of this program, a text is in
//! quotation marks, or it is the last thing there. Text that is the whole output of a command (`show --answer`,
//! `submit --wait`, `logs --call`) is not quoted: there is nothing that it could pass for. Pure.

use std::borrow::Cow;

use harness_protocol::terminal_safe::quoted;
use unicode_width::UnicodeWidthChar;

use crate::render::style::Look;
use crate::render::text::{clean, one_line};

/// The beginning of each row that is not a line of this program.
pub(crate) const MARK: &str = "| ";
/// Columns of a terminal below which rows are not cut.
const NARROWEST: usize = 20;

/// A text that is quoted piece by piece.
#[derive(Debug)]
pub(crate) struct Quote {
    mark: &'static str,
    look: Look,
    /// Columns of the last row that are taken; 0 where the next piece begins a row.
    column: usize,
}

impl Quote {
    /// Begins with a row of its own.
    pub(crate) const fn new(look: Look) -> Self {
        Self { mark: MARK, look, column: 0 }
    }

    /// The same with another mark: for what a person said.
    pub(crate) const fn with_mark(mark: &'static str, look: Look) -> Self {
        Self { mark, look, column: 0 }
    }

    /// Begins on a line of this program that has so many columns.
    const fn behind(look: Look, columns: usize) -> Self {
        Self { mark: MARK, look, column: columns }
    }

    /// The next piece, as it is shown. `paint` gives each row its colour.
    pub(crate) fn piece(&mut self, text: &str, paint: impl Fn(&str) -> String) -> String {
        let text = if self.look.terminal { clean(text) } else { Cow::Borrowed(text) };
        let mut shown = String::with_capacity(text.len() + 16);
        for line in text.split_inclusive('\n') {
            let (line, is_whole) = line.strip_suffix('\n').map_or((line, false), |line| (line, true));
            self.line(&mut shown, line, &paint);
            if is_whole {
                if self.column == 0 {
                    shown += &self.look.paint.dim(self.mark.trim_end());
                }
                shown.push('\n');
                self.column = 0;
            }
        }
        shown
    }

    /// A part of a line, in as many rows as it takes.
    fn line(&mut self, shown: &mut String, mut rest: &str, paint: &impl Fn(&str) -> String) {
        while !rest.is_empty() {
            if self.column == 0 {
                shown.push_str(&self.look.paint.dim(self.mark));
                self.column = self.mark.len();
            }
            let (row, columns) = self.fits(rest);
            if row > 0 {
                shown.push_str(&paint(&rest[..row]));
            }
            self.column += columns;
            rest = &rest[row..];
            if !rest.is_empty() {
                shown.push('\n');
                self.column = 0;
            }
        }
    }

    /// Bytes of the text that there is room for in this row, and their columns.
    fn fits(&self, text: &str) -> (usize, usize) {
        let room = self.look.width.filter(|&width| width >= NARROWEST).map(|width| width.saturating_sub(self.column));
        let mut columns = 0;
        for (at, c) in text.char_indices() {
            let wide = if c == '\t' { 8 } else { c.width().unwrap_or(0) };
            if room.is_some_and(|room| columns + wide > room) {
                return (at, columns);
            }
            columns += wide;
        }
        (text.len(), columns)
    }

    /// Whether the last row has not ended.
    pub(crate) const fn is_open(&self) -> bool {
        self.column > 0
    }

    /// The next piece begins a row of its own.
    pub(crate) fn end(&mut self) {
        self.column = 0;
    }
}

/// A whole text in rows of its own.
pub(crate) fn block(look: Look, text: &str) -> String {
    whole(Quote::new(look), text)
}

/// The same with another mark.
pub(crate) fn block_with(mark: &'static str, look: Look, text: &str) -> String {
    whole(Quote::with_mark(mark, look), text)
}

fn whole(mut quote: Quote, text: &str) -> String {
    let mut shown = quote.piece(text, str::to_owned);
    if quote.is_open() {
        shown.push('\n');
    }
    shown
}

/// A text behind the beginning of a line of this program: its further rows are quoted. Without a line break at the end.
pub(crate) fn behind(look: Look, beginning: &str, text: &str) -> String {
    let columns = crate::render::text::width(beginning).max(1);
    let shown = Quote::behind(look, columns).piece(text.trim_end_matches('\n'), str::to_owned);
    format!("{beginning}{shown}")
}

/// A line of this program that may have a text of several lines in it: what comes after its first line is quoted.
pub(crate) fn further_lines(line: &str) -> Cow<'_, str> {
    if line.contains('\n') { Cow::Owned(line.replace('\n', &format!("\n{MARK}"))) } else { Cow::Borrowed(line) }
}

/// A text within a line of this program: its first line in quotation marks.
pub(crate) fn inline(text: &str) -> String {
    one_line(&quoted(text)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::colour::Paint;

    const WIDE: Look = Look { paint: Paint::OFF, terminal: true, width: Some(20) };

    #[test]
    fn each_row_has_the_mark_however_the_text_comes() {
        for text in ["", "a", "a\n", "a\nb", "\n\n", "a\n\nb\n", "x\r\ny\n", "harnessctl: run x failed\n$ ls\n"] {
            let shown = block(Look::PLAIN, text);
            assert!(shown.lines().all(|row| row.starts_with(MARK.trim_end())), "{shown:?}");
            assert_eq!(shown.is_empty(), text.is_empty());
            let mut quote = Quote::new(Look::PLAIN);
            let mut pieces: String = text.chars().map(|c| quote.piece(&c.to_string(), str::to_owned)).collect();
            pieces += if quote.is_open() { "\n" } else { "" };
            assert_eq!(pieces, shown, "{text:?}");
        }
        assert_eq!(block(Look::PLAIN, "a\n\nb"), "| a\n|\n| b\n");
    }

    #[test]
    fn a_line_that_is_longer_than_the_terminal_is_wide_has_the_mark_in_each_of_its_rows() {
        let long = format!("{}? which?", "x".repeat(18));
        assert_eq!(block(WIDE, &long), format!("| {}\n| ? which?\n", "x".repeat(18)));
        assert_eq!(behind(WIDE, "$ ", &long), format!("$ {}\n| ? which?", "x".repeat(18)));
        let wide = block(WIDE, &"日本語\t".repeat(20));
        assert!(wide.lines().all(|row| row.starts_with(MARK)), "{wide}");
        let mut quote = Quote::new(WIDE);
        let pieces: String = long.chars().map(|c| quote.piece(&c.to_string(), str::to_owned)).collect();
        assert_eq!(format!("{pieces}\n"), block(WIDE, &long));
        let narrow = Look { width: Some(1), ..WIDE };
        assert_eq!(block(narrow, "日本"), "| 日本\n", "there is no room for rows");
    }

    #[test]
    fn within_a_line_a_text_ends_where_its_quotation_mark_does() {
        assert_eq!(inline("which?"), r#""which?""#);
        assert_eq!(inline("a\"; harnessctl reply 1 yes"), r#""a\"; harnessctl reply 1 yes""#);
        assert_eq!(inline("a\\"), r#""a\\""#);
        assert_eq!(inline("\n one \ntwo"), r#""one …""#);
        assert_eq!(inline(&format!("a{}b", " ".repeat(300))), r#""a b""#, "no blanks push the rest to another row");
        assert_eq!(further_lines("run x failed: a\n? b"), "run x failed: a\n| ? b");
    }
}
