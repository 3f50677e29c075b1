//! Reads our end of a pipe or of a terminal.
//!
//! It is registered with the runtime only when a task waits for it: most calls are over before that, and to register
//! costs more than to read. It keeps and interprets no byte: the caller gets them all.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{pipe2, read};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The end that we read.
#[derive(Debug)]
pub(in crate::process) enum Source {
    /// No task has waited for it yet.
    Fresh(OwnedFd),
    Watched(AsyncFd<OwnedFd>),
    /// Its end was reached.
    Closed,
}

/// The outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::process) enum Read {
    Bytes(usize),
    /// No byte is available yet.
    Nothing,
    End,
}

impl Source {
    /// Makes a pipe: the end that we read, and the one to write to.
    pub(in crate::process) fn pipe() -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        Ok((Self::new(read)?, write))
    }

    /// Any descriptor that can be read and polled.
    pub(in crate::process) fn new(fd: OwnedFd) -> io::Result<Self> {
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self::Fresh(fd))
    }

    /// Whether a process may still write.
    pub(in crate::process) fn is_open(&self) -> bool {
        !matches!(self, Self::Closed)
    }

    /// Waits until a read is possible. For ever, where nothing will come.
    pub(in crate::process) async fn readable(&mut self) {
        if let Self::Fresh(_) = self
            && let Self::Fresh(fd) = std::mem::replace(self, Self::Closed)
        {
            match watch(fd) {
                Ok(watched) => *self = Self::Watched(watched),
                Err(error) => tracing::error!(%error, "output cannot be waited for and is given up"),
            }
        }
        match self {
            // An error here means that the runtime is going down: nothing will ever come.
            Self::Watched(fd) if fd.readable().await.map(|mut ready| ready.retain_ready()).is_ok() => {}
            _ => std::future::pending().await,
        }
    }

    /// Reads the available bytes.
    pub(in crate::process) fn try_read(&mut self, buffer: &mut [u8]) -> Read {
        let result = match self {
            Self::Closed => return Read::End,
            Self::Fresh(fd) => read_from(&*fd, buffer),
            // The runtime reports no data until it has polled once. A process that has ended may have written before.
            Self::Watched(fd) => match fd.try_io(Interest::READABLE, |fd| read_from(fd, buffer)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => read_from(fd.get_ref(), buffer),
                result => result,
            },
        };
        match result {
            Ok(0) => {}
            Ok(count) => return Read::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Read::Nothing,
            // The end of a terminal that no process has open any more.
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => {}
            Err(error) => tracing::warn!(%error, "output could not be read"),
        }
        *self = Self::Closed;
        Read::End
    }
}

#[expect(
    deprecated,
    reason = "the function that replaces it is unsafe, because a descriptor of any type could be closed behind its \
              back; an OwnedFd stays open and stays the same for as long as it lives, which is all that is asked for \
              there"
)]
pub(in crate::process) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

fn read_from(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match read(&fd, buffer) {
            Err(Errno::EINTR) => {}
            result => return Ok(result?),
        }
    }
}
