//! Starts a daemon for a test, and stops it when the test ends.

use std::fs::OpenOptions;
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use serde_json::json;

use crate::{Client, Place, Process, eventually, found_within, program};

/// How long a daemon may take to leave before it is killed, when a test is over.
const LAST_MOMENT: Duration = Duration::from_secs(5);

/// A daemon and its place. It is told to stop when the test ends, and killed where it does not.
pub struct Daemon {
    place: Place,
    child: Child,
}

impl Deref for Daemon {
    type Target = Place;
    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Daemon {
    /// A daemon with the defaults, in a place of its own.
    pub fn start() -> Self {
        Place::new().start()
    }

    /// A daemon with this configuration.
    pub fn configured(config: &str) -> Self {
        Place::configured(config).start()
    }

    /// A daemon whose tool lane has this width.
    pub fn of_width(width: u32) -> Self {
        Self::configured(&format!("[lane.tool]\nwidth = {width}\n"))
    }

    pub(crate) fn start_in(place: &Place, before: &[&str]) -> Self {
        let mut daemon = Self::adopt(place, Self::spawn(place, before, &[]));
        eventually("the daemon serves", || {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none(), "the daemon ended at once: {ended:?}");
            let Ok(stream) = UnixStream::connect(place.socket()) else { return false };
            // It listens before it serves, and a connection of that time waits.
            Client::over(stream).try_call("daemon.status", json!({})).is_ok()
        });
        daemon
    }

    /// Starts one that is to refuse, and gives what it says. It must not take long.
    #[track_caller]
    pub fn refused(place: &Place) -> String {
        let log = place.path("daemon.log");
        let before = std::fs::read_to_string(&log).unwrap_or_default().len();
        let status = Self::adopt(place, Self::spawn(place, &[], &[])).ended(Duration::from_secs(20));
        let said = std::fs::read_to_string(&log).unwrap()[before..].to_owned();
        assert!(!status.success(), "it ended well: {said}");
        said
    }

    /// Starts the program, and waits for nothing.
    pub fn spawn(place: &Place, before: &[&str], env: &[(&str, &str)]) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(place.path("daemon.log")).unwrap();
        let harnessd = program("harnessd");
        let line: Vec<&str> = before.iter().copied().chain([harnessd.to_str().unwrap()]).collect();
        let mut command = place.command(line[0]);
        command.args(&line[1..]).envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(log)).spawn().unwrap()
    }

    /// Takes on a daemon of this place that the test started itself.
    pub fn adopt(place: &Place, child: Child) -> Self {
        Self { place: place.clone(), child }
    }

    /// Its place, for what outlives it.
    pub fn place(&self) -> Place {
        self.place.clone()
    }

    /// The process of the daemon, in `/proc`.
    pub fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process().signal(signal);
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ended(&mut self, within: Duration) -> ExitStatus {
        found_within(within, "the daemon ends", || self.child.try_wait().unwrap())
    }

    /// Kills it as a crash would.
    pub fn crash(mut self) -> Place {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.place()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        // Stopped like this it takes along what its calls started.
        self.process().try_signal(Signal::SIGCONT);
        self.process().try_signal(Signal::SIGTERM);
        let end = crate::now() + LAST_MOMENT;
        while crate::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(crate::LOOK_AGAIN);
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
