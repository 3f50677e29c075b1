//! Reads from a connection: waits for bytes, and notices that the peer is gone while the connection waits for something
//! else. It must not interpret the bytes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::ioctl_fionread;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use harness_protocol::rpc::{INVALID_REQUEST, RpcError};

use super::decode;
use crate::fd_passing;

/// How often to look whether the peer is still there, when it sends no more and waits for answers.
const LOOK_FOR_PEER: Duration = Duration::from_secs(1);

/// The peer has passed descriptors, and may pass none now.
#[derive(Debug, thiserror::Error)]
#[error(
    "descriptors are not taken from processes of runs, nor while many of this peer wait to be closed; name the folder \
     by workdir_id; the connection is closed"
)]
struct NotTaken;

/// What the peer is told, where what it has passed is the reason that nothing is received.
pub(super) fn refusal(error: &io::Error) -> Option<RpcError> {
    let not_taken = error.get_ref()?.downcast_ref::<NotTaken>()?;
    Some(decode::bad_request(INVALID_REQUEST, not_taken.to_string()))
}

/// Receives the available bytes, with the descriptors beside them; none, and an error, if there are some and the peer
/// may not pass any. These stay in flight.
pub(in crate::control) async fn receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    passed: &mut Vec<OwnedFd>,
    may_pass: &(dyn Fn() -> bool + Sync),
) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        let came = stream.try_io(Interest::READABLE, || {
            if may_pass() {
                return fd_passing::receive(stream, buffer, passed);
            }
            match fd_passing::look(stream, buffer)? {
                // Exactly these bytes: beside the next ones there may be descriptors.
                (bytes, false) => fd_passing::receive(stream, &mut buffer[..bytes], passed),
                (_, true) => Err(io::Error::other(NotTaken)),
            }
        });
        match came {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            received => return received,
        }
    }
}

/// Number of bytes that have come and were not received; 0 where it is unknown.
pub(super) fn unread(read: &UnixStream) -> u64 {
    ioctl_fionread(read).unwrap_or_default()
}

/// Waits for a place; `None` when the peer is gone before.
pub(in crate::control) async fn place_among(
    places: &Arc<Semaphore>,
    read: &UnixStream,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return Some(place);
    }
    unless_gone(async { Arc::clone(places).acquire_owned().await.ok() }, read).await
}

/// Waits for a future; `None` when the peer is gone before.
pub(in crate::control) async fn unless_gone<T>(wait: impl Future<Output = Option<T>>, read: &UnixStream) -> Option<T> {
    tokio::select! {
        came = wait => came,
        () = gone(read) => None,
    }
}

/// Waits until the peer is gone.
pub(in crate::control) async fn gone(read: &UnixStream) {
    while !is_gone(read) {
        tokio::time::sleep(LOOK_FOR_PEER).await;
    }
}

/// Whether the peer has closed both directions: it reads no more.
fn is_gone(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(_) => fds[0].revents().is_some_and(|events| events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR)),
        Err(_) => false,
    }
}
