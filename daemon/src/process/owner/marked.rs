//! Starts processes with the mark of a run, for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use super::own_mark::Standing;
use super::survivors::{KeepersLock, StateOf, TakeOverError, lower};

/// The command of a process that has started, and stays.
pub(super) const STAYS: &str = "echo it runs >&2; exec sleep 100";
pub(super) const OUTSIDE_OF_ALL: u64 = u64::MAX;

pub(super) fn take_over(state_dir: &Path) -> Result<KeepersLock, TakeOverError> {
    KeepersLock::take_over(state_dir, StateOf::Nobody, Standing::of(u64::MAX, Vec::new()))
}

pub(super) fn state() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Variables that tell the test below to act as a marked process: its mark, its shell command, and the file to
/// lock.
const BE_MARKED: [&str; 3] = ["HARNESS_TEST_MARK", "HARNESS_TEST_COMMAND", "HARNESS_TEST_LOCKED"];

#[test]
fn a_shell_with_a_mark_when_it_is_started_as_one() {
    if let [Ok(mark), Ok(command), Ok(locked)] = BE_MARKED.map(std::env::var) {
        // As a keeper does.
        nix::unistd::setsid().unwrap();
        lower(mark.parse().unwrap()).unwrap();
        let mut shell = Command::new("sh");
        if !locked.is_empty() {
            let file = File::open(locked).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            shell.stdin(file);
        }
        panic!("{}", shell.args(["-c", &command]).exec());
    }
}

/// A process with that limit. It locks this file, if a file is named, and has written a line.
pub(super) fn marked_process(mark: u64, locked: &Path, command: &str) -> Child {
    let name = "process::owner::marked::a_shell_with_a_mark_when_it_is_started_as_one";
    let mut child = Command::new("/proc/self/exe")
        .args(["--exact", "--nocapture", name])
        .env(BE_MARKED[0], mark.to_string())
        .env(BE_MARKED[1], command)
        .env(BE_MARKED[2], locked)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "it runs\n");
    child
}

pub(super) fn was_killed(child: &mut Child) -> bool {
    use std::os::unix::process::ExitStatusExt;
    child.wait().unwrap().signal() == Some(9)
}

pub(super) fn lives(child: &mut Child) -> bool {
    let lives = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    lives
}
