//! Opens directories and keeps them open, and makes files relative to them, so that a swapped path leads nowhere else.
//!
//! The only place that walks along a path by its parts. It must not follow a link that another user made: such a path
//! is refused. It must not replace an existing file.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, mkdirat, openat, readlinkat,
};
use rustix::process::geteuid;

use crate::private_group;

/// Most links that are followed on one path, as in the kernel.
const LINKS: usize = 40;

/// Levels of directories that a copy or a check goes down. What we write has two; a run may have added any number.
pub(crate) const DEPTH: u32 = 16;

/// Why nothing is written to a place, or a file is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another user made a link on the way, and may turn it to any file.
    #[error("{0:?} is a link that another user (uid {1}) made; name the place that it leads to")]
    Link(OsString, u32),
    /// The new file was replaced before it could be opened, or cannot be kept from others.
    #[error(
        "{0:?} was replaced by somebody else, or others may write to it; name a directory to which only you may write"
    )]
    Replaced(OsString),
    /// A file with several names in a directory that others may write to.
    #[error(
        "{0:?} is also another file, and others may write to its directory; name a new file, or a directory of your own"
    )]
    Linked(OsString),
    /// The path is a link, a pipe, a device or the like. To open it could last for ever.
    #[error("{0:?} is no regular file")]
    NoFile(OsString),
    /// Another user may have written its content.
    #[error("{0:?} belongs to another user (uid {1}), who may have written anything into it")]
    OfAnother(OsString, u32),
    /// Another user may write to it.
    #[error(
        "others may write to {0:?} (mode {1:04o}), so that it may be anybody's; where it is yours: chmod go-w, or \
         copy it to \
         a place of your own"
    )]
    Open(OsString, u32),
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, refusal)
    }
}

/// An open directory: what happens to its path does not matter any more.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    ours: bool,
    by_link: bool,
}

/// The end of a path that was walked step by step.
pub(crate) enum End {
    /// The directory has no entry of this name.
    New(Dir, OsString),
    /// It is this directory.
    Dir(Dir),
    /// Another entry of this name in the directory: not a link, unless only the kernel can follow it.
    Other(Dir, OsString),
}

