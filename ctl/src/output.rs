//! Standard output and what is known of it: buffered, flushed on purpose, coloured and cut only for people.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use crate::render::colour::{ColourChoice, Paint};
use crate::render::text::clean_painted;

/// How text is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// Colours.
    pub(crate) paint: Paint,
    /// A person reads it on a terminal: control characters are taken out, tables are cut to its width.
    pub(crate) terminal: bool,
    /// Columns of the terminal.
    pub(crate) width: Option<usize>,
}

impl Look {
    /// For programs and files: plain and whole.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { paint: Paint::OFF, terminal: false, width: None };
}

/// Standard output.
#[derive(Debug)]
pub(crate) struct Out {
    buffer: BufWriter<StdoutLock<'static>>,
    /// How text is shown on it.
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

    /// Looks how large the terminal is by now; gives its rows. A window is resized while it is watched.
    pub(crate) fn measure(&mut self) -> usize {
        let (width, rows) = window().unwrap_or((80, 24));
        self.look.width = self.look.terminal.then_some(width);
        rows
    }
}

/// Columns and rows of the terminal that standard output is.
fn window() -> Option<(usize, usize)> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, height)| (width.0.into(), height.0.into()))
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
        // What was not flushed on purpose belongs to a command that failed already: its reader may have left.
        let _lost = self.buffer.flush();
    }
}

/// Writes one line to standard error. Where that is gone there is nobody left to tell.
pub(crate) fn note(line: impl std::fmt::Display) {
    let mut err = io::stderr().lock();
    let line = line.to_string();
    // Notes are for people; a file gets them as they are.
    let line = if err.is_terminal() { clean_painted(&line) } else { line.as_str().into() };
    let _told = writeln!(err, "{line}");
}

/// A line on standard error that is written over, for progress on a terminal; nothing elsewhere.
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

    /// Shows `text` in place of what was shown before.
    pub(crate) fn show(&mut self, text: impl std::fmt::Display) {
        if self.terminal {
            let mut err = io::stderr().lock();
            let _told = write!(err, "\r\x1b[K{text}").and_then(|()| err.flush());
            self.shown = true;
        }
    }

    /// Takes it away.
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
