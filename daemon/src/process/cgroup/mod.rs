//! Puts the processes of calls into cgroups of version 2, if the daemon has a cgroup of its own. So all processes of a
//! run are limited together, and the next daemon can end those that survive this one.
//!
//! ```text
//!   OWN/                     what was delegated; without processes, so that it can give its controllers on
//!   ├── daemon/              the daemon
//!   └── calls-STATE/         by the state directory
//!       ├── keepers/         the keepers, and calls without such limits
//!       └── run-RUN/         has the limits
//!           └── call-N/      the processes of one call, background children included; counts what happens to these
//! ```
//!
//! No controller is needed to hold processes. The path of `calls-STATE` is recorded in the state directory
//! ([`recorded_cgroup`]), because the next daemon may start in another cgroup.
//!
//! A launcher enters the cgroup of its call before it becomes the program, so a call has no part outside, unless a
//! process of it moves itself; the keeper is never inside. A directory is removed when no process is left in it;
//! leftovers of an earlier daemon of the state directory are removed at start. Must not touch a cgroup that is not
//! below OWN, except the one of an earlier daemon ([`recorded_cgroup`]). If another process is in OWN, OWN is left as
//! it is, and there are no such limits. Blocks for moments: the kernel moves processes under a lock.

mod find;
mod recorded_cgroup;

use std::fs;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use harness_protocol::id::RunId;
use harness_protocol::limit::{CallLimit, CallLimits};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::runtime::Handle;

use self::find::{Controllers, NoGroups};
pub(super) use self::recorded_cgroup::StateName;

/// The file by which processes enter a cgroup.
const PROCESSES: &str = "cgroup.procs";
/// The file that gives controllers to the cgroups below.
const BELOW: &str = "cgroup.subtree_control";
/// Name of the daemon's own cgroup.
const DAEMON: &str = "daemon";
/// Begin of the names of the cgroups with all calls, and with a run.
const CALLS: &str = "calls-";
const RUN: &str = "run-";
/// Name of the cgroup of the keepers.
const KEEPERS: &str = "keepers";
/// Attempts at making a cgroup that another call of the run has just removed.
const TRIES: usize = 16;
/// Time limit in milliseconds, and number of attempts, for the kernel to clear a killed cgroup.
const KILL_WAIT: (u16, usize) = (1_000, 16);

/// The cgroup of the daemon, and the cgroups in it.
#[derive(Debug)]
pub(super) struct Groups {
    own: PathBuf,
    /// The cgroup with everything that this daemon starts.
    calls: PathBuf,
    controllers: Controllers,
    /// The number of the next call.
    next: AtomicU64,
    /// Cgroups that still had processes when they were to be removed.
    late: Mutex<Vec<PathBuf>>,
}

/// The cgroup of one call. It is removed when this is dropped, or as soon as no process is left in it.
#[derive(Debug)]
pub(super) struct Group {
    groups: Arc<Groups>,
    path: PathBuf,
    /// The limits that it sets.
    sets: Controllers,
    /// The counts of the run before the call.
    before: Counts,
}

/// Whether a call has met a limit of its whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Meeting {
    /// No cgroup sets it.
    #[default]
    NotSet,
    /// The limit was not met.
    Kept,
    /// Processes of the call met it.
    Met,
    /// Only background children of earlier calls met it.
    MetByOthers,
}

/// Whether a call has met the limits of its whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grouped {
    /// Memory: a process that meets it is killed, with all processes of the same call.
    pub memory: Meeting,
    /// Processes: a process that meets it cannot fork.
    pub processes: Meeting,
}

impl Grouped {
    /// Whether the call has met this limit.
    pub const fn with(&self, limit: CallLimit) -> Meeting {
        match limit {
            CallLimit::AddressSpaceBytes => self.memory,
            CallLimit::Processes => self.processes,
            CallLimit::CpuSeconds | CallLimit::OpenFiles | CallLimit::FileSizeBytes => Meeting::NotSet,
        }
    }
}

/// How often limits were met in a cgroup and below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    killed: u64,
    not_forked: u64,
}

impl Counts {
    fn of(group: &Path) -> Self {
        let count = |file, name| {
            let text = fs::read_to_string(group.join(file)).unwrap_or_default();
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
        };
        Self { killed: count("memory.events", "oom_kill "), not_forked: count("pids.events", "max ") }
    }
}