const HOLD: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Dir {
    /// Opens the directory at that path; no link on the way belongs to another user.
    ///
    /// # Errors
    /// An error of the system, or a [`Refusal`].
    pub fn open(path: &Path) -> io::Result<Self> {
        match Self::walk(path)? {
            End::Dir(dir) => Ok(dir),
            End::New(..) => Err(rustix::io::Errno::NOENT.into()),
            End::Other(..) => Err(rustix::io::Errno::NOTDIR.into()),
        }
    }

    /// Walks a path step by step.
    pub(crate) fn walk(path: &Path) -> io::Result<End> {
        let mut ahead: VecDeque<OsString> = VecDeque::new();
        let path = std::path::absolute(path)?;
        push(&mut ahead, &path);
        let mut dir = Self::root()?;
        let mut links = 0;
        // Whether no other user can change a link on the way so far.
        let mut is_ours = true;
        let mut by_link = false;
        while let Some(name) = ahead.pop_front() {
            let held = match openat(&dir.fd, &name, HOLD, Mode::empty()) {
                Ok(held) => held,
                Err(rustix::io::Errno::NOENT) if ahead.is_empty() => return Ok(End::New(dir.readable(is_ours)?, name)),
                Err(errno) => return Err(errno.into()),
            };
            let found = fstat(&held)?;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => {
                    let ours = is_safe(&held, &found) && dir.ours;
                    dir = Self { fd: held, ours, by_link: false };
                }
                FileType::Symlink => {
                    links += 1;
                    if links > LINKS {
                        return Err(rustix::io::Errno::LOOP.into());
                    }
                    if !is_trusted(found.st_uid) {
                        return Err(Refusal::Link(name, found.st_uid).into());
                    }
                    is_ours &= dir.ours;
                    by_link |= found.st_uid != 0 || geteuid().is_root();
                    // The links in /proc are not real links: their text means nothing.
                    if fstatfs(&dir.fd)?.f_type == PROC_SUPER_MAGIC {
                        if ahead.is_empty() {
                            return Ok(End::Other(dir.by_way(is_ours), name));
                        }
                        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                        let fd = openat(&dir.fd, &name, flags, Mode::empty())?;
                        dir = Self { fd, ours: false, by_link: true };
                        by_link = true;
                        continue;
                    }
                    let to = readlinkat(&held, "", Vec::new())?;
                    let to = Path::new(OsStr::from_bytes(to.as_bytes()));
                    if to.is_absolute() {
                        dir = Self::root()?;
                    }
                    push(&mut ahead, to);
                }
                _ if ahead.is_empty() => return Ok(End::Other(dir.by_way(is_ours), name)),
                _ => return Err(rustix::io::Errno::NOTDIR.into()),
            }
        }
        Ok(End::Dir(Self { by_link, ..dir.readable(is_ours)? }))
    }

    fn root() -> io::Result<Self> {
        let fd = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { ours: is_safe(&fd, &fstat(&fd)?), fd, by_link: false })
    }

    /// The same directory. It does not count as ours if another user can change a link on the way.
    fn by_way(self, is_ours: bool) -> Self {
        Self { ours: self.ours && is_ours, ..self }
    }

    /// Opens the directory for making files. A directory that may only be passed through stays as it is.
    fn readable(self, is_ours: bool) -> io::Result<Self> {
        let dir = self.by_way(is_ours);
        match openat(&dir.fd, ".", READ, Mode::empty()) {
            Ok(fd) => Ok(Self { fd, ..dir }),
            Err(rustix::io::Errno::ACCESS) => Ok(dir),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether no other user may replace what we make here, nor any directory above it.
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Whether the way to it led through a link that is not root's: any process of our own user may have made that
    /// link.
    pub fn is_by_link(&self) -> bool {
        self.by_link
    }

    /// Whether both are the same directory.
    pub fn is_same(&self, other: &Self) -> bool {
        match (fstat(&self.fd), fstat(&other.fd)) {
            (Ok(one), Ok(two)) => (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino),
            _ => false,
        }
    }

    /// Makes a directory here for its owner alone. It must not be there.
    ///
    /// # Errors
    /// If it exists already, or was replaced.
    pub fn make(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        mkdirat(&self.fd, name, Mode::RWXU)?;
        let replaced = || io::Error::from(Refusal::Replaced(name.to_owned()));
        let made = Self::below(self, name).map_err(|_| replaced())?;
        let found = fstat(&made.fd)?;
        let is_empty = made.names()?.is_empty();
        // Some file systems give every file the mode and the owner of the mount.
        let is_closed = found.st_uid == geteuid().as_raw() && found.st_mode & 0o022 == 0;
        if is_closed && is_empty { Ok(made) } else { Err(replaced()) }
    }

    /// Opens the directory of this name here. A link is refused.
    ///
    /// # Errors
    /// If it is no directory.
    pub fn below(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let fd = openat(&self.fd, name.as_ref(), READ, Mode::empty())?;
        Ok(Self { ours: self.ours && is_safe(&fd, &fstat(&fd)?), fd, by_link: self.by_link })
    }

    /// Makes a new file here.
    ///
    /// # Errors
    /// If it exists already, or cannot be made.
    pub fn create(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.fd, name.as_ref(), flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Opens the regular file of this name here, for reading; `None` where it is something else, such as a link or a
    /// pipe.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn file(&self, name: impl AsRef<OsStr>) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name.as_ref(), flags, Mode::empty()) {
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => return Ok(None),
            file => File::from(file?),
        };
        Ok(file.metadata()?.is_file().then_some(file))
    }

    /// The entries: names, and whether each is a directory.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<(OsString, bool)>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match rustix::fs::statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(found) => FileType::from_raw_mode(found.st_mode),
                    Err(_) => continue,
                },
                kind => kind,
            };
            found.push((name, kind == FileType::Directory));
        }
        Ok(found)
    }

    /// Copies the content of `from` into this directory: directories and files, for their owner alone, each made anew.
    /// Links are left out, and so are files that are removed meanwhile, and directories more than [`DEPTH`] below it.
    /// Gives the number of bytes.
    ///
    /// # Errors
    /// If an entry exists already, or cannot be copied.
    pub fn copy_from(&self, from: &Self) -> io::Result<u64> {
        self.copy_levels(from, DEPTH)
    }

    fn copy_levels(&self, from: &Self, depth: u32) -> io::Result<u64> {
        let mut bytes = 0;
        for (name, is_dir) in from.names()? {
            bytes += match (is_dir, depth.checked_sub(1)) {
                (true, Some(depth)) => self.copy_dir(from, &name, depth)?,
                (true, None) => 0,
                (false, _) => self.copy_file(from, &name)?,
            };
        }
        Ok(bytes)
    }

    fn copy_dir(&self, from: &Self, name: &OsStr, depth: u32) -> io::Result<u64> {
        match from.below(name) {
            Ok(from) => self.make(name)?.copy_levels(&from, depth),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn copy_file(&self, from: &Self, name: &OsStr) -> io::Result<u64> {
        match from.file(name) {
            Ok(Some(mut file)) => io::copy(&mut file, &mut self.create(name, 0o600)?),
            Ok(None) => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Whether this very directory has that name in `parent`.
    pub(crate) fn is_named(&self, parent: &Self, name: &OsStr) -> bool {
        match (fstat(&self.fd), rustix::fs::statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW)) {
            (Ok(own), Ok(named)) => (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino),
            _ => false,
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Puts the steps of a path before the remaining ones.
fn push(ahead: &mut VecDeque<OsString>, path: &Path) {
    let steps = path.components().filter_map(|step| match step {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    for step in steps.collect::<Vec<_>>().into_iter().rev() {
        ahead.push_front(step);
    }
}

/// Whether a user has our rights anyway.
pub(crate) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// Whether no other user may replace in this directory what we make.
fn is_safe(dir: impl AsFd, found: &Stat) -> bool {
    let is_closed = match found.st_mode & 0o022 {
        0 => true,
        0o020 => private_group::is_alone(dir.as_fd(), found.st_gid),
        _ => false,
    };
    is_trusted(found.st_uid) && (is_closed || found.st_mode & 0o1000 != 0)
}
