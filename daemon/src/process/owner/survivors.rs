//! Ends what an earlier daemon of this state directory has left: keepers that still end their trees, and processes that
//! have escaped from them.
//!
//! ```text
//!   wait for the lock that keepers hold ─▶ look for what has our mark ─▶ none: go on
//!        │ they take too long                  └─ some: stop, kill, look again ─▶ told in the log
//!        └────────────────────────────────────────▶ (the same)
//! ```
//!
//! The only place with the lock file of the keepers, and with the name that distinguishes their marks from those of
//! other daemons. A start waits here before it recovers anything, so that an interrupted call does not execute beside
//! the next step's. What this daemon may not signal lives on, and is told. Must not touch a process without our mark,
//! except those in the cgroup of this state directory (`cgroup::recorded_cgroup`); an operator's process with our mark
//! is spared.
//!
//! The daemon gives itself a mark as well, larger than that of its runs: each process that it starts is born with it,
//! before a keeper can set the smaller one. So two marks have our name. A process with the mark of a daemon is spared
//! if it holds a lock that a daemon of the same name would hold: names of two state directories may be equal by chance.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use harness_files::{Opening, locks, open_regular};
use harness_protocol::inside_run;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::ending::{self, Machine, Meant};
use super::leftover::Kin;
use super::limit_of;
use super::own_mark::Standing;
use super::reach::OutOfReach;
use crate::process::cgroup::StateName;

/// Number and interval of attempts at the lock: 4 s together. A keeper kills its processes after 1.3 s.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(20);
/// The file's name.
const FILE: &str = "keepers.lock";
/// Content of the file once a daemon outside of all runs has served.
const OUTSIDE: &str = "outside\n";

/// The owner of a state directory, as its journal tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateOf {
    /// The directory has no journal, nor a file of a journal.
    Nobody,
    /// A daemon inside a run, which has made the journal.
    Inside,
    /// A daemon outside all runs, or an owner that cannot be told.
    Outside,
}

/// The lock that this daemon's keepers hold as long as one of them lives.
#[derive(Debug, Clone)]
pub struct KeepersLock {
    path: PathBuf,
    file: Arc<File>,
    pub(super) marks: Marks,
    standing: Standing,
    /// The name of this state directory's cgroups.
    state: StateName,
    /// Leftovers that this process may not end.
    out_of_reach: Arc<BTreeSet<OutOfReach>>,
}

/// The marks with the name of a state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) name: u32,
    /// Mark of the daemon itself, and of a keeper until it has set the next one.
    pub(super) daemon: u64,
    /// Mark of the processes that its keepers start.
    pub(super) runs: u64,
}

impl Marks {
    pub(super) fn new(state_dir: &Path, standing: &Standing) -> io::Result<Self> {
        let dir = fs::metadata(state_dir)?;
        let name = name_of(dir.dev(), dir.ino());
        let daemon = inside_run::mark_below(standing.mark(), name);
        Ok(Self { name, daemon, runs: inside_run::mark_below(daemon, name) })
    }

    /// Whether a process with this limit is to be ended if no other daemon of the state directory lives. A daemon of
    /// another directory may have the same name by chance, and is recognised by its lock.
    fn are_of(self, pid: i32, hard: u64) -> bool {
        inside_run::is_mark_of(hard, self.name) && !(hard == self.daemon && is_another_daemon(pid, self.name))
    }
}

fn is_another_daemon(pid: i32, name: u32) -> bool {
    locks::held_by(pid).iter().any(|lock| name_of(lock.device, lock.inode) == name)
}

