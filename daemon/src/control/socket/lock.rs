//! Takes the locks that make a daemon the only one of its state directory and of its socket. Also makes the state
//! directory, and closes it to other users.
//!
//! The lock files are locked for the life of the process and must not be removed: only the lock counts, and the content
//! of the file (pid, socket) is no proof. Must not displace a holder, however slow it is: a second daemon reports the
//! holder, and ends. Processes of runs that hold a lock are ended elsewhere (`process::owner::false_holders`).

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness_files::{NotRegular, Opening, open_regular};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::kill;
use nix::sys::statfs::{
    CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, FsType, PROC_SUPER_MAGIC, SECURITYFS_MAGIC, SYSFS_MAGIC,
    TRACEFS_MAGIC, statfs,
};
use nix::unistd::Pid;

/// Times that a lock file is opened again because another process removed it between opening and locking.
const ATTEMPTS: u32 = 10;
/// Number and interval of the attempts at a lock whose holder is dead: a process that it had just forked holds the lock
/// as well, until it executes another program.
const TIMES_AFTER_DEATH: u32 = 100;
const TIMES_FOR_DIRECTORY: u32 = 25;
/// The lock file of a state directory.
const LOCK_FILE: &str = "harnessd.lock";
/// File systems whose content the kernel makes up.
const KERNELS: [FsType; 7] = [
    PROC_SUPER_MAGIC,
    SYSFS_MAGIC,
    CGROUP_SUPER_MAGIC,
    CGROUP2_SUPER_MAGIC,
    DEBUGFS_MAGIC,
    SECURITYFS_MAGIC,
    TRACEFS_MAGIC,
];
/// Bytes of a lock file that are read.
const MOST_READ: u64 = 8 * 1024;
const AFTER_DEATH: Duration = Duration::from_millis(20);

/// A held lock. Dropping it releases it.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    held: Flock<File>,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error(
        "another daemon{} holds {}{}",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), path.display(),
        socket.as_ref().map(|socket| format!(", and serves {}", socket.display())).unwrap_or_default()
    )]
    Held {
        /// The lock file.
        path: PathBuf,
        /// Pid of the holder, where it can be read.
        pid: Option<u32>,
        /// The socket that the holder serves, where the file says so.
        socket: Option<PathBuf>,
    },
    /// The directory belongs to another user, who could change its content.
    #[error("{} belongs to user {owner}, not to us", path.display())]
    NotOurs {
        /// Path of the directory.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
    },
    /// The directory exists, others may enter it, and nothing in it shows that it is ours to close.
    #[error(
        "{0} is open to others (mode {mode:04o}) and is no harness's state directory yet; it is left as it is: close \
         it (chmod 700 {0}), or name a directory inside of it",
        path.display()
    )]
    Open {
        /// Path of the directory.
        path: PathBuf,
        /// Its mode, as `stat` gives it.
        mode: u32,
    },
    /// The directory is in a file system of the kernel.
    #[error("{} is in a file system of the kernel, where no state can be kept", path.display())]
    Kernels {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The path is a pipe, a device or the like. To open it could last for ever.
    #[error("{} is no regular file; remove it", path.display())]
    NoFile {
        /// The path that was to be locked.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot lock {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl LockError {
    /// Whether another attempt may succeed later.
    pub const fn is_held(&self) -> bool {
        matches!(self, Self::Held { .. })
    }

    /// Whether the operator named a place that is impossible.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Kernels { .. })
    }
}

