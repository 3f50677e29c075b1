//! A process group: who is in it, signals to it, and waiting until nobody is.
//!
//! Owns no process. A group whose leader was reaped could in theory be another one by now, so whoever signals such a group
//! looks first whether it still has members of our own session.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgid, getsid};
use rustix::process::{PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use super::stat::stat;

/// How long a group may take to end after SIGTERM before it gets SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to clear a group away after SIGKILL before it is given up: its processes hang in a
/// device or a dead file system.
pub(super) const KILL_WAIT: Duration = Duration::from_secs(5);

/// A process group that we made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Group(pub(super) i32);

/// A descriptor that becomes readable when process `pid` ends.
#[expect(
    deprecated,
    reason = "the function that replaces it is unsafe, because a descriptor of any type could be closed behind its back; an \
              OwnedFd stays open and stays the same for as long as it lives, which is all that is asked for there"
)]
pub(super) fn end_of(pid: i32) -> io::Result<AsyncFd<OwnedFd>> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    AsyncFd::with_interest(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)
}

impl Group {
    /// Sends a signal to all of it. Nothing happens where nobody is left.
    pub(super) fn signal(self, signal: Signal) {
        let _ = killpg(Pid::from_raw(self.0), signal);
        if signal == Signal::SIGTERM {
            // A stopped process would not even see it.
            let _ = killpg(Pid::from_raw(self.0), Signal::SIGCONT);
        }
    }

    /// Whether the kernel knows such a group; its members may all be dead and not reaped.
    fn exists(self) -> bool {
        killpg(Pid::from_raw(self.0), None).is_ok()
    }

    /// Whether somebody in it is alive. Cheap where nobody is.
    pub(super) fn is_alive(self) -> bool {
        self.exists() && !self.members().is_empty()
    }

    /// Its living members. Looks at every process of the machine.
    pub(super) fn members(self) -> Vec<i32> {
        let session = getsid(None).ok();
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        processes
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|&pid| getpgid(Some(Pid::from_raw(pid))).is_ok_and(|group| group.as_raw() == self.0))
            .filter(|&pid| stat(pid).is_some_and(|stat| !stat.dead && Some(Pid::from_raw(stat.session)) == session))
            .collect()
    }

    /// Waits until nobody in it is alive.
    pub(super) async fn gone(self) {
        while self.exists() {
            let members = self.members();
            if members.is_empty() {
                return;
            }
            for pid in members {
                match end_of(pid) {
                    // The number could have gone to somebody else since we looked.
                    Ok(end) if getpgid(Some(Pid::from_raw(pid))).is_ok_and(|group| group.as_raw() == self.0) => {
                        let _ = end.readable().await;
                    }
                    Err(error) if error.raw_os_error() != Some(nix::libc::ESRCH) => {
                        // No descriptor is left to wait with, so time has to do.
                        sleep(Duration::from_millis(50)).await;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Ends a group whose leader was reaped: SIGTERM, SIGKILL after the grace. Returns whether it is gone.
    pub(super) async fn end(self, force: bool) -> bool {
        if !force && self.is_alive() {
            self.signal(Signal::SIGTERM);
            if tokio::time::timeout(GRACE, self.gone()).await.is_ok() {
                return true;
            }
        }
        if self.is_alive() {
            self.signal(Signal::SIGKILL);
        }
        tokio::time::timeout(KILL_WAIT, self.gone()).await.is_ok()
    }
}
