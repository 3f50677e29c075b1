//! Removes a directory with all of its content, within bounds: no recursion, few descriptors, and few names in memory.
//!
//! A run may write into the directory, so its depth and its number of entries are as large as the run wants. A
//! directory below is moved to the top before it is emptied, so no path becomes long. It must not follow a link: the
//! link itself is removed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, RenameFlags, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::dir::Dir;

/// Names that are read before their entries are removed.
const AT_ONCE: usize = 1024;
/// Rounds before it gives up: another process may add entries without end.
const ROUNDS: u32 = 1_000_000;

impl Dir {
    /// Removes the entry of this name, with its content where it is a directory. No entry is a success.
    ///
    /// # Errors
    /// If something cannot be removed, or another process adds entries all the time.
    pub fn remove_all(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref();
        match unlink(self, name) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            done => return Ok(done?),
        }
        self.below(name)?.remove_content()?;
        Ok(unlink(self, name)?)
    }

    /// Removes all of its content.
    ///
    /// # Errors
    /// As for [`Self::remove_all`]. Whatever can be removed is removed first.
    pub(crate) fn remove_content(&self) -> io::Result<()> {
        let mut moved = 0;
        for _ in 0..ROUNDS {
            let names = self.some_names()?;
            if names.is_empty() {
                return Ok(());
            }
            let mut kept = None;
            let mut removed = false;
            for name in &names {
                match self.remove_one(name, &mut moved) {
                    Ok(()) => removed = true,
                    Err(error) => kept = Some(error),
                }
            }
            // Entries that stay come again in the next round; a round of nothing else would go on for ever.
            match kept {
                Some(error) if !removed => return Err(error),
                _ => {}
            }
        }
        Err(Errno::NOTEMPTY.into())
    }

    /// Removes an entry; of a directory with content it removes the files, and moves the directories up here.
    fn remove_one(&self, name: &OsStr, moved: &mut u64) -> io::Result<()> {
        match unlink(self, name) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            done => return Ok(done?),
        }
        let below = self.below(name)?;
        for inner in below.some_names()? {
            match unlink(&below, &inner) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => self.take_up(&below, &inner, moved)?,
                done => done?,
            }
        }
        match unlink(self, name) {
            // More than one piece of names: the next round goes on.
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Moves a directory of `below` here, under a name that is free.
    fn take_up(&self, below: &Self, name: &OsStr, moved: &mut u64) -> io::Result<()> {
        loop {
            *moved += 1;
            let free = format!(".removed-{moved}");
            match renameat_with(below, name, self, free.as_str(), RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                done => return Ok(done?),
            }
        }
    }

    /// The first names, as many as are removed at once.
    fn some_names(&self) -> io::Result<Vec<OsString>> {
        let is_entry = |name: &[u8]| name != b"." && name != b"..";
        let entries = rustix::fs::Dir::read_from(self)?;
        let names = entries.map(|entry| Ok(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned()));
        names
            .filter(|name: &io::Result<OsString>| !matches!(name, Ok(name) if !is_entry(name.as_bytes())))
            .take(AT_ONCE)
            .collect()
    }
}

/// Removes a file, a link or an empty directory. An entry that is not there is removed.
fn unlink(dir: &Dir, name: &OsStr) -> Result<(), Errno> {
    let removed = match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => unlinkat(dir, name, AtFlags::REMOVEDIR),
        removed => removed,
    };
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn dir() -> (tempfile::TempDir, Dir) {
        let at = tempfile::tempdir().unwrap();
        let dir = Dir::open(at.path()).unwrap();
        (at, dir)
    }

    /// Makes directories one in the other, without a path of that length.
    fn nest(top: &Dir, levels: usize) {
        let mut inner = top.make("d").unwrap();
        for _ in 1..levels {
            inner.create("file", 0o600).unwrap();
            inner = inner.make("d").unwrap();
        }
    }

    #[test]
    fn a_tree_of_any_depth_is_removed_on_a_small_stack() {
        for levels in [1, 2, 100, 1_500] {
            let (at, dir) = dir();
            nest(&dir, levels);
            let remove = move || dir.remove_all("d").unwrap();
            std::thread::Builder::new().stack_size(64 * 1024).spawn(remove).unwrap().join().unwrap();
            assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0, "{levels}");
        }
    }

    #[test]
    fn many_entries_and_those_that_look_like_its_own_are_removed() {
        let (at, dir) = dir();
        let top = dir.make("d").unwrap();
        for number in 0..3 * AT_ONCE {
            top.create(format!("file-{number}"), 0o600).unwrap();
        }
        for number in 1..9 {
            top.make(format!(".removed-{number}")).unwrap().make("d").unwrap().create("f", 0o600).unwrap();
        }
        dir.remove_all("d").unwrap();
        assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_is_removed_and_its_target_stays() {
        let (at, dir) = dir();
        fs::create_dir(at.path().join("precious")).unwrap();
        fs::write(at.path().join("precious/file"), "").unwrap();
        fs::create_dir(at.path().join("d")).unwrap();
        for link in ["d/link", "itself"] {
            symlink(at.path().join("precious"), at.path().join(link)).unwrap();
        }
        for name in ["d", "itself", "not there"] {
            dir.remove_all(name).unwrap();
        }
        assert!(at.path().join("precious/file").exists());
        assert_eq!(fs::read_dir(at.path()).unwrap().count(), 1);
    }
}
