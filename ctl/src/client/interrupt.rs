//! Turns Ctrl-C (SIGINT) into a file descriptor that can be polled together with a socket.
//!
//! The only place that reacts to SIGINT. Once it is installed, Ctrl-C no longer ends the process: every wait must look
//! at the descriptor as well, and its caller decides whether the wait or the program ends. The descriptor stays
//! readable after the first Ctrl-C.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};

use crate::client::timeouts::poll_timeout;

/// Becomes readable when Ctrl-C is pressed, and stays readable.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt(Arc<UnixStream>);

impl Interrupt {
    /// Takes over the interrupt signal of this process.
    ///
    /// # Errors
    /// If the system gives no descriptors or handlers.
    pub(crate) fn install() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGINT, writer)?;
        Ok(Self(Arc::new(reader)))
    }

    /// Sleeps for `limit`; `true` when Ctrl-C ended it early.
    pub(crate) fn sleep(&self, limit: Duration) -> bool {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, poll_timeout(limit)), Ok(1))
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
