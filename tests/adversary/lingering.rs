//! Sockets whose last close waits for an hour, sent to the daemon and left to it.
//!
//! A TCP socket with SO_LINGER and a peer that never reads: once the sender has closed its own, the daemon's is the
//! last, received or still in flight.

use std::fs;
use std::io::{ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// How long each close waits.
const LINGERS: Duration = Duration::from_secs(3_600);
/// Longer than a close takes that does not wait.
const CLOSES_WITHIN: Duration = Duration::from_millis(20);
/// Connections that one run may have, and then some.
const CROWD: usize = 70;
/// A line that begins. Its end never comes.
const HALF: &[u8] = b"{\"x\":1";
/// The end of a connection by the daemon: longer than a line may be.
const TOO_LONG: usize = 9 << 20;

/// A peer that never reads, and the socket to it.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&listener, 4_096).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (deaf, _) = listener.accept().unwrap();
    set_socket_send_buffer_size(&socket, 4_096).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65_536]).map_err(|error| assert_eq!(error.kind(), ErrorKind::WouldBlock)).is_ok() {}
    set_socket_linger(&socket, Some(LINGERS)).unwrap();
    socket.set_nonblocking(false).unwrap();
    (socket, deaf)
}

/// So many of them. Keeps their peers.
fn some(count: usize, deaf: &mut Vec<TcpStream>) -> Vec<TcpStream> {
    let one = |_| {
        let (socket, peer) = lingering();
        deaf.push(peer);
        socket
    };
    (0..count).map(one).collect()
}

/// Sends `count` of them beside these bytes, and keeps their peers.
fn send(stream: &UnixStream, bytes: &[u8], count: usize, flags: SendFlags, deaf: &mut Vec<TcpStream>) {
    send_these(stream, bytes, some(count, deaf), flags);
}

/// Sends these beside the bytes, and closes its own copies.
fn send_these(stream: &UnixStream, bytes: &[u8], sockets: Vec<TcpStream>, flags: SendFlags) {
    let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(&descriptors)));
    // The daemon may have closed the connection meanwhile; then these are ours to close.
    if sendmsg(stream, &[IoSlice::new(bytes)], &mut beside, flags | SendFlags::NOSIGNAL).is_err() {
        sockets.iter().for_each(|socket| set_socket_linger(socket, None).unwrap());
    }
    // The daemon may also have closed its copies already. Then ours are the last: only a thread of its own may hang.
    let closing = std::thread::spawn(move || drop(sockets));
    let until = Instant::now() + CLOSES_WITHIN;
    while !closing.is_finished() && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// Leaves them to the daemon in this way, and stays until there is a file called `enough`.
pub(crate) fn leave(way: &str) {
    let connect = || UnixStream::connect(super::path()).unwrap();
    let (mut deaf, mut held) = (Vec::new(), Vec::new());
    let plain = SendFlags::empty();
    match way {
        // What is sent over connections for which there is no place, before and after the daemon has said so.
        "refused" | "refused-and-written-on" => {
            held.extend((0..CROWD).map(|_| connect()));
            for _ in 0..40 {
                let stream = connect();
                send(&stream, HALF, 1, plain, &mut deaf);
                if way == "refused-and-written-on" {
                    _ = (&stream).write_all(&[b' '; 100_000]);
                    send(&stream, HALF, 2, plain, &mut deaf);
                }
                held.push(stream);
            }
        }
        // Many messages over each connection, before the daemon has looked at it.
        "many-messages" => {
            held.extend((0..CROWD).map(|_| connect()));
            for _ in 0..40 {
                let ready = some(8, &mut deaf);
                let stream = connect();
                ready.into_iter().for_each(|socket| send_these(&stream, b"{", vec![socket], plain));
                held.push(stream);
            }
        }
        // Over connections that are served. They end on this side, and the daemon closes what it has received.
        "beside-one-message-1" | "beside-one-message-4" | "beside-one-message-253" => {
            let count: usize = way.rsplit('-').next().unwrap().parse().unwrap();
            for _ in 0..(60 / count).max(1) {
                let stream = connect();
                send(&stream, HALF, count, plain, &mut deaf);
                stream.shutdown(Shutdown::Write).unwrap();
                held.push(stream);
            }
        }
        "out-of-band" => {
            for _ in 0..20 {
                let stream = connect();
                send(&stream, b"!", 1, SendFlags::OOB, &mut deaf);
                send(&stream, HALF, 1, plain, &mut deaf);
                stream.shutdown(Shutdown::Write).unwrap();
                held.push(stream);
            }
        }
        // The sender goes; what it has sent may be unread.
        "left-at-once" => {
            for _ in 0..20 {
                let stream = connect();
                (0..3).for_each(|_| send(&stream, HALF, 1, plain, &mut deaf));
            }
        }
        // The daemon ends the connection while more is there.
        "ended-early" => {
            for _ in 0..3 {
                let stream = connect();
                let sender = stream.try_clone().unwrap();
                let writes = std::thread::spawn(move || _ = (&sender).write_all(&vec![b'a'; TOO_LONG]));
                (0..20).for_each(|_| send(&stream, HALF, 1, plain, &mut deaf));
                writes.join().unwrap();
                held.push(stream);
            }
        }
        other => panic!("no such way: {other:?}"),
    }
    fs::write("left", deaf.len().to_string()).unwrap();
    super::found(|| std::path::Path::new("enough").exists().then_some(()));
}
