//! What an earlier daemon of this state directory has left: keepers that still end their trees, and what has escaped them.
//!
//! ```text
//!   wait for the lock that keepers hold ─▶ look for what has our mark ─▶ none: go on
//!        │ they take too long                  └─ some: stop, kill, look again ─▶ told in the log
//!        └────────────────────────────────────────▶ (the same)
//! ```
//!
//! Owns the lock file of the keepers and the name by which their marks are told from those of other daemons. A start waits here before it
//! recovers anything, so that a call that was interrupted never executes beside the next step's. Never touches a process without our mark.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::inside;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::keepers::own_mark;
use super::lineage::mark_of;
use super::stat::stat;

/// How often, and at what intervals, the lock is tried: for 4 s. A keeper kills what is below it after 1.3 s.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(20);
/// Passes over what is left, each of which kills all that it finds.
const PASSES: u32 = 100;
/// What stands in the file once a daemon has served that is inside of no run.
const OUTSIDE: &str = "outside\n";

/// The lock that this daemon's keepers hold as long as one of them lives.
#[derive(Debug, Clone)]
pub struct KeepersLock {
    file: Arc<File>,
    daemon: u32,
}

/// Why a daemon may not go on where an earlier one was.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// We are inside a run, and the state directory is of a daemon that was not: its runs would get their operator's rights.
    #[error(
        "{} belongs to a daemon outside of all runs, and this process was started by a run (its hard limit of file \
         locks says so): start the daemon from outside, or another one with a --state-dir and a --socket of its own",
        dir.display()
    )]
    Inside {
        /// The state directory.
        dir: PathBuf,
    },
    /// The system refused.
    #[error("cannot lock {}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl KeepersLock {
    /// Waits until nothing of an earlier daemon of this state directory is left, ends what takes too long or has escaped, and takes the
    /// lock. Blocks for some seconds at most.
    ///
    /// # Errors
    /// Where the file cannot be had, or this is not a place for a daemon to start from.
    pub fn take_over(state_dir: &Path) -> Result<Self, TakeOverError> {
        let path = state_dir.join("keepers.lock");
        let io = |source: io::Error| TakeOverError::Io { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(&path)
            .map_err(io)?;
        let dir = fs::metadata(state_dir).map_err(io)?;
        let daemon = name_of(dir.dev(), dir.ino());
        if !claim(&mut file).map_err(io)? {
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
        end_marked(daemon);
        if held && is_held(&file).map_err(io)? {
            tracing::error!(lock = %path.display(), "a process that is none of a run holds the keepers' lock; going on without it");
        }
        flock(&file, FlockOperation::NonBlockingLockShared).or_else(ignore_held).map_err(|errno| io(errno.into()))?;
        Ok(Self { file: Arc::new(file), daemon })
    }

    /// The file, to be inherited by keepers.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The mark of what this daemon's keepers start.
    pub fn mark(&self) -> u64 {
        inside::mark_below(own_mark(), self.daemon)
    }
}

fn ignore_held(errno: Errno) -> Result<(), Errno> {
    if errno == Errno::WOULDBLOCK { Ok(()) } else { Err(errno) }
}

/// Whether somebody else holds the lock; where not, it is ours.
fn is_held(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Notes where the directory is that of a daemon outside of all runs. Says whether it may be ours: not, where it is, and we are inside.
fn claim(file: &mut File) -> io::Result<bool> {
    let mut text = String::new();
    file.take(64).read_to_string(&mut text)?;
    match (inside::is_marked(own_mark()), text == OUTSIDE) {
        (true, is_outside) => Ok(!is_outside),
        (false, true) => Ok(true),
        (false, false) => {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(OUTSIDE.as_bytes())?;
            Ok(true)
        }
    }
}

/// By what the marks of a daemon with this state directory are told from others. A directory that is moved keeps it.
fn name_of(device: u64, inode: u64) -> u32 {
    // FNV-1a, folded: it has to be spread, not secret.
    let bytes = device.to_le_bytes().into_iter().chain(inode.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let folded = (hash >> 32) ^ (hash & u64::from(u32::MAX));
    u32::try_from(folded).unwrap_or(u32::MAX)
}

/// Ends every process that has the mark of this daemon.
fn end_marked(daemon: u32) {
    let mut told = false;
    for _ in 0..PASSES {
        let found = marked(daemon);
        if found.is_empty() {
            return;
        }
        if !std::mem::replace(&mut told, true) {
            let shown: Vec<i32> = found.iter().copied().take(20).collect();
            let count = found.len();
            tracing::warn!(count, pids = ?shown, "processes that an earlier daemon's runs had left are ended");
        }
        // Stopped first: who forks faster than it is looked for gets nowhere.
        for signal in [Signal::STOP, Signal::KILL] {
            found.iter().for_each(|&pid| send(pid, daemon, signal));
        }
        std::thread::sleep(PAUSE);
    }
    tracing::error!("processes that an earlier daemon's runs had left live on after SIGKILL");
}

/// Processes with the mark of this daemon that live.
fn marked(daemon: u32) -> Vec<i32> {
    let own = nix::unistd::geteuid().as_raw();
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let ours = processes.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        // What a process that hides itself from debuggers has there belongs to root.
        let owner = entry.metadata().ok()?.uid();
        (own == 0 || owner == own || owner == 0).then_some(pid)
    });
    let is_marked = |pid: &i32| inside::is_mark_of(mark_of(*pid), daemon) && stat(*pid).is_some_and(|stat| !stat.dead);
    ours.filter(is_marked).collect()
}

/// Signals a process, if it still is one with that mark.
fn send(pid: i32, daemon: u32, signal: Signal) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if inside::is_mark_of(mark_of(pid.as_raw_nonzero().get()), daemon) {
        // One that has gone, or is somebody else's by now, needs none.
        let _ = pidfd_send_signal(process, signal);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use nix::sys::resource::{Resource, setrlimit};

    use super::*;

    fn state() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    /// Tells the test below with which mark it is to become a shell, and with which command.
    const BE_MARKED: [&str; 2] = ["HARNESS_TEST_MARK", "HARNESS_TEST_COMMAND"];

    #[test]
    fn a_shell_with_a_mark_when_it_is_started_as_one() {
        if let [Ok(mark), Ok(command)] = BE_MARKED.map(std::env::var) {
            let mark = mark.parse().unwrap();
            setrlimit(Resource::RLIMIT_LOCKS, mark, mark).unwrap();
            panic!("{}", Command::new("sh").args(["-c", &command]).exec());
        }
    }

    /// A process with the mark that the keepers of a daemon with this lock set. It has said something.
    fn marked_process(lock: &KeepersLock, command: &str) -> Child {
        let name = "process::survivors::tests::a_shell_with_a_mark_when_it_is_started_as_one";
        let mut child = Command::new("/proc/self/exe")
            .args(["--exact", "--nocapture", name])
            .env(BE_MARKED[0], lock.mark().to_string())
            .env(BE_MARKED[1], format!("echo it runs >&2; {command}"))
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "it runs\n");
        child
    }

    #[test]
    fn a_name_differs_by_device_and_by_inode() {
        let names: std::collections::BTreeSet<u32> =
            (0..100).flat_map(|device| (0..100).map(move |inode| name_of(device, inode))).collect();
        assert_eq!(names.len(), 10_000);
    }

    /// A13: what has escaped its keeper has the mark still, and is ended by the next start; others are left alone.
    #[test]
    fn what_an_earlier_daemons_runs_have_left_is_ended_and_nothing_else() {
        let (ours, others) = (state(), state());
        let lock = KeepersLock::take_over(ours.path()).unwrap();
        let other = KeepersLock::take_over(others.path()).unwrap();
        let mut left = marked_process(&lock, "trap '' TERM HUP; sleep 100 & wait");
        let mut stranger = marked_process(&other, "exec sleep 100");
        let mut unmarked = Command::new("sleep").arg("100").spawn().unwrap();
        drop(lock);
        KeepersLock::take_over(ours.path()).unwrap();
        assert!(left.wait().unwrap().code().is_none(), "it was killed");
        for lives in [&mut stranger, &mut unmarked] {
            assert!(lives.try_wait().unwrap().is_none());
            lives.kill().unwrap();
            lives.wait().unwrap();
        }
    }

    #[test]
    fn a_start_waits_for_whoever_holds_the_lock() {
        let dir = state();
        let lock = KeepersLock::take_over(dir.path()).unwrap();
        // As a keeper does, which inherits it.
        let held = lock.file().try_clone().unwrap();
        drop(lock);
        let path = dir.path().to_owned();
        let next = std::thread::spawn(move || KeepersLock::take_over(&path).map(drop));
        std::thread::sleep(PAUSE * 5);
        assert!(!next.is_finished());
        drop(held);
        next.join().unwrap().unwrap();
    }
}