impl Groups {
    /// Divides the cgroup of this process, if it is its own, for the daemon of this state directory. Logs which limits
    /// are set by cgroups, or why none is.
    pub(super) fn set_up(state: &StateName) -> Option<Self> {
        let divide = |(own, controllers)| Self::new(own, state, controllers).divide(state);
        match find::find().and_then(divide) {
            Ok(groups) => {
                let (Controllers { memory, pids }, cgroup) = (groups.controllers, groups.own.display());
                match memory || pids {
                    true => tracing::info!(%cgroup, memory, processes = pids, "limits of runs are set by cgroups"),
                    false => {
                        tracing::info!(
                            %cgroup,
                            "runs are held by a cgroup without controllers: limits are set on each process"
                        )
                    }
                }
                Some(groups)
            }
            Err(why) => {
                tracing::info!(%why, "limits of runs are set on each process, not by cgroups");
                None
            }
        }
    }

    fn new(own: PathBuf, state: &StateName, controllers: Controllers) -> Self {
        let calls = own.join(state.calls());
        Self { own, calls, controllers, next: AtomicU64::new(0), late: Mutex::default() }
    }

    fn divide(self, state: &StateName) -> Result<Self, NoGroups> {
        let groups = self;
        groups.remove_calls();
        let daemon = groups.own.join(DAEMON);
        for group in [&daemon, &groups.calls, &groups.calls.join(KEEPERS)] {
            make(group).map_err(NoGroups::at(group))?;
        }
        // Recorded before any process is in it.
        state.note(&groups.calls).map_err(NoGroups::at(state.path()))?;
        let enter = |group: &Path| {
            let file = group.join(PROCESSES);
            put(&file, &std::process::id().to_string()).map_err(NoGroups::at(&file))
        };
        let divided = enter(&daemon).and_then(|()| {
            [&groups.own, &groups.calls].into_iter().try_for_each(|group| {
                let file = group.join(BELOW);
                put(&file, &groups.controllers.change('+')).map_err(NoGroups::at(&file))
            })
        });
        divided.inspect_err(|_| groups.leave())?;
        Ok(groups)
    }

    /// Restores the cgroup as it was found. For a daemon that stops, when its keepers are gone.
    pub(super) fn leave(&self) {
        self.remove_calls();
        let _ = put(&self.own.join(BELOW), &self.controllers.change('-'));
        let _ = put(&self.own.join(PROCESSES), &std::process::id().to_string());
        let _ = fs::remove_dir(self.own.join(DAEMON));
    }

    /// Ends and removes leftovers of an earlier daemon, or of runs that are over.
    fn remove_calls(&self) {
        if self.calls.exists() && !end(&self.calls) {
            tracing::warn!(cgroup = %self.calls.display(), "the cgroup of runs that are over stays");
        }
    }

    /// The file by which keepers enter.
    pub(super) fn entrance_of_keepers(&self) -> PathBuf {
        self.calls.join(KEEPERS).join(PROCESSES)
    }

    /// Whether a cgroup is to set one of these limits.
    pub(super) fn want(&self, limits: &CallLimits) -> bool {
        self.sets(limits) != Controllers::default()
    }

    fn sets(&self, limits: &CallLimits) -> Controllers {
        Controllers {
            memory: self.controllers.memory && limits.address_space_bytes.is_some(),
            pids: self.controllers.pids && limits.processes.is_some(),
        }
    }

    /// Makes the cgroup of a call.
    pub(super) fn make(self: &Arc<Self>, run: RunId, limits: &CallLimits) -> io::Result<Group> {
        let of_run = self.calls.join(format!("{RUN}{run}"));
        let path = of_run.join(format!("call-{}", self.next.fetch_add(1, Ordering::Relaxed)));
        let mut group = Group { groups: Arc::clone(self), path, sets: self.sets(limits), before: Counts::default() };
        let mut tries = TRIES;
        loop {
            match self.fill(&of_run, &group.path, limits) {
                Err(error) if is_gone(&error) && tries > 0 => tries -= 1,
                Err(error) => return Err(error),
                Ok(before) => {
                    group.before = before;
                    return Ok(group);
                }
            }
        }
    }

