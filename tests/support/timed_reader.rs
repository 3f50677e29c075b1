//! Reads from a program with a time limit. A test that waits in vain fails and says what it waited for.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::PATIENCE;

/// A stream of which each read takes no longer than [`PATIENCE`].
pub struct Patient<R> {
    inner: R,
    what: String,
}

impl<R: AsFd> Patient<R> {
    /// A stream, and what comes from it, for the message.
    pub fn new(inner: R, what: &str) -> Self {
        Self { inner, what: what.to_owned() }
    }

    /// The stream, without a limit.
    pub fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: Read + AsFd> Read for Patient<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = PollTimeout::try_from(PATIENCE).unwrap();
        let readable = poll(&mut [PollFd::new(self.inner.as_fd(), PollFlags::POLLIN)], limit)?;
        if readable == 0 {
            let message = format!("waited {PATIENCE:?} in vain: nothing more comes from {}", self.what);
            return Err(io::Error::new(ErrorKind::TimedOut, message));
        }
        self.inner.read(buffer)
    }
}
