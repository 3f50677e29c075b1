//! Finds the processes that hold a lock (`flock`) on a file, by the kernel's list `/proc/locks`. Reads only.
//!
//! The kernel names the process that took the lock. That process may be dead while another one still has the
//! descriptor.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::Dir;

/// A lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Pid of the process that took it.
    pub pid: i32,
    /// Whether it is exclusive: no other process has a lock meanwhile.
    pub is_exclusive: bool,
    /// The device of the file, as `st_dev` has it on most file systems.
    pub device: u64,
    /// The inode of the file.
    pub inode: u64,
}

/// Processes that have taken locks on the file or the directory at `path`; empty where that cannot be determined.
pub fn holders(path: &Path) -> Vec<i32> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return Vec::new() };
    on(&file.into()).into_iter().map(|held| held.pid).collect()
}

/// The locks on an open file; empty where they cannot be determined.
pub fn on(file: &File) -> Vec<Held> {
    let Some((device, inode)) = identity(file) else { return Vec::new() };
    all().filter(|held| (held.device, held.inode) == (device, inode)).collect()
}

/// The locks on an open directory; empty if they cannot be determined.
pub fn on_dir(dir: &Dir) -> Vec<Held> {
    dir.as_fd().try_clone_to_owned().map(|fd| on(&fd.into())).unwrap_or_default()
}

/// Device and inode under which the kernel lists locks on the file or the directory at `path`.
pub fn identity_of(path: &Path) -> Option<(u64, u64)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    identity(&rustix::fs::open(path, flags, Mode::empty()).ok()?.into())
}

/// Whether process `pid` has a lock on one of these `files`, whichever process took it: the lock is on one of its
/// descriptors, or the locked file is in its memory map. `None` if that is not known: it hides its descriptors, a
/// socket of it has descriptors that are not received yet, or an `io_uring` has files of its own.
///
/// `Some(false)` is no proof: a file that is registered with an `io_uring` which has no descriptor is listed nowhere.
pub fn has(pid: i32, files: &[(u64, u64)]) -> Option<bool> {
    let mut is_told = true;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let descriptors = match fs::read_dir(task.path().join("fdinfo")) {
            Ok(descriptors) => descriptors,
            // This thread has ended.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(_) => return None,
        };
        for descriptor in descriptors.flatten() {
            // A descriptor that was closed meanwhile has no lock.
            let info = fs::read_to_string(descriptor.path()).unwrap_or_default();
            let held = info.lines().filter_map(|line| parse(line.strip_prefix("lock:")?));
            if held.into_iter().any(|held| files.contains(&(held.device, held.inode))) {
                return Some(true);
            }
            is_told &= !info.lines().any(has_files_unseen);
        }
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    if maps.lines().filter_map(mapped).any(|file| files.contains(&file)) {
        return Some(true);
    }
    is_told.then_some(false)
}

/// Whether a line about a descriptor tells of open files that have no descriptor: those that a socket has not received
/// yet, and those that are registered with an io_uring.
fn has_files_unseen(line: &str) -> bool {
    let count = line.strip_prefix("scm_fds:").or_else(|| line.strip_prefix("UserFiles:"));
    count.is_some_and(|count| count.trim() != "0")
}

/// The file of a line as `7f00-7f01 r--s 00000000 fe:00 3932170 /a/file`.
fn mapped(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace().skip(3);
    Some((device(&mut words.next()?.split(':'))?, words.next()?.parse().ok()?))
}

/// A device by its two numbers in hexadecimal.
fn device<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<u64> {
    let mut number = || u32::from_str_radix(words.next()?, 16).ok();
    Some(rustix::fs::makedev(number()?, number()?))
}

/// The locks that process `pid` has taken.
pub fn held_by(pid: i32) -> Vec<Held> {
    all().filter(|held| held.pid == pid).collect()
}

/// The processes that have taken an exclusive lock on any file. A process that forks has the lock as well, and is not
/// among them. The kernel may leave out a line where other locks change meanwhile.
pub fn takers() -> BTreeSet<i32> {
    all().filter(|held| held.is_exclusive).map(|held| held.pid).collect()
}

fn all() -> impl Iterator<Item = Held> {
    let text = fs::read_to_string("/proc/locks").unwrap_or_default();
    let held: Vec<Held> = text.lines().filter_map(parse).collect();
    held.into_iter()
}

/// Parses a line such as `1: FLOCK  ADVISORY  WRITE 815 08:01:3932170 0 EOF`. `None` for a waiting process, which has
/// `->` there.
fn parse(line: &str) -> Option<Held> {
    let mut words = line.split_ascii_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let is_exclusive = words.nth(1)? == "WRITE";
    let pid = words.next()?.parse().ok()?;
    let mut file = words.next()?.split(':');
    let device = device(&mut file)?;
    Some(Held { pid, is_exclusive, device, inode: file.next()?.parse().ok()? })
}

