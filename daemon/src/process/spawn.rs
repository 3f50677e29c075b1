//! Describes a command to start, checks it for values that the kernel would refuse, and defines the errors of a start.
//! It must not start the command: the keeper does.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness_protocol::limit::CallLimits;
use nix::libc;

use super::cgroup::Group;
use super::supervisor::launch::instructions;
use super::supervisor::protocol::{self, Failure, Owner, Place, StartFrame};
use crate::folders;

/// Bytes of the longest argument or variable that the kernel takes, with its NUL.
const LONGEST_STRING: usize = 128 * 1024;

/// The program to start.
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
    /// Whose process it is.
    pub owner: Owner,
    /// The program, by arguments or as a command line of a shell.
    pub program: Program<'a>,
    /// The working directory of the run.
    pub workdir: &'a Path,
    /// Device and inode that this directory must have, if they are known.
    pub folder: Option<(u64, u64)>,
    /// The directory of the call, relative to it; empty for that directory itself.
    pub directory: &'a Path,
    /// The whole environment.
    pub env: &'a [(OsString, OsString)],
    /// Whether it gets a terminal, through which all output comes as standard output.
    pub tty: bool,
    /// Its standard input, where it has one; otherwise it reads `/dev/null`, or the terminal.
    pub input: Option<BorrowedFd<'a>>,
    /// Limits of its processes.
    pub limits: CallLimits,
}

/// Why a command did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// Its directory does not exist, or cannot be entered.
    #[error("the working directory {} {why}", dir.display())]
    Directory {
        /// Path of the directory.
        dir: PathBuf,
        /// The problem with the directory.
        why: String,
    },
    /// The path leads to another folder.
    #[error(
        "the working directory {} is another folder now (device {}, inode {}) than the one that this run was \
         submitted for (device {}, inode {}): it was replaced, or something is mounted there; nothing was \
         executed",
        dir.display(), found.0, found.1, wanted.0, wanted.1
    )]
    OtherFolder {
        /// Path of the directory, as the run has it.
        dir: PathBuf,
        /// The expected device and inode.
        wanted: (u64, u64),
        /// The device and inode that were found.
        found: (u64, u64),
    },
    /// An argument or a variable is larger than the kernel takes.
    #[error("{0}")]
    TooLong(TooLong),
    /// An argument or a variable contains a NUL byte.
    #[error("the command, its environment or its working directory has a NUL byte")]
    Nul,
    /// There is no such program.
    #[error("{0}: no such program")]
    NotFound(String),
    /// The file may not be executed, or is no program.
    #[error("{0}: cannot be executed")]
    NotExecutable(String),
    /// The keeper does not know a part of the request that it must not leave out.
    #[error("the command was not started: its keeper cannot do what field {0} of the request asks for")]
    Unknown(u8),
    /// The command is empty.
    #[error("no program is named")]
    Empty,
    /// A resource of this user, or of this daemon, is used up for the moment.
    #[error(
        "the command could not be started: {0}: processes of this user have used up what the kernel gives \
         (descriptors on their way, epoll watches, processes or open files), and it was waited for in vain"
    )]
    UsedUp(#[source] io::Error),
    /// Any other error of the system.
    #[error("the command could not be started: {0}")]
    Io(#[source] io::Error),
}

impl SpawnError {
    /// An error of a resource that every command needs, whatever the command is.
    pub(super) fn of_means(error: io::Error) -> Self {
        let used_up =
            [libc::ETOOMANYREFS, libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::ENOSPC, libc::ENOBUFS];
        match error.raw_os_error() {
            Some(errno) if used_up.contains(&errno) => Self::UsedUp(error),
            _ => Self::Io(error),
        }
    }

    /// An error in making the files that take the output. A full disk is another error.
    pub(super) fn of_streams(error: io::Error) -> Self {
        if error.raw_os_error() == Some(libc::ENOSPC) { Self::Io(error) } else { Self::of_means(error) }
    }
}

/// The part of a command that is larger than the kernel takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TooLong {
    /// The command line of a shell, or an argument.
    #[error("the command is too long for one process: 128 KiB at most; write it to a file and run that")]
    Command,
    /// The path of its directory.
    #[error("the path of the working directory is too long for one process: 128 KiB at most")]
    Directory,
    /// One variable, together with its name.
    #[error(
        "the variable {} of the environment is too long for one process: 128 KiB at most with its name; write it to a \
         file and name that",
        .0.chars().take(80).collect::<String>()
    )]
    Variable(String),
    /// All variables together, in addition to the arguments.
    #[error(
        "the environment is too large for one process: {variables} variables with {bytes} bytes together; name fewer, \
         or write them to a file"
    )]
    Environment {
        /// Number of variables.
        variables: usize,
        /// Bytes of all variables, names and values together.
        bytes: usize,
    },
}

