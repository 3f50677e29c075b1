//! Opens a file to overwrite it, as a shell does for `>`. It must not follow a link that another user made: it fails
//! instead.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};

use crate::dir::{Dir, End, Refusal};

/// Opens the file at that path, emptied; it is made if it does not exist. No link on the way belongs to another user,
/// and the file has no second name in a directory that others may write to.
///
/// # Errors
/// An error of the system, or a [`Refusal`].
pub fn open_to_write(path: &Path) -> io::Result<File> {
    let (dir, name, more) = match Dir::walk(path)? {
        End::Dir(_) => return Err(io::ErrorKind::IsADirectory.into()),
        End::New(dir, name) => (dir, name, OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW),
        End::Other(dir, name) if is_of_proc(&dir)? => (dir, name, OFlags::empty()),
        End::Other(dir, name) => (dir, name, OFlags::NOFOLLOW),
    };
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | more;
    let file = File::from(openat(&dir, &name, flags, Mode::from_raw_mode(0o666))?);
    let found = rustix::fs::fstat(&file)?;
    if rustix::fs::FileType::from_raw_mode(found.st_mode).is_file() {
        if found.st_nlink > 1 && !dir.is_ours() && !is_of_proc(&dir)? {
            return Err(Refusal::Linked(name).into());
        }
        file.set_len(0)?;
    }
    Ok(file)
}

fn is_of_proc(dir: &Dir) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(dir)?.f_type == rustix::fs::PROC_SUPER_MAGIC)
}
