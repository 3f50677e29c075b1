//! Identifies the peer of a connection, and decides whether it may connect.
//!
//! It asks the kernel for the peer once, when the peer connects. It must not trust what the peer says about itself.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerPidfd;
use nix::unistd::{Gid, Group, User};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::UnixStream;

/// A peer, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Pid of its process when it connected; `None` where the kernel does not know it, as from another pid namespace.
    pub pid: Option<u32>,
}

impl Peer {
    /// The peer of `stream`.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        let cred = stream.peer_cred()?;
        let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0);
        Ok(Self { uid: cred.uid(), gid: cred.gid(), pid })
    }
}

/// A descriptor of the process at the other end of `stream`, which means that very process even if its pid is reused.
///
/// `None` where the kernel knows no process there: it has ended (for which some kernels say EINVAL), or is of another
/// pid namespace. Kernels before 6.5 do not support this: there it is the process that has the pid now. So a process
/// that ended while it was waiting to be accepted may be taken for another one that got its pid meanwhile.
pub fn process_of(stream: &UnixStream, peer: &Peer) -> Option<OwnedFd> {
    match getsockopt(stream, PeerPidfd) {
        Ok(process) => Some(process),
        Err(Errno::ENOPROTOOPT) => {
            let pid = Pid::from_raw(i32::try_from(peer.pid?).ok()?)?;
            pidfd_open(pid, PidfdFlags::empty()).ok()
        }
        Err(_) => None,
    }
}

/// A group whose members may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// Id of the group.
    pub gid: u32,
    /// Ids of the users that belong to it by the group database.
    pub uids: BTreeSet<u32>,
}

/// Why a group cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// There is no group of this name.
    #[error("there is no group {0:?}")]
    Unknown(String),
    /// The group database does not answer.
    #[error("cannot look up group {0:?}: {1}")]
    Lookup(String, nix::Error),
    /// The daemon may not give the socket to this group.
    #[error("the daemon's user does not belong to group {0:?}, and cannot give the socket to it")]
    NotOurs(String),
}

impl Members {
    /// The members of the group `name`, by the present database. May take as long as the database does.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn of_group(name: &str) -> Result<Self, GroupError> {
        match Group::from_name(name) {
            Ok(Some(group)) => Ok(Self::from_group(&group)),
            Ok(None) => Err(GroupError::Unknown(name.to_owned())),
            Err(errno) => Err(GroupError::Lookup(name.to_owned(), errno)),
        }
    }

    /// The members of the group with this id; if the id has no name, only the users whose primary group it is.
    pub fn of_gid(gid: u32) -> Self {
        match Group::from_gid(Gid::from_raw(gid)) {
            Ok(Some(group)) => Self::from_group(&group),
            _ => Self { gid, uids: BTreeSet::new() },
        }
    }

    fn from_group(group: &Group) -> Self {
        let uid = |name: &String| User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
        Self { gid: group.gid.as_raw(), uids: group.mem.iter().filter_map(uid).collect() }
    }
}

/// Whether `peer` may connect: the daemon's own user, root, and members of the group, if there is one.
pub fn authorise(peer: &Peer, own_uid: u32, members: Option<&Members>) -> bool {
    let is_member = |members: &Members| peer.gid == members.gid || members.uids.contains(&peer.uid);
    peer.uid == own_uid || peer.uid == 0 || members.is_some_and(is_member)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn peer(uid: u32, gid: u32) -> Peer {
        Peer { uid, gid, pid: None }
    }

    #[test]
    fn the_own_user_and_root_may_and_others_may_not() {
        assert!(authorise(&peer(1000, 1000), 1000, None));
        assert!(authorise(&peer(0, 0), 1000, None));
        assert!(!authorise(&peer(1001, 1000), 1000, None));
        assert!(!authorise(&peer(1000, 0), 0, None));
    }

    #[test]
    fn members_of_the_group_may_by_the_database_or_by_their_own_group() {
        let members = Members { gid: 50, uids: BTreeSet::from([1001]) };
        assert!(authorise(&peer(1001, 1001), 1000, Some(&members)));
        assert!(authorise(&peer(1002, 50), 1000, Some(&members)));
        assert!(!authorise(&peer(1002, 1002), 1000, Some(&members)));
    }

    #[test]
    fn a_group_that_is_not_there_is_told() {
        assert!(matches!(Members::of_group("no-such-group-here"), Err(GroupError::Unknown(_))));
        assert_eq!(Members::of_group("root").unwrap().gid, 0);
        assert_eq!(Members::of_gid(987_654), Members { gid: 987_654, uids: BTreeSet::new() });
    }

    #[tokio::test]
    async fn a_peer_is_who_the_kernel_says() {
        let (one, _other) = UnixStream::pair().unwrap();
        let us = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let found = Peer::of(&one).unwrap();
        assert_eq!(((found.uid, found.gid), found.pid), (us, Some(std::process::id())));
    }
}
