//! Checks which process answers at a socket, before anything is sent there. A process that is inside a run, and deeper
//! inside than this command, is not accepted: the command fails with an error that names it.
//!
//! A run may be able to put a socket of its own in the place of the daemon's. The only place with the rule that
//! distinguishes such a server from the daemon, and from legitimate processes in between: systemd, ssh, a relay. A
//! process of another pid namespace is accepted only if the user says so (`HARNESS_TRUST_UNSEEN`). Reads `/proc` and
//! asks the kernel. Must not send anything.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use harness_files::Dir;
use harness_protocol::inside_run::{depth, hard_limit};
use interprocess::os::unix::uds_local_socket::Stream;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{getsockopt, sockopt};

use crate::launch::error::StartError;
use crate::launch::inside_run::{PARENTS, keeper_above, parent_of};
use crate::launch::lock_holder::{Disbelief, Holder};

/// The depth from which on a process is inside a run, seen from outside: a daemon is one deeper than its starter, and
/// the processes that it starts are one deeper than the daemon.
const INSIDE: u64 = 2;

/// The variable by which an operator confirms that a server which cannot be seen from here is the daemon.
const TRUST_UNSEEN: &str = "HARNESS_TRUST_UNSEEN";

/// Why the process that answers at a socket is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Untrusted {
    /// It belongs to another user, who is neither root nor the owner of the socket's directory.
    #[error("process {pid} of another user (uid {uid}) answers")]
    OtherUser {
        /// Id of the process.
        pid: u32,
        /// User id of the process.
        uid: u32,
    },
    /// It is inside a run.
    #[error("process {pid} answers, which comes from inside a run and is not the daemon")]
    Inside {
        /// Id of the process.
        pid: u32,
    },
    /// /proc does not show it.
    #[error("process {pid} answers, and /proc does not show whether it comes from inside a run")]
    Hidden {
        /// Id of the process.
        pid: u32,
    },
    /// The socket was bound under another name. A run or another user may have made this name lead to it.
    #[error(
        "process {pid} answers, whose socket has another name, and a run or another user may have made this one lead \
         there"
    )]
    OtherName {
        /// The process that answers.
        pid: u32,
    },
    /// The daemon that holds the state directory is another process.
    #[error("process {pid} answers, and not the daemon (pid {holder}) that holds the state directory")]
    NotTheDaemon {
        /// Id of the process.
        pid: u32,
        /// Process id of the daemon.
        holder: u32,
    },
    /// It belongs to another pid namespace.
    #[error("a process of another pid namespace answers, so that it cannot be told whether it comes from inside a run")]
    Unseen,
    /// The process that opened the socket has ended.
    #[error("the process that opened it ({pid}) has ended, so that it cannot be told who answers")]
    Ended {
        /// Id of that process.
        pid: u32,
    },
}

impl Untrusted {
    /// Whether this may pass in a moment, as while one daemon follows another.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Self::Ended { .. } | Self::NotTheDaemon { .. })
    }

    /// What to do next.
    pub(crate) fn hint(self) -> String {
        match self {
            Self::OtherUser { .. } => "name the socket of a daemon of yours: --socket or HARNESS_SOCKET".to_owned(),
            Self::Inside { pid } | Self::Hidden { pid } => format!(
                "nothing was sent to it; look at it (ps -fp {pid}), end it (kill -9 {pid}), then: harnessctl daemon \
                 start"
            ),
            Self::NotTheDaemon { holder, .. } => format!(
                "nothing was sent to it; let the daemon bind its socket again: kill -HUP {holder}; where the one that \
                 answers is meant, \
                 name its own socket (--socket), and its state directory or none (HARNESS_STATE_DIR)"
            ),
            Self::OtherName { .. } => {
                "nothing was sent to it; name its own socket: --socket or HARNESS_SOCKET".to_owned()
            }
            Self::Unseen => format!("where that is the daemon outside of this container, say so: {TRUST_UNSEEN}=1"),
            Self::Ended { .. } => "start the daemon, or what passes its socket on, so that it goes on living (ssh \
                                   without -f)"
                .to_owned(),
        }
    }
}

