//! Ends processes that are not children of a keeper: all are stopped first, then killed, until no more are found.
//!
//! ```text
//!   look at all processes ─▶ stop what may be meant ─▶ meant: keep it stopped ─▶ a look finds no more ─▶ kill all
//!          ▲                        └─ not meant: continue it                                             │
//!          └──────────────────────────────── until a look finds none ─────────────────────────────────────┘
//! ```
//!
//! This ends also processes that fork and exit all the time: before such a process has been looked at closely, it is
//! gone and another one has its place. So the latest pids are looked at first, and what takes long is asked about a
//! stopped process. After 100 passes it gives up, and says so in the log. The caller decides which processes are meant.
//! A signal goes through a descriptor of the process, so that it reaches no other one.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use harness_files::locks;
use rustix::process::{Signal, getpriority_process, setpriority_process};

use super::ancestry::Look;
use super::leftover::{Facts, Kin, kin};
use super::limit_of;
use super::reach::{OutOfReach, Reach, Sent};
use crate::process::timing::HIGHEST_PRIORITY;
use crate::process::tree::Children;
use crate::process::tree::proc_stat::{Stat, stat};
use crate::process::unkillable::{self, Step, Stuck};

/// Passes over the processes, each of which kills all that it finds.
const PASSES: u32 = 100;
/// Looks at all processes in a pass, and at the children of one process.
const LOOKS: u32 = 32;
/// How many of the latest processes are looked at first, and how often in a row without finding any.
const LATEST: i32 = 48;
const LOOKS_AT_LATEST: u32 = 24;
/// Pause after each pass.
const PAUSE: Duration = Duration::from_millis(20);
/// How often the kernel's list of locks is read.
const LOOKS_AT_LOCKS: u32 = 4;
/// Name of the programs that manage a user's processes, and inherit orphans.
const USER_MANAGER: &[u8] = b"systemd";

/// Tells which processes are to be ended.
#[derive(Clone, Copy)]
pub(super) struct Meant<'a> {
    /// Whether a process may be meant; must be answered at once.
    pub(super) maybe: &'a dyn Fn(i32) -> bool,
    /// Whether a process that may be meant is meant. It is stopped meanwhile, and continued where it is not.
    pub(super) surely: &'a dyn Fn(i32) -> bool,
}

/// The outcome of an end of processes.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Pids of those that were killed, or had gone before that.
    pub(super) pids: BTreeSet<i32>,
    /// Those that are meant, and that we may not signal.
    pub(super) out_of_reach: BTreeSet<OutOfReach>,
    /// Those that were killed, execute nothing any more, and do not end ([`unkillable`]).
    pub(super) stuck: BTreeSet<i32>,
}

/// Ends all processes that are meant, whichever user they have become.
pub(super) fn end(meant: Meant<'_>) -> Ended {
    // Among hundreds of forking processes this one would hardly get to run.
    let nice = getpriority_process(None).ok();
    let _ = setpriority_process(None, HIGHEST_PRIORITY);
    let ended = end_in_passes(meant);
    if let Some(nice) = nice {
        let _ = setpriority_process(None, nice);
    }
    ended
}

fn end_in_passes(meant: Meant<'_>) -> Ended {
    let (mut ended, mut reach, mut stuck) = (Ended::default(), Reach::default(), Stuck::default());
    // What is past its end and does not go has passes of its own, by time.
    let mut pass = 0;
    while pass < PASSES {
        let found = stop(meant, &mut reach, &mut ended.out_of_reach);
        if found.is_empty() {
            tell(&ended.out_of_reach);
            return ended;
        }
        let is_all_past_end = pass > 0 && found.iter().all(|one| unkillable::is_past_end(one.pid));
        let pids = || found.iter().map(|one| one.pid);
        match stuck.step(is_all_past_end) {
            Step::Wait => {}
            Step::Abort => _ = unkillable::end_waits(pids()),
            Step::GiveUp => {
                ended.stuck = pids().collect();
                ended.pids.retain(|pid| !ended.stuck.contains(pid));
                tracing::error!("what an earlier daemon's runs had left: {}", unkillable::told(&ended.stuck));
                tell(&ended.out_of_reach);
                return ended;
            }
        }
        if pass == 0 {
            let shown: Vec<i32> = found.iter().map(|one| one.pid).take(20).collect();
            let count = found.len();
            tracing::warn!(count, pids = ?shown, "processes that an earlier daemon's runs had left are ended");
        }
        for one in &found {
            match reach.send(one.pid, Signal::KILL, &|stat| stat.started == one.started) {
                // One that has gone meanwhile is ended as well: it was found, and it is no more.
                Sent::To(_) | Sent::No => _ = ended.pids.insert(one.pid),
                Sent::Forbidden(left) => _ = ended.out_of_reach.insert(left),
            }
        }
        std::thread::sleep(PAUSE);
        pass += u32::from(!is_all_past_end);
    }
    tell(&ended.out_of_reach);
    tracing::error!("processes that an earlier daemon's runs had left live on after SIGKILL");
    ended
}

