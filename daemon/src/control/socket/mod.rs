//! Opens the socket of the daemon: takes it over from systemd, or binds it in place of a stale socket file.
//!
//! It must not displace a live daemon or remove the socket of another process: the start fails instead. It must not
//! show the path with a mode that is wider than intended, not even for a moment.

pub mod arrivals;
pub mod listener;
pub mod lock;
pub mod peer;
pub mod stream;
pub mod tracing;

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use interprocess::local_socket::prelude::*;
use interprocess::local_socket::{ListenerNonblockingMode, ListenerOptions};
use interprocess::os::unix::local_socket::{FilesystemUdSocket, ListenerOptionsExt};
use interprocess::os::unix::uds_local_socket::Listener as Socket;
use listenfd::ListenFd;
use nix::errno::Errno;
use nix::sys::socket::sockopt::AcceptConn;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, connect, getsockopt, listen, socket};

use super::socket::lock::{Lock, LockError};
use super::socket::peer::Members;

/// Longest path of a socket, in bytes: the kernel's field, less its final NUL.
pub const LONGEST_PATH: usize = 107;
/// Connections that may wait in the kernel's queue.
const BACKLOG: i32 = 1024;
/// The name of our socket in the socket unit.
const ACTIVATED_NAME: &str = "control";

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another daemon has the lock beside the socket, or the lock cannot be had.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Another process listens at that path.
    #[error("another daemon listens on {}", .0.display())]
    Live(PathBuf),
    /// The path is too long for an address.
    #[error(
        "the socket path {} has {} bytes; the longest possible has {LONGEST_PATH}",
        .0.display(),
        .0.as_os_str().len()
    )]
    TooLong(PathBuf),
    /// The path is something else than a socket, and stays as it is.
    #[error("{} is there and is no socket", .0.display())]
    NotASocket(PathBuf),
    /// systemd passed something else than a listening socket.
    #[error("what was passed by socket activation is no listening unix stream socket: {0}")]
    Activation(io::Error),
    /// The group could not be given access.
    #[error("cannot give group {gid} access to {}: {source}", path.display())]
    Group {
        /// The socket or its directory.
        path: PathBuf,
        /// Id of the group.
        gid: u32,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refused.
    #[error("cannot listen on {}: {source}", path.display())]
    Io {
        /// The socket or its directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl BindError {
    /// Whether another daemon is the reason.
    pub const fn is_held(&self) -> bool {
        match self {
            Self::Lock(error) => error.is_held(),
            Self::Live(_) => true,
            _ => false,
        }
    }

    /// Whether the operator asked for something impossible.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::TooLong(_) | Self::NotASocket(_) | Self::Group { .. } | Self::Activation(_))
    }
}

/// A listening socket that systemd passed.
#[derive(Debug)]
pub struct Activated(Socket);

impl AsRawFd for Activated {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Takes the socket that systemd passed, if it did. Among several it is the one called `control`, or else the first.
///
/// Only at the very start of the process: it changes the environment, and the descriptors are not ours before.
///
/// # Errors
/// If something was passed that is not a listening Unix stream socket.
pub fn adopt() -> Result<Option<Activated>, BindError> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let index = names.split(':').position(|name| name == ACTIVATED_NAME).unwrap_or(0);
    let mut passed = ListenFd::from_env();
    if passed.len() == 0 {
        return Ok(None);
    }
    let Some(socket) = passed.take_unix_listener(index).map_err(BindError::Activation)? else {
        return Err(BindError::Activation(io::Error::from(io::ErrorKind::NotFound)));
    };
    if !getsockopt(&socket, AcceptConn).map_err(|errno| BindError::Activation(errno.into()))? {
        return Err(BindError::Activation(io::Error::other("it does not listen")));
    }
    Ok(Some(Activated(Socket::from(socket))))
}

/// A listening socket, nonblocking and closed on exec, and our claim on its path.
#[derive(Debug)]
pub struct Bound {
    // The claim is dropped first: it recognises its socket file by an inode that lives as long as the socket does.
    pub(super) claim: Claim,
    pub(super) socket: Socket,
    pub(super) members: Option<Members>,
}

/// The path, and which parts of it are ours.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) path: PathBuf,
    /// Device and inode of the socket file that we made; `None` where systemd made it.
    made: Option<(u64, u64)>,
    lock: Option<Lock>,
}

impl Claim {
    pub(super) const fn is_activated(&self) -> bool {
        self.made.is_none()
    }

    /// Whether the path leads to something else than our socket, or to nothing. systemd looks after its own socket.
    pub(super) fn is_lost(&self) -> bool {
        let there = || fs::symlink_metadata(&self.path).ok().map(|found| identity(&found));
        self.made.is_some() && self.made != there()
    }

