//! Opens regular files, and nothing else: to open a pipe or to read a device could last for ever.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

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
