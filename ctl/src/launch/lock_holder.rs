//! Finds the daemon that serves a state directory, by the lock that it holds, wherever its socket is.
//!
//! The kernel names the process that has taken the lock. The content of the lock file proves nothing, since any run of
//! the daemon's user may have written to it: the socket is read from that file, and `server_identity` must check that
//! the lock's holder serves it. Also sends that process SIGTERM, for `stop_daemon`. Must not take the lock itself: that
//! could delay a daemon that is about to start.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use harness_files::locks::{self, Held};
use harness_files::{Dir, Refusal};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::launch::server_identity::is_of_a_run;

/// The names of a daemon in the kernel: from its path, or from the path of a program that was replaced while it
/// started.
const PROGRAMS: [&str; 2] = ["harnessd", "exe"];
/// The lock file of a state directory.
const FILE: &str = "harnessd.lock";
/// Bytes of a lock file that are read: a process number and a path.
const MOST: u64 = 8 * 1024;

/// Number of reads of the kernel's list, which may miss a line while other locks change.
const LOOKS: usize = 2;

/// The daemon that holds a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Pid of the daemon.
    pub(crate) pid: u32,
    /// Its socket, from the lock file. `None` if the file does not name it, as with an older daemon, or one that
    /// starts.
    pub(crate) socket: Option<PathBuf>,
    /// Whether a link that is not root's led to the directory. A run may have made the link, so the daemon may be
    /// another one.
    pub(crate) by_link: bool,
}

/// Why the content of a state directory is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Disbelief {
    /// The lock file is a link, a pipe, a device or the like. To open it could last for ever.
    #[error("{} is no regular file", .0.display())]
    NoFile(PathBuf),
    /// The lock file has several names, and may be that of another daemon.
    #[error("{} is also another file", .0.display())]
    Linked(PathBuf),
    /// Another user made a link on the path to the directory.
    #[error("{}: {why}", path.display())]
    Way {
        /// The state directory.
        path: PathBuf,
        /// The reason of the refusal.
        why: Refusal,
    },
}

impl Holder {
    /// The holder of this directory; `None` if there is none, or if it cannot be determined.
    ///
    /// # Errors
    /// If the content of the directory is not a daemon's.
    pub(crate) fn of(state_dir: &Path) -> Result<Option<Self>, Disbelief> {
        let path = state_dir.join(FILE);
        let dir = match Dir::open(state_dir) {
            Ok(dir) => dir,
            Err(error) => return way(state_dir, &error).map_or(Ok(None), Err),
        };
        let file = match dir.file(FILE) {
            Ok(Some(file)) => Some(file),
            Ok(None) => return Err(Disbelief::NoFile(path)),
            // If the file was removed, the daemon still holds the directory.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return way(state_dir, &error).map_or(Ok(None), Err),
        };
        if file.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|found| found.nlink() > 1) {
            return Err(Disbelief::Linked(path));
        }
        let Ok(owner) = rustix::fs::fstat(&dir).map(|found| found.st_uid) else { return Ok(None) };
        let Some(pid) = holder_of(&|| locks::on_dir(&dir), owner) else { return Ok(None) };
        let file = file.filter(|file| holder_of(&|| locks::on(file), owner) == Some(pid));
        Ok(Some(Self { pid, socket: file.and_then(socket_in), by_link: dir.is_by_link() }))
    }

    /// Sends the process the signal to end, if it still holds the directory.
    ///
    /// # Errors
    /// If it does not hold the directory, or may not be signalled.
    pub(crate) fn end(&self, state_dir: &Path) -> io::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(ErrorKind::NotFound)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        // From here on the descriptor means the process that gets the signal, or an ended process.
        match Self::of(state_dir) {
            Ok(Some(now)) if now.pid == self.pid => Ok(pidfd_send_signal(process, Signal::TERM)?),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }
}

/// The error, if another user made a link on the path. Any other failure means that the holder is not known.
fn way(state_dir: &Path, error: &io::Error) -> Option<Disbelief> {
    let why = error.get_ref()?.downcast_ref::<Refusal>()?.clone();
    Some(Disbelief::Way { path: state_dir.to_owned(), why })
}

/// The daemon that has the lock. It runs as the owner of the directory, or as root.
fn holder_of(locks: &dyn Fn() -> Vec<Held>, owner: u32) -> Option<u32> {
    let held = (0..LOOKS).find_map(|_| locks().into_iter().find(|held| held.is_exclusive))?;
    let pid = u32::try_from(held.pid).ok().filter(|&pid| pid > 1)?;
    // A leftover of a run may have the lock and the name of a daemon. It is not a daemon, and the next daemon ends it.
    let is_one = is_daemon(pid) && !is_of_a_run(held.pid);
    (is_one && user_of(pid).is_some_and(|user| user == owner || user == 0)).then_some(pid)
}

/// The socket in the second line; the first line is for people.
fn socket_in(file: File) -> Option<PathBuf> {
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text).ok()?;
    text.lines().nth(1).map(PathBuf::from).filter(|socket| socket.is_absolute())
}

/// Whether a process is a daemon, by its name. A zombie, which is dead but not yet reaped, is not.
fn is_daemon(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let Some((name, rest)) = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')) else { return false };
    PROGRAMS.contains(&name) && !rest.trim_start().starts_with(['Z', 'X'])
}

/// The effective user of a process. The owner of its directory in /proc is root if it hides from debuggers.
fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};

    use super::*;

    #[test]
    fn a_lock_file_tells_the_socket_and_older_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for (text, socket) in [
            ("12\n", None),
            ("12\n/run/a b.sock\n", Some("/run/a b.sock")),
            ("12\nrelative\n", None),
            ("12", None),
            ("", None),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(socket_in(File::open(&path).unwrap()), socket.map(PathBuf::from), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_locked_or_is_locked_by_another_process_has_no_holder_whatever_is_written_in_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Holder::of(dir.path()), Ok(None));
        assert_eq!(Holder::of(&dir.path().join("none")), Ok(None));
        let path = dir.path().join(FILE);
        for text in [format!("{}\n/s\n", std::process::id()), "1\n/s\n".to_owned(), String::new()] {
            fs::write(&path, text).unwrap();
            assert_eq!(Holder::of(dir.path()), Ok(None), "no process has the lock");
            let locked = File::open(&path).unwrap();
            flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
            assert_eq!(Holder::of(dir.path()), Ok(None), "we are no daemon, and are none with its lock either");
        }
        let own = std::process::id();
        assert_eq!(user_of(own), Some(rustix::process::geteuid().as_raw()));
        assert!(
            Holder { pid: own, socket: None, by_link: false }.end(dir.path()).is_err(),
            "who holds nothing is not told to end"
        );
    }

    #[test]
    fn a_link_or_a_pipe_as_lock_file_is_refused_without_a_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(Holder::of(dir.path()), Err(Disbelief::NoFile(path.clone())));
        fs::remove_file(&path).unwrap();
        symlink("/dev/null", &path).unwrap();
        assert_eq!(Holder::of(dir.path()), Err(Disbelief::NoFile(path.clone())));
        fs::remove_file(&path).unwrap();
        fs::write(dir.path().join("other"), "").unwrap();
        fs::hard_link(dir.path().join("other"), &path).unwrap();
        assert_eq!(Holder::of(dir.path()), Err(Disbelief::Linked(path)));
    }
}
