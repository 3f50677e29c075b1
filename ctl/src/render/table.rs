//! Renders tables: each column is as wide as its widest cell, and the last one is cut to the width of the terminal. It
//! must not write a control character of a cell: each cell is made safe for a terminal when it is made.
//!
//! Own code instead of `comfy-table`, which wraps cells and shrinks all columns. Here a row is always one line, ids are
//! never cut, and a narrow terminal loses columns by importance.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::render::style::Look;
use crate::render::text::{cut, cut_painted, one_line, width};

/// A cell: its text without colours, and the same text with colours.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    plain: String,
    painted: Option<String>,
}

impl Cell {
    /// A cell with its painted form.
    pub(crate) fn painted(plain: impl Into<String>, painted: String) -> Self {
        Self { plain: plain.into(), painted: Some(painted) }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        // Names and commands come from outside: they must not break the line or control the terminal.
        let text: String = text.into();
        let plain = match one_line(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(plain) => plain,
        };
        Self { plain, painted: None }
    }
}

/// Rows under a header, written at once.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<String>,
    /// Columns that are aligned to the right.
    right: Vec<bool>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with these columns; a name that begins with `>` is aligned to the right.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let header = columns.iter().map(|name| name.trim_start_matches('>').to_owned()).collect();
        Self { header, right: columns.iter().map(|name| name.starts_with('>')).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Whether it has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes it, each line after `indent`.
    pub(crate) fn write(&self, out: &mut dyn Write, look: Look, indent: &str) -> io::Result<()> {
        self.lines(look, indent).iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    /// The lines of the table, the header first. On a terminal no line is wider than the terminal.
    pub(crate) fn lines(&self, look: Look, indent: &str) -> Vec<String> {
        let mut lines = Vec::with_capacity(self.rows.len() + 1);
        let last = self.header.len().saturating_sub(1);
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width(&cell.plain));
                cells.chain([width(&self.header[column])]).max().unwrap_or_default()
            })
            .collect();
        let before_last = indent.len() + widths[..last].iter().map(|w| w + 2).sum::<usize>();
        let header: Vec<Cell> =
            self.header.iter().map(|name| Cell::painted(name.as_str(), look.paint.dim(name))).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = indent.to_owned();
            for (column, cell) in row.iter().enumerate() {
                let mut text = Cow::Borrowed(cell.painted.as_deref().unwrap_or(&cell.plain));
                let mut columns = width(&cell.plain);
                let room = look.width.map(|w| w.saturating_sub(before_last).max(8));
                if let Some(room) = room.filter(|&room| column == last && columns > room) {
                    text = cut(&cell.plain, room);
                    columns = room;
                }
                let padding = std::iter::repeat_n(' ', widths[column].saturating_sub(columns));
                if self.right[column] {
                    line.extend(padding.clone());
                }
                line += &text;
                if column < last {
                    if !self.right[column] {
                        line.extend(padding);
                    }
                    line += "  ";
                }
            }
            let line = line.trim_end();
            lines.push(look.width.map_or(line.into(), |columns| cut_painted(line, columns)).into_owned());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn written(width: Option<usize>) -> String {
        let mut table = Table::new(&["ID", ">STEPS", "TITLE"]);
        table.row(vec!["abc".into(), "12".into(), "a title that goes on".into()]);
        table.row(vec!["d".into(), "3".into(), "".into()]);
        let mut out = Vec::new();
        table.write(&mut out, Look { width, ..Look::PLAIN }, "").unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_as_wide_as_what_stands_in_them() {
        assert_eq!(written(None), "ID   STEPS  TITLE\nabc     12  a title that goes on\nd        3\n");
    }

    #[test]
    fn the_last_column_is_cut_to_the_terminal() {
        assert_eq!(written(Some(22)), "ID   STEPS  TITLE\nabc     12  a title t…\nd        3\n");
        assert_eq!(written(Some(9)), "ID   STE…\nabc     …\nd       …\n", "where there is no room for it, the line is");
    }
}
