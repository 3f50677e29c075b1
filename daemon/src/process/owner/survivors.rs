//! Leftovers of an earlier daemon of this state directory: keepers that still end their trees, and processes that have
//! escaped them.
//!
//! ```text
//!   wait for the lock that keepers hold ─▶ look for what has our mark ─▶ none: go on
//!        │ they take too long                  └─ some: stop, kill, look again ─▶ told in the log
//!        └────────────────────────────────────────▶ (the same)
//! ```
//!
//! Owns the lock file of the keepers, and the name that distinguishes their marks from those of other daemons. A start
//! waits here before it recovers anything, so that an interrupted call never executes beside the next step's. Never
//! touches a process without our mark.
//!
//! The daemon gives itself a mark as well, larger than that of its runs: each process that it starts is born with it,
//! before a keeper can set the smaller one. So two marks have our name, and a process with the mark of a daemon is
//! ended only where no live daemon has that mark.

use std::collections::HashSet;
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
use rustix::process::{
    Pid, PidfdFlags, Signal, getpriority_process, pidfd_open, pidfd_send_signal, setpriority_process,
};

use super::ancestry::{self, Look, chain};
use super::limit_of;
use super::own_mark::Standing;
use crate::process::cgroup::StateName;
use crate::process::timing::HIGHEST_PRIORITY;
use crate::process::tree::Children;
use crate::process::tree::proc_stat::{Stat, stat};

/// Number and interval of attempts at the lock: 4 s together. A keeper kills its processes after 1.3 s.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(20);
/// Passes over survivors, each of which kills all that it finds.
const PASSES: u32 = 100;
const LOOKS: u32 = 32;
/// How often the list of locks is read.
const LOOKS_AT_LOCKS: u32 = 2;
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
    marks: Marks,
    standing: Standing,
    /// The name of this state directory's cgroups.
    state: StateName,
}

/// The marks with the name of a state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marks {
    name: u32,
    /// Mark of the daemon itself, and of a keeper until it has set the next one.
    daemon: u64,
    /// Mark of the processes that its keepers start.
    runs: u64,
}

impl Marks {
    fn new(state_dir: &Path, standing: &Standing) -> io::Result<Self> {
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
         locks says so): start the daemon from outside, or another one with a --state-dir and a --socket of its own",
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
     says so): do it from outside",
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
        // Among hundreds of forking processes this one would hardly get to run. It has only one thread so far.
        let nice = getpriority_process(None).map_err(|errno| io(errno.into()))?;
        let _ = setpriority_process(None, HIGHEST_PRIORITY);
        end_marked(&|pid, hard| marks.are_of(pid, hard) && !standing.is_own_line(pid));
        let _ = setpriority_process(None, nice);
        if held && is_held(&file).map_err(io)? {
            tracing::error!(
                lock = %path.display(),
                "a process that is not of a run holds the keepers' lock; going on without it"
            );
        }
        flock(&file, FlockOperation::NonBlockingLockShared).or_else(ignore_held).map_err(|errno| io(errno.into()))?;
        Ok(Self { path, file: Arc::new(file), marks, standing, state })
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

/// Ends processes that hold a lock of a state directory (its lock file or the directory itself), although they are
/// inside a run of that directory's daemon, and are not daemons. Returns whether there was such a process.
///
/// The kernel tells who has taken the lock. The content of the file proves nothing: any process of the user can write
/// it.
pub fn end_false_holders(state_dir: &Path, lock_file: &Path, of: StateOf, standing: &Standing) -> bool {
    let Ok(marks) = Marks::new(state_dir, standing) else { return false };
    let is_of_outside = match of {
        StateOf::Nobody => says_outside(state_dir),
        StateOf::Inside => false,
        StateOf::Outside => true,
    };
    let is_of_runs = |hard: u64| inside_run::is_mark_of(hard, marks.name) && hard <= marks.runs;
    // A process with a smaller mark than that of a daemon outside all runs is not a daemon of that daemon's directory.
    // It may have lowered its own limit further.
    let is_below = |hard: u64| is_of_outside && !standing.is_inside() && hard < marks.daemon;
    let is_false = |pid: i32, hard: u64| (is_of_runs(hard) || is_below(hard)) && !standing.is_own_line(pid);
    match end_holders(&[lock_file, state_dir], &is_false) {
        Holders::None => {}
        holders => return holders == Holders::Ended,
    }
    // The process that took the lock is dead. A process that the kernel's list does not name has inherited it, and
    // hides its descriptors. Inside a run this may be a process outside of our pid namespace.
    let files = identities(&[lock_file, state_dir]);
    let may_have_it = |pid: i32, hard: u64| (is_of_runs(hard) || is_below(hard) && hides(pid, &files)) && is_left(pid);
    !standing.is_inside() && end_marked(&may_have_it)
}

