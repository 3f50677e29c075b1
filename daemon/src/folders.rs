//! Finds out which directory a path means at this moment, within a time limit.
//!
//! To look at a path blocks for as long as the file system does, which is for ever on a network mount whose server is
//! gone. So looks run on threads of their own: one at a time for each path (of all operators, and of each run), a few
//! for each party, and a bounded number in all. Looks for runs share neither threads nor turns with those for
//! operators. A look that hangs occupies one thread until the kernel returns.
//!
//! Descriptors that clients have passed are closed on other threads: one for each party, so that a close that hangs
//! delays no other party and no look. A party with many such descriptors in the queue may pass none meanwhile. Runs
//! pass none at all: `fstat` and the close of a descriptor may wait for a file system that the run serves itself, and
//! no signal ends that.
//!
//! For the same reason no path leads through a link of `/proc` (`/proc/PID/root`, `cwd`, `fd/N`): the kernel follows it
//! into the mount namespace of that process, with whatever is mounted there.
//!
//! It must not decide about a run, or change the daemon's working directory.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness_protocol::folder::{BootId, FolderId};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::blocking::Blocking;
use crate::close_threads::close_received;
use crate::fair_queue::Party;

/// Time limit of a look.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most looks at once, and most of these for one party.
const AT_ONCE: (usize, usize) = (32, 4);
/// Most threads that close descriptors, and most of these for one party.
const CLOSED_AT_ONCE: (usize, usize) = (64, 1);
/// Descriptors that wait to be closed, of one party, from which on it may pass none.
const PARTY_PASSED: usize = 256;
/// File with the id of the present boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Looks at folders. Clones share the bounds.
#[derive(Clone)]
pub struct Folders {
    /// The threads for operators and the daemon itself, and the threads for runs and for unknown peers.
    blocking: [Blocking; 2],
    /// The threads that close descriptors, for the same two.
    closing: [Blocking; 2],
    passed: Arc<Mutex<PassedCounts>>,
    patience: Duration,
    boot: Option<BootId>,
    /// The paths that are being looked at, and the looks that wait for them.
    paths: Arc<Mutex<Paths>>,
}

impl fmt::Debug for Folders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folders").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// The descriptors that wait to be closed.
#[derive(Default)]
struct PassedCounts {
    /// By party, without zeros.
    of: BTreeMap<Party, usize>,
}

/// A descriptor that is closed on a thread that may block, whatever happens to the look.
struct Passed {
    folders: Folders,
    party: Party,
    descriptor: Option<OwnedFd>,
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            self.folders.close(self.party, vec![descriptor], ());
        }
    }
}

/// Why it is not known which folder a path means.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The path cannot be opened.
    #[error("{}", why(.0))]
    NotOpened(io::Error),
    /// The descriptor that the client passed for it does not lead to a folder.
    #[error("the descriptor that was passed is none of a directory")]
    NoFolderPassed,
    /// The file system did not answer in time.
    #[error("gives no answer for {} s (a network mount that hangs?)", PATIENCE.as_secs())]
    Silent,
}

/// What `ELOOP` means here.
const LOOPS: &str = "cannot be opened: its path leads round in a ring of links, or through a link of /proc (cwd, root, \
                     fd) into another process's view of the files; name the folder itself";

/// Why a folder cannot be opened or entered, as the end of a sentence.
pub fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        io::ErrorKind::NotADirectory => "is not a directory".to_owned(),
        io::ErrorKind::PermissionDenied => "may not be entered".to_owned(),
        _ if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => LOOPS.to_owned(),
        _ => format!("cannot be opened: {error}"),
    }
}

/// An opened folder, with its identity.
#[derive(Debug)]
pub struct Opened {
    /// A descriptor for entering it, and for nothing else.
    pub descriptor: OwnedFd,
    /// Number of the folder's device.
    pub device: u64,
    /// Inode of the folder on that device.
    pub inode: u64,
}

