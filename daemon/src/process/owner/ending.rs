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
//! stopped process. The caller decides which processes are meant. A signal goes through a descriptor of the process, so
//! that it reaches no other one.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use harness_files::locks;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpriority_process, pidfd_open, pidfd_send_signal, setpriority_process,
};

use super::ancestry::Look;
use super::leftover::{Facts, Kin, kin};
use super::limit_of;
use crate::process::timing::HIGHEST_PRIORITY;
use crate::process::tree::Children;
use crate::process::tree::proc_stat::{Stat, stat};

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
const USER_MANAGER: &str = "systemd";

/// Tells which processes are to be ended.
#[derive(Clone, Copy)]
pub(super) struct Meant<'a> {
    /// Whether a process may be meant; must be answered at once.
    pub(super) maybe: &'a dyn Fn(i32) -> bool,
    /// Whether a process that may be meant is meant. It is stopped meanwhile, and continued where it is not.
    pub(super) surely: &'a dyn Fn(i32) -> bool,
}

/// Ends all processes that are meant. Gives the pids of those that were killed.
pub(super) fn end(meant: Meant<'_>) -> BTreeSet<i32> {
    // Among hundreds of forking processes this one would hardly get to run.
    let nice = getpriority_process(None).ok();
    let _ = setpriority_process(None, HIGHEST_PRIORITY);
    let ended = end_in_passes(meant);
    if let Some(nice) = nice {
        let _ = setpriority_process(None, nice);
    }
    ended
}

fn end_in_passes(meant: Meant<'_>) -> BTreeSet<i32> {
    let mut ended = BTreeSet::new();
    for _ in 0..PASSES {
        let found = stop(meant);
        if found.is_empty() {
            return ended;
        }
        if ended.is_empty() {
            let shown: Vec<i32> = found.iter().map(|one| one.pid).take(20).collect();
            let count = found.len();
            tracing::warn!(count, pids = ?shown, "processes that an earlier daemon's runs had left are ended");
        }
        for one in &found {
            send(one.pid, Signal::KILL, &|stat| stat.started == one.started);
            ended.insert(one.pid);
        }
        std::thread::sleep(PAUSE);
    }
    tracing::error!("processes that an earlier daemon's runs had left live on after SIGKILL");
    ended
}

/// Stops every process that is meant, as it is found, until a look at all processes finds no new one.
fn stop(meant: Meant<'_>) -> Vec<Stopped> {
    let mut hunt = Hunt { meant, found: Vec::new(), seen: HashSet::new() };
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
        let stopped = send(pid, Signal::STOP, &|_| (self.meant.maybe)(pid))?;
        self.seen.insert(pid);
        if !(self.meant.surely)(pid) {
            let _ = send(pid, Signal::CONT, &|stat| stat.started == stopped.started);
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

/// All processes that may belong to us.
pub(super) fn all() -> impl Iterator<Item = i32> {
    let own = nix::unistd::geteuid().as_raw();
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        // The directory in /proc of a process that hides from debuggers belongs to root.
        let owner = entry.metadata().ok()?.uid();
        (own == 0 || owner == own || owner == 0).then_some(pid)
    })
}

/// Whether a process belongs to our user, or hides whose it is.
pub(super) fn is_of_our_user(pid: i32) -> bool {
    let owner = fs::metadata(format!("/proc/{pid}")).map(|dir| dir.uid());
    owner.is_ok_and(|owner| owner == 0 || owner == nix::unistd::geteuid().as_raw())
}

/// Signals a process, if it is meant and lives, and we may. Gives its state.
pub(super) fn send(pid: i32, signal: Signal, is_meant: &dyn Fn(&Stat) -> bool) -> Option<Stat> {
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let stat = stat(pid).filter(|stat| !stat.dead && is_meant(stat))?;
    pidfd_send_signal(process, signal).ok().map(|()| stat)
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

fn inherits(pid: i32) -> bool {
    let name = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pid == 1 || name().trim_end() == USER_MANAGER
}