/// Ends the processes that hold the lock beside a socket although they are inside a run, if this process is outside all
/// runs: no daemon that serves processes outside runs has a mark as small. Returns whether there was such a process.
pub fn end_false_holders_of_socket(lock_file: &Path, standing: &Standing) -> bool {
    if standing.is_inside() {
        return false;
    }
    let smallest_of_a_daemon = inside_run::mark_below(standing.mark(), 0);
    match end_holders(&[lock_file], &|_, hard| hard < smallest_of_a_daemon) {
        Holders::None => {
            let files = identities(&[lock_file]);
            end_marked(&|pid, hard| hard < smallest_of_a_daemon && hides(pid, &files) && is_left(pid))
        }
        holders => holders == Holders::Ended,
    }
}

fn identities(paths: &[&Path]) -> Vec<(u64, u64)> {
    paths.iter().filter_map(|path| locks::identity_of(path)).collect()
}

/// Whether process `pid` has a lock on these files, or may have it because its descriptors cannot be read.
fn hides(pid: i32, files: &[(u64, u64)]) -> bool {
    locks::has(pid, files) != Some(false)
}

/// Whether a dead daemon has left process `pid` behind.
fn is_left(pid: i32) -> bool {
    let chain = chain(pid, Look { stat: &stat, limit: &limit_of });
    ancestry::is_left(chain.as_deref().map_err(|why| *why))
}

/// The fate of processes that hold locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holders {
    /// As far as the kernel tells, no live process holds a lock.
    None,
    /// A process that is not to be ended holds a lock. No process was ended.
    Others,
    /// All of them were ended.
    Ended,
}

/// Ends all processes that hold locks on these files, if all of them are to be ended, and waits for their end.
///
/// The kernel names the process that took a lock. That process may be dead, and its pid reused by now, while processes
/// that inherited the descriptor still hold the lock. Their own lists of descriptors tell it, unless they hide these.
fn end_holders(locked: &[&Path], is_meant: IsMeant<'_>) -> Holders {
    let lives = |pid: i32| stat(pid).is_some_and(|stat| !stat.dead);
    let files = identities(locked);
    // The kernel's list may leave out a line where others change meanwhile.
    let takers = (0..LOOKS_AT_LOCKS).flat_map(|_| locked.iter().flat_map(|path| locks::holders(path)));
    // A process that hides its descriptors is taken to have the lock that it took.
    let has_it = |pid: i32| hides(pid, &files);
    let taken: Vec<i32> = takers.filter(|&pid| lives(pid) && has_it(pid)).collect();
    // A process whose limit cannot be read may be a daemon.
    if !taken.iter().all(|&pid| limit_of(pid).is_some_and(|hard| is_meant(pid, hard))) {
        return Holders::Others;
    }
    let inherited = || {
        let meant = processes().filter(|&pid| limit_of(pid).is_some_and(|hard| is_meant(pid, hard)));
        meant.filter(|&pid| lives(pid) && locks::has(pid, &files) == Some(true)).collect()
    };
    let (holders, is_it): (Vec<i32>, &dyn Fn(i32) -> bool) = match taken.is_empty() {
        false => (taken, &has_it),
        true => (inherited(), &|pid| locks::has(pid, &files) == Some(true)),
    };
    if holders.is_empty() {
        return Holders::None;
    }
    // Checked again once the process is held by a descriptor: its pid may have been reused.
    let is_still_it = |pid: i32, hard: u64| is_meant(pid, hard) && is_it(pid);
    holders.iter().for_each(|&pid| _ = send(pid, &is_still_it, Signal::KILL));
    for _ in 0..TRIES {
        if !holders.iter().any(|&pid| lives(pid)) {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    Holders::Ended
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

/// Whether a process, with its pid and its limit, is to be ended.
type IsMeant<'a> = &'a dyn Fn(i32, u64) -> bool;

/// Ends every process that is meant. Gives whether there was one.
fn end_marked(is_meant: IsMeant<'_>) -> bool {
    let mut told = false;
    for _ in 0..PASSES {
        let found = stop_marked(is_meant);
        if found.is_empty() {
            return told;
        }
        if !std::mem::replace(&mut told, true) {
            let shown: Vec<i32> = found.iter().copied().take(20).collect();
            let count = found.len();
            tracing::warn!(count, pids = ?shown, "processes that an earlier daemon's runs had left are ended");
        }
        found.iter().for_each(|&pid| _ = send(pid, is_meant, Signal::KILL));
        std::thread::sleep(PAUSE);
    }
    tracing::error!("processes that an earlier daemon's runs had left live on after SIGKILL");
    told
}

/// Stops every process that is meant, as it is found, until a look at all processes finds no new one.
fn stop_marked(is_meant: IsMeant<'_>) -> Vec<i32> {
    let mut hunt = Hunt { is_meant, found: Vec::new(), seen: HashSet::new() };
    for _ in 0..LOOKS {
        let before = hunt.found.len();
        processes().for_each(|pid| hunt.look_at(pid));
        if hunt.found.len() == before {
            break;
        }
    }
    hunt.found
}

/// Processes that fork and exit all the time are gone before they are killed, and others have taken their place. But
/// these are children of the same parent, and its latest ones.
struct Hunt<'a> {
    is_meant: IsMeant<'a>,
    found: Vec<i32>,
    seen: HashSet<i32>,
}

impl Hunt<'_> {
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
        let is_new = self.seen.insert(pid);
        let stopped = if is_new { send(pid, self.is_meant, Signal::STOP) } else { None }?;
        self.found.push(pid);
        Some(stopped.parent)
    }
}