/// Whether the kernel can open a path without following links of `/proc`. Linux before 5.6 cannot (`ENOSYS`), and some
/// older filters of containers forbid it (`EPERM`): these follow such links, as every other program does there. Asked
/// once, about a path without links: the answer for the path of a run is never taken for it.
static REFUSES_LINKS_OF_PROC: LazyLock<bool> = LazyLock::new(|| {
    let asked = openat2(CWD, "/", FLAGS, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
    !matches!(asked, Err(Errno::NOSYS | Errno::PERM))
});
/// How a folder is opened.
const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens the folder at `path`. A relative path begins at `from`. Blocks.
///
/// # Errors
/// If it is not a folder, or may not be entered, or its path leads through a link of `/proc` (`ELOOP`).
pub fn open(from: impl AsFd, path: &Path) -> io::Result<Opened> {
    let flags = FLAGS;
    let folder = match *REFUSES_LINKS_OF_PROC {
        true => openat2(from, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?,
        false => openat(from, path, flags, Mode::empty())?,
    };
    // This fails if the user may not enter the folder.
    let descriptor = openat(&folder, ".", flags, Mode::empty())?;
    let stat = fstat(&descriptor)?;
    Ok(Opened { descriptor, device: stat.st_dev, inode: stat.st_ino })
}

/// The id of the present boot, if the kernel gives it.
pub fn boot() -> Option<BootId> {
    fs::read_to_string(BOOT).ok()?.trim().parse().ok()
}

impl Folders {
    /// Looks at folders for this boot. Must be called in a runtime.
    pub fn new(boot: Option<BootId>) -> Self {
        let blocking = [(); 2].map(|()| Blocking::shared_out(AT_ONCE.0, AT_ONCE.1));
        let closing = [(); 2].map(|()| Blocking::shared_out(CLOSED_AT_ONCE.0, CLOSED_AT_ONCE.1));
        Self { blocking, closing, passed: Arc::default(), patience: PATIENCE, boot, paths: Arc::default() }
    }

    fn blocking(&self, party: Party) -> &Blocking {
        let [operators, others] = &self.blocking;
        if turns_of(party).is_some() { others } else { operators }
    }

    fn passed(&self) -> MutexGuard<'_, PassedCounts> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a party may pass descriptors now. A run and an unknown peer never may, an operator not while many that
    /// it has passed wait to be closed.
    pub fn may_pass(&self, party: Party) -> bool {
        turns_of(party).is_none() && self.passed().of.get(&party).is_none_or(|count| *count < PARTY_PASSED)
    }

    /// The id of the present boot.
    pub fn boot(&self) -> Option<BootId> {
        self.boot
    }

    /// Finds out which folder `path` means now. `held` is dropped when the look has really ended, however long that
    /// takes.
    ///
    /// # Errors
    /// If there is no folder, or no answer in time.
    pub async fn look(&self, party: Party, path: &str, held: impl Send + 'static) -> Result<FolderId, LookError> {
        let path_of = path;
        let (path, boot) = (path.to_owned(), self.boot);
        let look = move || {
            let _held = held;
            let Opened { device, inode, .. } = open(CWD, Path::new(&path)).map_err(LookError::NotOpened)?;
            Ok(FolderId { device, inode, boot })
        };
        self.ask(party, path_of, look).await
    }

    /// Finds out which folders `path` and a descriptor mean now.
    ///
    /// # Errors
    /// As for [`Self::look`]; also if the descriptor does not lead to a folder.
    pub async fn look_at_both(
        &self,
        party: Party,
        path: &str,
        passed: OwnedFd,
        held: impl Send + 'static,
    ) -> Result<(FolderId, FolderId), LookError> {
        let mut passed = Passed { folders: self.clone(), party, descriptor: Some(passed) };
        let (of_path, boot) = (path.to_owned(), self.boot);
        let look = move || {
            let _held = held;
            let descriptor = passed.descriptor.take().ok_or(LookError::NoFolderPassed)?;
            let stat = fstat(&descriptor);
            close_received(vec![descriptor]);
            let stat = stat.map_err(|_| LookError::NoFolderPassed)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                return Err(LookError::NoFolderPassed);
            }
            let passed = FolderId { device: stat.st_dev, inode: stat.st_ino, boot };
            let Opened { device, inode, .. } = open(CWD, Path::new(&of_path)).map_err(LookError::NotOpened)?;
            Ok((FolderId { device, inode, boot }, passed))
        };
        self.ask(party, path, look).await
    }

    /// Closes descriptors that a client sent and that are not needed, on a thread for that: it may hang. `held` is
    /// dropped behind them.
    pub fn close(&self, party: Party, passed: Vec<OwnedFd>, held: impl Send + 'static) {
        *self.passed().of.entry(party).or_default() += passed.len();
        let [operators, others] = &self.closing;
        let closing = if turns_of(party).is_some() { others } else { operators };
        let counts = Arc::clone(&self.passed);
        closing.run(party, move || {
            let count = passed.len();
            close_received(passed);
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let left = counts.of.remove(&party).unwrap_or_default().saturating_sub(count);
            if left > 0 {
                counts.of.insert(party, left);
            }
            drop((counts, held));
        });
    }

    async fn ask<T: Send + 'static>(
        &self,
        party: Party,
        path: &str,
        look: impl FnOnce() -> Result<T, LookError> + Send + 'static,
    ) -> Result<T, LookError> {
        let (tell, told) = oneshot::channel();
        // The send fails if the caller has gone.
        let look = Box::new(move || drop(tell.send(look())));
        let _waits = self.look_in_turn(path, Look { party, look });
        match timeout(self.patience, told).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => Err(LookError::Silent),
        }
    }

    fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a path after the earlier looks at the same path have ended. A look that is queued behind a path that
    /// hangs occupies no thread.
    fn look_in_turn(&self, path: &str, look: Look) -> Waits {
        let mut paths = self.paths();
        paths.last += 1;
        let at: At = (turns_of(look.party), path.to_owned());
        let waits = Waits { folders: self.clone(), at: at.clone(), number: paths.last };
        if let Some(waiting) = paths.waiting.get_mut(&at) {
            waiting.insert(waits.number, look);
        } else {
            paths.waiting.insert(at.clone(), BTreeMap::new());
            drop(paths);
            self.begin(at, look);
        }
        waits
    }

    fn begin(&self, at: At, Look { party, look }: Look) {
        let turn = Turn { folders: self.clone(), at };
        self.blocking(party).run(party, move || {
            look();
            drop(turn);
        });
    }
}

