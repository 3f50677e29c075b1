//! Sends and receives bytes and file descriptors over a Unix stream socket (`SCM_RIGHTS`).
//!
//! It must not wait: an operation that would block returns an error of the kind `WouldBlock`. It has room for all
//! descriptors that the kernel lets one message have: the kernel would close those without room in the thread that
//! reads, and a close may wait. Every received descriptor goes to the caller.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Most descriptors that are sent beside one frame.
const SENT: usize = 3;
/// Most descriptors that Linux passes beside one message.
const RECEIVED: usize = 253;

/// Sends what goes of `bytes`, with `descriptors` beside the first of them.
///
/// # Errors
/// Where nothing goes now, or the peer is gone.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, flags)?)
}

/// Gives the number of bytes that are there, up to the size of `buffer`, and whether there are descriptors beside them.
/// Receives neither: what the kernel takes of the descriptors for that is one more reference.
///
/// # Errors
/// Where nothing is there now.
pub fn look(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
    let mut nothing = RecvAncillaryBuffer::default();
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let seen = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut nothing, flags)?;
    Ok((seen.bytes, seen.flags.contains(ReturnFlags::CTRUNC)))
}

/// Lets the last close of a descriptor wait for nothing, where it is a socket. At once: whatever process is started
/// meanwhile has a copy until it executes its program, and would wait when it closes that.
fn stop_lingering(descriptor: &OwnedFd) {
    _ = set_socket_linger(descriptor, None);
}

/// Receives what is there. Descriptors are added to `descriptors`, and closed by whatever this process executes. The
/// kernel ends what is received at once where a descriptor came: it belongs to the last of the bytes.
///
/// # Errors
/// Where nothing is there now.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut beside, flags)?;
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights.inspect(stop_lingering));
        }
    }
    Ok(received.bytes)
}
