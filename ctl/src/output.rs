//! Writes standard output and notes on standard error. Output is buffered, and flushed at defined points. Only a
//! terminal gets colours and lines that are cut to its width.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use crate::render::colour::{ColourChoice, Paint};
use crate::render::quote::{MARK, further_lines};
use crate::render::style::Look;
use crate::render::text::{clean_painted, harmless_json};

/// Standard output, with the style in which text is written to it.
#[derive(Debug)]
pub(crate) struct Out {
    buffer: BufWriter<StdoutLock<'static>>,
    /// The style of the text on it.
    pub(crate) look: Look,
}

impl Out {
    /// Takes standard output.
    pub(crate) fn new(choice: ColourChoice) -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let width = terminal.then(window).flatten().map(|(width, _)| width);
        let look = Look { paint: Paint::new(choice, terminal), terminal, width };
        Self { buffer: BufWriter::with_capacity(64 * 1024, stdout.lock()), look }
    }

    /// Measures the terminal anew; gives its rows. A window may be resized while it is watched.
    pub(crate) fn measure(&mut self) -> usize {
        let (width, rows) = window().unwrap_or((80, 24));
        self.look.width = self.look.terminal.then_some(width);
        rows
    }
}

/// Columns and rows of standard output, if it is a terminal.
fn window() -> Option<(usize, usize)> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, height)| (width.0.into(), height.0.into()))
}

impl Out {
    /// Writes a JSON text as a line. On a terminal no character in it moves the cursor or changes the reading order.
    pub(crate) fn json_text(&mut self, json: &str) -> io::Result<()> {
        let json = if self.look.terminal { harmless_json(json) } else { json.into() };
        writeln!(self.buffer, "{json}")
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.buffer.flush()
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        // Unflushed output belongs to a command that failed already: its reader may have left.
        let _lost = self.buffer.flush();
    }
}

/// Tags the lines of one of several runs that write at the same time; a line is written once it is whole.
#[derive(Debug)]
pub(crate) struct Tagged {
    tag: String,
    open: Vec<u8>,
    /// Whether the last line was cut: what comes next is the rest of it.
    is_cut: bool,
}

/// Bytes of a line that is written without its end: a command may never end a line.
const LONGEST_OPEN: usize = 8 * 1024;

impl Tagged {
    /// Lines that begin with `tag`.
    pub(crate) fn new(tag: String) -> Self {
        Self { tag, open: Vec::new(), is_cut: false }
    }

    /// The tag of the lines.
    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }

    /// A writer that tags lines on their way to `out`.
    pub(crate) fn on<'a>(&'a mut self, out: &'a mut dyn Write) -> TaggedOn<'a> {
        TaggedOn { lines: self, out }
    }

    /// Writes the unfinished line, if there is one.
    pub(crate) fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        let mut line = std::mem::take(&mut self.open);
        line.push(b'\n');
        self.write_line(out, &line)
    }

    fn write_line(&self, out: &mut dyn Write, line: &[u8]) -> io::Result<()> {
        out.write_all(self.tag.as_bytes())?;
        out.write_all(line)
    }
}

/// Standard output that tags its lines; see [`Tagged::on`].
pub(crate) struct TaggedOn<'a> {
    lines: &'a mut Tagged,
    out: &'a mut dyn Write,
}

impl Write for TaggedOn<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if std::mem::take(&mut self.lines.is_cut) {
                // Without the mark it would look like a line of ours.
                self.lines.open.extend_from_slice(MARK.as_bytes());
            }
            self.lines.open.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.lines.open);
                self.lines.write_line(self.out, &line)?;
            } else if self.lines.open.len() > LONGEST_OPEN {
                self.lines.end(self.out)?;
                self.lines.is_cut = true;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The style of what stands on the terminal that is standard error.
pub(crate) fn notes_look(paint: Paint) -> Look {
    let width = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0.into());
    Look { paint, terminal: true, width }
}

/// Writes one line to standard error. A closed standard error is ignored.
pub(crate) fn note(line: impl std::fmt::Display) {
    let mut err = io::stderr().lock();
    let line = line.to_string();
    // A note is one line of ours. What it has beyond that, others said.
    let line = further_lines(&line);
    // Notes are for people; a file gets them unchanged.
    let line = if err.is_terminal() { clean_painted(&line) } else { line.as_ref().into() };
    let _told = writeln!(err, "{line}");
}

/// A progress line on standard error that overwrites itself on a terminal; silent elsewhere.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    terminal: bool,
}

impl Progress {
    /// Shows nothing yet.
    pub(crate) fn new() -> Self {
        Self { shown: false, terminal: io::stderr().is_terminal() }
    }

    /// Shows `text` in place of the earlier text.
    pub(crate) fn show(&mut self, text: impl std::fmt::Display) {
        if self.terminal {
            let mut err = io::stderr().lock();
            let text = text.to_string();
            let _told = write!(err, "\r\x1b[K{}", clean_painted(&text)).and_then(|()| err.flush());
            self.shown = true;
        }
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let mut err = io::stderr().lock();
            let _told = write!(err, "\r\x1b[K").and_then(|()| err.flush());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Entry U11 in `tests/README.md`.
    #[test]
    fn lines_of_several_are_written_whole_and_say_whose_they_are() {
        let long = "x".repeat(LONGEST_OPEN + 1);
        for (pieces, expected) in [
            (&["one\n"][..], "a | one\n".to_owned()),
            (&["on", "e\ntw", "o\n"], "a | one\na | two\n".to_owned()),
            (&["no end"], "a | no end\n".to_owned()),
            (&["\n\n"], "a | \na | \n".to_owned()),
            (&[], String::new()),
            (&["", "x", "", "\n"], "a | x\n".to_owned()),
            (&[long.as_str(), "y\n"], format!("a | {long}\na | | y\n")),
        ] {
            let (mut lines, mut out) = (Tagged::new("a | ".to_owned()), Vec::new());
            pieces.iter().for_each(|piece| lines.on(&mut out).write_all(piece.as_bytes()).unwrap());
            lines.end(&mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
