//! Starts commands for a test, and waits for their end, or lets them execute while the test goes on.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::{PATIENCE, Patient, Process};

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its exit code; 128 and the signal where one ended it.
    pub code: i32,
    /// All of standard output, as text.
    pub stdout: String,
    /// All of standard error, as text.
    pub stderr: String,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit {}\nstdout: {}\nstderr: {}", self.code, self.stdout, self.stderr)
    }
}

impl Output {
    /// Asserts the exit code, and shows everything where it is another.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self}");
        self
    }

    /// Asserts that it went well, and gives what it printed.
    #[track_caller]
    pub fn ok(self) -> String {
        self.exits(0).stdout
    }

    /// The same, without the last line break.
    #[track_caller]
    pub fn line(self) -> String {
        self.ok().trim_end().to_owned()
    }

    /// Asserts that it went well, and reads what it printed.
    #[track_caller]
    pub fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Asserts that standard error tells this.
    #[track_caller]
    pub fn tells(self, part: &str) -> Self {
        assert!(self.stderr.contains(part), "{part:?} is not told: {self}");
        self
    }
}

/// A command that is under way. It is killed at the latest when the test ends.
pub struct Running {
    child: Child,
    stdout: Option<BufReader<Patient<ChildStdout>>>,
}

impl Running {
    /// Starts it, with nothing on standard input.
    pub fn start(command: Command) -> Self {
        Self::start_reading(command, Stdio::null())
    }

    /// Starts it with this on standard input. A pipe stays open until it has ended, and nothing comes.
    pub fn start_reading(mut command: Command, stdin: impl Into<Stdio>) -> Self {
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let words = [command.get_program()].into_iter().chain(command.get_args());
        let line: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        let stdout = child.stdout.take().map(|stdout| BufReader::new(Patient::new(stdout, &line.join(" "))));
        Self { child, stdout }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// The process of the command, in `/proc`.
    pub fn process(&self) -> Process {
        Process(self.child.id())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// The next line that it prints; empty at the end.
    ///
    /// # Panics
    /// Where nothing comes and no end.
    #[track_caller]
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        line
    }

    /// Reads lines up to one with this in it.
    #[track_caller]
    pub fn read_to(&mut self, part: &str) {
        loop {
            let line = self.next_line();
            assert!(!line.is_empty(), "it ended and never printed {part:?}");
            if line.contains(part) {
                return;
            }
        }
    }

    /// Waits for its end. One that does not come is made to come.
    #[track_caller]
    pub fn finish(self) -> Output {
        let (code, stdout, stderr) = self.bytes();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Output { code, stdout: text(stdout), stderr: text(stderr) }
    }

    /// The same, with both outputs as they are.
    #[track_caller]
    pub fn bytes(mut self) -> (i32, Vec<u8>, Vec<u8>) {
        let pid = self.pid();
        let (done, is_done) = mpsc::channel::<()>();
        let watchdog = thread::spawn(move || match is_done.recv_timeout(PATIENCE) {
            Err(mpsc::RecvTimeoutError::Timeout) => kill(pid, Signal::SIGKILL).is_ok(),
            _ => false,
        });
        let mut stderr = self.child.stderr.take().unwrap();
        let errors = thread::spawn(move || {
            let mut bytes = Vec::new();
            stderr.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut stdout = Vec::new();
        let read = self.stdout.take().unwrap();
        stdout.extend_from_slice(read.buffer());
        // Here the watchdog has the time limit, which is of the whole.
        read.into_inner().into_inner().read_to_end(&mut stdout).unwrap();
        let stderr = errors.join().unwrap();
        let status = self.child.wait().unwrap();
        drop(done);
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        let told = String::from_utf8_lossy(&stderr);
        assert!(!watchdog.join().unwrap(), "waited {PATIENCE:?} in vain for its end: exit {code}, it said {told}");
        (code, stdout, stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
