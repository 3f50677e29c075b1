//! Receives the messages that a daemon sends to systemd (`NOTIFY_SOCKET`), so that no test sleeps to know that one is
//! ready.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;

use crate::{PATIENCE, Place};

/// What the daemons of a place tell their service manager.
pub struct Notify(UnixDatagram);

impl Notify {
    /// Listens in this place.
    pub fn listen(place: &Place) -> Self {
        let socket = UnixDatagram::bind(place.path("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// The variable of the environment that leads there.
    pub fn variable(place: &Place) -> (&'static str, String) {
        ("NOTIFY_SOCKET", place.path("notify").display().to_string())
    }

    /// The next message that has a line which begins so.
    ///
    /// # Panics
    /// Where none comes.
    #[track_caller]
    pub fn told(&self, line: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            let length = match self.0.recv(&mut buffer) {
                Ok(length) => length,
                // A receive with a time limit is never restarted by the system.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("no {line}: {error}"),
            };
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if message.lines().any(|found| found.starts_with(line)) {
                return message;
            }
        }
    }
}
