//! What is to be started, and why it was not.
//!
//! Owns the check of what the kernel would not take, and the words for it. Starts nothing: that is the keeper's.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use harness_protocol::limit::CallLimits;
use nix::libc;

use super::cgroup::Group;
use super::launch::instructions;
use super::wire;

/// Longest single argument or variable that the kernel takes, with its end.
const LONGEST_STRING: usize = 128 * 1024;

/// What to start.
#[derive(Debug, Clone, Copy)]
pub enum Program<'a> {
    /// A text for `sh -c`.
    Shell(&'a str),
    /// A program, by path or by name, with its arguments.
    Argv(&'a [String]),
}

/// A command to start.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// What.
    pub program: Program<'a>,
    /// Where.
    pub cwd: &'a Path,
    /// The whole environment.
    pub env: &'a [(OsString, OsString)],
    /// With a terminal, through which everything comes as standard output.
    pub tty: bool,
    /// What its processes may use.
    pub limits: CallLimits,
}

/// Why a command did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// Its directory is not there, or cannot be entered.
    #[error("the working directory {} {why}", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The kernel takes no argument of that size.
    #[error("the command is too long for one process: 128 KiB at most; write it to a file and run that")]
    TooLong,
    /// A NUL byte.
    #[error("the command, its environment or its working directory has a NUL byte")]
    Nul,
    /// There is no such program.
    #[error("{0}: no such program")]
    NotFound(String),
    /// The program may not be executed, or is none.
    #[error("{0}: cannot be executed")]
    NotExecutable(String),
    /// Nothing to execute was named.
    #[error("no program is named")]
    Empty,
    /// Anything else.
    #[error("the command could not be started: {0}")]
    Io(#[source] io::Error),
}

impl Launch<'_> {
    fn strings(&self) -> impl Iterator<Item = &[u8]> {
        let (one, many): (&str, &[String]) = match self.program {
            Program::Shell(command) => (command, &[]),
            Program::Argv(argv) => ("", argv),
        };
        let variables = self.env.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
        let cwd = self.cwd.as_os_str().as_bytes();
        [one.as_bytes(), cwd].into_iter().chain(many.iter().map(String::as_bytes)).chain(variables)
    }

    /// The frame that asks a keeper to start it.
    ///
    /// # Errors
    /// Where the kernel would not take it.
    pub(super) fn frame(
        &self,
        seq: u32,
        terminal: Option<&Path>,
        group: Option<&Group>,
    ) -> Result<Vec<u8>, SpawnError> {
        let mut total = 0;
        for string in self.strings() {
            if string.len() >= LONGEST_STRING {
                return Err(SpawnError::TooLong);
            }
            if string.contains(&0) {
                return Err(SpawnError::Nul);
            }
            total += string.len() + 64;
        }
        if total >= wire::LONGEST {
            return Err(SpawnError::TooLong);
        }
        let cwd = self.cwd.as_os_str();
        let limits = group.map_or(self.limits, |group| group.rest(self.limits));
        let launcher = instructions(&limits, terminal, group.map(Group::entrance).as_deref());
        // The leader of a group cannot become the leader of a session.
        let group = terminal.is_none();
        Ok(match self.program {
            Program::Shell(command) => {
                let args = ["sh", "-c", command].map(OsStr::new);
                wire::start(seq, group, &launcher, OsStr::new("/bin/sh"), cwd, args.into_iter(), self.env)
            }
            Program::Argv(argv) => {
                let program = argv.first().filter(|program| !program.is_empty()).ok_or(SpawnError::Empty)?;
                wire::start(seq, group, &launcher, OsStr::new(program), cwd, argv.iter().map(OsStr::new), self.env)
            }
        })
    }

    /// A directory that is not there and a program that is not there are the same error to the kernel.
    pub(super) fn explain(&self, errno: i32) -> SpawnError {
        let directory = |why| SpawnError::Directory { dir: self.cwd.to_owned(), why };
        let error = io::Error::from_raw_os_error(errno);
        let named = match self.program {
            Program::Shell(_) => None,
            Program::Argv(argv) => argv.first().cloned(),
        };
        let enters = self.cwd.join(".").metadata();
        match (error.kind(), enters, named) {
            (io::ErrorKind::NotFound, Err(_), _) => directory("does not exist"),
            (io::ErrorKind::NotADirectory, Err(_), _) => directory("is not a directory"),
            (io::ErrorKind::PermissionDenied, Err(_), _) => directory("may not be entered"),
            (io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, _, Some(program)) => SpawnError::NotFound(program),
            (io::ErrorKind::PermissionDenied, _, Some(program)) => SpawnError::NotExecutable(program),
            (_, _, Some(program)) if errno == libc::ENOEXEC => SpawnError::NotExecutable(program),
            _ if errno == libc::E2BIG => SpawnError::TooLong,
            _ if errno == libc::EINVAL => SpawnError::Nul,
            _ => SpawnError::Io(error),
        }
    }
}

impl SpawnError {
    /// The exit code that a shell would give, where the program itself was the trouble.
    pub const fn exit_code(&self) -> Option<u8> {
        match self {
            Self::NotFound(_) => Some(127),
            Self::NotExecutable(_) => Some(126),
            _ => None,
        }
    }
}