fn tell(out_of_reach: &BTreeSet<OutOfReach>) {
    for OutOfReach { pid, user, .. } in out_of_reach.iter().filter(|left| left.lives()).take(20) {
        tracing::error!(
            pid,
            user,
            "a process that an earlier daemon's run had left is of another user, and this daemon may not end it; it \
             has no rights here, and lives on until root ends it: kill -9 {pid}"
        );
    }
}

/// Stops every process that is meant, as it is found, until a look at all processes finds no new one.
fn stop(meant: Meant<'_>, reach: &mut Reach, out_of_reach: &mut BTreeSet<OutOfReach>) -> Vec<Stopped> {
    let mut hunt = Hunt { meant, reach, out_of_reach, found: Vec::new(), seen: HashSet::new() };
    for _ in 0..LOOKS {
        let before = hunt.found.len();
        hunt.look_at_latest();
        all().for_each(|pid| hunt.look_at(pid));
        if hunt.found.len() == before {
            break;
        }
    }
    hunt.found
}

/// A process that is meant.
struct Stopped {
    pid: i32,
    started: u64,
}

/// Processes that fork and exit all the time are gone before they are killed, and others have taken their place. But
/// these are children of the same parent, and its latest ones; and they have the latest pids of the machine.
struct Hunt<'a> {
    meant: Meant<'a>,
    reach: &'a mut Reach,
    out_of_reach: &'a mut BTreeSet<OutOfReach>,
    found: Vec<Stopped>,
    /// Pids of processes that were stopped, also of those that were continued. Others get a new look each time: the
    /// pids of processes that fork and exit all the time are soon reused.
    seen: HashSet<i32>,
}

impl Hunt<'_> {
    /// Looks at the latest processes until none of them is new and meant. A list of all processes is too old by the
    /// time at which it has been gone through, if thousands of dead ones are in it.
    fn look_at_latest(&mut self) {
        let mut without = 0;
        while without < LOOKS_AT_LATEST {
            let Some(latest) = latest_pid() else { return };
            let before = self.found.len();
            (1.max(latest - LATEST)..=latest).rev().for_each(|pid| _ = self.stop(pid));
            without = if self.found.len() == before { without + 1 } else { 0 };
        }
    }

    fn look_at(&mut self, pid: i32) {
        let Some(parent) = self.stop(pid) else { return };
        for _ in 0..LOOKS {
            let before = self.found.len();
            Children::now().of(parent).into_iter().rev().for_each(|pid| _ = self.stop(pid));
            if self.found.len() == before {
                break;
            }
        }
    }

    /// Stops a process that was not looked at yet, if it is meant. Gives its parent.
    fn stop(&mut self, pid: i32) -> Option<i32> {
        if self.seen.contains(&pid) {
            return None;
        }
        let stopped = match self.reach.send(pid, Signal::STOP, &|_| (self.meant.maybe)(pid)) {
            Sent::To(stopped) => stopped,
            Sent::Forbidden(left) => {
                self.seen.insert(pid);
                if (self.meant.surely)(pid) {
                    self.out_of_reach.insert(left);
                }
                return None;
            }
            Sent::No => return None,
        };
        self.seen.insert(pid);
        if !(self.meant.surely)(pid) {
            self.reach.send(pid, Signal::CONT, &|stat| stat.started == stopped.started);
            return None;
        }
        self.found.push(Stopped { pid, started: stopped.started });
        Some(stopped.parent)
    }
}