    /// Opens our socket file to a group, or to its owner alone. What is not ours, or no longer there, stays as it is:
    /// it gets its mode when it is bound again.
    fn admit(&self, members: Option<&Members>) -> Result<(), BindError> {
        if self.is_activated() || self.is_lost() {
            return Ok(());
        }
        match members {
            Some(members) => open_to(&self.path, members.gid, 0o660),
            None => fs::set_permissions(&self.path, Permissions::from_mode(0o600))
                .map_err(|source| BindError::Io { path: self.path.clone(), source }),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let there = fs::symlink_metadata(&self.path).ok().map(|found| identity(&found));
        // The lock is still held here, so that no successor comes between the look and the removal.
        if self.made.is_some() && self.made == there {
            _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

impl Bound {
    /// Uses a socket that systemd passed. `path` is its configured path, in case it does not know its own. Without
    /// configured `members` the file decides: a group that may write to it may connect.
    ///
    /// # Errors
    /// If the socket cannot be made nonblocking.
    pub fn activated(passed: Activated, path: &Path, members: Option<Members>) -> Result<Self, BindError> {
        let Activated(socket) = passed;
        socket.set_nonblocking(ListenerNonblockingMode::Accept).map_err(BindError::Activation)?;
        let path = socket
            .inner()
            .local_addr()
            .ok()
            .and_then(|address| address.as_pathname().map(Path::to_path_buf))
            .unwrap_or_else(|| path.to_path_buf());
        let members = members.or_else(|| group_of(&path));
        Ok(Self { claim: Claim { path, made: None, lock: None }, socket, members })
    }

    /// Binds `path`, in place of a stale socket, under the lock `path.lock`. With `members` these may connect too. A
    /// missing directory is made.
    ///
    /// # Errors
    /// If another daemon lives there, or the path cannot be used.
    pub fn bind(path: &Path, members: Option<Members>) -> Result<Self, BindError> {
        let io = |source: io::Error| BindError::Io { path: path.to_path_buf(), source };
        let address = match UnixAddr::new(path) {
            Ok(address) => address,
            Err(Errno::ENAMETOOLONG) => return Err(BindError::TooLong(path.to_path_buf())),
            Err(errno) => return Err(io(errno.into())),
        };
        make_directory(path, members.as_ref())?;
        let lock = Lock::acquire(&lock_path(path))?;
        let (socket, made) = listen_at(path, &address, members.as_ref())?;
        let claim = Claim { path: path.to_path_buf(), made: Some(made), lock: Some(lock) };
        Ok(Self { claim, socket, members })
    }

    /// Binds the path of `gone` again, whose socket file has been removed. The lock beside it is kept if its name still
    /// leads to it.
    ///
    /// # Errors
    /// If another daemon lives there by now, or the path cannot be used. `gone` is then unchanged.
    pub(super) fn again(gone: &mut Claim, members: Option<Members>) -> Result<Self, BindError> {
        let lock_is_there = gone.lock.as_ref().is_some_and(Lock::is_there);
        if !lock_is_there {
            return Self::bind(&gone.path, members);
        }
        let address = UnixAddr::new(&gone.path)
            .map_err(|errno| BindError::Io { path: gone.path.clone(), source: errno.into() })?;
        let path = gone.path.clone();
        let (socket, made) = listen_at(&path, &address, members.as_ref())?;
        // The lock moves only when nothing can fail any more.
        let claim = Claim { path, made: Some(made), lock: gone.lock.take() };
        Ok(Self { claim, socket, members })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.claim.path
    }
}

/// The members of the group that may write to this file, if its mode admits the group.
fn group_of(path: &Path) -> Option<Members> {
    let found = fs::metadata(path).ok()?;
    (found.mode() & 0o020 != 0).then(|| Members::of_gid(found.gid()))
}

/// Binds a path whose lock we hold, in place of a stale socket.
fn listen_at(path: &Path, address: &UnixAddr, members: Option<&Members>) -> Result<(Socket, (u64, u64)), BindError> {
    let io = |source: io::Error| BindError::Io { path: path.to_path_buf(), source };
    remove_stale(path, address)?;
    let socket = make(path).map_err(io)?;
    let made = fs::symlink_metadata(path).map_err(io)?;
    let prepared = (|| {
        if made.mode() & 0o777 != 0o600 {
            fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(io)?;
        }
        if let Some(members) = members {
            open_to(path, members.gid, 0o660)?;
        }
        // It listens already, with the library's backlog.
        Backlog::new(BACKLOG).and_then(|backlog| listen(&socket, backlog)).map_err(|errno| io(errno.into()))
    })();
    if let Err(error) = prepared {
        // A socket on which no process will ever listen must not stay.
        _ = fs::remove_file(path);
        return Err(error);
    }
    Ok((socket, identity(&made)))
}

/// Makes a listening socket and its file, which has the mode 0600 from its first moment on. The caller decides whose
/// the path is: no file is overwritten here, and none is removed when the socket is dropped.
fn make(path: &Path) -> io::Result<Socket> {
    let options = ListenerOptions::new().name(path.to_fs_name::<FilesystemUdSocket>()?);
    let options = options.nonblocking(ListenerNonblockingMode::Accept).reclaim_name(false).try_overwrite(false);
    options.mode(0o600).create_sync_as()
}

/// The lock file beside a socket.
pub fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

fn stream_socket() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)
}

fn make_directory(path: &Path, members: Option<&Members>) -> Result<(), BindError> {
    let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists()) else { return Ok(()) };
    let io = |source: io::Error| BindError::Io { path: dir.to_path_buf(), source };
    if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(above).map_err(io)?;
    }
    // A directory that another process has made meanwhile keeps its mode.
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(_) if dir.is_dir() => return Ok(()),
        made => made.map_err(io)?,
    }
    members.map_or(Ok(()), |members| open_to(dir, members.gid, 0o710))
}