impl Lock {
    /// Takes the lock `path`, whose directory must be there.
    ///
    /// # Errors
    /// Where another process holds it, or the file cannot be had.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let io = |source: io::Error| LockError::Io { path: path.to_path_buf(), source };
        let (mut removed, mut dead) = (0, 0);
        while removed < ATTEMPTS {
            let file = open_regular(path, Opening::Keep).map_err(|error| match NotRegular::is_why(&error) {
                true => LockError::NoFile { path: path.to_path_buf() },
                false => io(error),
            })?;
            let mut held = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(held) => held,
                Err((mut file, Errno::EWOULDBLOCK)) => {
                    let (pid, socket) = read_holder(&mut file);
                    if dead < TIMES_AFTER_DEATH && pid.is_some_and(is_dead) {
                        dead += 1;
                        std::thread::sleep(AFTER_DEATH);
                        continue;
                    }
                    return Err(LockError::Held { path: path.to_path_buf(), pid, socket });
                }
                Err((_, errno)) => return Err(io(errno.into())),
            };
            // If another process removed the file, a second daemon may lock a new one; only the file that has the name
            // counts.
            if !is_at(&held, path) {
                removed += 1;
                continue;
            }
            write_holder(&mut held, None).map_err(io)?;
            return Ok(Self { path: path.to_path_buf(), held });
        }
        Err(io(io::Error::other("the lock file is removed again and again")))
    }

    /// Path of the lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to the locked file. Otherwise a second holder could lock the new file.
    pub fn is_there(&self) -> bool {
        is_at(&self.held, &self.path)
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Reads the pid in the first line, and the socket in the second. Older daemons have written only the first.
fn read_holder(file: &mut File) -> (Option<u32>, Option<PathBuf>) {
    let mut text = String::new();
    if file.take(MOST_READ).read_to_string(&mut text).is_err() {
        return (None, None);
    }
    let mut lines = text.lines();
    let pid = lines.next().and_then(|line| line.trim().parse().ok());
    (pid, lines.next().map(PathBuf::from).filter(|socket| socket.is_absolute()))
}

fn is_dead(pid: u32) -> bool {
    kill(Pid::from_raw(pid.cast_signed()), None) == Err(Errno::ESRCH)
}

fn write_holder(file: &mut File, socket: Option<&Path>) -> io::Result<()> {
    let socket = socket.and_then(Path::to_str).filter(|path| !path.contains('\n'));
    let lines = format!("{}\n{}", std::process::id(), socket.map(|path| format!("{path}\n")).unwrap_or_default());
    file.rewind()?;
    // A reader at this moment finds the number whole: it stays in the same place.
    file.write_all(lines.as_bytes())?;
    file.set_len(lines.len() as u64)
}

/// Locks a directory. A daemon that has just died may have left the lock to a process that it had just forked.
fn lock_directory(path: &Path) -> Result<Flock<File>, LockError> {
    let io = |source: io::Error| LockError::Io { path: path.to_path_buf(), source };
    let mut directory = File::open(path).map_err(io)?;
    for _ in 0..TIMES_FOR_DIRECTORY {
        directory = match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((directory, Errno::EWOULDBLOCK | Errno::EINTR)) => directory,
            Err((_, errno)) => return Err(io(errno.into())),
        };
        std::thread::sleep(AFTER_DEATH);
    }
    Err(LockError::Held { path: path.to_path_buf(), pid: None, socket: None })
}

