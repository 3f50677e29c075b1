//! Relays lines between a client and the daemon, and loses some: the test decides what is passed on, and when the
//! connection is cut. It must not change a line.

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::Place;

/// A relay to the daemon of a place. It ends with the test's process.
pub struct Relay {
    socket: PathBuf,
    cut: Arc<AtomicU64>,
}

impl Relay {
    /// A relay that cuts its first connections, as many as `replies` has: each after so many replies were passed on.
    /// What the daemon answers after that is read, and lost.
    pub fn cutting(place: &Place, replies: &[usize]) -> Self {
        let socket = place.path("relay.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (cut, daemon) = (Arc::new(AtomicU64::new(0)), place.socket());
        let mut replies = Vec::from(replies).into_iter();
        let counted = Arc::clone(&cut);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(daemon) = UnixStream::connect(&daemon) else { continue };
                let (most, cut) = (replies.next(), Arc::clone(&counted));
                thread::spawn(move || pass_on(&client.unwrap(), &daemon, most, &cut));
            }
        });
        Self { socket, cut }
    }

    /// Where clients find it.
    pub fn socket(&self) -> String {
        self.socket.display().to_string()
    }

    /// Connections that were cut so far.
    pub fn cuts(&self) -> u64 {
        self.cut.load(Ordering::SeqCst)
    }
}

fn pass_on(client: &UnixStream, daemon: &UnixStream, most: Option<usize>, cut: &AtomicU64) {
    let (mut from, mut to) = (client.try_clone().unwrap(), daemon.try_clone().unwrap());
    thread::spawn(move || {
        // Either side may go at any time.
        drop(std::io::copy(&mut from, &mut to));
        drop(to.shutdown(Shutdown::Write));
    });
    let mut passed = 0;
    let mut client = client;
    for line in BufReader::new(daemon).lines() {
        let Ok(line) = line else { break };
        // What says hello is no reply to what was asked.
        let is_hello = line.contains("\"max_frame_bytes\"");
        if !is_hello && most.is_some_and(|most| passed >= most) {
            cut.fetch_add(1, Ordering::SeqCst);
            break;
        }
        passed += usize::from(!is_hello);
        if client.write_all(format!("{line}\n").as_bytes()).is_err() {
            break;
        }
    }
    drop(client.shutdown(Shutdown::Both));
}
