//! Asks the user before a command changes more than one run, or before `daemon restore` moves live runs aside. `--yes`
//! skips the question.
//!
//! The only place that asks, and that decides whether a person is there and what counts as yes. The commands decide how
//! many runs are meant. A script is not asked, because no person can answer: the command continues.

use std::io::{self, BufRead, IsTerminal, Write};

use harness_protocol::run::exit;
use harness_protocol::terminal_safe::clean;

use rustix::termios::tcgetsid;

use crate::error::Failure;

/// Continues without a question if at most one run is meant, or if there is no terminal. Otherwise asks, and continues
/// if the answer is yes.
///
/// # Errors
/// If the answer is anything else.
pub(crate) fn more_than_one(runs: usize, yes: bool, question: &str) -> Result<(), Failure> {
    any(runs.saturating_sub(1), yes, question)
}

/// Like [`more_than_one`], but a single run also needs an answer.
///
/// # Errors
/// If the answer is anything else.
pub(crate) fn any(runs: usize, yes: bool, question: &str) -> Result<(), Failure> {
    if runs == 0 || yes || !is_attended() {
        return Ok(());
    }
    let mut err = io::stderr().lock();
    // If the question cannot be written, there is no answer below.
    let _asked = write!(err, "{} [y/N] ", clean(question)).and_then(|()| err.flush());
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && is_yes(&answer) {
        return Ok(());
    }
    Err(Failure::Other { code: exit::USAGE, message: "nothing was done".to_owned(), hint: None })
}

/// Whether a person can read the question and type the answer: standard input has to be the terminal that controls
/// this process. Into a terminal that controls no process, any process of the user may type (`TIOCSTI`).
pub(crate) fn is_attended() -> bool {
    tcgetsid(io::stdin()).is_ok() && io::stderr().is_terminal()
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for yes in ["y\n", "Y", " yes \n", "YES\n"] {
            assert!(is_yes(yes), "{yes:?}");
        }
        for no in ["", "\n", "n\n", "no", "yess", "ja", "y y", "1"] {
            assert!(!is_yes(no), "{no:?}");
        }
    }

    #[test]
    fn one_run_and_a_script_are_not_asked() {
        assert!(more_than_one(1, false, "?").is_ok());
        assert!(more_than_one(0, false, "?").is_ok());
        assert!(more_than_one(1_000, true, "?").is_ok());
    }
}