/// Makes a directory, with those above it. Gives whether this call made it.
fn make(path: &Path) -> io::Result<bool> {
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(_) if path.is_dir() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the directory has been the state directory of a daemon of this user.
fn has_state(dir: &Path, us: u32) -> bool {
    let is_there =
        |name: &str| fs::symlink_metadata(dir.join(name)).is_ok_and(|found| found.is_file() && found.uid() == us);
    // Without a lock file: an operator has put a backup there.
    is_there(LOCK_FILE) || is_there("harness.db")
}

fn is_empty(dir: &Path) -> io::Result<bool> {
    Ok(fs::read_dir(dir)?.next().is_none())
}

/// Whether a path is, or would be, in a file system whose content the kernel makes up.
fn is_kernels(path: &Path) -> bool {
    let there = path.ancestors().find(|above| above.exists());
    there.and_then(|there| statfs(there).ok()).is_some_and(|found| KERNELS.contains(&found.filesystem_type()))
}

/// The first entry of a directory that is no file, no directory, no link to one, and no socket.
fn pipe_in(dir: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let Ok(found) = fs::metadata(&path) else { continue };
        let kind = found.file_type();
        if !(kind.is_file() || kind.is_dir() || kind.is_socket()) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// A state directory that belongs to this process alone, as long as this lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    lock: Lock,
    /// The lock on the directory itself: if the lock file is removed, a second daemon is still kept out.
    _directory: Flock<File>,
}

impl StateDir {
    /// Makes the directory where it is missing, and locks it. Closes it to other users where it is made, is empty or
    /// has been ours before.
    ///
    /// # Errors
    /// If another daemon has it, or it cannot be ours.
    pub fn open(path: &Path) -> Result<Self, LockError> {
        let io = |source: io::Error| LockError::Io { path: path.to_path_buf(), source };
        if is_kernels(path) {
            return Err(LockError::Kernels { path: path.to_path_buf() });
        }
        let made = make(path).map_err(io)?;
        let found = fs::metadata(path).map_err(io)?;
        let us = nix::unistd::geteuid().as_raw();
        if found.uid() != us {
            return Err(LockError::NotOurs { path: path.to_path_buf(), owner: found.uid() });
        }
        let mode = found.mode() & 0o7777;
        // Where others may write, any user can have put our lock file there.
        let is_ours = made || mode & 0o022 == 0 && has_state(path, us);
        // An empty directory loses nothing; a place for all users, as /tmp, stays one.
        let is_new = !is_ours && mode & 0o1002 == 0 && is_empty(path).map_err(io)?;
        let open = || LockError::Open { path: path.to_path_buf(), mode };
        if !is_ours && !is_new && mode & 0o077 != 0 {
            return Err(open());
        }
        if (is_ours || is_new) && mode != 0o700 {
            fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(io)?;
        }
        if is_new && !is_empty(path).map_err(io)? {
            // Another user has put a file there before it was closed.
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(io)?;
            return Err(open());
        }
        if let Some(path) = pipe_in(path).map_err(io)? {
            return Err(LockError::NoFile { path });
        }
        let lock = Lock::acquire(&Self::lock_file(path))?;
        let directory = lock_directory(path)?;
        Ok(Self { path: path.to_path_buf(), lock, _directory: directory })
    }

    /// The lock file of the state directory at `path`.
    pub fn lock_file(path: &Path) -> PathBuf {
        path.join(LOCK_FILE)
    }

    /// Path of the state directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records in the lock file which socket the daemon serves: none before it does, and none once it leaves. Clients
    /// that look for the daemon by its state directory read it there.
    ///
    /// # Errors
    /// If the file cannot be written. The lock is held all the same.
    pub fn tell_socket(&mut self, socket: Option<&Path>) -> io::Result<()> {
        write_holder(&mut self.lock.held, socket)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_lock_that_is_held_is_refused_with_the_pid_of_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let first = Lock::acquire(&path).unwrap();
        let error = Lock::acquire(&path).unwrap_err();
        assert!(error.is_held());
        assert!(error.to_string().contains(&format!("(pid {})", std::process::id())), "{error}");
        assert_eq!(mode(&path), 0o600);
        drop(first);
        Lock::acquire(&path).unwrap();
    }

    #[test]
    fn a_lock_that_only_a_dead_holder_has_left_to_another_process_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let first = Lock::acquire(&path).unwrap();
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        fs::write(&path, format!("{}\n", gone.id())).unwrap();
        let (tried, is_tried) = std::sync::mpsc::channel();
        let second = std::thread::spawn(move || {
            tried.send(()).unwrap();
            Lock::acquire(&path).map(|_| ())
        });
        is_tried.recv().unwrap();
        drop(first);
        second.join().unwrap().unwrap();
    }

    #[test]
    fn a_file_that_nobody_locks_is_no_hindrance_whatever_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        fs::write(&path, "4194304 and much more that is not a pid").unwrap();
        let _lock = Lock::acquire(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_lock_file_that_is_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(matches!(Lock::acquire(&path), Err(LockError::Io { .. })));
        assert!(!dir.path().join("elsewhere").exists());
    }

    #[test]
    fn a_state_directory_is_made_closed_and_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let state = StateDir::open(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        assert!(StateDir::open(&path).unwrap_err().is_held());
        assert_eq!(state.path(), path);
        drop(state);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        StateDir::open(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
    }

    /// A19: a removed lock file, or one that another takes the place of, lets no second daemon in.
    #[test]
    fn a_state_directory_has_one_owner_whatever_becomes_of_its_lock_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let file = dir.path().join("harnessd.lock");
        type Change = fn(&Path);
        let changes: [(&str, Change); 5] = [
            ("removed", |file| fs::remove_file(file).unwrap()),
            ("replaced", |file| {
                fs::write(file.with_extension("new"), "1\n").unwrap();
                fs::rename(file.with_extension("new"), file).unwrap();
            }),
            ("moved away", |file| fs::rename(file, file.with_extension("old")).unwrap()),
            ("emptied", |file| fs::write(file, "").unwrap()),
            ("with the pid of one that is dead", |file| fs::write(file, "4194304\n").unwrap()),
        ];
        for (what, change) in changes {
            change(&file);
            assert!(StateDir::open(dir.path()).unwrap_err().is_held(), "{what}");
        }
        let moved = dir.path().with_extension("moved");
        fs::rename(dir.path(), &moved).unwrap();
        assert!(StateDir::open(&moved).unwrap_err().is_held(), "the directory has another name");
        drop(state);
        StateDir::open(&moved).unwrap();
        fs::rename(&moved, dir.path()).unwrap();
    }

    /// Entry B3 in `tests/README.md`.
    #[test]
    fn who_finds_a_state_directory_held_is_told_the_process_and_the_socket_of_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        let mut state = StateDir::open(dir.path()).unwrap();
        let said = || StateDir::open(dir.path()).unwrap_err().to_string();
        let pid = format!("another daemon (pid {}) holds ", std::process::id());
        assert!(said().starts_with(&pid) && !said().contains("serves"), "{}", said());
        for socket in ["/run/a/very/long/path/control.sock", "/s", "/run/with a blank.sock", "/run/\u{e9}.sock"] {
            state.tell_socket(Some(Path::new(socket))).unwrap();
            assert!(said().ends_with(&format!(", and serves {socket}")), "{}", said());
        }
        state.tell_socket(Some(Path::new("/two\nlines"))).unwrap();
        assert!(!said().contains("serves"), "{}", said());
        state.tell_socket(None).unwrap();
        assert!(!said().contains("serves"), "{}", said());
        // As an older daemon writes it, and as no daemon does.
        for text in ["77\n", "77", "77\nrelative\n"] {
            fs::write(dir.path().join("harnessd.lock"), text.replace("77", &std::process::id().to_string())).unwrap();
            assert!(said().starts_with(&pid) && !said().contains("serves"), "{}", said());
        }
    }

    /// An operator once named /proc, as root, and closed it to the whole machine.
    #[test]
    fn a_directory_is_closed_where_it_is_made_is_empty_or_has_been_a_state_directory_and_nowhere_else() {
        let base = tempfile::tempdir().unwrap();
        let table: [(&str, Option<&str>, u32, Option<u32>); 13] = [
            ("an empty public one", None, 0o755, Some(0o700)),
            ("an empty one of a group that may write", None, 0o775, Some(0o700)),
            ("an empty one to which all may write", None, 0o777, None),
            ("one that may be passed", Some("notes.txt"), 0o711, None),
            ("one of a group", Some("notes.txt"), 0o750, None),
            ("one for all, as /tmp", None, 0o1777, None),
            ("one for all where anybody has put a lock file", Some("harnessd.lock"), 0o1777, None),
            ("one of a group that may write", Some("harness.db"), 0o770, None),
            ("a public one with something else in it", Some("notes.txt"), 0o755, None),
            ("a closed one", None, 0o700, Some(0o700)),
            ("one that a daemon has had", Some("harnessd.lock"), 0o755, Some(0o700)),
            ("one into which a backup was put", Some("harness.db"), 0o755, Some(0o700)),
            ("one that only its group could pass", Some("harnessd.lock"), 0o710, Some(0o700)),
        ];
        for (number, (what, has, before, after)) in table.into_iter().enumerate() {
            let path = base.path().join(number.to_string());
            fs::create_dir(&path).unwrap();
            if let Some(has) = has {
                File::create(path.join(has)).unwrap();
            }
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            match (StateDir::open(&path), after) {
                (Ok(_), Some(after)) => assert_eq!(mode(&path), after, "{what}"),
                (Err(error), None) => {
                    assert!(error.is_usage(), "{what}: {error}");
                    assert!(error.to_string().contains(&format!("chmod 700 {}", path.display())), "{what}: {error}");
                    assert_eq!(mode(&path), before, "{what}");
                }
                (opened, _) => panic!("{what}: {opened:?}"),
            }
        }
        for path in ["/proc", "/proc/self", "/proc/self/fd", "/sys", "/sys/kernel", "/proc/none/of/these"] {
            let before = fs::metadata(path).map(|found| found.mode()).ok();
            let error = StateDir::open(Path::new(path)).unwrap_err();
            assert!(matches!(error, LockError::Kernels { .. }) && error.is_usage(), "{path}: {error}");
            assert_eq!(fs::metadata(path).map(|found| found.mode()).ok(), before, "{path}");
        }
    }

    #[test]
    fn a_pipe_in_a_state_directory_is_refused_and_not_waited_for() {
        let base = tempfile::tempdir().unwrap();
        for name in ["harnessd.lock", "keepers.lock", "harness.db", "harness.db-wal", "harnessd.log", "anything"] {
            let path = base.path().join(format!("state-{name}"));
            drop(StateDir::open(&path).unwrap());
            let pipe = path.join(name);
            drop(fs::remove_file(&pipe));
            nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
            let refused = StateDir::open(&path).unwrap_err();
            assert_eq!(refused.to_string(), format!("{} is no regular file; remove it", pipe.display()));
            fs::rename(&pipe, base.path().join("pipe")).unwrap();
            std::os::unix::fs::symlink(base.path().join("pipe"), &pipe).unwrap();
            assert!(matches!(StateDir::open(&path), Err(LockError::NoFile { .. })), "{name}, through a link");
        }
        assert!(matches!(Lock::acquire(&base.path().join("pipe")), Err(LockError::NoFile { .. })));
    }

    #[test]
    fn a_state_directory_of_somebody_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        if std::os::unix::fs::chown(dir.path(), Some(12_345), None).is_err() {
            return; // Only root can give a directory away.
        }
        assert!(matches!(StateDir::open(dir.path()), Err(LockError::NotOurs { owner: 12_345, .. })));
    }
}
