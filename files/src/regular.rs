//! Opens regular files, and nothing else: to open a pipe or to read a device could last for ever.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// How often a name is taken from what is not ours before that is given up.
const TRIES: u32 = 16;

/// How a regular file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// To be read.
    Read,
    /// To be read, and not through a link.
    ReadInPlace,
    /// To be read and written, and not through a link. It is made, for its owner alone, where it is not there.
    Keep,
}

/// The path is a pipe, a device, a directory or a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is no regular file")]
pub struct NotRegular;

impl NotRegular {
    /// Whether this is the reason of the error.
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

/// How a file of our own is opened to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writing {
    /// Empty.
    Anew,
    /// At its end, and with what is in it.
    Append,
    /// From its beginning, and with what is in it.
    Keep,
}

/// Opens a file of our own directory to be written, or makes it for its owner alone. The directory is opened once, and
/// the file in it. What is there under that name and is no regular file with that one name, as a link, is somebody's
/// trick: the name is taken from it, and what it leads to stays as it is.
///
/// # Errors
/// Also [`NotRegular`], where it is a directory. Where the directory is a link, and `dir_in_place`.
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
            // A link, a pipe that nobody reads, a socket: taken away below.
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
            // It was put there in between.
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