/// Why a daemon may not take over a state directory.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// This process is inside a run, and the state directory belongs to a daemon outside all runs: the runs in it would
    /// get the rights of their operator.
    #[error(
        "{} belongs to a daemon outside of all runs, and this process was started by a run (its hard limit of file \
         locks says so): start the daemon from outside, or another one with a --state-dir and a --socket of its own. \
         Where you have started it outside, a run has lowered the limit of your shell (`grep locks /proc/$$/limits`): \
         start it from a new login, or raise the limit as root (prlimit --pid SHELL --locks=unlimited)",
        dir.display()
    )]
    Inside {
        /// Path of the state directory.
        dir: PathBuf,
    },
    /// The system refused.
    #[error("cannot lock {}: {source}", path.display())]
    Io {
        /// Path of the lock file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A process inside a run wants to change files of a daemon outside of all runs.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} belongs to a daemon outside of all runs, and this process was started by a run (its hard limit of file locks \
     says so): do it from outside; where you are outside, a run has lowered the limit of your shell \
     (`grep locks /proc/$$/limits`): do it from a new login",
    dir.display()
)]
pub struct InsideError {
    /// Path of the state directory.
    pub dir: PathBuf,
}

impl KeepersLock {
    /// Waits until nothing of an earlier daemon of this state directory is left, ends survivors, and takes the lock.
    /// Blocks for some seconds at most.
    ///
    /// # Errors
    /// If the lock file cannot be opened or locked, or the state directory is not for a daemon that was started here.
    pub fn take_over(state_dir: &Path, of: StateOf, standing: Standing) -> Result<Self, TakeOverError> {
        let path = state_dir.join(FILE);
        let io = |source: io::Error| TakeOverError::Io { path: path.clone(), source };
        let mut file = open_regular(&path, Opening::Keep).map_err(io)?;
        let marks = Marks::new(state_dir, &standing).map_err(io)?;
        if !claim(&mut file, of, standing.is_inside()).map_err(io)? {
            return Err(TakeOverError::Inside { dir: state_dir.to_owned() });
        }
        let mut held = is_held(&file).map_err(io)?;
        for _ in 0..TRIES {
            if !held {
                break;
            }
            std::thread::sleep(PAUSE);
            held = is_held(&file).map_err(io)?;
        }
        let state = StateName::new(state_dir, marks.name);
        state.end_left();
        let out_of_reach = Arc::new(end_marked(marks, &standing));
        if held && is_held(&file).map_err(io)? {
            tracing::error!(
                lock = %path.display(),
                "a process that is not of a run, or that this daemon may not end, holds the keepers' lock; going on \
                 without it"
            );
        }
        flock(&file, FlockOperation::NonBlockingLockShared).or_else(ignore_held).map_err(|errno| io(errno.into()))?;
        Ok(Self { path, file: Arc::new(file), marks, standing, state, out_of_reach })
    }

    /// Gives this process its mark, for good: every process that it starts from now on counts as inside for every
    /// daemon, even before it is a keeper. To be called before the first keeper starts.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn mark_this_process(&self) -> Result<(), TakeOverError> {
        lower(self.marks.daemon).map_err(|source| TakeOverError::Io { path: self.path.clone(), source })
    }

    /// The position of this process at its start.
    pub const fn standing(&self) -> &Standing {
        &self.standing
    }

    /// What an earlier daemon's runs have left, and this process may not end.
    pub fn out_of_reach(&self) -> Arc<BTreeSet<OutOfReach>> {
        Arc::clone(&self.out_of_reach)
    }

    /// The name of this state directory's cgroups.
    pub(in crate::process) const fn state(&self) -> &StateName {
        &self.state
    }

    /// The file, for keepers to inherit.
    pub(in crate::process) fn file(&self) -> &File {
        &self.file
    }

    /// The mark of processes that this daemon's keepers start.
    pub const fn mark(&self) -> u64 {
        self.marks.runs
    }
}

/// Refuses a change by a process inside a run, if the state directory belongs to a daemon outside of all runs.
///
/// # Errors
/// If this process is inside a run, and the directory belongs to a daemon outside all runs.
pub fn may_mend(state_dir: &Path, of: StateOf, standing: &Standing) -> Result<(), InsideError> {
    match standing.is_inside() && (of == StateOf::Outside || says_outside(state_dir)) {
        true => Err(InsideError { dir: state_dir.to_owned() }),
        false => Ok(()),
    }
}

