//! Cgroups of version 2, where the daemon has one of its own: they limit all processes of a run together, and hold all
//! that it starts, so that the next daemon can end the survivors.
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
//! No controller is needed to hold processes. The path of `calls-STATE` is recorded in the state directory ([`left`]):
//! the next daemon may start somewhere else.
//!
//! A launcher enters the cgroup of its call before it becomes the program, so no part of the call is ever outside, and
//! the keeper is never inside. A directory is removed when no process is left in it, and leftovers of an earlier daemon
//! of the state directory are removed at start. Never touches anything that is not below OWN, and OWN only where no
//! other process is in it. Blocks for moments: the kernel moves processes under a lock.

mod find;
mod left;

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
pub(super) use self::left::StateName;

/// The file by which processes enter.
const PROCESSES: &str = "cgroup.procs";
/// The controllers that the cgroups below have.
const BELOW: &str = "cgroup.subtree_control";
/// Where the daemon itself is.
const DAEMON: &str = "daemon";
/// What the names of the cgroups of all calls, and of runs, begin with.
const CALLS: &str = "calls-";
const RUN: &str = "run-";
/// Where keepers are.
const KEEPERS: &str = "keepers";
/// How often a cgroup is made anew that another call of the run has just removed.
const TRIES: usize = 16;
/// How long, in milliseconds, and how often the kernel may take to clear a cgroup away that was killed.
const KILL_WAIT: (u16, usize) = (1_000, 16);

/// The cgroup of the daemon, and those in it.
#[derive(Debug)]
pub(super) struct Groups {
    own: PathBuf,
    /// With everything that this daemon starts.
    calls: PathBuf,
    controllers: Controllers,
    /// Numbers the calls.
    next: AtomicU64,
    /// Those that still had processes in them when they were to go.
    late: Mutex<Vec<PathBuf>>,
}

/// The cgroup of one call. It is removed when this is dropped, or as soon as no process is left in it.
#[derive(Debug)]
pub(super) struct Group {
    groups: Arc<Groups>,
    path: PathBuf,
    /// The limits that it sets.
    sets: Controllers,
    /// What had happened in the run before.
    before: Counts,
}

/// How a call came off with a limit that is of its whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Meeting {
    /// No cgroup sets it.
    #[default]
    NotSet,
    /// It was not met.
    Kept,
    /// Processes of the call met it.
    Met,
    /// Only background children of earlier calls did.
    MetByOthers,
}

/// How a call came off with the limits that are of its whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grouped {
    /// Memory: who meets it is killed, with all processes of the same call.
    pub memory: Meeting,
    /// Processes: who meets it cannot fork.
    pub processes: Meeting,
}

impl Grouped {
    /// How it came off with this one.
    pub const fn with(&self, limit: CallLimit) -> Meeting {
        match limit {
            CallLimit::AddressSpaceBytes => self.memory,
            CallLimit::Processes => self.processes,
            CallLimit::CpuSeconds | CallLimit::OpenFiles | CallLimit::FileSizeBytes => Meeting::NotSet,
        }
    }
}

/// How often limits were met in a cgroup, and below it.
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
    /// Divides the cgroup of this process, if it is its own, for the daemon of this state directory. Tells the log
    /// which limits are set by it, or why none is.
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
        // Before anything is in it.
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

    /// Makes the cgroup as it was found. For a daemon that leaves, when its keepers are gone.
    pub(super) fn leave(&self) {
        self.remove_calls();
        let _ = put(&self.own.join(BELOW), &self.controllers.change('-'));
        let _ = put(&self.own.join(PROCESSES), &std::process::id().to_string());
        let _ = fs::remove_dir(self.own.join(DAEMON));
    }

    /// Ends and removes what an earlier daemon, or a run that is over, has left.
    fn remove_calls(&self) {
        if self.calls.exists() && !end(&self.calls) {
            tracing::warn!(cgroup = %self.calls.display(), "the cgroup of runs that are over stays");
        }
    }

    /// The file by which keepers enter.
    pub(super) fn entrance_of_keepers(&self) -> PathBuf {
        self.calls.join(KEEPERS).join(PROCESSES)
    }

    /// Whether one of these limits is to be set by a cgroup.
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
            // What is swapped out is memory too. Kernels without swap have no such file.
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
            // A call that has lost one of its processes is no whole call any more.
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

    /// Removes what could not be removed before.
    pub(super) fn tidy(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        late.into_iter().for_each(|of_call| self.remove(of_call));
    }
}

impl Group {
    /// What enters this file is in it.
    pub(super) fn entrance(&self) -> PathBuf {
        self.path.join(PROCESSES)
    }

    /// Of these limits those that it does not set.
    pub(super) fn rest(&self, limits: CallLimits) -> CallLimits {
        CallLimits {
            address_space_bytes: limits.address_space_bytes.filter(|_| !self.sets.memory),
            processes: limits.processes.filter(|_| !self.sets.pids),
            ..limits
        }
    }

    /// How the call came off so far.
    pub(super) fn grouped(&self) -> Grouped {
        let of_call = Counts::of(&self.path);
        let of_run = self.path.parent().map(Counts::of).unwrap_or_default();
        let memory = match (self.sets.memory, of_call.killed > 0, of_run.killed > self.before.killed) {
            (false, ..) => Meeting::NotSet,
            (_, true, _) => Meeting::Met,
            (_, _, true) => Meeting::MetByOthers,
            _ => Meeting::Kept,
        };
        // Which of the two counts depends on the kernel.
        let processes = match (self.sets.pids, of_call.not_forked > 0 || of_run.not_forked > self.before.not_forked) {
            (false, _) => Meeting::NotSet,
            (_, true) => Meeting::Met,
            _ => Meeting::Kept,
        };
        Grouped { memory, processes }
    }

    /// Kills all that is in it, at once, where the kernel can do that.
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
    /// All of them with a sign, as the kernel takes it.
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

/// Writes into a file that the kernel has made. To one that asks for a file to be made it tells another error than that
/// there is none.
fn put(file: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}

/// Whether a cgroup was not there any more when something was done to it.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Ends everything in a cgroup, and removes it. Says whether it is gone.
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
        // What is waited for is a change to what was read through the same descriptor.
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
