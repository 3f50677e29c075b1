//! The style of output: with colours or without, for a person or for a program, and how wide.

use crate::render::colour::Paint;

/// The style of output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// Adds colours, where they are wanted.
    pub(crate) paint: Paint,
    /// The output is a terminal: control characters are removed, and tables are cut to its width.
    pub(crate) terminal: bool,
    /// Columns of the terminal.
    pub(crate) width: Option<usize>,
}

impl Look {
    /// For programs and files: plain and whole.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { paint: Paint::OFF, terminal: false, width: None };
}
