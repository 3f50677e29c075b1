//! Accepts connections, from peers that may connect, and no more at once than the limits allow.
//!
//! If the daemon has no descriptor left, it waits, and accepts again. If the socket file is gone, it binds the path
//! again (`look_after`). Must not read from a peer, close a connection on its own thread, or trace a peer while others
//! wait to be accepted: each of these may block.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use harness_protocol::framing;
use harness_protocol::rpc::{Empty, ErrorKind, Reason, Response, RpcError, Subject};
use harness_protocol::time::Span;
use interprocess::local_socket::traits::Listener as _;
use interprocess::os::unix::uds_local_socket::{Listener as Socket, Stream as PlainStream};
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, info, warn};

use super::arrivals::{self, Arrival, Arrivals};
use super::peer::{GroupError, Members, Peer, authorise, process_of};
use super::stream::Stream;
use super::{BindError, Bound, Claim};
use crate::close_threads::Apart;
use crate::control::limits::connections::{Crowd, Slot};
use crate::control::rights::Who;

/// First wait after a connection could not be accepted; it doubles from there.
const FIRST_WAIT_MS: u64 = 10;
/// The longest of these waits.
const LONGEST_WAIT_MS: u64 = 1000;
/// Connections that are refused and not closed yet, at once. Further peers wait in the kernel's queue until one is: a
/// millisecond or two for each thread that closes, even if each of these has sent what hangs.
const LEAVING: usize = 256;

/// An accepted connection of an identified peer.
#[derive(Debug)]
pub struct Accepted {
    /// The accepted connection, of a peer that was identified.
    pub stream: Stream,
    /// The process at its other end.
    pub who: Who,
    /// Its process when it connected, where the kernel names one.
    pub pid: Option<u32>,
    /// Its place among the connections; to be kept as long as the connection, which keeps it as well.
    pub slot: Arc<Slot>,
}

/// A listening socket, as the runtime watches it.
#[derive(Debug)]
struct Watched(Socket);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The socket that the daemon listens on.
#[derive(Debug)]
struct Open {
    // In this order: the claim compares the socket file with the inode that the open socket keeps alive.
    claim: Claim,
    // Peers that wait in its queue may have sent anything.
    socket: Arc<Apart<AsyncFd<Watched>>>,
}

impl Open {
    #[expect(
        deprecated,
        reason = "the function that replaces it is unsafe, because a descriptor of any type could be closed behind its \
                  back; a listener keeps its own for as long as it lives"
    )]
    fn new(claim: Claim, socket: Socket) -> io::Result<Self> {
        Ok(Self { claim, socket: Arc::new(Apart::new(AsyncFd::new(Watched(socket))?)) })
    }
}

/// The open listener: it accepts connections until it is dropped.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    activated: bool,
    open: RwLock<Open>,
    /// The socket file was removed, and could not be made again so far.
    lost: AtomicBool,
    own_uid: u32,
    members: RwLock<Option<Members>>,
    crowd: Crowd,
    /// Places of those that are not admitted, until they are or are closed.
    places: Arc<Semaphore>,
    /// The wait that an ongoing trouble has come to; 0 without one.
    trouble_ms: AtomicU64,
    /// Number of connections that were refused since the last accepted one.
    crowded: AtomicU32,
}

