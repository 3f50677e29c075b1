//! Opens a pseudo-terminal for a call that wants a terminal, and sets its size. It must not read from it: our end is
//! read like any other stream.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The size that programs see.
const SIZE: Winsize = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
/// The character that a terminal takes as the end of input.
const END_OF_INPUT: u8 = 4;

/// A terminal: our end, the program's end, and the path of the latter.
pub(in crate::process) struct Terminal {
    pub(in crate::process) ours: OwnedFd,
    pub(in crate::process) theirs: OwnedFd,
    pub(in crate::process) path: PathBuf,
}

impl Terminal {
    /// Makes a terminal. A reader that comes before any writer sees an end.
    pub(in crate::process) fn open() -> io::Result<Self> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(ptsname(&ours, Vec::new())?.as_bytes()));
        let flags = nix::fcntl::OFlag::O_NOCTTY.bits();
        let theirs = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path)?;
        tcsetwinsize(&theirs, SIZE)?;
        nix::unistd::write(&ours, &[END_OF_INPUT])?;
        Ok(Self { ours, theirs: theirs.into(), path })
    }
}
