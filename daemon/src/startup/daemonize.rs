//! Frees the daemon from what it inherits from its starter: limits, signals, descriptors, session and standard streams.
//! Also tells that starter the steps of the start.
//!
//! `main` must call [`settle`] before it opens anything or starts a thread. The inherited limits that tools get back
//! are remembered before they are changed. Must not start a process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::RawFd;

use harness_protocol::terminal_safe::clean;
use nix::errno::Errno;
use nix::sys::signal::SigSet;
use nix::unistd::{close, dup2_stderr, dup2_stdin, dup2_stdout, getpid, getsid, setsid};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, warn};

use crate::process::rlimits::{Limits, TooLow};

/// The line on standard output by which an on-demand daemon says that it serves.
pub const READY_LINE: &str = "ready\n";

/// Inherited settings that were changed: processes that are started for others get them back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Resource limits of the starter, for tools.
    pub limits: Limits,
}

/// The begin of a line by which an on-demand daemon names its step of the start.
const DOING: &str = "doing ";

/// Reports the steps of a start, only to the process that started the daemon on demand.
#[derive(Debug, Clone, Copy)]
pub struct Starting {
    /// Whether that process listens.
    pub on_demand: bool,
}

impl Starting {
    /// Reports the next step, which may take a while.
    pub fn doing(self, what: impl std::fmt::Display) {
        if self.on_demand {
            let line = clean(&what.to_string()).replace('\n', " ");
            let mut stdout = io::stdout();
            // That process may be gone.
            _ = writeln!(stdout, "{DOING}{line}").and_then(|()| stdout.flush());
        }
    }
}

/// Cleans up this process: as many open files as allowed, no blocked signal, and no descriptor beside the standard
/// streams and `keep`.
///
/// To be called before anything is opened and any thread is started.
///
/// # Errors
/// If a limit would end the daemon.
pub fn settle(keep: &[RawFd]) -> Result<Inherited, TooLow> {
    close_descriptors(keep);
    // Only fails for a bad pointer.
    _ = SigSet::empty().thread_set_mask();
    Ok(Inherited { limits: Limits::raise()? })
}

/// A lock or a pipe that a script left open would otherwise stay with us, and with every tool.
fn close_descriptors(keep: &[RawFd]) {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return };
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok();
    let open: Vec<RawFd> = entries.filter_map(number).collect();
    for descriptor in open {
        if descriptor > 2 && !keep.contains(&descriptor) {
            // The descriptor that the list was read by is among them, and closed already.
            _ = close(descriptor);
        }
    }
}

/// Handles every signal that was inherited as ignored. It still has no effect here; executed programs get the default
/// back, since only an ignored signal is inherited as such.
///
/// Within a runtime, before any process is started.
pub fn take_over_ignored_signals() {
    // A write beyond the limit of file size must fail, and not end us; the limit may be changed from outside.
    if let Err(error) = signal(SignalKind::from_raw(nix::libc::SIGXFSZ)) {
        debug!(%error, "the signal of the limit of file size stays as it is");
    }
    for number in ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default()) {
        // The standard library ignores SIGPIPE, and restores it for processes that it starts.
        if number == SignalKind::pipe().as_raw_value() {
            continue;
        }
        if let Err(error) = signal(SignalKind::from_raw(number)) {
            debug!(number, %error, "an ignored signal stays ignored");
        }
    }
}

/// Numbers of the ignored signals in a `/proc/PID/status`.
fn ignored_signals(status: &str) -> Vec<i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|number| mask >> (number - 1) & 1 == 1).collect()
}

/// Leaves the session, the terminal and the directory of the process that started us.
///
/// # Errors
/// If `/` cannot be entered.
pub fn leave_session() -> io::Result<()> {
    match setsid() {
        Ok(_) => {}
        // A leader of its group cannot leave it; a leader of its session has left already.
        Err(Errno::EPERM) if getsid(None) == Ok(getpid()) => {}
        Err(errno) => warn!(%errno, "the session of whoever started this daemon cannot be left"),
    }
    std::env::set_current_dir("/")
}

/// Says on standard output that the daemon serves, then closes the standard streams. The starter need not read any
/// more.
///
/// # Errors
/// If `/dev/null` cannot replace them.
pub fn leave_streams() -> io::Result<()> {
    let mut stdout = io::stdout();
    _ = stdout.write_all(READY_LINE.as_bytes()).and_then(|()| stdout.flush());
    let null: File = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        assert_eq!(ignored_signals("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001007\n"), [1, 2, 3, 13]);
        assert_eq!(ignored_signals("SigIgn:\t8000000000000000\n"), [64]);
        assert!(ignored_signals("").is_empty());
    }
}