impl Listener {
    /// Opens `bound` for at most `max` connections at once. Within a runtime.
    ///
    /// # Errors
    /// Where the runtime cannot watch the socket.
    pub fn open(bound: Bound, max: u32) -> io::Result<Self> {
        Ok(Self {
            path: bound.claim.path.clone(),
            activated: bound.claim.is_activated(),
            open: RwLock::new(Open::new(bound.claim, bound.socket)?),
            lost: AtomicBool::new(false),
            own_uid: nix::unistd::geteuid().as_raw(),
            members: RwLock::new(bound.members),
            crowd: Crowd::new(max),
            places: Arc::new(Semaphore::new(arrivals::MOST + LEAVING)),
            trouble_ms: AtomicU64::new(0),
            crowded: AtomicU32::new(0),
        })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether systemd owns the socket.
    pub const fn is_activated(&self) -> bool {
        self.activated
    }

    /// Number of connections that are open now.
    pub fn connections(&self) -> u32 {
        self.crowd.len()
    }

    /// Allows `max` connections from now on. Open ones stay.
    pub fn allow(&self, max: u32) {
        self.crowd.allow(max);
    }

    /// Checks that [`Self::set_members`] can give the socket file to this group, called `name`.
    ///
    /// # Errors
    /// If the file is ours, and the daemon's user may not give it to the group.
    pub fn can_be_given(&self, name: &str, members: Members) -> Result<Members, GroupError> {
        let is_ours =
            |gid: u32| nix::unistd::getgroups().is_ok_and(|groups| groups.iter().any(|own| own.as_raw() == gid));
        let is_effective = nix::unistd::getegid().as_raw() == members.gid;
        if self.activated || self.own_uid == 0 || is_effective || is_ours(members.gid) {
            Ok(members)
        } else {
            Err(GroupError::NotOurs(name.to_owned()))
        }
    }

    /// The users that may connect if no group is configured: of a socket of systemd's those that its file admits.
    pub fn members_of_file(&self) -> Option<Members> {
        self.activated.then(|| super::group_of(&self.path)).flatten()
    }

    /// Allows these users beside the owner from now on, and opens the socket file to their group, or closes it. A file
    /// of systemd's stays as it is. Open connections stay. Waits for nothing but a local file.
    ///
    /// # Errors
    /// If the file cannot be changed. The users are allowed all the same.
    pub fn set_members(&self, members: Option<Members>) -> Result<(), BindError> {
        // Held to the end, so that the file is not bound again with the earlier members meanwhile.
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let admitted = open.claim.admit(members.as_ref());
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
        admitted
    }

    /// Looks whether the socket file is still there, and binds the path again where it is not: a logout cleans the
    /// runtime directory, and cleaners of old files remove a socket that no process has written to. Open connections
    /// stay.
    ///
    /// To be called from time to time, and without an [`Self::accept`] under way. Within a runtime.
    pub fn look_after(&self) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if !open.claim.is_lost() {
            self.lost.store(false, Ordering::Relaxed);
            return;
        }
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner).clone();
        let again = Bound::again(&mut open.claim, members).map_err(|error| error.to_string());
        let again =
            again.and_then(|Bound { claim, socket, .. }| Open::new(claim, socket).map_err(|error| error.to_string()));
        match again {
            Ok(bound) => {
                *open = bound;
                self.lost.store(false, Ordering::Relaxed);
                warn!(socket = %self.path.display(), "the socket was gone, and is bound again");
            }
            Err(error) if !self.lost.swap(true, Ordering::Relaxed) => {
                let socket = self.path.display();
                warn!(%socket, %error, "the socket is gone, and cannot be bound again; trying on");
            }
            Err(_) => {}
        }
    }

    /// The next peer that may connect; [`Self::admit`] identifies it. Others get one error and are closed. Errors of
    /// the system are waited out. The future may be dropped, and the method called again, at any time.
    pub async fn accept(&self, arrivals: &Arrivals) -> Arrival {
        loop {
            let socket = Arc::clone(&self.open.read().unwrap_or_else(PoisonError::into_inner).socket);
            // Before the connection: what is accepted is never waited with.
            let Some(room) = arrivals.room().await else { std::future::pending().await };
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { std::future::pending().await };
            match next(&socket).await {
                Ok(stream) => {
                    if self.trouble_ms.swap(0, Ordering::Relaxed) > 0 {
                        info!("connections are accepted again");
                    }
                    let Some((stream, peer)) = self.let_in(stream, place) else { continue };
                    let process = process_of(&stream, &peer);
                    match arrivals.enter((stream, peer, process), room) {
                        Ok(arrival) => return arrival,
                        Err((stream, full)) => self.turn_away(&stream, &full),
                    }
                }
                Err(error) => self.rest(&error).await,
            }
        }
    }

    /// Waits before the next attempt. No notification says when there are descriptors again.
    async fn rest(&self, error: &io::Error) {
        let before = self.trouble_ms.load(Ordering::Relaxed);
        if before == 0 {
            warn!(%error, "no connection can be accepted; trying on");
        }
        let wait = (before * 2).clamp(FIRST_WAIT_MS, LONGEST_WAIT_MS);
        self.trouble_ms.store(wait, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }

    /// To watch a connection takes of what the kernel gives to the user; where that is used up, its peer is told so.
    fn let_in(&self, stream: PlainStream, place: OwnedSemaphorePermit) -> Option<(Stream, Peer)> {
        let stream = match Stream::accepted(stream, place) {
            Ok(stream) => stream,
            Err((refused, error)) => {
                let message = format!("{}; end those, or try again later", told(error));
                refused.say(&line(crowded(message)));
                return None;
            }
        };
        let peer = match Peer::of(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                debug!(%error, "a peer without credentials is closed");
                return None;
            }
        };
        if !self.may_come_in(&peer) {
            warn!(uid = peer.uid, pid = peer.pid, "a peer of another user is refused");
            let message = format!("user {} may not use this daemon", peer.uid);
            let error = RpcError::new(ErrorKind::Forbidden, message);
            refuse(&stream, error.because(Reason::UserNotAllowed, Subject::User(peer.uid)));
            return None;
        }
        Some((stream, peer))
    }

    /// Identifies the peer of an arrival now: later the process may have gone, and another one use its connection. A
    /// peer for which there is no place gets an error and is closed.
    pub async fn admit(&self, arrival: Arrival, arrivals: &Arrivals) -> Option<Accepted> {
        let (stream, peer, origin) = match arrivals.trace(arrival).await {
            Ok(traced) => traced,
            Err((stream, untold)) => {
                self.turn_away(&stream, &untold);
                return None;
            }
        };
        let who = Who::new(peer.uid, self.own_uid, origin);
        if let Who::Nobody { why } = &who {
            debug!(uid = peer.uid, pid = peer.pid, why, "a peer has no rights");
        }
        let slot = match self.crowd.enter(&who) {
            Ok(slot) => Arc::new(slot),
            Err(full) => {
                self.turn_away(&stream, &full);
                return None;
            }
        };
        let refused = self.crowded.swap(0, Ordering::Relaxed);
        if refused > 0 {
            info!(refused, "there is room for connections again");
        }
        let stream = stream.admitted(Arc::clone(&slot));
        Some(Accepted { stream, who, pid: peer.pid, slot })
    }

    fn turn_away(&self, stream: &Stream, why: &dyn Display) {
        if self.crowded.fetch_add(1, Ordering::Relaxed) == 0 {
            warn!(%why, "too many connections; further ones are refused");
        }
        refuse(stream, crowded(why.to_string()));
    }

    fn may_come_in(&self, peer: &Peer) -> bool {
        authorise(peer, self.own_uid, self.members.read().unwrap_or_else(PoisonError::into_inner).as_ref())
    }
}

