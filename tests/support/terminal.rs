//! Starts commands on a terminal of their own, types into it, and reads what it shows.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::{PATIENCE, found, found_within};

/// A command whose standard input, output and error are a terminal. It is killed at the latest when the test ends.
pub struct OnTerminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl OnTerminal {
    /// Starts the command on a new terminal, which controls it, as that of a login does.
    pub fn start(command: Command) -> Self {
        // The library cannot do this between fork and exec without `unsafe`. `setsid` executes the command in
        // its own process.
        let mut through = Command::new("setsid");
        through.arg("--ctty").arg(command.get_program()).args(command.get_args()).env_clear();
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => through.env(name, value),
                None => through.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            through.current_dir(dir);
        }
        Self::start_uncontrolled(through)
    }

    /// Starts the command on a new terminal that controls no process.
    pub fn start_uncontrolled(mut command: Command) -> Self {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        let name = ptsname(&near, Vec::new()).unwrap();
        let far = || {
            let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, nix::libc::O_NOCTTY);
            OwnedFd::from(options.open(path).unwrap())
        };
        command.stdin(far()).stdout(far()).stderr(far());
        let child = command.spawn().unwrap();
        // The command alone has the far end now: the near one ends with it.
        drop(command);
        let keyboard = File::from(near);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        // It ends once no process has the far end any more, and all is read.
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                shown.lock().unwrap().extend_from_slice(&bytes[..read]);
            }
        });
        Self { child, keyboard, screen, reader: Some(reader) }
    }

    /// What it has shown so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits until it has shown this.
    #[track_caller]
    pub fn shows(&self, part: &str) {
        self.shows_often(part, 1);
    }

    /// Waits until it has shown this so often.
    #[track_caller]
    pub fn shows_often(&self, part: &str, times: usize) {
        let shown = || (self.screen().matches(part).count() >= times).then_some(());
        let begun = crate::now();
        while shown().is_none() {
            assert!(begun.elapsed() < PATIENCE, "{part:?} is not shown {times} times: {}", self.screen());
            found_within(PATIENCE, part, || (shown().is_some() || begun.elapsed() > PATIENCE).then_some(()));
        }
    }

    /// Types this, as it is.
    pub fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Presses Ctrl-C, as a terminal would tell of it.
    pub fn interrupts(&self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).unwrap();
    }

    /// Waits for its end: its exit code, and all that it has shown.
    #[track_caller]
    pub fn finish(mut self) -> (i32, String) {
        let status = found("the command ends", || self.child.try_wait().unwrap());
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (status.code().unwrap_or(-1), self.screen())
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
