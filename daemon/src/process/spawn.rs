//! Starting a command, and its leader: the shell that leads the process group.
//!
//! `std`'s spawn rather than tokio's: reaping is ours, because only `wait4` tells what the process used, and because the number of
//! a group must not become free while signals are sent to it. Owns the one guarantee that a leader which is dropped takes its
//! group along.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::signal::Signal;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use wait4::{ResUse, Wait4};

use super::group::{Group, end_of};

/// A command to start.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// For `sh -c`.
    pub command: &'a str,
    /// Where.
    pub cwd: &'a Path,
    /// The whole environment.
    pub env: &'a [(OsString, OsString)],
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
    /// Anything else.
    #[error("the command could not be started: {0}")]
    Io(#[source] io::Error),
}

/// A command that runs.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) leader: Leader,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
}

/// The process that a call is. Dropped before its end was seen, it is killed together with its group.
#[derive(Debug)]
pub(super) struct Leader {
    /// Both are taken only by `drop`.
    living: Option<(Child, AsyncFd<OwnedFd>)>,
    group: Group,
    used: Option<ResUse>,
}

/// Makes sure that the ends of children are told to us. A daemon that was started with SIGCHLD ignored, which is inherited, would
/// lose them all: the kernel then reaps at once. Must be called within a runtime.
pub fn expect_children() {
    let ignored = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    if ignored().is_some_and(|mask| mask & 1 << (libc::SIGCHLD - 1) != 0) {
        // Whatever is heard of it, the handler stays and takes the place of ignoring.
        if let Err(error) = signal(SignalKind::child()) {
            tracing::error!(%error, "SIGCHLD is ignored and stays so: the ends of processes will not be seen");
        }
    }
}

/// Starts a command.
pub(super) fn spawn(launch: Launch<'_>) -> Result<Spawned, SpawnError> {
    // By its path: with a PATH of the caller's, a name would be looked up after a fork instead of a `posix_spawn`.
    let mut child = Command::new("/bin/sh")
        .arg0("sh")
        .arg("-c")
        .arg(launch.command)
        .current_dir(launch.cwd)
        .env_clear()
        .envs(launch.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| explain(error, launch.cwd))?;
    let pipes = child.stdout.take().zip(child.stderr.take());
    let group = Group(i32::try_from(child.id()).unwrap_or(i32::MAX));
    let watched = end_of(group.0).and_then(|end| {
        let (stdout, stderr) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok((end, receiver(stdout.into())?, receiver(stderr.into())?))
    });
    match watched {
        Ok((end, stdout, stderr)) => {
            Ok(Spawned { leader: Leader { living: Some((child, end)), group, used: None }, stdout, stderr })
        }
        Err(error) => {
            group.signal(Signal::SIGKILL);
            let _ = child.wait();
            Err(SpawnError::Io(error))
        }
    }
}

fn receiver(fd: OwnedFd) -> io::Result<pipe::Receiver> {
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    pipe::Receiver::from_owned_fd_unchecked(fd)
}

/// A directory that is not there and a shell that is not there are the same error to the kernel.
fn explain(error: io::Error, dir: &Path) -> SpawnError {
    let directory = |why| SpawnError::Directory { dir: dir.to_owned(), why };
    match (error.kind(), dir.metadata()) {
        (io::ErrorKind::InvalidInput, _) => SpawnError::Nul,
        (io::ErrorKind::NotFound, Err(_)) => directory("does not exist"),
        (io::ErrorKind::NotADirectory, _) => directory("is not a directory"),
        (io::ErrorKind::PermissionDenied, _) => directory("may not be entered"),
        _ if error.raw_os_error() == Some(libc::E2BIG) => SpawnError::TooLong,
        _ => SpawnError::Io(error),
    }
}

impl Leader {
    /// Its group.
    pub(super) fn group(&self) -> Group {
        self.group
    }

    /// Waits until it has ended, and reaps it. Can be waited for again, also after it was given up.
    pub(super) async fn ended(&mut self) {
        while let Some((child, end)) = &mut self.living {
            let failed = match end.readable().await {
                Ok(mut ready) => match child.try_wait4() {
                    Ok(Some(used)) => {
                        self.used = Some(used);
                        break;
                    }
                    Ok(None) => {
                        ready.clear_ready();
                        continue;
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            tracing::error!(error = %failed, pid = child.id(), "the end of a process could not be seen");
            if self.group.is_alive() {
                self.group.signal(Signal::SIGKILL);
            }
            break;
        }
        self.living = None;
    }

    /// Whether its end was seen.
    pub(super) fn is_reaped(&self) -> bool {
        self.living.is_none()
    }

    /// How it ended and what it used, once it has; nothing where that could not be read.
    pub(super) fn used(&self) -> Option<&ResUse> {
        self.used.as_ref()
    }

    /// Sends a signal to the group, whoever is left of it.
    pub(super) fn signal_group(&self, signal: Signal) {
        // Not reaped, its number is still taken; reaped, the group has to be looked at first.
        if !self.is_reaped() || self.group.is_alive() {
            self.group.signal(signal);
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let Some((mut child, end)) = self.living.take() else { return };
        self.group.signal(Signal::SIGKILL);
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = end.readable().await;
                let _ = child.try_wait();
            });
        }
    }
}
