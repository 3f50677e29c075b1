//! Makes new files and directories that get their name only when they are complete. Until then they are in a hidden
//! directory beside that name, so no reader ever sees a part of them.
//!
//! The only place that makes and removes these hidden directories; only their owner may write to them. It must not
//! replace a file: if the name is taken, placing the new one fails. On a file system without a rename that promises
//! this, a name that appears at that very moment may be replaced.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, RenameFlags, renameat, renameat_with, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::dir::{Dir, Refusal};

/// Distinguishes several hidden directories of one process.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A hidden directory beside the final name. Its content is removed with it.
#[derive(Debug)]
pub struct Anew {
    parent: Dir,
    parent_path: PathBuf,
    name: OsString,
    hidden: OsString,
    dir: Dir,
    is_placed: bool,
}

impl Anew {
    /// Makes the hidden directory beside `path`.
    ///
    /// # Errors
    /// If it cannot be made, or another user controls the path to it: a [`Refusal`].
    pub fn beside(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let (Some(name), Some(parent_path)) = (path.file_name(), path.parent()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no name for something new"));
        };
        let parent = Dir::open(parent_path)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".partial-{}-{number}", std::process::id()));
        let dir = parent.make(&hidden)?;
        let (name, parent_path) = (name.to_owned(), parent_path.to_owned());
        Ok(Self { parent, parent_path, name, hidden, dir, is_placed: false })
    }

    /// The hidden directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The path of the hidden directory. It is certain to lead there if [`Self::is_ours`] holds.
    pub fn path(&self) -> PathBuf {
        self.parent_path.join(&self.hidden)
    }

    /// Whether no other user can make its path mean another place.
    pub fn is_ours(&self) -> bool {
        self.parent.is_ours()
    }

    /// Moves the entry `from` of the hidden directory to the name `to` beside it. Nothing is replaced.
    ///
    /// # Errors
    /// If the name exists already.
    pub fn place(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        match renameat_with(&self.dir, from, &self.parent, to, RenameFlags::NOREPLACE) {
            // Some file systems cannot promise this. A rename follows no link; it may replace a name, but never
            // content.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                if statat(&self.parent, to, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                    return Err(Errno::EXIST.into());
                }
                Ok(renameat(&self.dir, from, &self.parent, to)?)
            }
            placed => Ok(placed?),
        }
    }

    /// Gives the hidden directory itself the final name, if there is nothing of that name, or an empty directory.
    ///
    /// # Errors
    /// If something has the name, or another process put another directory in the place of the hidden one.
    pub fn place_whole(mut self) -> io::Result<()> {
        renameat(&self.parent, &self.hidden, &self.parent, &self.name)?;
        self.is_placed = self.dir.is_named(&self.parent, &self.name);
        if self.is_placed { Ok(()) } else { Err(Refusal::Replaced(self.name.clone()).into()) }
    }
}

/// Removes hidden directories from `dir` whose processes are gone. A name with the pid of this process belongs to an
/// earlier process with that pid, so call this before this process makes one there.
///
/// # Errors
/// If `dir` cannot be read. A directory that cannot be removed stays.
pub fn remove_left(dir: &Path) -> io::Result<()> {
    let dir = Dir::open(dir)?;
    for (name, is_dir) in dir.names()? {
        let is_left = is_dir && process_of(&name).is_some_and(is_gone);
        if is_left {
            let _stays = dir.remove_all(&name);
        }
    }
    Ok(())
}

/// The process that made the hidden directory of this name; `None` if the name is of another kind.
fn process_of(hidden: &OsStr) -> Option<Pid> {
    let (_, made_by) = hidden.to_str()?.strip_prefix('.')?.rsplit_once(".partial-")?;
    let (process, number) = made_by.split_once('-')?;
    number.parse::<u64>().ok()?;
    Pid::from_raw(process.parse().ok().filter(|process| *process > 0)?)
}

fn is_gone(process: Pid) -> bool {
    process == rustix::process::getpid() || test_kill_process(process) == Err(Errno::SRCH)
}

impl Drop for Anew {
    fn drop(&mut self) {
        if !self.is_placed {
            let _stays = self.dir.remove_content();
            // Only an empty directory is removed: what another process put in its place stays.
            let _stays = unlinkat(&self.parent, &self.hidden, AtFlags::REMOVEDIR);
        }
    }
}
