//! Adds colours to output if the user wants them (`--color`, `NO_COLOR`). The only place that decides this. The caller
//! says whether the output is a terminal.

use std::fmt::Display;

use harness_protocol::run::RunState;

/// The value of `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum ColourChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Everywhere, also in a pipe or a file.
    Always,
    /// Nowhere, not even on a terminal.
    Never,
}

/// Adds colours to texts, or leaves them plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Paints nothing: for tests of plain text.
    #[cfg(test)]
    pub(crate) const OFF: Self = Self { on: false };

    /// Colours for a stream, depending on whether it is a terminal.
    pub(crate) fn new(choice: ColourChoice, terminal: bool) -> Self {
        Self {
            on: decide(choice, terminal, &|name| {
                // A value that is not UTF-8 counts as set.
                std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
            }),
        }
    }

    fn wrap(self, code: &str, text: impl Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// For important text.
    pub(crate) fn bold(self, text: impl Display) -> String {
        self.wrap("1", text)
    }

    /// For less important text.
    pub(crate) fn dim(self, text: impl Display) -> String {
        self.wrap("2", text)
    }

    /// Red, for failures.
    pub(crate) fn red(self, text: impl Display) -> String {
        self.wrap("31", text)
    }

    /// Green, for success.
    pub(crate) fn green(self, text: impl Display) -> String {
        self.wrap("32", text)
    }

    /// For waiting things.
    pub(crate) fn yellow(self, text: impl Display) -> String {
        self.wrap("33", text)
    }

    /// For running things.
    pub(crate) fn cyan(self, text: impl Display) -> String {
        self.wrap("36", text)
    }

    /// A state of a run, in its colour.
    pub(crate) fn state(self, state: RunState) -> String {
        match state {
            RunState::Queued | RunState::Waiting | RunState::Paused => self.yellow(state),
            RunState::Thinking | RunState::Acting => self.cyan(state),
            RunState::Succeeded => self.green(state),
            RunState::Failed | RunState::Cancelled => self.red(state),
        }
    }
}

fn decide(choice: ColourChoice, terminal: bool, var: &dyn Fn(&str) -> Option<String>) -> bool {
    match choice {
        ColourChoice::Always => true,
        ColourChoice::Never => false,
        ColourChoice::Auto => {
            terminal
                && var("NO_COLOR").is_none_or(|value| value.is_empty())
                && var("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_the_user_says_otherwise() {
        let none = |_: &str| None;
        let no_color = |name: &str| (name == "NO_COLOR").then(|| "1".to_owned());
        let dumb = |name: &str| (name == "TERM").then(|| "dumb".to_owned());
        assert!(decide(ColourChoice::Auto, true, &none));
        assert!(!decide(ColourChoice::Auto, false, &none));
        assert!(!decide(ColourChoice::Auto, true, &no_color));
        assert!(!decide(ColourChoice::Auto, true, &dumb));
        assert!(decide(ColourChoice::Always, false, &no_color));
        assert!(!decide(ColourChoice::Never, true, &none));
    }
}
