//! Decides whether a file is trusted: only this user and root can have written its content. Reads a trusted file, or
//! copies it to a place that no other user can reach.
//!
//! The only place with that rule. It must not change the file itself.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, Stat, fstat, statat};

use crate::dir::{DEPTH, Dir, End, Refusal, is_trusted};

/// An open regular file, with its place.
#[derive(Debug)]
pub struct Trusted {
    /// The file, to be read.
    pub file: File,
    /// The directory of the file.
    pub dir: Dir,
    /// Name of the file in that directory.
    pub name: OsString,
}

/// Opens the regular file at that path once, for reading. Its owner is this user or root, and no other user may write
/// to it.
///
/// # Errors
/// An error of the system, or a [`Refusal`].
pub fn open_trusted(path: &Path) -> io::Result<Trusted> {
    match Dir::walk(path)? {
        End::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        End::New(..) => Err(rustix::io::Errno::NOENT.into()),
        End::Other(dir, name) => Ok(Trusted { file: dir.trusted_file(&name)?, dir, name }),
    }
}

/// Whether the path exists, and no other user can make it lead to something else.
pub fn is_ours(path: &Path) -> bool {
    matches!(Dir::walk(path), Ok(End::Other(dir, _) | End::Dir(dir)) if dir.is_ours())
}

impl Dir {
    /// Opens the regular file of this name here, for reading. Its owner is this user or root, and no other user may
    /// write to it.
    ///
    /// # Errors
    /// An error of the system, or a [`Refusal`].
    pub fn trusted_file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let name = name.as_ref();
        let file = self.file(name)?.ok_or_else(|| Refusal::NoFile(name.to_owned()))?;
        let found = fstat(&file)?;
        believe(name, &found)?;
        if found.st_nlink > 1 && !self.is_ours() {
            return Err(Refusal::Linked(name.to_owned()).into());
        }
        Ok(file)
    }

    /// Whether there is an entry of this name here.
    ///
    /// # Errors
    /// If that cannot be determined.
    pub fn has(&self, name: impl AsRef<OsStr>) -> io::Result<bool> {
        match statat(self, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Copies the content of `from`, which is called `name`, like [`Self::copy_from`], but nothing that another user
    /// may have written.
    ///
    /// # Errors
    /// As there; also a [`Refusal`] if `from` or its content belongs to another user, or others may write to it.
    pub fn copy_trusted_from(&self, from: &Self, name: impl AsRef<OsStr>) -> io::Result<u64> {
        self.copy_trusted_levels(from, name.as_ref(), DEPTH)
    }

    fn copy_trusted_levels(&self, from: &Self, name: &OsStr, depth: u32) -> io::Result<u64> {
        believe(name, &fstat(from)?)?;
        let mut bytes = 0;
        for (name, is_dir) in from.names()? {
            if is_dir {
                if let Some(depth) = depth.checked_sub(1) {
                    bytes += self.make(&name)?.copy_trusted_levels(&from.below(&name)?, &name, depth)?;
                }
            } else if let Some(_regular) = from.file(&name)? {
                bytes += io::copy(&mut from.trusted_file(&name)?, &mut self.create(&name, 0o600)?)?;
            }
        }
        Ok(bytes)
    }

    /// Checks this directory, which is called `name`, like [`Self::copy_trusted_from`], without a copy. Gives the bytes
    /// that a copy would have.
    ///
    /// # Errors
    /// As for a copy: if it cannot be read, or another user may have written it.
    pub fn believe_all(&self, name: impl AsRef<OsStr>) -> io::Result<u64> {
        self.believe_levels(name.as_ref(), DEPTH)
    }

    fn believe_levels(&self, name: &OsStr, depth: u32) -> io::Result<u64> {
        believe(name, &fstat(self)?)?;
        let mut bytes: u64 = 0;
        for (name, is_dir) in self.names()? {
            if is_dir {
                if let Some(depth) = depth.checked_sub(1) {
                    bytes = bytes.saturating_add(self.below(&name)?.believe_levels(&name, depth)?);
                }
            } else if let Some(_regular) = self.file(&name)? {
                bytes = bytes.saturating_add(self.trusted_file(&name)?.metadata()?.len());
            }
        }
        Ok(bytes)
    }
}

/// Refuses a file that another user has made, or may write to.
fn believe(name: &OsStr, found: &Stat) -> Result<(), Refusal> {
    if !is_trusted(found.st_uid) {
        return Err(Refusal::OfAnother(name.to_owned(), found.st_uid));
    }
    match found.st_mode & 0o7777 {
        mode if mode & 0o022 != 0 => Err(Refusal::Open(name.to_owned(), mode)),
        _ => Ok(()),
    }
}
