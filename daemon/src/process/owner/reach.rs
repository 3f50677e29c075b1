//! Signals to processes of runs, whichever user they have become, and what is known of those that no signal reaches.
//!
//! Owns the order of the ways: directly, which is allowed for our own user and for every process in a user namespace
//! that our user has made; then by a deputy ([`super::deputy`]), which is allowed for subordinate users; then none. A
//! signal goes through a descriptor of the process, so that it reaches no other one.

use std::collections::BTreeSet;
use std::fs;

use harness_protocol::rpc::LeftProcess;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::deputy::Deputies;
use crate::process::tree::proc_stat::{Stat, stat};

/// Processes that are named at most.
const MOST_NAMED: usize = 20;

/// A process of a run that the daemon may not signal: it has become a user that is neither the daemon's nor a
/// subordinate one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OutOfReach {
    /// Its pid, as the daemon's PID namespace has it.
    pub pid: i32,
    /// The uid that it has become: its real one.
    pub user: u32,
    /// When it began: pids are reused.
    started: u64,
}

impl OutOfReach {
    /// Whether it still lives.
    pub fn lives(&self) -> bool {
        stat(self.pid).is_some_and(|stat| !stat.dead && stat.started == self.started)
    }

    /// Those that live, as clients are told of them.
    pub fn told(all: &BTreeSet<Self>) -> Vec<LeftProcess> {
        let living = all.iter().filter(|left| left.lives()).take(MOST_NAMED);
        living.map(|left| LeftProcess { pid: left.pid, user: left.user }).collect()
    }
}

/// The outcome of a signal.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sent {
    /// It was sent to a process with this state.
    To(Stat),
    /// The process is meant, and we may not signal it.
    Forbidden(OutOfReach),
    /// The process is not meant, or has gone.
    No,
}

/// The ways to signal processes.
#[derive(Default)]
pub(super) struct Reach {
    deputies: Deputies,
}

impl Reach {
    /// Signals a process, if it is meant and lives, and we may.
    pub(super) fn send(&mut self, pid: i32, signal: Signal, is_meant: &dyn Fn(&Stat) -> bool) -> Sent {
        let Some(process) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            return Sent::No;
        };
        let Some(stat) = stat(pid).filter(|stat| !stat.dead && is_meant(stat)) else { return Sent::No };
        match pidfd_send_signal(&process, signal) {
            Ok(()) => Sent::To(stat),
            Err(Errno::PERM) => {
                let Some(user) = user_of(pid) else { return Sent::No };
                match self.deputies.signal(user, pid, stat.started, signal) {
                    true => Sent::To(stat),
                    false => Sent::Forbidden(OutOfReach { pid, user, started: stat.started }),
                }
            }
            Err(_) => Sent::No,
        }
    }
}

/// The real user of a process: processes of that user may signal it.
fn user_of(pid: i32) -> Option<u32> {
    // Bytes: the name of a process, which is among them, need not be text.
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    user_in(&status)
}

fn user_in(status: &[u8]) -> Option<u32> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_process_is_the_real_one() {
        assert_eq!(user_in(b"Name:\t\xff\nUid:\t100004\t7\t8\t9\nGid:\t1\t1\t1\t1\n"), Some(100_004));
        for none in [&b"Name:\tUid: 5\n"[..], b"Uid:\tx", b"Uid:", b""] {
            assert_eq!(user_in(none), None);
        }
        assert_eq!(user_of(nix::unistd::getpid().as_raw()), Some(nix::unistd::getuid().as_raw()));
    }

    #[test]
    fn a_process_that_is_gone_is_told_no_more() {
        let own = nix::unistd::getpid().as_raw();
        let started = stat(own).map_or(0, |stat| stat.started);
        let all = BTreeSet::from([
            OutOfReach { pid: own, user: 7, started },
            OutOfReach { pid: own, user: 8, started: started + 1 },
            OutOfReach { pid: i32::MAX, user: 9, started },
        ]);
        assert_eq!(OutOfReach::told(&all), [LeftProcess { pid: own, user: 7 }]);
    }
}