/// Gives `path` to the group, then opens it to the group: in the other order another group could enter for a moment.
fn open_to(path: &Path, gid: u32, mode: u32) -> Result<(), BindError> {
    chown(path, None, Some(gid))
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(|source| BindError::Group { path: path.to_path_buf(), gid, source })
}

/// Removes a stale socket. The lock is ours; a process that listens without the lock is found by connecting.
fn remove_stale(path: &Path, address: &UnixAddr) -> Result<(), BindError> {
    let io = |source: io::Error| BindError::Io { path: path.to_path_buf(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(path.to_path_buf())),
        Ok(_) => {}
    }
    let probe = stream_socket().map_err(|errno| io(errno.into()))?;
    match connect(probe.as_raw_fd(), address) {
        Err(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(io),
        Err(Errno::ENOENT) => Ok(()),
        // A full queue of waiting connections: the listener is slow, but alive.
        Ok(()) | Err(Errno::EAGAIN) => Err(BindError::Live(path.to_path_buf())),
        Err(errno) => Err(io(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::os::unix::net::{UnixListener, UnixStream};

    use nix::sys::socket::bind;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn the_socket_and_its_directory_are_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/control.sock");
        let bound = Bound::bind(&path, None).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        UnixStream::connect(bound.path()).unwrap();
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn the_socket_is_born_with_its_mode() {
        // Nothing else sets a mode here, so it is the mode from the first moment on.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _socket = make(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn a_group_is_let_in_where_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/control.sock");
        let gid = nix::unistd::getegid().as_raw();
        let _bound = Bound::bind(&path, Some(Members::of_gid(gid))).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o660, 0o710));
        assert_eq!(fs::symlink_metadata(&path).unwrap().gid(), gid);
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let bound = Bound::bind(&path, None).unwrap();
        UnixStream::connect(bound.path()).unwrap();
    }

    #[test]
    fn a_socket_on_which_somebody_listens_is_left_alone_with_and_without_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let first = Bound::bind(&path, None).unwrap();
        assert!(matches!(Bound::bind(&path, None), Err(BindError::Lock(LockError::Held { .. }))));
        fs::remove_file(lock_path(&path)).unwrap();
        let error = Bound::bind(&path, None).unwrap_err();
        assert!(matches!(error, BindError::Live(_)) && error.is_held());
        UnixStream::connect(first.path()).unwrap();
    }

    #[test]
    fn a_listener_that_has_no_room_for_another_connection_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let address = UnixAddr::new(&path).unwrap();
        let full = stream_socket().unwrap();
        bind(full.as_raw_fd(), &address).unwrap();
        listen(&full, Backlog::new(1).unwrap()).unwrap();
        let mut waiting = Vec::new();
        loop {
            let probe = stream_socket().unwrap();
            match connect(probe.as_raw_fd(), &address) {
                Ok(()) => waiting.push(probe),
                Err(errno) => break assert_eq!(errno, Errno::EAGAIN),
            }
        }
        assert!(matches!(Bound::bind(&path, None), Err(BindError::Live(_))));
    }

    #[test]
    fn the_socket_of_a_successor_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let first = Bound::bind(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        let second = UnixListener::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
        drop(second);
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        fs::write(&path, "precious").unwrap();
        let error = Bound::bind(&path, None).unwrap_err();
        assert!(matches!(error, BindError::NotASocket(_)) && error.is_usage());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_path_that_is_too_long_is_told_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x".repeat(100)).join("control.sock");
        let error = Bound::bind(&path, None).unwrap_err();
        assert!(matches!(error, BindError::TooLong(_)), "{error}");
        assert!(!path.parent().unwrap().exists());
        let mut name = dir.path().join("y").into_os_string().into_string().unwrap();
        name.push_str(&"y".repeat(LONGEST_PATH - name.len()));
        Bound::bind(Path::new(&name), None).unwrap();
    }

    #[test]
    fn a_passed_socket_keeps_its_file_and_its_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let passed = || Activated(UnixListener::bind(&path).unwrap().into());
        let bound = Bound::activated(passed(), Path::new("/elsewhere"), None).unwrap();
        assert_eq!((bound.path(), bound.claim.is_activated()), (path.as_path(), true));
        drop(bound);
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
        let socket = passed();
        fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
        let bound = Bound::activated(socket, Path::new("/elsewhere"), None).unwrap();
        assert_eq!(bound.members.unwrap().gid, fs::metadata(&path).unwrap().gid());
    }
}
