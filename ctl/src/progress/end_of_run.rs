//! Reports the end of a run: writes its answer to standard output or to a file, or prints why there is none. It must
//! not wait.

use std::io::Write;
use std::path::Path;

use harness_files::open_to_write;
use harness_protocol::run::{RunState, RunView, exit};

use crate::context::Ctx;
use crate::error::Failure;
use crate::output::note;
use crate::render::text::{clean, one_line, why, with_newline};

/// Checks the directory of the file early, so that no answer is lost because of a typing error.
pub(crate) fn check_output(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        return Err(Failure::usage(format!("{} is a directory", path.display())));
    }
    if !parent.is_dir() {
        return Err(Failure::usage(format!("there is no directory {}", parent.display())));
    }
    Ok(())
}

/// Reports the end of a run: its answer, or its error. Returns its exit code.
pub(crate) fn end(ctx: &mut Ctx, run: &RunView, output: Option<&Path>) -> Result<u8, Failure> {
    for denial in &run.denials {
        note(format_args!("harnessctl: run {}: denied: {}", run.id, one_line(denial)));
    }
    if ctx.json {
        ctx.json(run)?;
    }
    if let Some(answer) = &run.answer {
        match output {
            Some(path) => write_answer(path, answer, &run.id.to_string())?,
            None if ctx.json => {}
            None => {
                let text = with_newline(answer);
                let shown = if ctx.look().terminal { clean(&text) } else { text.as_ref().into() };
                ctx.out.write_all(shown.as_bytes())?;
            }
        }
    }
    ctx.done()?;
    if run.state != RunState::Succeeded {
        let name = run.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
        let why = run.error.as_deref().map(|error| why(run.state.as_str(), error)).unwrap_or_default();
        let verb = if run.state == RunState::Cancelled { "was " } else { "" };
        note(format_args!("harnessctl: run {}{name} {verb}{}{why}", run.id, ctx.notes.state(run.state)));
    }
    Ok(run.exit_code.unwrap_or(exit::STILL_RUNNING))
}

/// Writes an answer into the named file.
pub(crate) fn write_answer(path: &Path, answer: &str, run: &str) -> Result<(), Failure> {
    let written = open_to_write(path).and_then(|mut file| file.write_all(with_newline(answer).as_bytes()));
    written.map_err(|source| Failure::Write {
        path: path.to_owned(),
        source,
        hint: Some(format!("the daemon has the answer: harnessctl show --answer {run}")),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_place_for_the_answer_is_checked_before_there_is_a_run() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_output(&dir.path().join("answer")).is_ok());
        assert!(check_output(Path::new("answer")).is_ok());
        assert_eq!(check_output(dir.path()).unwrap_err().code(), 2);
        assert_eq!(check_output(&dir.path().join("no/answer")).unwrap_err().code(), 2);
    }

    #[test]
    fn a_written_answer_ends_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("answer");
        write_answer(&file, "42", "abc").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "42\n");
        let error = write_answer(&dir.path().join("no/x"), "42", "abc").unwrap_err();
        assert_eq!(error.hint().unwrap(), "the daemon has the answer: harnessctl show --answer abc");
    }
}