/// Refuses a connection to a process that is not trusted.
///
/// `holder` is the daemon that holds the state directory, if its lock file gave the socket.
pub(crate) fn check(stream: &Stream, socket: &Path, state_dir: &Path, holder: Option<u32>) -> Result<(), StartError> {
    let of = |source| StartError::Connect { socket: socket.to_owned(), source };
    let peer = getsockopt(stream, sockopt::PeerCredentials).map_err(|errno| of(errno.into()))?;
    let process = getsockopt(stream, sockopt::PeerPidfd);
    // The directory of the given name, not of its target: its owner decides about its entries.
    let owner = socket.parent().and_then(|dir| dir.metadata().ok()).map(|dir| dir.uid());
    let own = nix::unistd::geteuid().as_raw();
    let pid = u32::try_from(peer.pid()).unwrap_or(0);
    let untrusted = |why| StartError::Untrusted { socket: socket.to_owned(), why };
    let read = |pid: i32, file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
    if let Some(holder) = holder.filter(|&holder| !is_or_is_above(pid, holder, &read)) {
        return Err(untrusted(Untrusted::NotTheDaemon { pid, holder }));
    }
    let uid = peer.uid();
    if ![Some(0), Some(own), owner].contains(&Some(uid)) {
        return Err(untrusted(Untrusted::OtherUser { pid, uid }));
    }
    // The process is outside of our pid namespace, as on the host of a container. A run there may have put its own
    // socket in the daemon's place.
    if pid == 0 {
        let trusted = std::env::var_os(TRUST_UNSEEN).is_some_and(|value| value == "1");
        return if trusted { Ok(()) } else { Err(untrusted(Untrusted::Unseen)) };
    }
    let limit = read(peer.pid(), "limits").and_then(|limits| hard_limit(str::from_utf8(&limits).ok()?));
    let found = judge(peer.pid(), limit, own_depth(&read), uid == 0, &read);
    // The data belong to that process only if it still lives.
    if has_ended(&process) || (found.is_some() && fs::metadata(format!("/proc/{pid}")).is_err()) {
        return Err(untrusted(Untrusted::Ended { pid }));
    }
    if let Some(why) = found {
        return Err(untrusted(why));
    }
    is_the_daemon(stream, socket, state_dir, pid, &read)?.map_or(Ok(()), |why| Err(untrusted(why)))
}

/// The objection to a process outside of runs: the daemon of the state directory is another process, or the socket
/// belongs to another process.
fn is_the_daemon(
    stream: &Stream,
    socket: &Path,
    state_dir: &Path,
    pid: u32,
    read: Read<'_>,
) -> Result<Option<Untrusted>, StartError> {
    // The name under which the socket was bound, as the kernel knows it. A daemon never has a relative name; ssh may.
    let bound = stream.inner().peer_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
    let has_other_name = bound.is_some_and(|bound| bound.is_absolute() && !is_same(&bound, socket));
    let holder = match Holder::of(state_dir) {
        // In a user namespace without root, links of root seem to be another user's. The name alone is enough then.
        Err(Disbelief::Way { .. }) if !has_other_name => None,
        found => found?,
    };
    if let Some(holder) = &holder {
        let serves_it = holder.socket.as_deref() == Some(socket);
        if (serves_it || has_other_name) && !is_or_is_above(pid, holder.pid, read) {
            return Ok(Some(Untrusted::NotTheDaemon { pid, holder: holder.pid }));
        }
    }
    // From here on the process is the daemon of the state directory, unless a run has made the directory a link as
    // well.
    let is_known = holder.is_some_and(|holder| !holder.by_link);
    Ok((has_other_name && !is_known).then_some(Untrusted::OtherName { pid }))
}

/// Whether two names are of one socket, and no process of our user can have made them so: all links on both paths are
/// root's.
fn is_same(bound: &Path, socket: &Path) -> bool {
    let dir = |path: &Path| Dir::open(path.parent()?).ok().filter(|dir| !dir.is_by_link());
    bound == socket
        || (bound.file_name() == socket.file_name()
            && dir(bound).zip(dir(socket)).is_some_and(|(one, other)| one.is_same(&other)))
}

/// Whether a process comes from inside a run, whatever its name is. False if it cannot be looked at.
pub(crate) fn is_of_a_run(pid: i32) -> bool {
    let read = |pid: i32, file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
    let limit = read(pid, "limits").and_then(|limits| hard_limit(str::from_utf8(&limits).ok()?));
    matches!(judge(pid, limit, own_depth(&read), false, &read), Some(Untrusted::Inside { .. }))
}

type Read<'a> = &'a dyn Fn(i32, &str) -> Option<Vec<u8>>;

/// The objection to a process, by its hard limit of file locks; `None` if there is none.
fn judge(pid: i32, limit: Option<u64>, own: u64, is_root: bool, read: Read<'_>) -> Option<Untrusted> {
    let number = pid.unsigned_abs();
    let Some(limit) = limit else {
        // /proc may show only the user's own processes. A run never has the user id of root, unless its daemon has it.
        return (!is_root).then_some(Untrusted::Hidden { pid: number });
    };
    let below = depth(limit).saturating_sub(own);
    // A daemon may be one deeper. Below a keeper that does not serve our own run, no process is our daemon.
    let is_inside = below >= INSIDE || (below > 0 && own == 0 && keeper_above(pid, read).is_some());
    is_inside.then_some(Untrusted::Inside { pid: number })
}

