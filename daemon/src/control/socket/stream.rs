//! Wraps an accepted connection, so that it is closed on the closing threads (`crate::close_threads`), wherever it is
//! dropped.
//!
//! The connection keeps its place in the limits until it is really closed. It must not close on the thread that drops
//! it: that close may last an hour. It must not receive the descriptors in flight: to close a received one may block
//! where no signal helps.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;

use interprocess::TryClone;
use interprocess::local_socket::traits::Stream as _;
use interprocess::os::unix::uds_local_socket::Stream as PlainStream;
use interprocess::os::unix::uds_local_socket::tokio::Stream as WatchedStream;
use rustix::net::sockopt::set_socket_oobinline;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::close_threads::apart;
use crate::control::limits::connections::Slot;
use crate::fd_passing;

/// Bytes that are read at once of what nothing reads any more.
const DRAINED_AT_ONCE: usize = 16 * 1024;

/// The place that a connection takes, until it is closed.
#[derive(Debug)]
enum Place {
    /// Among those that are not admitted: they wait for that, or are refused.
    Arriving { _place: OwnedSemaphorePermit },
    /// Among the connections of its kind.
    Admitted { _slot: Arc<Slot> },
}

/// An accepted connection.
pub struct Stream {
    /// `None` only while it is dropped.
    kept: Option<(WatchedStream, Place)>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.kept).finish()
    }
}

impl Stream {
    /// Takes over an accepted connection, with its place among those that are not admitted. Within a runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch it; with the connection, and its place, as [`Refused`].
    pub fn accepted(stream: PlainStream, place: OwnedSemaphorePermit) -> Result<Self, (Refused, io::Error)> {
        // Otherwise a byte that was sent out of band is skipped when others are read, and what was sent beside it is
        // closed by the thread that reads.
        let spare = set_socket_oobinline(&stream, true)
            .map_err(io::Error::from)
            .and_then(|()| stream.set_nonblocking(true))
            .and_then(|()| stream.try_clone());
        let spare = match spare {
            Ok(spare) => spare,
            Err(error) => return Err((Refused::new(stream, place), error)),
        };
        match UnixStream::from_std(StdStream::from(OwnedFd::from(stream))) {
            // No last drop of it: the other one stays.
            Ok(stream) => {
                drop(spare);
                Ok(Self { kept: Some((stream.into(), Place::Arriving { _place: place })) })
            }
            Err(error) => Err((Refused::new(spare, place), error)),
        }
    }

    /// The same connection, with a place among the admitted ones.
    #[must_use]
    pub fn admitted(mut self, slot: Arc<Slot>) -> Self {
        if let Some((_, place)) = &mut self.kept {
            *place = Place::Admitted { _slot: slot };
        }
        self
    }

    /// Writes a line, if there is room for it now.
    pub fn say(&self, line: &[u8]) {
        // Not by the runtime, which learns only later that a new connection has room.
        _ = send(&**self, line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Writes what there is room for, and waits for no more than some room.
    ///
    /// # Errors
    /// If the peer is gone.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.writable().await?;
            match self.try_write(bytes) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                written => return written,
            }
        }
    }
}

impl Deref for Stream {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        match &self.kept {
            Some((stream, _)) => stream.inner(),
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some((stream, place)) = self.kept.take() {
            close(stream, place);
        }
    }
}

/// An accepted connection that the runtime cannot watch.
#[derive(Debug)]
pub struct Refused {
    kept: Option<(PlainStream, OwnedSemaphorePermit)>,
}

impl Refused {
    fn new(stream: PlainStream, place: OwnedSemaphorePermit) -> Self {
        Self { kept: Some((stream, place)) }
    }

    /// Writes a line, if there is room for it; then the connection is closed.
    pub fn say(mut self, line: &[u8]) {
        if let Some((stream, _)) = &mut self.kept {
            _ = io::Write::write(stream, line);
        }
    }
}

impl Drop for Refused {
    fn drop(&mut self) {
        if let Some((stream, place)) = self.kept.take() {
            close(stream, place);
        }
    }
}

/// Ends a connection in both directions: the peer reads what was written, and then its end, and can send no more. The
/// close itself, and the end of its place, come on the threads for that.
fn close(stream: impl AsFd + Send + 'static, place: impl Send + 'static) {
    _ = shutdown(&stream, Shutdown::Both);
    apart(move || {
        drain(&stream);
        drop((stream, place));
    });
}

/// Reads what has come and what nothing reads: otherwise the peer would see a reset behind what was written to it. Ends
/// where a descriptor is in flight, which then goes with the connection: all of them at once, and not one by one.
fn drain(stream: impl AsFd) {
    let mut buffer = vec![0; DRAINED_AT_ONCE];
    while let Ok((seen @ 1.., false)) = fd_passing::look(&stream, &mut buffer) {
        // No other thread reads, so these are the same bytes.
        if recv(&stream, &mut buffer[..seen], RecvFlags::DONTWAIT).is_err() {
            return;
        }
    }
}
