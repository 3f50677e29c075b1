//! Defines the style of output: with or without colours, for a person or for a program, and its width. Has data only.

use crate::render::colour::Paint;

/// The style of output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// Adds colours, if they are wanted.
    pub(crate) paint: Paint,
    /// Whether the output is a terminal: control characters are removed, and tables are cut to its width.
    pub(crate) terminal: bool,
    /// Columns of the terminal.
    pub(crate) width: Option<usize>,
}

impl Look {
    /// The style for programs and files: plain and complete.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { paint: Paint::OFF, terminal: false, width: None };
}
