//! Makes things that hang when they are closed, for tests: a TCP socket that lingers, and sockets in flight.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// A TCP socket whose last close waits for a peer that never reads.
pub(crate) struct Lingering {
    socket: TcpStream,
}

impl Lingering {
    /// How long its close waits if nothing interrupts it.
    pub(crate) const FOR: Duration = Duration::from_secs(30);

    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Small buffers are soon full; the accepted socket has the size of the listener's.
        set_socket_recv_buffer_size(&listener, 4_096).unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (deaf, _) = listener.accept().unwrap();
        // The peer stays for as long as the tests do.
        std::mem::forget(deaf);
        set_socket_send_buffer_size(&socket, 4_096).unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 65_536]).map_err(|error| assert_eq!(error.kind(), ErrorKind::WouldBlock)).is_ok() {}
        set_socket_linger(&socket, Some(Self::FOR)).unwrap();
        // A socket that does not block does not linger in some kernels.
        socket.set_nonblocking(false).unwrap();
        Self { socket }
    }
}

impl From<Lingering> for OwnedFd {
    fn from(lingering: Lingering) -> Self {
        lingering.socket.into()
    }
}

/// Sends all of these beside one byte, and closes its own copies.
pub(crate) fn send_beside(stream: &UnixStream, lingering: Vec<Lingering>) {
    let sockets: Vec<BorrowedFd<'_>> = lingering.iter().map(|lingering| lingering.socket.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(&sockets)));
    sendmsg(stream, &[IoSlice::new(b"{")], &mut beside, SendFlags::empty()).unwrap();
    drop(lingering);
}

/// A socket in which these are in flight, and nowhere else.
pub(crate) fn in_flight(sockets: Vec<Lingering>) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    send_beside(&theirs, sockets);
    ours
}