/// A path, and the queue of looks at it: that of a run, or the common one.
type At = (Option<Party>, String);

/// The queue that a party uses at a path. Each run has a queue of its own; the operators share one.
fn turns_of(party: Party) -> Option<Party> {
    match party {
        // A peer that is neither an operator nor part of a known run is served as a connection without a process.
        Party::Run(_) | Party::Connection(u64::MAX) => Some(party),
        Party::Daemon | Party::Process(_) | Party::Connection(_) => None,
    }
}

/// A look that has not begun.
struct Look {
    party: Party,
    look: Box<dyn FnOnce() + Send>,
}

/// The paths with a look in progress, and the looks that wait for each path, in the order of the requests.
#[derive(Default)]
struct Paths {
    waiting: BTreeMap<At, BTreeMap<u64, Look>>,
    /// The number of the last requested look.
    last: u64,
}

/// The look in progress at a path. When it has ended, in whatever way, the next one begins at once; no task has to be
/// woken for that.
struct Turn {
    folders: Folders,
    at: At,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut paths = self.folders.paths();
            let next = paths.waiting.get_mut(&self.at).and_then(BTreeMap::pop_first);
            if next.is_none() {
                paths.waiting.remove(&self.at);
            }
            next
        };
        if let Some((_, next)) = next {
            self.folders.begin(std::mem::take(&mut self.at), next);
        }
    }
}

/// A caller that waits for a look. Dropping this removes the look from the queue, if it has not begun.
struct Waits {
    folders: Folders,
    at: At,
    number: u64,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let look = self.folders.paths().waiting.get_mut(&self.at).and_then(|waiting| waiting.remove(&self.number));
        // Dropped after the paths are unlocked, since that drops what the look holds.
        drop(look);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    const PARTY: Party = Party::Process(1);