/// The pid that was given last, in this pid namespace.
fn latest_pid() -> Option<i32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().last()?.parse().ok()
}

/// All processes, of whichever user: a run's may have become another one.
pub(super) fn all() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process is of our user, or of root: it may have become that by a program with the set-user-id bit.
pub(super) fn has_our_user(pid: i32) -> bool {
    let user = fs::metadata(format!("/proc/{pid}")).map(|dir| dir.uid());
    user.is_ok_and(|user| user == 0 || user == nix::unistd::geteuid().as_raw())
}

/// Whether a process is none that root could end for another user by mistake: it belongs to our user, or we are not
/// root, and then the kernel lets us signal only what is ours.
pub(super) fn is_of_our_user(pid: i32) -> bool {
    !nix::unistd::geteuid().is_root() || fs::metadata(format!("/proc/{pid}")).is_ok_and(|dir| dir.uid() == 0)
}

/// The processes of this machine, for the rule that tells what was left.
pub(super) struct Machine {
    takers: BTreeSet<i32>,
    /// The first process, which almost every process has above it.
    first: Option<(Stat, u64)>,
    /// Processes with the mark of a daemon that were asked about and took a lock.
    daemons: RefCell<BTreeSet<i32>>,
}

impl Machine {
    /// The machine now. Answers are for one end of processes; later ones may differ.
    pub(super) fn now() -> Self {
        Self { takers: takers(), first: stat(1).zip(limit_of(1)), daemons: RefCell::default() }
    }

    /// The owner of a process.
    pub(super) fn kin(&self, pid: i32) -> Kin {
        let look = Look {
            stat: &|pid| self.first.filter(|_| pid == 1).map(|first| first.0).or_else(|| stat(pid)),
            limit: &|pid| self.first.filter(|_| pid == 1).map(|first| first.1).or_else(|| limit_of(pid)),
        };
        kin(pid, Facts { look, took_lock: &|pid, anew| self.took_lock(pid, anew), inherits: &inherits })
    }

    fn took_lock(&self, pid: i32, anew: bool) -> bool {
        if self.takers.contains(&pid) || self.daemons.borrow().contains(&pid) {
            return true;
        }
        let is_one = anew && takers().contains(&pid);
        if is_one {
            self.daemons.borrow_mut().insert(pid);
        }
        is_one
    }
}

/// The processes that have taken exclusive locks. A list may leave out a line, so it is read several times.
fn takers() -> BTreeSet<i32> {
    (0..LOOKS_AT_LOCKS).flat_map(|_| locks::takers()).collect()
}

/// Whether a process is known to inherit orphans: the first one of any pid namespace does, a container's among them.
fn inherits(pid: i32) -> bool {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    pid == 1 || read("comm").trim_ascii_end() == USER_MANAGER || is_first_of_a_namespace(&read("status"))
}

/// Whether a process has the number 1 in its own pid namespace. `status` has the numbers from ours inward.
fn is_first_of_a_namespace(status: &[u8]) -> bool {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"));
    line.and_then(|line| line.rsplit(u8::is_ascii_whitespace).find(|number| !number.is_empty())) == Some(b"1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_of_a_pid_namespace_inherits_orphans() {
        for (status, expected) in [
            (&b"Name:\t\xff\nNSpid:\t812\t1\nNSpgid:\t812\t1\n"[..], true),
            (b"NSpid:\t812\t5\t1\n", true),
            (b"NSpid:\t1\n", true),
            (b"NSpid:\t812\n", false),
            (b"NSpid:\t1\t812\n", false),
            (b"NSpid:\t812\t11\n", false),
            (b"Name:\tNSpid: 1\nNSpid:\t7\n", false),
            (b"NSpid:\n", false),
            (b"Name:\ta\n", false),
            (b"", false),
        ] {
            assert_eq!(is_first_of_a_namespace(status), expected, "{}", String::from_utf8_lossy(status));
        }
        assert!(inherits(1) && !inherits(nix::unistd::getpid().as_raw()));
    }
}
