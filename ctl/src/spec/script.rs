//! Reads scripts for the scripted provider from TOML files. It must not play one: the daemon does.

use std::path::Path;

use harness_protocol::script::Script;

use crate::error::Failure;
use crate::render::text::cut;
use crate::spec::stdin;

/// Most columns of an error message.
const MOST_SAID: usize = 300;

/// Reads a script from a file, or from standard input for `-`.
pub(crate) fn read(path: &Path) -> Result<Script, Failure> {
    if path == Path::new("-") { check(&stdin::read("the script")?, "standard input") } else { read_file(path) }
}

/// Reads a script from a file of any name.
pub(crate) fn read_file(path: &Path) -> Result<Script, Failure> {
    let text = std::fs::read_to_string(path).map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    check(&text, &path.display().to_string())
}

fn check(text: &str, place: &str) -> Result<Script, Failure> {
    let script = parse(text).map_err(|why| Failure::usage(format!("{place}:{why}")))?;
    if script.turns.is_empty() {
        return Err(Failure::usage_hint(
            format!("{place}: the script has no turns"),
            "a turn: [[turn]] and text = \"…\" on lines of their own",
        ));
    }
    Ok(script)
}

/// Parses a script; the error is `LINE:COLUMN: message`.
fn parse(text: &str) -> Result<Script, String> {
    toml::from_str(text).map_err(|error| {
        // The message may contain a whole value.
        let message = error.message().trim().replace('\n', ", ");
        let message = cut(&message, MOST_SAID);
        match error.span() {
            Some(span) => {
                let (line, column) = position(text, span.start);
                format!("{line}:{column}: {message}")
            }
            None => format!(" {message}"),
        }
    })
}

/// Line and column of a byte, both from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_example_of_the_manual_is_a_script() {
        let text = r#"
            [[turn]]
            text = "Let me look at the directory first."
            [[turn.call]]
            tool = "shell"
            args = { command = "du -sh ." }

            [[turn]]
            expect = ["Exit code: 0"]
            capture = { size = '^(\S+)' }
            text = "It holds ${size}."
            delay = 0.5

            [script.helper]
            [[script.helper.turn]]
            text = "child done"
        "#;
        let script = parse(text).unwrap();
        assert_eq!(script.turns.len(), 2);
        assert_eq!(script.turns[0].calls[0].args["command"], "du -sh .");
        assert_eq!(script.scripts["helper"].turns[0].text, "child done");
    }

    #[test]
    fn a_whole_number_of_seconds_is_a_delay_too() {
        assert!(parse("[[turn]]\ndelay = 2\n").is_ok());
    }

    #[test]
    fn an_error_has_line_and_column() {
        let error = parse("[[turn]]\ntext = \n").unwrap_err();
        assert!(error.starts_with("2:"), "{error}");
        let error = parse("[[turn]]\ntext = \"é\"\ntexxt = \"x\"\n").unwrap_err();
        assert!(error.starts_with("3:1: unknown field `texxt`"), "{error}");
        let error = parse(&format!("[[turn]]\ntext = [\"{0}\"]\n{0} = 1\n", "x".repeat(1 << 20))).unwrap_err();
        assert!(error.starts_with("2:") && error.len() < 1_000, "{error}");
        let error = parse(&format!("[[turn]]\ndelay = \"{}\"\n", "x".repeat(1 << 20))).unwrap_err();
        assert!(error.starts_with("2:") && error.len() < 1_000, "{error}");
    }

    #[test]
    fn a_file_without_turns_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s.toml");
        std::fs::write(&file, "").unwrap();
        assert_eq!(read(&file).unwrap_err().code(), 2);
        assert_eq!(read(&dir.path().join("no.toml")).unwrap_err().code(), 2);
    }
}
