//! Manages the pool of keepers: which keeper serves which run, which are free, and which run a process belongs to.
//!
//! ```text
//!              take                 give back: nothing is left of the call
//!   free ──────────────▶ busy ─────────────────────────────────────────▶ free
//!                          ├─ park: others live on ─▶ parked with the run ─ release, or they end ─▶ free
//!                          ├─ dropped: closed ─▶ retired ─ it has ended what was below it ─▶ reaped
//!                          └─ stuck: the kernel does not end what is below it ─▶ retired, and not waited for
//! ```
//!
//! A keeper has processes of one [`Owner`] for all its life, and is free for that owner alone. It has the processes of
//! one call, so that the end of a hanging call never touches a server that an earlier call of the run has started. A
//! descendant of a keeper belongs to the run that the keeper serves; below a keeper that serves none it has no rights
//! ([`super::owner`]). The daemon is a subreaper. While there is a pool, no other module may start a process: every
//! child that is not a keeper counts as a leftover of a killed keeper, and is ended.

pub(super) mod connection;
pub(super) mod running_call;
pub(super) mod sealed_program;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use harness_protocol::id::RunId;
use harness_protocol::inside_run;
use harness_protocol::limit::CallLimits;
use nix::sys::prctl;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::cgroup::{Group, Groups};
use super::owner::own_mark::Standing;
use super::owner::{self, Lineage, Machine, Untraced};
use super::pool::connection::{Closed, KeeperProgram, Link};
use super::supervisor::ENTER;
use super::supervisor::protocol::{Owner, What};
use super::timing::KILL_WAIT;
use super::tree::kill::Found;
use super::tree::proc_stat::{beginning_of, stat};
use super::tree::{Member, Tree};
use super::unkillable::{self, Step, Stuck};
use crate::timed_read;

/// Idle keepers that are kept for the next calls.
const MOST_FREE: usize = 16;
/// Keepers that one run may hold for processes that its calls have left.
const MOST_PARKED: usize = 64;
/// Bytes of a command line that are read to be shown.
const COMMAND_SHOWN: u64 = 4096;
/// How long the read of one may take. It is answered at once where the process does not prevent that.
const PATIENCE: Duration = Duration::from_millis(500);
/// Longest pause between two looks at killed and adopted processes.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// All keepers of a daemon.
#[derive(Debug)]
pub struct Keepers {
    program: KeeperProgram,
    own: i32,
    /// The position of this process at its start: its mark distinguishes processes of runs from those outside.
    standing: Standing,
    /// Whether the processes of a dead keeper become children of this process.
    adopts: bool,
    groups: Option<Arc<Groups>>,
    pool: Mutex<Pool>,
    /// Held shared while a keeper is being started and is not known yet, so that it is not taken for a stranger.
    starting: RwLock<()>,
    /// One sweep at a time.
    sweeping: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Pool {
    /// The latest one is used first.
    free: Vec<Link>,
    parked: HashMap<RunId, Vec<Parked>>,
    /// Every keeper that is not reaped, and the run that it serves.
    known: HashMap<i32, Option<RunId>>,
    retired: Vec<Closed>,
    /// Children that SIGKILL does not end: keepers, and what lost its keeper. They are not waited for, and reaped as
    /// soon as the kernel lets them go.
    stuck: BTreeSet<i32>,
    /// No keeper is needed any more.
    closed: bool,
}

/// A keeper with the processes that a finished call has left.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) link: Link,
    /// Reads their output.
    pub(super) drainer: Option<JoinHandle<()>>,
}

/// The outcome of ending what lost its keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Swept {
    /// Nothing is left.
    All,
    /// All was killed, and the kernel does not end what is left.
    Stuck,
    /// Something may still run.
    Part,
}

/// A process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id in the daemon's view.
    pub pid: i32,
    /// Its command line, or its name in brackets.
    pub command: String,
}