/// All processes that may belong to us.
fn processes() -> impl Iterator<Item = i32> {
    let own = nix::unistd::geteuid().as_raw();
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        // The directory in /proc of a process that hides from debuggers belongs to root.
        let owner = entry.metadata().ok()?.uid();
        (own == 0 || owner == own || owner == 0).then_some(pid)
    })
}

/// Signals a process, if it is meant and lives. Gives its state.
fn send(pid: i32, is_meant: IsMeant<'_>, signal: Signal) -> Option<Stat> {
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let stat = stat(pid).filter(|stat| !stat.dead)?;
    limit_of(pid).filter(|&hard| is_meant(pid, hard))?;
    // A process that has gone meanwhile needs no signal.
    let _ = pidfd_send_signal(process, signal);
    Some(stat)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::process::tests::forkers::Forkers;

    fn take_over(state_dir: &Path) -> Result<KeepersLock, TakeOverError> {
        KeepersLock::take_over(state_dir, StateOf::Nobody, Standing::of(u64::MAX, Vec::new()))
    }

    fn state() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    /// Variables that tell the test below to act as a marked process: its mark, its shell command, and the file to
    /// lock.
    const BE_MARKED: [&str; 3] = ["HARNESS_TEST_MARK", "HARNESS_TEST_COMMAND", "HARNESS_TEST_LOCKED"];

    #[test]
    fn a_shell_with_a_mark_when_it_is_started_as_one() {
        if let [Ok(mark), Ok(command), Ok(locked)] = BE_MARKED.map(std::env::var) {
            lower(mark.parse().unwrap()).unwrap();
            let mut shell = Command::new("sh");
            if !locked.is_empty() {
                let file = File::open(locked).unwrap();
                flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
                shell.stdin(file);
            }
            panic!("{}", shell.args(["-c", &command]).exec());
        }
    }

    /// A process with that limit. It locks this file, if a file is named, and has written a line.
    fn marked_process(mark: u64, locked: &Path, command: &str) -> Child {
        let name = "process::owner::survivors::tests::a_shell_with_a_mark_when_it_is_started_as_one";
        let mut child = Command::new("/proc/self/exe")
            .args(["--exact", "--nocapture", name])
            .env(BE_MARKED[0], mark.to_string())
            .env(BE_MARKED[1], command)
            .env(BE_MARKED[2], locked)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "it runs\n");
        child
    }

    fn was_killed(child: &mut Child) -> bool {
        use std::os::unix::process::ExitStatusExt;
        child.wait().unwrap().signal() == Some(9)
    }

    fn lives(child: &mut Child) -> bool {
        let lives = child.try_wait().unwrap().is_none();
        child.kill().unwrap();
        child.wait().unwrap();
        lives
    }

    const STAYS: &str = "echo it runs >&2; exec sleep 100";
    const OUTSIDE_OF_ALL: u64 = u64::MAX;

    #[test]
    fn a_name_differs_by_device_and_by_inode() {
        let names: std::collections::BTreeSet<u32> =
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

    /// A leftover that holds the locks of its daemon is ended; a live daemon and unrelated processes are not.
    #[test]
    fn a_process_inside_of_runs_with_the_locks_of_their_daemon_is_ended() {
        let from_outside = || Standing::of(OUTSIDE_OF_ALL, Vec::new());
        // A shell gives a background command another standard input.
        let inherited = "exec 3<&0; (exec sleep 100 <&3) & echo it runs >&2";
        const OUT: StateOf = StateOf::Outside;
        /// Description, mark, file, command, owner of the directory, whether the process is ended.
        type Row = (&'static str, fn(Marks) -> u64, &'static str, &'static str, StateOf, bool);
        let table: [Row; 12] = [
            ("a run's process", |marks| marks.runs, "harnessd.lock", STAYS, OUT, true),
            ("on the directory", |marks| marks.runs, "", STAYS, OUT, true),
            ("which has lowered its mark", |marks| marks.runs - 1, "harnessd.lock", STAYS, OUT, true),
            ("which has lowered it to nothing", |_| 0, "", STAYS, OUT, true),
            ("which has left it to its child", |marks| marks.runs, "harnessd.lock", inherited, OUT, true),
            ("which has left the directory to its child", |marks| marks.runs, "", inherited, OUT, true),
            ("a child, and both have lowered their mark", |_| 1, "harnessd.lock", inherited, OUT, true),
            ("a run's process, of a daemon inside", |marks| marks.runs, "harnessd.lock", STAYS, StateOf::Inside, true),
            ("another's, of a daemon inside", |marks| marks.runs - 1, "harnessd.lock", STAYS, StateOf::Inside, false),
            ("the daemon", |marks| marks.daemon, "harnessd.lock", STAYS, OUT, false),
            ("a daemon of an earlier version", |_| u64::MAX, "", STAYS, OUT, false),
            ("of something else", |marks| marks.runs, "other", STAYS, OUT, false),
        ];
        for (what, mark, locked, command, of, expected) in table {
            let dir = state();
            for name in ["harnessd.lock", "other"] {
                File::create(dir.path().join(name)).unwrap();
            }
            let lock = take_over(dir.path()).unwrap();
            // An emptied file, as a run may leave it.
            fs::write(dir.path().join(FILE), "").unwrap();
            let daemon = File::open(dir.path().join("harnessd.lock")).unwrap();
            if locked == "other" {
                flock(&daemon, FlockOperation::NonBlockingLockExclusive).unwrap();
            }
            let mut holder = marked_process(mark(lock.marks), &dir.path().join(locked), command);
            if command == inherited {
                holder.wait().unwrap();
            }
            let lock_file = dir.path().join("harnessd.lock");
            assert_eq!(end_false_holders(dir.path(), &lock_file, of, &from_outside()), expected, "{what}");
            match expected {
                true => assert!(command == inherited || was_killed(&mut holder), "{what}"),
                false => assert!(lives(&mut holder), "{what}"),
            }
            assert!(!end_false_holders(dir.path(), &lock_file, of, &from_outside()), "{what}: no process is left");
        }
    }

    /// A process inside a run cannot keep the lock beside the socket, however far it has lowered its limit; any daemon
    /// outside can.
    #[test]
    fn a_process_inside_of_a_run_with_the_lock_beside_a_socket_is_ended() {
        let from_outside = Standing::of(OUTSIDE_OF_ALL, Vec::new());
        let dir = state();
        let lock = take_over(dir.path()).unwrap();
        let other = inside_run::mark_below(OUTSIDE_OF_ALL, lock.marks.name.wrapping_sub(7));
        let table = [
            ("a run's process", lock.marks.runs, true),
            ("one of another daemon's run", inside_run::mark_below(other, 9), true),
            ("which has lowered its mark", 5, true),
            ("to nothing", 0, true),
            ("a daemon", lock.marks.daemon, false),
            ("another one", other, false),
            ("the one with the smallest mark", inside_run::mark_below(OUTSIDE_OF_ALL, 0), false),
            ("one of an earlier version", OUTSIDE_OF_ALL, false),
        ];
        let path = dir.path().join("control.sock.lock");
        File::create(&path).unwrap();
        for (what, mark, expected) in table {
            let mut holder = marked_process(mark, &path, STAYS);
            let within = Standing::of(lock.marks.runs, Vec::new());
            assert!(!end_false_holders_of_socket(&path, &within), "{what}: no process inside ends one");
            assert_eq!(end_false_holders_of_socket(&path, &from_outside), expected, "{what}");
            assert!(if expected { was_killed(&mut holder) } else { lives(&mut holder) }, "{what}");
            assert!(!end_false_holders_of_socket(&path, &from_outside), "{what}: nobody is left");
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