/// The depth of runs that this process is in. A mark alone proves nothing: any process of our user can give us one.
fn own_depth(read: Read<'_>) -> u64 {
    match getrlimit(Resource::RLIMIT_LOCKS) {
        Ok((_, hard)) if depth(hard) > 0 => {
            keeper_above(nix::unistd::getpid().as_raw(), read).map_or(0, |_| depth(hard))
        }
        _ => 0,
    }
}

/// Whether a process is `other` or one of its ancestors, as systemd is of a daemon whose socket it opened.
fn is_or_is_above(pid: u32, other: u32, read: Read<'_>) -> bool {
    let mut at = other;
    for _ in 0..PARENTS {
        if at == pid {
            return true;
        }
        let above = i32::try_from(at).ok().and_then(|at| parent_of(&read(at, "stat")?));
        match above.and_then(|above| u32::try_from(above).ok()) {
            Some(above) if above > 0 => at = above,
            _ => return false,
        }
    }
    false
}

/// Whether the process of this descriptor has ended. Kernels before 6.5 give no descriptor; later ones fail if the
/// process has been reaped.
fn has_ended(process: &Result<OwnedFd, Errno>) -> bool {
    let process = match process {
        Ok(process) => process,
        Err(errno) => return *errno != Errno::ENOPROTOOPT,
    };
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::os::unix::net::{UnixListener, UnixStream};

    use harness_protocol::inside_run::mark_below;

    use super::*;

    #[test]
    fn a_process_of_a_run_is_told_from_a_daemon_by_how_deep_it_is() {
        let daemon = mark_below(u64::MAX, 7);
        let run = mark_below(daemon, 7);
        let (nested, below_nested) = (mark_below(run, 9), mark_below(mark_below(run, 9), 9));
        let machine = [
            (10, 1, "sshd\0"),
            (20, 1, "harnessd\0--on-demand\0"),
            (21, 20, "harnessd\0keeper\0mark=4\0"),
            (22, 21, "harnessd\0--socket\0/x\0"),
            (23, 1, "harnessd\0orphan\0"),
        ];
        let machine: BTreeMap<i32, (i32, &str)> =
            machine.into_iter().map(|(pid, up, line)| (pid, (up, line))).collect();
        let read = |pid: i32, file: &str| {
            let (parent, line) = machine.get(&pid)?;
            Some(if file == "stat" { format!("{pid} (x) S {parent} 1").into() } else { line.as_bytes().to_vec() })
        };
        let inside = |pid| Some(Untrusted::Inside { pid });
        let table = [
            (10, Some(u64::MAX), 0, None, "ssh"),
            (20, Some(daemon), 0, None, "a daemon"),
            (20, Some(u64::MAX), 0, None, "one of an older version"),
            (22, Some(run), 0, inside(22), "what a run executes"),
            (23, Some(run), 0, inside(23), "what has lost its keeper"),
            (23, Some(5), 0, inside(23), "what lowered its limit"),
            (23, Some(0), 0, inside(23), "to the least"),
            (22, Some(daemon), 0, inside(22), "a run of an older version"),
            (23, Some(nested), 0, inside(23), "a daemon inside a run, for whoever is outside"),
            (20, Some(daemon), 2, None, "a daemon, from inside"),
            (22, Some(run), 2, None, "another process of a run, from inside"),
            (23, Some(nested), 2, None, "a daemon inside a run, from that run"),
            (23, Some(below_nested), 2, inside(23), "and what that one's runs execute"),
            (20, None, 0, Some(Untrusted::Hidden { pid: 20 }), "what cannot be looked at"),
        ];
        for (pid, limit, own, expected, which) in table {
            assert_eq!(judge(pid, limit, own, false, &read), expected, "{which}");
        }
        assert_eq!(judge(1, None, 0, true, &read), None, "root's, where /proc shows only the own processes");
        assert!(is_or_is_above(20, 22, &read) && is_or_is_above(22, 22, &read) && is_or_is_above(1, 20, &read));
        assert!(!is_or_is_above(22, 20, &read) && !is_or_is_above(10, 22, &read));
    }

    #[test]
    fn our_own_process_is_trusted_and_an_ended_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let connect = || Stream::from(UnixStream::connect(&socket).unwrap());
        check(&connect(), &socket, dir.path(), None).unwrap();
        let told = check(&connect(), &socket, dir.path(), Some(i32::MAX.unsigned_abs()));
        assert!(matches!(told, Err(StartError::Untrusted { why: Untrusted::NotTheDaemon { .. }, .. })));
        drop(listener);
        assert!(Untrusted::Ended { pid: 1 }.may_pass() && !Untrusted::Inside { pid: 1 }.may_pass());
    }
}
