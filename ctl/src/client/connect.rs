//! Opens a connection to a Unix socket within a time limit.
//!
//! An error is one of three: no process listens there, the user may not connect, or another error of the system. Must
//! not start a daemon: `launch/` decides from the error whether one is started.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use interprocess::os::unix::uds_local_socket::Stream;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_to, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// No process listens there.
    Absent,
    /// The user has no right to connect.
    Denied,
    /// Any other error of the system.
    Other(io::Error),
}

impl From<Errno> for ConnectError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ECONNREFUSED => Self::Absent,
            Errno::EACCES | Errno::EPERM => Self::Denied,
            // A listener whose queue stays full for so long does not run.
            Errno::EAGAIN => Self::Other(io::Error::new(io::ErrorKind::TimedOut, "it takes no connections")),
            Errno::ENAMETOOLONG => Self::Other(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path is too long for a socket (107 bytes are the most)",
            )),
            other => Self::Other(other.into()),
        }
    }
}

/// Connects. Fails if the listener's queue stays full for `limit`.
///
/// Not by the connect of `interprocess`, which takes the EAGAIN of a full queue for a connection that is under way.
pub(crate) fn connect(path: &Path, limit: Duration) -> Result<Stream, ConnectError> {
    let address = UnixAddr::new(path)?;
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // On Linux the time limit for sending also bounds a connect to a Unix socket.
    let seconds = i64::try_from(limit.as_secs().max(1)).unwrap_or(i64::MAX);
    setsockopt(&fd, sockopt::SendTimeout, &TimeVal::new(seconds, 0))?;
    loop {
        match connect_to(fd.as_raw_fd(), &address) {
            Ok(()) => return Ok(Stream::from(fd)),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