/// Whether the lock file says that a daemon outside all runs has used the directory.
fn says_outside(state_dir: &Path) -> bool {
    let mut text = String::new();
    let read = open_regular(&state_dir.join(FILE), Opening::ReadInPlace)
        .and_then(|file| file.take(64).read_to_string(&mut text));
    read.is_ok() && text == OUTSIDE
}

/// Lowers the hard limit that is the mark. A limit that is lower already stays.
pub(in crate::process) fn lower(mark: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_LOCKS)?;
    let mark = mark.min(hard);
    Ok(setrlimit(Resource::RLIMIT_LOCKS, mark, mark)?)
}

fn ignore_held(errno: Errno) -> Result<(), Errno> {
    if errno == Errno::WOULDBLOCK { Ok(()) } else { Err(errno) }
}

/// Takes the lock, unless another process holds it. Returns whether another process holds it.
fn is_held(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns whether this process may use the directory. A process outside all runs may, and notes in the file that the
/// directory belongs to a daemon outside all runs. A process inside a run may not, if that is noted or if the journal
/// says so, whatever else was removed from the directory.
fn claim(file: &mut File, of: StateOf, is_inside: bool) -> io::Result<bool> {
    let mut text = String::new();
    file.take(64).read_to_string(&mut text)?;
    match (is_inside, text == OUTSIDE) {
        (true, is_outside) => Ok(!is_outside && of != StateOf::Outside),
        (false, true) => Ok(true),
        (false, false) => {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(OUTSIDE.as_bytes())?;
            Ok(true)
        }
    }
}

/// The name that distinguishes the marks of this state directory. A directory that is moved keeps it.
fn name_of(device: u64, inode: u64) -> u32 {
    // FNV-1a, folded: it must be spread well, not secret.
    let bytes = device.to_le_bytes().into_iter().chain(inode.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let folded = (hash >> 32) ^ (hash & u64::from(u32::MAX));
    u32::try_from(folded).unwrap_or(u32::MAX)
}

/// Ends every process with our marks, whichever user it has become, except an operator's whose limit was lowered to one
/// of these. Gives those that we may not end.
fn end_marked(marks: Marks, standing: &Standing) -> BTreeSet<OutOfReach> {
    let machine = Machine::now();
    let is_ours = |pid: i32| limit_of(pid).is_some_and(|hard| marks.are_of(pid, hard)) && !standing.is_own_line(pid);
    let maybe = |pid: i32| is_ours(pid) && machine.kin(pid) != Kin::Operators;
    let ended = ending::end(Meant { maybe: &maybe, surely: &|_| true });
    let spared: Vec<i32> = ending::all().filter(|&pid| is_ours(pid) && machine.kin(pid) == Kin::Operators).collect();
    if !spared.is_empty() {
        tracing::warn!(
            pids = ?spared,
            "processes of an operator's session have the limit of file locks of this daemon's runs; they are left \
             alone, and have no rights here"
        );
    }
    ended.out_of_reach
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::process::owner::marked::{OUTSIDE_OF_ALL, STAYS, lives, marked_process, state, take_over, was_killed};
    use crate::process::tests::forkers::Forkers;

    #[test]
    fn a_name_differs_by_device_and_by_inode() {
        let names: BTreeSet<u32> =
            (0..100).flat_map(|device| (0..100).map(move |inode| name_of(device, inode))).collect();
        assert_eq!(names.len(), 10_000);
    }

    /// A13: a process that escaped its keeper still has its mark, and is ended by the next start. Other processes are
    /// not touched.
    #[test]
    fn leftovers_of_an_earlier_daemons_runs_are_ended_and_nothing_else() {
        let (ours, others) = (state(), state());
        let lock = take_over(ours.path()).unwrap();
        let other = take_over(others.path()).unwrap();
        let none = Path::new("");
        let mut left = marked_process(lock.mark(), none, "trap '' TERM HUP; echo it runs >&2; sleep 100 & wait");
        // A process that should have become a keeper, and became another program before it had its own mark.
        let mut unfinished = marked_process(lock.marks.daemon, none, STAYS);
        let mut below = marked_process(inside_run::mark_below(lock.mark(), lock.marks.name), none, STAYS);
        let mut stranger = marked_process(other.mark(), none, STAYS);
        let mut other_daemon = marked_process(other.marks.daemon, none, STAYS);
        // Its directory has the same name, which happens once in four thousand million.
        let mut same_name = marked_process(lock.marks.daemon, ours.path(), STAYS);
        let mut unmarked = marked_process(OUTSIDE_OF_ALL, none, STAYS);
        drop(lock);
        take_over(ours.path()).unwrap();
        for ended in [&mut left, &mut unfinished, &mut below] {
            assert!(was_killed(ended));
        }
        for stays in [&mut stranger, &mut other_daemon, &mut same_name, &mut unmarked] {
            assert!(lives(stays));
        }
    }

    /// Entry B11 in `tests/README.md`.
    #[test]
    fn processes_that_fork_and_exit_all_the_time_are_ended() {
        let forkers = Forkers::new();
        for how in ["60 deaf setsid", "120 deaf twice setsid"] {
            let dir = state();
            let lock = take_over(dir.path()).unwrap();
            let command = format!("echo it runs >&2; {}", forkers.command(how));
            let mut left = marked_process(lock.mark(), Path::new(""), &command);
            drop(lock);
            take_over(dir.path()).unwrap();
            assert!(was_killed(&mut left), "{how}");
            assert!(forkers.are_gone(), "{how}");
        }
    }

    /// A process inside a run neither repairs nor serves the journal of a daemon outside all runs, whatever of its
    /// files is gone. A process outside may do both.
    #[test]
    fn a_process_inside_of_a_run_gets_nothing_of_a_daemon_outside() {
        let inside = || Standing::of(inside_run::mark_below(u64::MAX, 7) - (1 << 32), Vec::new());
        let outside = || Standing::of(OUTSIDE_OF_ALL, Vec::new());
        for (note, of, refused) in [
            (Some(OUTSIDE), StateOf::Nobody, true),
            (Some(OUTSIDE), StateOf::Inside, true),
            (Some(OUTSIDE), StateOf::Outside, true),
            (Some(""), StateOf::Outside, true),
            (Some("inside\n"), StateOf::Outside, true),
            (None, StateOf::Outside, true),
            (None, StateOf::Nobody, false),
            (None, StateOf::Inside, false),
            (Some(""), StateOf::Inside, false),
        ] {
            let dir = state();
            let path = dir.path();
            if let Some(note) = note {
                fs::write(path.join(FILE), note).unwrap();
            }
            for error in [
                may_mend(path, of, &inside()).map_err(|error| error.to_string()),
                KeepersLock::take_over(path, of, inside()).map(drop).map_err(|error| error.to_string()),
            ] {
                let told = error.err().unwrap_or_default();
                assert_eq!(
                    told.contains("belongs to a daemon outside of all runs"),
                    refused,
                    "{note:?}, {of:?}: {told}"
                );
            }
            may_mend(path, of, &outside()).unwrap();
            KeepersLock::take_over(path, of, outside()).unwrap();
        }
    }

    /// A pipe in the place of the lock file would block its opening for ever.
    #[test]
    fn a_pipe_is_no_lock_of_the_keepers() {
        let dir = state();
        nix::unistd::mkfifo(&dir.path().join(FILE), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let refused = take_over(dir.path()).unwrap_err().to_string();
        assert!(refused.ends_with("it is no regular file"), "{refused}");
        assert!(!says_outside(dir.path()));
    }

    #[test]
    fn a_start_waits_for_the_holder_of_the_lock() {
        let dir = state();
        let lock = take_over(dir.path()).unwrap();
        // A keeper inherits the lock in the same way.
        let held = lock.file().try_clone().unwrap();
        drop(lock);
        let path = dir.path().to_owned();
        let next = std::thread::spawn(move || take_over(&path).map(drop));
        std::thread::sleep(PAUSE * 5);
        assert!(!next.is_finished());
        drop(held);
        next.join().unwrap().unwrap();
    }
}
