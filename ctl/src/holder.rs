//! Who holds a state directory, by its lock: the daemon that serves, wherever its socket is.
//!
//! Owns the form of the lock file, as far as it is read here. Reads, and never keeps a lock: a daemon that is about to
//! start is not to be held up.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// What the kernel calls a daemon: by its path, or by that of a program that was replaced while it started.
const PROGRAMS: [&str; 2] = ["harnessd", "exe"];
/// Bytes of a lock file that are read: a process number and a path.
const MOST: u64 = 8 * 1024;

/// The daemon that holds a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The number of its process.
    pub(crate) pid: u32,
    /// Its socket; none where an older daemon has not told it, or one that starts has not yet.
    pub(crate) socket: Option<PathBuf>,
}

impl Holder {
    /// Who holds this directory; none where nobody does, or where that cannot be told.
    pub(crate) fn of(state_dir: &Path) -> Option<Self> {
        let mut file = File::open(state_dir.join("harnessd.lock")).ok()?;
        let mut text = String::new();
        file.by_ref().take(MOST).read_to_string(&mut text).ok()?;
        let holder = read(&text)?;
        // Asked for only where a daemon seems to be there: whoever tries a lock has it for a moment.
        (is_daemon(holder.pid) && is_locked(file)).then_some(holder)
    }
}

/// The process number in the first line, the socket in the second.
fn read(text: &str) -> Option<Holder> {
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok().filter(|&pid: &u32| pid > 1 && i32::try_from(pid).is_ok())?;
    let socket = lines.next().map(PathBuf::from).filter(|socket| socket.is_absolute());
    Some(Holder { pid, socket })
}

/// Whether a process is a daemon of ours, by its name. A dead one that nobody has waited for is none.
fn is_daemon(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let Some((name, rest)) = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')) else { return false };
    PROGRAMS.contains(&name) && !rest.trim_start().starts_with(['Z', 'X'])
}

fn is_locked(file: File) -> bool {
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_lock_file_tells_process_and_socket_and_older_ones_the_process() {
        let holder = |pid, socket: Option<&str>| Some(Holder { pid, socket: socket.map(PathBuf::from) });
        assert_eq!(read("12\n"), holder(12, None));
        assert_eq!(read("12\n/run/a b.sock\n"), holder(12, Some("/run/a b.sock")));
        assert_eq!(read("12\nrelative\n"), holder(12, None));
        assert_eq!(read("12"), holder(12, None));
        for none in ["", "\n", "x\n/s\n", "-1\n", "0\n/s", "1\n", "99999999999\n", "4294967295\n"] {
            assert_eq!(read(none), None, "{none:?}");
        }
    }

    #[test]
    fn nobody_holds_what_is_not_locked_or_is_locked_by_something_else() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Holder::of(dir.path()), None);
        let path = dir.path().join("harnessd.lock");
        fs::write(&path, format!("{}\n/s\n", std::process::id())).unwrap();
        assert_eq!(Holder::of(dir.path()), None, "we are no daemon");
        let _locked = Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        assert_eq!(Holder::of(dir.path()), None, "and are none with its lock either");
        assert!(is_locked(File::open(&path).unwrap()));
    }
}