impl Launch<'_> {
    /// The part that is too large by itself, if there is one.
    fn longest(&self) -> Option<TooLong> {
        let is_long = |bytes: usize| bytes >= LONGEST_STRING;
        let words: &[String] = if let Program::Argv(argv) = self.program { argv } else { &[] };
        let line = if let Program::Shell(command) = self.program { command.len() } else { 0 };
        if is_long(line) || words.iter().any(|word| is_long(word.len())) {
            return Some(TooLong::Command);
        }
        if is_long(self.workdir.as_os_str().len().max(self.directory.as_os_str().len())) {
            return Some(TooLong::Directory);
        }
        // The kernel gets both in one string, with an equals sign between them.
        let variable = self.env.iter().find(|(name, value)| is_long(name.len() + 1 + value.len()))?;
        Some(TooLong::Variable(variable.0.to_string_lossy().into_owned()))
    }

    /// The largest part of a command that is too large as a whole.
    fn largest(&self) -> TooLong {
        let bytes: usize = self.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        let words: usize = match self.program {
            Program::Shell(command) => command.len(),
            Program::Argv(argv) => argv.iter().map(|word| word.len() + 1).sum(),
        };
        if bytes > words { TooLong::Environment { variables: self.env.len(), bytes } } else { TooLong::Command }
    }

    fn strings(&self) -> impl Iterator<Item = &[u8]> {
        let (one, many): (&str, &[String]) = match self.program {
            Program::Shell(command) => (command, &[]),
            Program::Argv(argv) => ("", argv),
        };
        let variables = self.env.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
        let place = [self.workdir, self.directory].map(|path| path.as_os_str().as_bytes());
        [one.as_bytes()].into_iter().chain(place).chain(many.iter().map(String::as_bytes)).chain(variables)
    }

    /// The frame that asks a keeper to start the command.
    ///
    /// # Errors
    /// If the kernel would refuse the command.
    pub(super) fn frame(
        &self,
        seq: u32,
        terminal: Option<&Path>,
        group: Option<&Group>,
        time_limit: Duration,
    ) -> Result<Vec<u8>, SpawnError> {
        if let Some(long) = self.longest() {
            return Err(SpawnError::TooLong(long));
        }
        let mut total = 0;
        for string in self.strings() {
            if string.contains(&0) {
                return Err(SpawnError::Nul);
            }
            total += string.len() + 64;
        }
        if total >= protocol::LONGEST {
            return Err(SpawnError::TooLong(self.largest()));
        }
        let (workdir, directory) = (self.workdir.as_os_str(), self.directory.as_os_str());
        let place = Place { workdir, folder: self.folder, directory };
        let limits = group.map_or(self.limits, |group| group.rest(self.limits));
        let launcher = instructions(&limits, terminal, group.map(Group::entrance).as_deref());
        // The leader of a group cannot become the leader of a session.
        let group = terminal.is_none();
        let input = self.input.is_some() && terminal.is_none();
        let (launcher, env, time_limit) = (&*launcher, self.env, Some(time_limit));
        let start = |program| StartFrame { seq, group, input, time_limit, launcher, program, place, env };
        Ok(match self.program {
            Program::Shell(command) => {
                start(OsStr::new("/bin/sh")).encode(["sh", "-c", command].map(OsStr::new).into_iter())
            }
            Program::Argv(argv) => {
                let program = argv.first().filter(|program| !program.is_empty()).ok_or(SpawnError::Empty)?;
                start(OsStr::new(program)).encode(argv.iter().map(OsStr::new))
            }
        })
    }

    /// The error, in words.
    pub(super) fn explain(&self, failure: Failure) -> SpawnError {
        let directory = |dir: PathBuf, errno| SpawnError::Directory {
            dir,
            why: folders::why(&io::Error::from_raw_os_error(errno)),
        };
        let errno = match failure {
            Failure::Workdir { errno } => return directory(self.workdir.to_owned(), errno),
            Failure::Directory { errno } => return directory(self.workdir.join(self.directory), errno),
            Failure::OtherFolder { device, inode } => {
                let wanted = self.folder.unwrap_or_default();
                return SpawnError::OtherFolder { dir: self.workdir.to_owned(), wanted, found: (device, inode) };
            }
            Failure::Unknown { tag } => return SpawnError::Unknown(tag),
            Failure::Start { errno } => errno,
        };
        let error = io::Error::from_raw_os_error(errno);
        let named = match self.program {
            Program::Shell(_) => None,
            Program::Argv(argv) => argv.first().cloned(),
        };
        match (error.kind(), named) {
            (io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, Some(program)) => SpawnError::NotFound(program),
            (io::ErrorKind::PermissionDenied, Some(program)) => SpawnError::NotExecutable(program),
            (_, Some(program)) if errno == libc::ENOEXEC => SpawnError::NotExecutable(program),
            _ if errno == libc::E2BIG => SpawnError::TooLong(self.largest()),
            _ if errno == libc::EINVAL => SpawnError::Nul,
            _ => SpawnError::Io(error),
        }
    }
}

impl SpawnError {
    /// The exit code that a shell would give, if the program itself was the problem.
    pub const fn exit_code(&self) -> Option<u8> {
        match self {
            Self::NotFound(_) => Some(127),
            Self::NotExecutable(_) | Self::Unknown(_) => Some(126),
            _ => None,
        }
    }
}