    /// A path means the directory that is there at this moment, not one of an earlier look (entry U22).
    #[tokio::test]
    async fn a_path_means_the_folder_that_is_there_at_this_moment() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let folders = Folders::new(boot());
        let look = async |name: &str| folders.look(PARTY, at(name).to_str().unwrap(), ()).await;
        fs::create_dir(at("a")).unwrap();
        fs::create_dir(at("b")).unwrap();
        symlink("a", at("link")).unwrap();
        let id = |name: &str| {
            let found = fs::metadata(at(name)).unwrap();
            FolderId { device: found.dev(), inode: found.ino(), boot: boot() }
        };
        assert_eq!((look("a").await.unwrap(), look("link").await.unwrap()), (id("a"), id("a")));
        fs::remove_file(at("link")).unwrap();
        symlink("b", at("link")).unwrap();
        assert_eq!(look("link").await.unwrap(), id("b"));
        let before = look("a").await.unwrap();
        fs::rename(at("a"), at("c")).unwrap();
        fs::rename(at("b"), at("a")).unwrap();
        assert!(look("a").await.unwrap() != before && look("c").await.unwrap() == before);
    }

    #[tokio::test]
    async fn a_path_that_is_no_folder_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "").unwrap();
        symlink("round", at("round")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        let folders = Folders::new(None);
        for (name, told) in [
            ("nothing", "does not exist"),
            ("dangling", "does not exist"),
            ("file", "is not a directory"),
            ("file/below", "is not a directory"),
            ("round", LOOPS),
        ] {
            let error = folders.look(PARTY, at(name).to_str().unwrap(), ()).await.unwrap_err();
            assert_eq!(error.to_string(), told, "{name}");
        }
        if !nix::unistd::geteuid().is_root() {
            fs::create_dir(at("shut")).unwrap();
            fs::set_permissions(at("shut"), fs::Permissions::from_mode(0o600)).unwrap();
            let error = folders.look(PARTY, at("shut").to_str().unwrap(), ()).await.unwrap_err();
            assert_eq!(error.to_string(), "may not be entered");
        }
    }

    /// A link of `/proc` leads into whatever another process has mounted, also by way of a link of our own.
    #[tokio::test]
    async fn no_path_leads_through_a_link_of_proc() {
        let dir = tempfile::tempdir().unwrap();
        let held = fs::File::open(dir.path()).unwrap();
        let by_descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
        let of_process = format!("/proc/{}/root{}", std::process::id(), dir.path().display());
        symlink(&of_process, dir.path().join("link")).unwrap();
        let link = dir.path().join("link").display().to_string();
        let folders = Folders::new(None);
        for path in ["/proc/self/cwd", "/proc/self/root", "/proc/thread-self/root/", &by_descriptor, &of_process, &link]
        {
            let error = folders.look(PARTY, path, ()).await.unwrap_err();
            assert_eq!(error.to_string(), LOOPS, "{path}");
        }
        for path in ["/proc/self", "/proc/self/fd", "/proc", "/"] {
            assert!(folders.look(PARTY, path, ()).await.is_ok(), "{path}");
        }
    }

    #[tokio::test]
    async fn only_operators_pass_descriptors_and_not_while_many_of_theirs_wait() {
        let folders = Folders::new(None);
        let run = Party::Run(harness_protocol::id::RunId::from_u64(1));
        let unknown = Party::Connection(u64::MAX);
        let operators = [Party::Process(1), Party::Connection(1), Party::Daemon];
        assert!(operators.into_iter().all(|party| folders.may_pass(party)));
        assert!(!folders.may_pass(run) && !folders.may_pass(unknown));
        folders.passed().of.insert(Party::Process(1), PARTY_PASSED);
        assert!(!folders.may_pass(Party::Process(1)) && folders.may_pass(Party::Process(2)));
    }

    #[tokio::test]
    async fn a_descriptor_of_anything_but_a_folder_means_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let folders = Folders::new(None);
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (pipe, _writer) = io::pipe().unwrap();
        let file = fs::File::create(dir.path().join("file")).unwrap();
        for passed in [one.into(), pipe.into(), file.into(), fs::File::open("/dev/null").unwrap().into()] {
            let error = folders.look_at_both(PARTY, path, passed, ()).await.unwrap_err();
            assert!(matches!(error, LookError::NoFolderPassed), "{error}");
        }
        let passed = open(CWD, Path::new("/")).unwrap().descriptor;
        let (at_path, passed) = folders.look_at_both(PARTY, path, passed, ()).await.unwrap();
        assert!(at_path != passed && passed.inode == fs::metadata("/").unwrap().ino());
    }

    /// Rule 4: the next look begins without a task that has to be woken, and nothing is left of callers that gave up.
    #[tokio::test]
    async fn looks_at_one_path_are_made_in_turn_and_not_for_callers_that_gave_up() {
        let folders = Folders::new(None);
        let hasty = Folders { patience: Duration::from_millis(20), ..folders.clone() };
        let (mut hangs, end) = io::pipe().unwrap();
        let looked = Arc::new(Mutex::new(Vec::new()));
        let look = |party, number| {
            let looked = Arc::clone(&looked);
            folders.ask(Party::Process(party), "/path", move || {
                looked.lock().unwrap().push(number);
                Ok(())
            })
        };
        let hung = folders.ask(PARTY, "/path", move || {
            let _ = io::Read::read(&mut hangs, &mut [0]);
            Ok(())
        });
        let held = Arc::new(());
        let given_up = async {
            let held = Arc::clone(&held);
            let asked = hasty.ask(PARTY, "/path", move || {
                drop(held);
                Ok(())
            });
            assert!(matches!(asked.await, Err(LookError::Silent)));
        };
        let last = async {
            given_up.await;
            assert_eq!(Arc::strong_count(&held), 1, "what a look would hold is let go of when it is given up");
            drop(end);
        };
        let all = tokio::join!(biased; hung, look(2, 1), look(1, 2), look(2, 3), last, look(3, 4));
        assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok() && all.3.is_ok() && all.5.is_ok());
        assert_eq!(*looked.lock().unwrap(), [1, 2, 3, 4]);
        // The last caller gets its result before its turn ends.
        while !folders.paths().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    /// A look that hangs: a pipe without a writer stands for a mount that does not answer.
    #[tokio::test]
    async fn looks_that_hang_are_given_up_and_take_no_more_than_their_partys_part() {
        let folders = Folders { patience: Duration::from_millis(50), ..Folders::new(None) };
        let patient = Folders { patience: PATIENCE, ..folders.clone() };
        let mut ends = Vec::new();
        let mut hang = async |path: &str| {
            let (mut hangs, end) = io::pipe().unwrap();
            ends.push(end);
            let look = move || {
                let _ = io::Read::read(&mut hangs, &mut [0]);
                Ok(())
            };
            let hung = folders.ask(PARTY, path, look).await;
            assert!(matches!(hung, Err(LookError::Silent)));
        };
        let here = |inode: u64| inode == fs::metadata("/").unwrap().ino();
        // A path that hangs takes one thread, however often it is looked at: the party has other threads left.
        for _ in 0..9 {
            hang("/hangs").await;
        }
        assert!(here(patient.look(PARTY, "/", ()).await.unwrap().inode));
        for path in ["/1", "/2", "/3", "/4", "/5"] {
            hang(path).await;
        }
        assert!(here(patient.look(Party::Process(2), "/", ()).await.unwrap().inode));
        drop(ends);
        assert!(here(patient.look(PARTY, "/", ()).await.unwrap().inode));
    }

    /// A run has a file system of its own that does not answer, and passes folders of it as if they were any path.
    #[tokio::test]
    async fn a_path_that_hangs_for_a_run_hangs_for_no_operator_and_no_other_run() {
        let folders = Folders { patience: Duration::from_millis(20), ..Folders::new(None) };
        let patient = Folders { patience: PATIENCE, ..folders.clone() };
        let run = |number| Party::Run(harness_protocol::id::RunId::from_u64(number));
        let mut ends = Vec::new();
        let mut hang = async |party: Party, path: &str| {
            let (mut hangs, end) = io::pipe().unwrap();
            ends.push(end);
            let look = move || {
                let _ = io::Read::read(&mut hangs, &mut [0]);
                Ok(())
            };
            assert!(matches!(folders.ask(party, path, look).await, Err(LookError::Silent)));
        };
        hang(run(1), "/").await;
        for party in [Party::Process(1), Party::Daemon, run(2)] {
            patient.look(party, "/", ()).await.unwrap();
        }
        for number in 0..2 * AT_ONCE.0 as u64 {
            hang(run(number), &format!("/{number}")).await;
        }
        for path in ["/", "/1"] {
            let found = patient.ask(Party::Process(1), path, || Ok(())).await;
            assert!(found.is_ok(), "{path}");
        }
        drop(ends);
        patient.look(run(1), "/", ()).await.unwrap();
    }
}