impl Keepers {
    /// A pool for keepers of `program`, for a daemon that was started at `standing`. No keeper runs yet.
    pub fn new(program: KeeperProgram, standing: Standing) -> Self {
        Self {
            program,
            own: i32::try_from(std::process::id()).unwrap_or(i32::MAX),
            standing,
            adopts: false,
            groups: None,
            pool: Mutex::default(),
            starting: RwLock::default(),
            sweeping: tokio::sync::Mutex::default(),
        }
    }

    /// Makes this process adopt, and end, the leftovers of a killed keeper. Only for a process whose children are all
    /// keepers.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn adopting(self) -> io::Result<Self> {
        prctl::set_child_subreaper(true)?;
        Ok(Self { adopts: true, ..self })
    }

    /// Lets cgroups hold the processes of runs and set their limits, where this process has a cgroup of its own. To be
    /// called before the first keeper starts.
    pub fn grouped(mut self) -> Self {
        self.groups = self.program.lock.as_ref().and_then(|lock| Groups::set_up(lock.state())).map(Arc::new);
        if let Some(groups) = &self.groups {
            let entrance = groups.entrance_of_keepers();
            self.program.args.extend(entrance.to_str().map(|path| format!("{ENTER}{path}")));
        }
        self
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A keeper for a process of `owner` that is started for `run`. A keeper that has had another owner is never used.
    pub(super) fn take(&self, owner: Owner, run: RunId) -> io::Result<Link> {
        let serves = owner.is_of_run().then_some(run);
        {
            let mut pool = self.pool();
            pool.reclaim(run);
            if let Some(at) = pool.free.iter().rposition(|link| link.owner == owner) {
                let link = pool.free.remove(at);
                pool.known.insert(link.pid(), serves);
                return Ok(link);
            }
        }
        let _gate = self.starting.read().unwrap_or_else(PoisonError::into_inner);
        let link = Link::open(&self.program, owner)?;
        self.pool().known.insert(link.pid(), serves);
        Ok(link)
    }

    /// A cgroup for a call of `run`, where there are cgroups and the call has limits that they can set.
    pub(super) async fn group(&self, run: RunId, limits: CallLimits) -> Option<Group> {
        let groups = Arc::clone(self.groups.as_ref().filter(|groups| groups.want(&limits))?);
        let made = tokio::task::spawn_blocking(move || groups.make(run, &limits)).await.ok()?;
        made.inspect_err(
            |error| tracing::warn!(%error, %run, "a call has no cgroup: its limits are set on each process"),
        )
        .ok()
    }

    /// Takes back a keeper that has no child.
    pub(super) fn give_back(&self, link: Link) {
        self.pool().free(link);
    }

    /// Parks a keeper with the processes that the call has left. Gives it back where the run has too many of these.
    pub(super) fn park(&self, run: RunId, parked: Parked) -> Result<(), Parked> {
        let mut pool = self.pool();
        let of_run = pool.parked.entry(run).or_default();
        if of_run.len() >= MOST_PARKED {
            return Err(parked);
        }
        of_run.push(parked);
        Ok(())
    }

    /// Takes all parked keepers of `run`.
    pub(super) fn unpark(&self, run: RunId) -> Vec<Parked> {
        self.pool().parked.remove(&run).unwrap_or_default()
    }

    /// Closes a keeper whose call is given up; it ends its processes. Until it is gone it counts as known.
    pub(super) fn retire(&self, link: Link) {
        let mut pool = self.pool();
        pool.retired.push(link.close());
        pool.reap_retired();
    }

    /// Closes a keeper that cannot end what is below it, with a word for root. The keeper stays until that is gone.
    pub(super) fn leave_stuck(&self, run: RunId, link: Link) {
        let pid = link.pid();
        let below = Tree::below(pid).members().into_iter().map(|member| member.pid);
        warn_of_stuck(Some(run), &below.filter(|&pid| stat(pid).is_some_and(|stat| !stat.dead)).collect());
        let mut pool = self.pool();
        pool.stuck.insert(pid);
        pool.retired.push(link.close());
    }

    /// Ends the leftovers of a keeper that is gone, or that does not work.
    pub(super) async fn lost(&self, mut link: Link) -> Swept {
        let pid = link.pid();
        let before = self.pool().stuck.clone();
        let is_dead = link.kill().await;
        if is_dead {
            // From here on another process may get its number.
            self.pool().known.remove(&pid);
        }
        link.group.as_ref().inspect(|group| group.kill());
        let mut swept = self.sweep().await;
        // The task that minds dead keepers may have given it up while this waited for its turn.
        if swept == Swept::All && self.pool().stuck.iter().any(|pid| !before.contains(pid)) {
            swept = Swept::Stuck;
        }
        if is_dead {
            return swept;
        }
        // It is known, and reaped, as long as the kernel keeps it.
        warn_of_stuck(None, &BTreeSet::from([pid]));
        let is_below_past = Tree::below(pid).members().iter().all(|member| unkillable::is_past_end(member.pid));
        let mut pool = self.pool();
        pool.stuck.insert(pid);
        pool.retired.push(link.close());
        if is_below_past && swept != Swept::Part { Swept::Stuck } else { Swept::Part }
    }

    /// Ends every child of this process that is no keeper, and everything below it.
    async fn sweep(&self) -> Swept {
        if !self.adopts {
            return Swept::All;
        }
        let _one = self.sweeping.lock().await;
        let ended = timeout(KILL_WAIT, async {
            let (mut pause, mut stuck) = (Duration::from_millis(1), Stuck::default());
            loop {
                let (found, left) = self.kill_adopted();
                if found == Found::Empty {
                    return Swept::All;
                }
                let pids: BTreeSet<i32> = left.iter().map(|member| member.pid).collect();
                let is_all = found == Found::Whole && pids.iter().all(|&pid| unkillable::is_past_end(pid));
                match stuck.step(is_all) {
                    Step::Wait => {}
                    Step::Abort => _ = unkillable::end_waits(pids),
                    Step::GiveUp => {
                        warn_of_stuck(None, &pids);
                        let ours = left.iter().filter(|member| member.parent == self.own);
                        self.pool().stuck.extend(ours.map(|member| member.pid));
                        return Swept::Stuck;
                    }
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
        ended.await.unwrap_or_else(|_| {
            tracing::error!("processes that lost their keeper live on after SIGKILL");
            Swept::Part
        })
    }

    /// Kills and reaps strangers among the children. Gives what there was, and what is left.
    fn kill_adopted(&self) -> (Found, Vec<Member>) {
        // While no keeper is being started, every child that is not known is a stranger, also in the passes of the
        // kill.
        let _gate = self.starting.write().unwrap_or_else(PoisonError::into_inner);
        let spared: HashSet<i32> = {
            let pool = self.pool();
            pool.known.keys().chain(&pool.stuck).copied().collect()
        };
        let tree = Tree { root: self.own, spared: &|pid| spared.contains(&pid) };
        match tree.kill(&reap) {
            Found::Empty => (Found::Empty, Vec::new()),
            found => (found, tree.members()),
        }
    }

    /// Notices keepers that die while no call uses them, and ends their leftovers. Costs nothing while none dies.
    pub async fn mind(self: Arc<Self>) {
        let mut children = match signal(SignalKind::child()) {
            Ok(children) => children,
            Err(error) => return tracing::error!(%error, "keepers that die are not noticed"),
        };
        while children.recv().await.is_some() {
            self.pool().forget_dead();
            self.sweep().await;
            if let Some(groups) = &self.groups {
                groups.tidy();
            }
        }
    }

    /// Closes all keepers and waits until they are gone, also those that calls give back meanwhile.
    pub async fn shut_down(&self) {
        let pids: Vec<i32> = {
            let mut pool = self.pool();
            pool.closed = true;
            let parked: Vec<Parked> = pool.parked.drain().flat_map(|(_, parked)| parked).collect();
            let free = std::mem::take(&mut pool.free);
            pool.retired.extend(free.into_iter().chain(parked.into_iter().map(|parked| parked.link)).map(Link::close));
            pool.known.keys().filter(|pid| !pool.stuck.contains(pid)).copied().collect()
        };
        for pid in pids {
            // A process that is reaped already is gone.
            if let Ok(end) = connection::end_of(pid) {
                let _ = end.readable().await;
            }
        }
        self.pool().reap_retired();
        self.sweep().await;
        if let Some(groups) = self.groups.clone() {
            let _ = tokio::task::spawn_blocking(move || groups.leave()).await;
        }
    }

    /// Whether calls of `run` may have left processes.
    pub(super) fn has_parked(&self, run: RunId) -> bool {
        self.pool().parked.contains_key(&run)
    }

    /// The runs whose calls may have left processes.
    pub(super) fn runs_with_parked(&self) -> Vec<RunId> {
        self.pool().parked.keys().copied().collect()
    }

    /// Number of parents that most processes have at most.
    pub const SHORT: usize = 32;
    /// Parents that a process may have at most: the owner of a process with more is not determined.
    pub const LONGEST: usize = owner::LONGEST;

    /// Whether a process has the mark of this daemon's runs, or another sign that it is not outside, or cannot be
    /// looked at. One look, without a wait; it gives no rights.
    pub fn is_marked(&self, pid: i32) -> bool {
        inside_run::is_marked_below(owner::mark_of(pid), self.standing.mark())
    }

    /// The owner of a descriptor's process, if it has no more than `longest` parents. Reads `/proc`, a bounded number
    /// of times and a bounded number of bytes.
    pub fn trace(&self, process: Option<BorrowedFd<'_>>, longest: usize) -> Lineage {
        let Some(process) = process else { return Lineage::Unknown(Untraced::NoNumber) };
        let pid = match owner::number_of(process) {
            Ok(pid) => pid,
            Err(why) => return Lineage::Unknown(why),
        };
        let is_it = || owner::number_of(process) == Ok(pid);
        let lineage = self.judge(pid, &is_it, longest);
        let steered = |tracer: i32| is_of_run(self.judge(tracer, &|| true, owner::LONGEST));
        if is_of_run(lineage) {
            return lineage;
        }
        match owner::tracer_of(pid) {
            Ok(tracer) if tracer.is_some_and(steered) => Lineage::Unknown(Untraced::Steered),
            Ok(_) => lineage,
            Err(why) => Lineage::Unknown(why),
        }
    }

    /// The owner by its parents and by its mark. The mark is looked at last: a process never loses it.
    fn judge(&self, pid: i32, is_it: &dyn Fn() -> bool, longest: usize) -> Lineage {
        let lineage = self.trace_number(pid, is_it, longest);
        if pid == self.own || is_of_run(lineage) {
            return lineage;
        }
        match self.standing.objection(lineage == Lineage::Beside, owner::mark_of(pid)) {
            None => lineage,
            // A process that has gone meanwhile has no mark to show.
            Some(why) => Lineage::Unknown(if is_it() { why } else { Untraced::Gone }),
        }
    }

    fn trace_number(&self, pid: i32, is_it: &dyn Fn() -> bool, longest: usize) -> Lineage {
        let keeper = |pid: i32| self.pool().known.get(&pid).copied();
        let above = self.standing.above();
        // Every process below a keeper has a mark. Most peers have none, and their parents need not be followed.
        let is_marked = inside_run::is_marked(owner::mark_of(pid));
        let is_other_keeper = |pid: i32, parent: i32| is_marked && owner::is_keeper(pid, parent);
        Machine { own: self.own, stat: &stat, keeper: &keeper, is_other_keeper: &is_other_keeper, above, longest }
            .trace(pid, is_it)
    }

    /// The run that process `pid` belongs to: that of the keeper which it descends from.
    pub fn run_of(&self, pid: i32) -> Option<RunId> {
        match self.trace_number(pid, &|| true, owner::LONGEST) {
            Lineage::Of(run) => Some(run),
            Lineage::Outside | Lineage::Beside | Lineage::Unknown(_) => None,
        }
    }

    /// The processes of `run` with the smallest pids; at most `most` are looked at. Reads `/proc`.
    pub fn processes_of(&self, run: RunId, most: usize) -> Vec<Process> {
        let keepers: Vec<i32> = {
            let pool = self.pool();
            pool.known.iter().filter(|(_, served)| **served == Some(run)).map(|(pid, _)| *pid).collect()
        };
        let mut pids: Vec<i32> =
            keepers.into_iter().flat_map(|keeper| Tree::below(keeper).members()).map(|member| member.pid).collect();
        pids.sort_unstable();
        // In the order of the pids; no further process is read once there are enough.
        pids.into_iter().filter_map(describe).take(most).collect()
    }
}

impl Pool {
    fn free(&mut self, mut link: Link) {
        link.group = None;
        if self.free.len() < MOST_FREE && !self.closed {
            self.known.insert(link.pid(), None);
            self.free.push(link);
        } else {
            self.retired.push(link.close());
            self.reap_retired();
        }
    }

    /// Frees the keepers of `run` whose last child has ended meanwhile.
    fn reclaim(&mut self, run: RunId) {
        let Some(parked) = self.parked.remove(&run) else { return };
        let mut still = Vec::with_capacity(parked.len());
        for mut one in parked {
            match one.link.try_next() {
                Ok(Some(What::Empty)) => self.free(one.link),
                // Dead keepers are found by [`Self::mind`], or when the run is released.
                _ => still.push(one),
            }
        }
        if !still.is_empty() {
            self.parked.insert(run, still);
        }
    }

    fn reap_retired(&mut self) {
        let Self { retired, known, stuck, .. } = self;
        retired.retain_mut(|Closed { child, .. }| {
            let lives = matches!(child.try_wait(), Ok(None));
            if !lives {
                let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
                known.remove(&pid);
                stuck.remove(&pid);
            }
            lives
        });
        stuck.retain(|pid| known.contains_key(pid) || !reap(*pid));
    }

    fn forget_dead(&mut self) {
        self.reap_retired();
        let Self { free, parked, known, .. } = self;
        let mut lives = |link: &mut Link| {
            let dead = link.is_dead();
            if dead {
                known.remove(&link.pid());
            }
            !dead
        };
        free.retain_mut(&mut lives);
        for of_run in parked.values_mut() {
            of_run.retain_mut(|parked| lives(&mut parked.link));
        }
        parked.retain(|_, of_run| !of_run.is_empty());
    }
}

/// Reaps a child, if it is dead.
fn reap(pid: i32) -> bool {
    matches!(waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)), Ok(status) if status != WaitStatus::StillAlive)
}

fn warn_of_stuck(run: Option<RunId>, pids: &BTreeSet<i32>) {
    let run = run.map(tracing::field::display);
    tracing::warn!(run, "{}", unkillable::told(pids));
}

/// Whether a process has no rights because of its owner.
const fn is_of_run(lineage: Lineage) -> bool {
    !matches!(lineage, Lineage::Outside | Lineage::Beside)
}

fn describe(pid: i32) -> Option<Process> {
    if stat(pid)?.dead {
        return None;
    }
    // A process may have megabytes of arguments, and may keep them from being read: by a thread that waits, for a file
    // system of its own, with the lock of its memory.
    let read = move || beginning_of(pid, COMMAND_SHOWN);
    let line = match timed_read::within(Path::new(&format!("/proc/{pid}/cmdline")), PATIENCE, read) {
        Ok(line) => line?,
        Err(_) => Vec::new(),
    };
    let words: Vec<_> = line.split(|&byte| byte == 0).filter(|word| !word.is_empty()).collect();
    let command = if words.is_empty() {
        let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
        format!("[{}]", String::from_utf8_lossy(&name).trim_end())
    } else {
        String::from_utf8_lossy(&words.join(&b' ')).into_owned()
    };
    Some(Process { pid, command })
}