    fn fill(&self, of_run: &Path, of_call: &Path, limits: &CallLimits) -> io::Result<Counts> {
        make(of_run)?;
        let set = |file, value: Option<u64>| match value {
            Some(value) => put(&of_run.join(file), &value.to_string()),
            None => Ok(()),
        };
        if self.controllers.memory {
            set("memory.max", limits.address_space_bytes)?;
            // Swapped memory counts, too. Kernels without swap have no such file.
            match set("memory.swap.max", limits.address_space_bytes.map(|_| 0)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.controllers.pids {
            set("pids.max", limits.processes)?;
        }
        put(&of_run.join(BELOW), &self.controllers.change('+'))?;
        let before = Counts::of(of_run);
        make(of_call)?;
        if self.controllers.memory {
            // A call that has lost one of its processes cannot go on in a useful way.
            put(&of_call.join("memory.oom.group"), "1")?;
        }
        Ok(before)
    }

    fn remove(&self, of_call: PathBuf) {
        match remove(&of_call) {
            Ok(()) => _ = of_call.parent().map(fs::remove_dir),
            Err(_) => self.late.lock().unwrap_or_else(PoisonError::into_inner).push(of_call),
        }
    }

    /// Removes cgroups that could not be removed before.
    pub(super) fn tidy(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        late.into_iter().for_each(|of_call| self.remove(of_call));
    }
}

impl Group {
    /// Path of the file by which processes enter it.
    pub(super) fn entrance(&self) -> PathBuf {
        self.path.join(PROCESSES)
    }

    /// The limits among these that the cgroup does not set.
    pub(super) fn rest(&self, limits: CallLimits) -> CallLimits {
        CallLimits {
            address_space_bytes: limits.address_space_bytes.filter(|_| !self.sets.memory),
            processes: limits.processes.filter(|_| !self.sets.pids),
            ..limits
        }
    }

    /// Whether the call has met limits so far.
    pub(super) fn grouped(&self) -> Grouped {
        let of_call = Counts::of(&self.path);
        let of_run = self.path.parent().map(Counts::of).unwrap_or_default();
        let memory = match (self.sets.memory, of_call.killed > 0, of_run.killed > self.before.killed) {
            (false, ..) => Meeting::NotSet,
            (_, true, _) => Meeting::Met,
            (_, _, true) => Meeting::MetByOthers,
            _ => Meeting::Kept,
        };
        // It depends on the kernel which of the two counts.
        let processes = match (self.sets.pids, of_call.not_forked > 0 || of_run.not_forked > self.before.not_forked) {
            (false, _) => Meeting::NotSet,
            (_, true) => Meeting::Met,
            _ => Meeting::Kept,
        };
        Grouped { memory, processes }
    }

    /// Kills all of its processes at once, where the kernel can do that.
    pub(super) fn kill(&self) {
        kill(&self.path);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let (groups, path) = (Arc::clone(&self.groups), std::mem::take(&mut self.path));
        match Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn_blocking(move || groups.remove(path)),
            Err(_) => groups.remove(path),
        }
    }
}

impl Controllers {
    /// All of them with a sign, as the kernel takes them.
    fn change(self, sign: char) -> String {
        let names = [("memory", self.memory), ("pids", self.pids)];
        let changes: Vec<_> = names.iter().filter(|(_, has)| *has).map(|(name, _)| format!("{sign}{name}")).collect();
        changes.join(" ")
    }
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Removes a cgroup, and the cgroups that processes have made in it.
fn remove(group: &Path) -> io::Result<()> {
    match fs::remove_dir(group) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(_) => {
            for below in
                fs::read_dir(group)?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            {
                remove(&below.path())?;
            }
            fs::remove_dir(group)
        }
        removed => removed,
    }
}

/// Writes to a file of the kernel. A request to create a file there gets another error than that it does not exist.
fn put(file: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}

/// Whether the error means that the cgroup was removed before.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Ends all processes in a cgroup, and removes it. Gives whether it is gone.
fn end(group: &Path) -> bool {
    kill(group);
    emptied(group) && remove(group).is_ok()
}

fn kill(group: &Path) {
    // Before Linux 5.14 there is no such file.
    let _ = put(&group.join("cgroup.kill"), "1");
}

/// Waits until no process is in a cgroup. Gives whether that happened in time.
fn emptied(group: &Path) -> bool {
    let Ok(mut file) = fs::File::open(group.join("cgroup.events")) else { return true };
    for _ in 0..KILL_WAIT.1 {
        let mut events = String::new();
        // The kernel reports changes since the last read of the same descriptor.
        let read = file.rewind().and_then(|()| file.read_to_string(&mut events));
        if read.is_err() || events.lines().any(|line| line == "populated 0") {
            return true;
        }
        let mut changed = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
        if !matches!(poll(&mut changed, PollTimeout::from(KILL_WAIT.0)), Ok(1..)) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests;
