//! Opens regular files and refuses everything else, because opening a pipe or reading a device could last for ever.
//!
//! The daemon opens its small files here (locks, records, logs, outputs), and files that it was told to read. New files
//! in a directory that others may write to are made by `dir`; the journal is opened by the daemon's `journal/schema`.
//! For writing, an entry that is a link or no regular file is removed first: another process has put it there. Must not
//! follow that link.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// Most attempts to free a name from an entry that is not ours.
const TRIES: u32 = 16;

/// The way in which a regular file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// For reading; a link is followed.
    Read,
    /// For reading, and not through a link.
    ReadInPlace,
    /// For reading and writing, and not through a link. A missing file is made, for its owner alone.
    Keep,
}

/// The path is a pipe, a device, a directory or a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is no regular file")]
pub struct NotRegular;

impl NotRegular {
    /// Whether an error has this reason.
    pub fn is_why(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<NotRegular> for io::Error {
    fn from(error: NotRegular) -> Self {
        Self::new(ErrorKind::InvalidInput, error)
    }
}

/// Opens a regular file. Never waits for the other end of a pipe.
///
/// # Errors
/// An error of the system, or [`NotRegular`].
pub fn open_regular(path: &Path, opening: Opening) -> io::Result<File> {
    let how = match opening {
        Opening::Read => OFlags::RDONLY,
        Opening::ReadInPlace => OFlags::RDONLY | OFlags::NOFOLLOW,
        Opening::Keep => OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW,
    };
    let flags = how | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(NotRegular.into()) }
}

/// Reads a regular file, its first `most` bytes at most. Never waits for the other end of a pipe.
///
/// # Errors
/// As for [`open_regular`].
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path, Opening::Read)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The way in which a file of our own is opened for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writing {
    /// The file is emptied.
    Anew,
    /// At its end; its content stays.
    Append,
    /// From its beginning; its content stays.
    Keep,
}

/// Opens a file in a directory of our own for writing, or makes it for its owner alone. The directory is opened once,
/// and the file in it. An entry of that name that is not a regular file with exactly this name, such as a link, was put
/// there by another process: the entry is removed, and the target of a link stays as it is.
///
/// # Errors
/// Also [`NotRegular`] if it is a directory. With `dir_in_place`, also if the directory is a link.
pub fn open_own(path: &Path, writing: Writing, dir_in_place: bool) -> io::Result<File> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(NotRegular.into()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let in_place = if dir_in_place { OFlags::NOFOLLOW } else { OFlags::empty() };
    let dir = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | in_place, Mode::empty())?;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let flags = flags | if writing == Writing::Append { OFlags::WRONLY | OFlags::APPEND } else { OFlags::WRONLY };
    for _ in 0..TRIES {
        let file = match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
            Ok(file) => Some(File::from(file)),
            Err(Errno::NOENT) => None,
            // A link, a pipe without a reader, a socket: removed below.
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => {
                unlink(&dir, name)?;
                None
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(file) = file {
            let found = file.metadata()?;
            if found.is_file() && found.nlink() == 1 {
                if writing == Writing::Anew {
                    file.set_len(0)?;
                }
                return Ok(file);
            }
            unlink(&dir, name)?;
        }
        match rustix::fs::openat(&dir, name, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
            // Another process made it in between.
            Err(Errno::EXIST) => {}
            made => return Ok(made?.into()),
        }
    }
    Err(NotRegular.into())
}

fn unlink(dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => Err(NotRegular.into()),
        Err(Errno::NOENT) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