/// Device and inode under which the kernel lists a file. Where file systems have several devices, as btrfs does,
/// `st_dev` differs from the device of the mount.
fn identity(file: &File) -> Option<(u64, u64)> {
    let found = file.metadata().ok()?;
    Some((device_of_mount(file).unwrap_or_else(|| found.dev()), found.ino()))
}

fn device_of_mount(file: &File) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount))?;
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rustix::fs::{FlockOperation, flock, makedev};

    use super::*;

    #[test]
    fn a_line_is_understood_and_who_waits_or_has_another_kind_of_lock_is_none() {
        let held = parse("1: FLOCK  ADVISORY  WRITE 815 fe:1a:3932170 0 EOF");
        assert_eq!(held, Some(Held { pid: 815, is_exclusive: true, device: makedev(0xfe, 0x1a), inode: 3_932_170 }));
        let read = parse("77: FLOCK  ADVISORY  READ  9 00:1f:7 0 EOF");
        assert_eq!(read, Some(Held { pid: 9, is_exclusive: false, device: makedev(0, 0x1f), inode: 7 }));
        for line in [
            "",
            "1:",
            "1: -> FLOCK  ADVISORY  WRITE 815 08:01:39 0 EOF",
            "2: POSIX  ADVISORY  WRITE 815 08:01:39 0 EOF",
            "3: OFDLCK ADVISORY  WRITE -1 08:01:39 0 EOF",
            "4: LEASE  ACTIVE    READ 815 08:01:39 0 EOF",
            "5: FLOCK  ADVISORY  WRITE x 08:01:39 0 EOF",
            "6: FLOCK  ADVISORY  WRITE 815 0801:39 0 EOF",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    /// A lock belongs to all processes that have its descriptor, whichever process took it.
    #[test]
    fn a_process_that_inherited_a_lock_has_it_and_one_with_its_own_descriptor_has_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        let files = [identity_of(&path).unwrap()];
        let with = |file: &File| {
            let mut command = std::process::Command::new("sleep");
            let child = command.arg("100").stdin(file.try_clone().unwrap()).spawn().unwrap();
            // Once the child is another program, it has no descriptors of ours but this.
            while fs::read_link(format!("/proc/{}/exe", child.id())).unwrap() == std::env::current_exe().unwrap() {
                std::thread::yield_now();
            }
            child
        };
        let (mut heir, mut other) = (with(&file), with(&File::open(&path).unwrap()));
        let has = |child: &std::process::Child| has(i32::try_from(child.id()).unwrap(), &files);
        assert_eq!((has(&heir), has(&other)), (Some(false), Some(false)));
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        drop(file);
        assert_eq!((has(&heir), has(&other)), (Some(true), Some(false)));
        assert_eq!(holders(&path), [i32::try_from(std::process::id()).unwrap()], "who took it");
        for child in [&mut heir, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(super::has(i32::try_from(heir.id()).unwrap(), &files), None, "a process that is no more");
    }

    #[test]
    fn files_without_a_descriptor_are_counted() {
        for (line, expected) in [
            ("scm_fds:\t0", false),
            ("scm_fds:\t2", true),
            ("UserFiles:\t0", false),
            ("UserFiles:\t1", true),
            ("UserBufs:\t1", false),
            ("", false),
        ] {
            assert_eq!(has_files_unseen(line), expected, "{line}");
        }
    }

    #[test]
    fn a_line_of_a_mapping_is_understood() {
        let line = "7f0a4000-7f0a5000 r--s 00000000 fe:1a 3932170                    /a b/lock";
        assert_eq!(mapped(line), Some((makedev(0xfe, 0x1a), 3_932_170)));
        assert_eq!(mapped("7ffd0000-7ffd1000 rw-p 00000000 00:00 0   [stack]"), Some((0, 0)));
        assert_eq!(mapped("nonsense"), None);
    }

    #[test]
    fn the_holder_of_a_file_or_a_directory_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        let directory = File::open(dir.path()).unwrap();
        for (path, file) in [(path.as_path(), file), (dir.path(), directory)] {
            assert!(holders(path).is_empty());
            flock(&file, FlockOperation::NonBlockingLockShared).unwrap();
            assert_eq!(holders(path), [own]);
            let (device, inode) = identity(&file).unwrap();
            let held = Held { pid: own, is_exclusive: false, device, inode };
            assert!(held_by(own).contains(&held) && on(&file) == [held]);
            flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            assert_eq!(on(&file), [Held { is_exclusive: true, ..held }]);
            assert!(takers().contains(&own));
            drop(file);
            assert!(holders(path).is_empty());
        }
        assert!(holders(&dir.path().join("none")).is_empty());
    }
}
