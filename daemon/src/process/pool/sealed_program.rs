//! Provides the program of keepers and deputies in a form that may be executed and not read: a copy in memory.
//!
//! A keeper makes itself untraceable for processes of its user; until then it would be open to them, as any other
//! process is. A program that its user may not read makes a process untraceable from its first moment
//! (`ENFORCE_NONDUMP` in the kernel's `would_dump`). For root, and where a copy cannot be executed, it is the program
//! on disk. Starts no keeper: the pool does. It executes a new copy once, to try it out.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::libc::O_PATH;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// Path of this very program, even if it was replaced on disk.
const OWN: &str = "/proc/self/exe";

/// A program that is executed by its descriptor.
#[derive(Debug, Clone)]
pub struct Sealed {
    path: PathBuf,
    /// Keeps the copy as long as it may be executed.
    _copy: Option<Arc<OwnedFd>>,
}

impl Sealed {
    /// This program: as a copy in memory, unless that has no use. Root may trace every process, and a program that
    /// cannot be read anyway needs no copy.
    pub fn own() -> Self {
        let copy = (!nix::unistd::geteuid().is_root()).then(copy);
        match copy {
            Some(Ok(copy)) => Self { path: path_of(&copy), _copy: Some(Arc::new(copy)) },
            Some(Err(error)) => {
                tracing::info!(%error, "keepers execute the program as it is on disk, and not a copy in memory");
                Self::at(OWN)
            }
            None => Self::at(OWN),
        }
    }

    /// The program at a path, as it is.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), _copy: None }
    }

    /// The path for executing it, by this process and by no other.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn path_of(descriptor: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into()
}

/// A descriptor of the copy that allows only to execute it.
fn copy() -> io::Result<OwnedFd> {
    let mut program = File::open(OWN)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag, and treat every memory file as executable.
    let made = memfd_create("harnessd", flags | MemfdFlags::EXEC).or_else(|_| memfd_create("harnessd", flags))?;
    let mut copy = File::from(made);
    io::copy(&mut program, &mut copy)?;
    copy.set_permissions(Permissions::from_mode(0o111))?;
    fcntl_add_seals(copy.as_fd(), SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // A file that is open for writing cannot be executed.
    let only = OpenOptions::new().read(true).custom_flags(O_PATH).open(path_of(&copy))?;
    drop(copy);
    try_out(&path_of(&only))?;
    Ok(only.into())
}

/// Executes it once, since some systems forbid that for files in memory.
fn try_out(program: &Path) -> io::Result<()> {
    let mut command = Command::new(program);
    // Without arguments it only prints an error.
    command.arg("launch").env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()?.wait().map(drop)
}
