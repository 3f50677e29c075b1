//! Which run a process belongs to: the leaders of our process groups, and the groups that outlived their leaders.
//!
//! A number stands for the process that we mean as long as its entry is here: a leader is entered before it can be reaped and
//! taken out when it was, and the number of a group is not given out again while the group has members. Start times need
//! therefore not be compared.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use harness_protocol::id::RunId;

use super::group::Group;
use super::stat::stat;

/// The variable by which a call knows its run.
pub const RUN_VARIABLE: &str = "HARNESS_RUN_ID";
/// Longest line of ancestors that is followed.
const MAX_ANCESTORS: usize = 4096;

/// Who belongs to whom.
#[derive(Debug, Default)]
pub struct Lineage {
    known: Mutex<Known>,
    /// Held shared from before a process exists until it is entered, so that nobody is judged in between.
    spawning: RwLock<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// Living leaders, which are groups and may be sessions, too.
    leaders: HashMap<i32, RunId>,
    /// Groups whose leader has ended and that have members.
    orphaned: HashMap<i32, RunId>,
    /// Runs that have started a process and were not released.
    runs: HashSet<RunId>,
}

impl Known {
    fn of_group(&self, group: i32) -> Option<RunId> {
        self.leaders.get(&group).or_else(|| self.orphaned.get(&group)).copied()
    }
}

impl Lineage {
    /// Knows nobody.
    pub fn new() -> Self {
        Self::default()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process and enters it, in one.
    pub(super) fn enter<T, E>(
        self: &Arc<Self>,
        run: RunId,
        spawn: impl FnOnce() -> Result<(Group, T), E>,
    ) -> Result<(Entry, T), E> {
        let _gate = self.spawning.read().unwrap_or_else(PoisonError::into_inner);
        let (group, spawned) = spawn()?;
        let mut known = self.known();
        known.leaders.insert(group.0, run);
        known.orphaned.remove(&group.0);
        known.runs.insert(run);
        Ok((Entry { lineage: Arc::clone(self), group }, spawned))
    }

    /// The run that process `pid` descends from: one of its ancestors, its group or its session is a call's. A process that
    /// left all of these is still known by its environment, unless it changed that, too.
    pub fn run_of(&self, pid: i32) -> Option<RunId> {
        drop(self.spawning.write().unwrap_or_else(PoisonError::into_inner));
        let known = self.known();
        if known.runs.is_empty() {
            return None;
        }
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let mut ancestor = pid;
        for _ in 0..MAX_ANCESTORS {
            if ancestor <= 1 || ancestor == own {
                break;
            }
            let Some(stat) = stat(ancestor) else { break };
            let found = known.leaders.get(&ancestor).copied();
            let found = found.or_else(|| known.of_group(stat.group)).or_else(|| known.of_group(stat.session));
            if found.is_some() {
                return found;
            }
            ancestor = stat.parent;
        }
        if pid == own {
            return None;
        }
        run_in_environment(pid).filter(|run| known.runs.contains(run))
    }

    /// The groups of a run that outlived their leaders.
    pub(super) fn orphaned(&self, run: RunId) -> Vec<Group> {
        let known = self.known();
        known.orphaned.iter().filter(|(_, of)| **of == run).map(|(group, _)| Group(*group)).collect()
    }

    /// The runs that have such groups.
    pub(super) fn runs_with_orphans(&self) -> Vec<RunId> {
        self.known().orphaned.values().copied().collect()
    }

    /// Takes out a group that is gone.
    pub(super) fn forget_group(&self, group: Group) {
        self.known().orphaned.remove(&group.0);
    }

    /// Takes out a run that starts nothing more.
    pub(super) fn forget_run(&self, run: RunId) {
        self.known().runs.remove(&run);
    }
}

fn run_in_environment(pid: i32) -> Option<RunId> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(RUN_VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    str::from_utf8(value).ok()?.parse().ok()
}

/// A leader that is entered. Dropped, it is taken out.
#[derive(Debug)]
pub(super) struct Entry {
    lineage: Arc<Lineage>,
    group: Group,
}

impl Entry {
    /// The leader has ended and left others of its group behind.
    pub(super) fn leave_orphans(self) {
        let mut known = self.lineage.known();
        if let Some(run) = known.leaders.remove(&self.group.0) {
            known.orphaned.insert(self.group.0, run);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.lineage.known().leaders.remove(&self.group.0);
    }
}
