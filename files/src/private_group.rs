//! Recognises private groups, which have exactly one user. With a umask of 002, new files are writable for their group;
//! this is harmless only if the group is private. Reads only.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::unistd::{Gid, Group, Uid, User};
use rustix::fs::getxattr;
use rustix::io::Errno;

/// Whether the group of a group-writable directory is that of this user alone.
pub(crate) fn is_alone(dir: BorrowedFd<'_>, gid: u32) -> bool {
    let Ok(Some(user)) = User::from_uid(Uid::effective()) else { return false };
    let Ok(Some(group)) = Group::from_gid(Gid::from_raw(gid)) else { return false };
    is_private(&user, &group) && has_no_list(dir)
}

/// The list of a group leaves out users for whom it is the primary group. A group with the name of a user was made for
/// that user; root's group has other members on many systems.
fn is_private(user: &User, group: &Group) -> bool {
    !user.uid.is_root()
        && user.gid == group.gid
        && user.name == group.name
        && group.mem.iter().all(|member| *member == user.name)
}

/// With an access control list, the group bits of the mode are those of all entries of the list.
fn has_no_list(dir: BorrowedFd<'_>) -> bool {
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let found = getxattr(path, "system.posix_acl_access", &mut [0_u8; 0]);
    matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_group_is_its_users_alone_where_it_has_that_name_and_no_other_member() {
        let root = User::from_uid(Uid::from_raw(0)).unwrap().unwrap();
        let user = |uid, gid| User {
            name: "ann".to_owned(),
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
            ..root.clone()
        };
        let group = |name: &str, gid, members: &[&str]| Group {
            name: name.to_owned(),
            gid: Gid::from_raw(gid),
            mem: members.iter().map(|&member| member.to_owned()).collect(),
            ..Group::from_gid(Gid::from_raw(0)).unwrap().unwrap()
        };
        for (what, user, group, alone) in [
            ("her own", user(1000, 1000), group("ann", 1000, &[]), true),
            ("with herself in it", user(1000, 1000), group("ann", 1000, &["ann"]), true),
            ("with another number", user(1000, 1007), group("ann", 1007, &[]), true),
            ("with another member", user(1000, 1000), group("ann", 1000, &["ann", "bob"]), false),
            ("everybody's", user(1000, 100), group("users", 100, &[]), false),
            ("another one of hers", user(1000, 1000), group("ann", 1001, &["ann"]), false),
            ("as root", user(0, 0), group("ann", 0, &[]), false),
        ] {
            assert_eq!(is_private(&user, &group), alone, "{what}");
        }
    }

    #[test]
    fn a_directory_has_no_list_before_it_gets_one() {
        let dir = tempfile::tempdir().unwrap();
        let held = || {
            let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
            rustix::fs::open(dir.path(), flags, rustix::fs::Mode::empty()).unwrap()
        };
        use std::os::fd::AsFd;
        assert!(has_no_list(held().as_fd()));
        // Version 2: the owner, user 61234, the group, the mask and others.
        let entries =
            [(1_u16, 7_u16, u32::MAX), (2, 7, 61_234), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, allowed, id) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(allowed.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        let flags = rustix::fs::XattrFlags::empty();
        match rustix::fs::setxattr(dir.path(), "system.posix_acl_access", &list, flags) {
            // This file system has no access control lists.
            Err(Errno::OPNOTSUPP) => {}
            set => {
                set.unwrap();
                assert!(!has_no_list(held().as_fd()));
            }
        }
    }
}
