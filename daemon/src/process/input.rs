//! Gives a command its standard input: a text in memory, so that nothing has to be written while the command reads.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};

/// A descriptor from which a process reads these bytes, and then their end.
///
/// # Errors
/// Where there is no memory or no descriptor for it.
pub fn input(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}