/// Whether the runtime could not watch a connection.
fn is_unwatched(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::libc::ENOSPC)
}

/// The error in words, where the kernel's would be taken for another.
fn told(error: io::Error) -> io::Error {
    if !is_unwatched(&error) {
        return error;
    }
    io::Error::other(
        "processes of this user have used up the epoll watches that the kernel gives to a user \
         (fs.epoll.max_user_watches)",
    )
}

/// The error for a peer for which there is no room.
fn crowded(message: String) -> RpcError {
    let error = RpcError::new(ErrorKind::Busy, message).because(Reason::TooManyConnections, None);
    error.retry_after(Span::from_secs(1))
}

/// The next connection.
async fn next(socket: &AsyncFd<Watched>) -> io::Result<PlainStream> {
    loop {
        // An error means that another look is needed.
        if let Ok(accepted) = socket.readable().await?.try_io(|socket| socket.get_ref().0.accept()) {
            return accepted;
        }
    }
}

/// Tells a peer why. Never waits, and reads nothing: a fresh connection has room for a line.
fn refuse(stream: &Stream, error: RpcError) {
    stream.say(&line(error));
}

fn line(error: RpcError) -> Vec<u8> {
    let mut line = Vec::new();
    // An error that cannot be encoded is no reason not to close.
    _ = framing::encode(&Response::<Empty>::new(None, Err(error)), &mut line);
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

    use std::collections::BTreeSet;
    use std::fs::{self, File};
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixListener;
    use std::process::Command;
    use std::time::Instant;

    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::super::tracing::Tracing;
    use super::*;
    use crate::close_threads::testing::{Lingering, send_beside};
    use crate::control::rights::Origin;

    fn listener(dir: &tempfile::TempDir, max: u32) -> Listener {
        Listener::open(Bound::bind(&dir.path().join("control.sock"), None).unwrap(), max).unwrap()
    }

    /// All are outside of runs.
    fn arrivals() -> Arrivals {
        let trace = |process: Option<BorrowedFd<'_>>, _| {
            Some(process.map_or(Origin::Unknown("no process".to_owned()), |_| Origin::Outside))
        };
        let tracing = Tracing { is_marked: Box::new(|_| false), trace: Arc::new(trace) };
        Arrivals::new(tracing, tokio::runtime::Handle::current())
    }

    /// The next one that is let in.
    async fn next(listener: &Listener, arrivals: &Arrivals) -> Accepted {
        loop {
            let arrival = listener.accept(arrivals).await;
            if let Some(accepted) = listener.admit(arrival, arrivals).await {
                return accepted;
            }
        }
    }

    /// Entry B2 in `tests/README.md`.
    #[tokio::test]
    async fn a_socket_whose_file_goes_is_bound_again_whoever_took_it() {
        type Loss = fn(&Path);
        let losses: [(&str, Loss); 7] = [
            ("the file", |path| fs::remove_file(path).unwrap()),
            ("the directory", |path| fs::remove_dir_all(path.parent().unwrap()).unwrap()),
            ("directories above it", |path| fs::remove_dir_all(path.ancestors().nth(2).unwrap()).unwrap()),
            ("moved away", |path| fs::rename(path, path.with_extension("old")).unwrap()),
            ("the lock as well", |path| {
                fs::remove_file(path).unwrap();
                fs::remove_file(super::super::lock_path(path)).unwrap();
            }),
            ("a dead one in its place", |path| {
                fs::remove_file(path).unwrap();
                drop(UnixListener::bind(path).unwrap());
            }),
            ("nothing", |_| {}),
        ];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/harness/control.sock");
        let listener = Listener::open(Bound::bind(&path, None).unwrap(), 10).unwrap();
        let arrivals = arrivals();
        for (name, lose) in losses {
            let before = UnixStream::connect(&path).await.unwrap();
            let there = next(&listener, &arrivals).await;
            lose(&path);
            listener.look_after();
            let found = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(std::os::unix::fs::MetadataExt::mode(&found) & 0o777, 0o600, "{name}");
            let _client = UnixStream::connect(&path).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            drop(next(&listener, &arrivals).await);
            drop((before, there));
        }
        // A socket that another process has put there stays; ours is bound again once that has gone.
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        listener.look_after();
        UnixStream::connect(&path).await.unwrap();
        other.accept().unwrap();
        drop(other);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        listener.look_after();
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
        listener.look_after();
        let _client = UnixStream::connect(&path).await.unwrap();
        next(&listener, &arrivals).await;
        drop(listener);
        assert!(!path.exists(), "it takes its own socket along");
    }

    async fn refusal(mut client: UnixStream) -> RpcError {
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with('\n'));
        serde_json::from_str::<Response<Empty>>(&text).unwrap().error.unwrap()
    }

    #[tokio::test]
    async fn connections_over_the_bound_are_told_busy_until_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, arrivals) = (listener(&dir, 1), arrivals());
        let _first = UnixStream::connect(listener.path()).await.unwrap();
        let accepted = next(&listener, &arrivals).await;
        assert_eq!((&accepted.who, listener.connections()), (&Who::Operator { uid: listener.own_uid }, 1));
        let mut second = UnixStream::connect(listener.path()).await.unwrap();
        second.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"daemon.status\"}\n").await.unwrap();
        let (error, _third) = tokio::select! {
            _ = next(&listener, &arrivals) => panic!("there is no room"),
            error = refusal(second) => (error, ()),
        };
        assert_eq!((error.kind(), error.data.retry_after_seconds), (ErrorKind::Busy, Some(Span::from_secs(1))));
        assert!(error.is_because(Reason::TooManyConnections));
        drop(accepted);
        // Its place is free when it is really closed.
        while listener.connections() > 0 {
            tokio::task::yield_now().await;
        }
        let _third = UnixStream::connect(listener.path()).await.unwrap();
        let _accepted = next(&listener, &arrivals).await;
        assert_eq!(listener.connections(), 1);
        listener.allow(2);
        let _fourth = UnixStream::connect(listener.path()).await.unwrap();
        next(&listener, &arrivals).await;
    }

    #[tokio::test]
    async fn a_peer_that_may_not_come_in_is_told_and_closed() {
        let dir = tempfile::tempdir().unwrap();
        let mut listener = listener(&dir, 1);
        // Root may always come in, so the daemon is said to be another and the peer not to be root.
        listener.own_uid = 12_345;
        let us = nix::unistd::geteuid().as_raw();
        let stranger = Peer { uid: us + 1, gid: us + 1, pid: None };
        assert!(!listener.may_come_in(&stranger));
        *listener.members.write().unwrap() = Some(Members { gid: 1, uids: BTreeSet::from([us + 1]) });
        assert!(listener.may_come_in(&stranger));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let place = Arc::clone(&listener.places).acquire_owned().await.unwrap();
        let ours = Stream::accepted(ours.into_std().unwrap().into(), place).unwrap();
        refuse(&ours, RpcError::new(ErrorKind::Forbidden, "no"));
        drop(ours);
        assert_eq!(refusal(theirs).await.kind(), ErrorKind::Forbidden);
    }

    /// In a process of its own, since the limit is the process's.
    #[test]
    fn without_a_descriptor_left_it_waits_and_recovers() {
        if std::env::var_os("HARNESS_TEST_CHILD").is_some() {
            return exhaust_descriptors();
        }
        let name = "control::socket::listener::tests::without_a_descriptor_left_it_waits_and_recovers";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("HARNESS_TEST_CHILD", "1")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && output.contains("1 passed"), "{output}");
    }

    fn exhaust_descriptors() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let (listener, arrivals) = (listener(&dir, 10), arrivals());
            let client = UnixStream::connect(listener.path()).await.unwrap();
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
            let mut hoard = Vec::new();
            while let Ok(file) = File::open("/dev/null") {
                hoard.push(file);
            }
            while listener.trouble_ms.load(Ordering::Relaxed) < FIRST_WAIT_MS * 4 {
                let accepting = tokio::time::timeout(Duration::from_millis(20), next(&listener, &arrivals));
                assert!(accepting.await.is_err(), "there is no descriptor for it");
            }
            drop(hoard);
            let accepted = next(&listener, &arrivals).await;
            assert_eq!(accepted.who, Who::Operator { uid: Peer::of(&client).unwrap().uid });
            assert_eq!(listener.trouble_ms.load(Ordering::Relaxed), 0);
        });
    }

    /// What the kernel says of epoll watches is said of a disk as well.
    #[test]
    fn watches_that_are_used_up_are_told_as_what_they_are() {
        let error = told(io::Error::from_raw_os_error(nix::libc::ENOSPC));
        assert!(error.to_string().contains("fs.epoll.max_user_watches"), "{error}");
        let error = told(io::Error::from_raw_os_error(nix::libc::EMFILE));
        assert_eq!(error.raw_os_error(), Some(nix::libc::EMFILE));
    }

    /// The places of those that were not admitted are free again.
    async fn are_closed(listener: &Listener) {
        let all = u32::try_from(arrivals::MOST + LEAVING).unwrap();
        drop(listener.places.acquire_many(all).await.unwrap());
    }

    #[tokio::test]
    async fn a_peer_that_has_sent_before_reads_its_refusal_and_then_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, arrivals) = (listener(&dir, 0), arrivals());
        for sent in [0, 1, 100, 150_000] {
            let mut client = UnixStream::connect(listener.path()).await.unwrap();
            client.write_all(&vec![b'x'; sent]).await.unwrap();
            let arrival = listener.accept(&arrivals).await;
            assert!(listener.admit(arrival, &arrivals).await.is_none());
            are_closed(&listener).await;
            assert_eq!(refusal(client).await.kind(), ErrorKind::Busy, "{sent}");
        }
    }

    /// Refused connections, however many and with whatever hangs in them, do not delay an accepted one.
    #[tokio::test]
    async fn refused_peers_that_have_sent_what_hangs_keep_no_other_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, arrivals) = (listener(&dir, 1), arrivals());
        let _admitted = UnixStream::connect(listener.path()).await.unwrap();
        let _place = next(&listener, &arrivals).await;
        for _ in 0..4 {
            let mut clients = Vec::new();
            for _ in 0..150 {
                let client = std::os::unix::net::UnixStream::connect(listener.path()).unwrap();
                send_beside(&client, vec![Lingering::new()]);
                clients.push(client);
            }
            let begun = Instant::now();
            for _ in 0..150 {
                let arrival = listener.accept(&arrivals).await;
                assert!(listener.admit(arrival, &arrivals).await.is_none());
            }
            are_closed(&listener).await;
            assert!(begun.elapsed() < Lingering::FOR / 2);
            for client in clients {
                // Behind that line there is a reset: what they have sent beside a byte is not read.
                let mut told = String::new();
                io::BufRead::read_line(&mut io::BufReader::new(client), &mut told).unwrap();
                assert!(told.contains(r#""kind":"busy""#) && told.ends_with('\n'), "{told}");
            }
        }
    }

    /// What waits to be accepted goes with the socket.
    #[tokio::test]
    async fn a_socket_is_closed_whatever_was_sent_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let listener = listener(&dir, 1);
        let client = std::os::unix::net::UnixStream::connect(listener.path()).unwrap();
        send_beside(&client, vec![Lingering::new(), Lingering::new()]);
        let begun = Instant::now();
        drop(listener);
        assert!(begun.elapsed() < Lingering::FOR / 2);
        // It is closed when the peer sees that.
        tokio::task::spawn_blocking(move || io::Read::read(&mut &client, &mut [0])).await.unwrap().unwrap_err();
        assert!(begun.elapsed() < Lingering::FOR / 2);
    }
}
