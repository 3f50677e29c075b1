//! Starts the process of a call in its directory, as a keeper is told. The only place where a keeper opens a path that
//! a run has named.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::libc;
use rustix::fs::CWD;
use rustix::process::fchdir;

use super::launch;
use super::protocol::{Failure, Place, Start};
use crate::folders;

/// The number of a system error.
fn number(error: &io::Error) -> i32 {
    let invalid = if error.kind() == ErrorKind::InvalidInput { libc::EINVAL } else { libc::EIO };
    error.raw_os_error().unwrap_or(invalid)
}

/// Starts a process in its working directory. The keeper enters the directory for that moment: the directory that it
/// checked is the one that the process starts in, whatever happens to the path meanwhile.
pub(super) fn spawn(start: &Start, passed: &mut impl Iterator<Item = OwnedFd>) -> Result<Child, Failure> {
    if let Some(tag) = start.unknown {
        return Err(Failure::Unknown { tag });
    }
    enter(&start.place)?;
    let spawned = spawn_here(start, passed);
    // The keeper must not keep a directory busy, nor depend on one.
    let _ = nix::unistd::chdir("/");
    spawned.map_err(|error| Failure::Start { errno: number(&error) })
}

/// Enters a directory, if it is the expected folder.
fn enter(place: &Place<OsString>) -> Result<(), Failure> {
    let path: &std::path::Path = place.directory.as_ref();
    let workdir = match folders::open(CWD, place.workdir.as_ref()) {
        Ok(workdir) => workdir,
        // If the folder is gone, a call may still name a directory of its own.
        Err(_) if path.is_absolute() => return enter_directory(CWD, path),
        Err(error) => return Err(Failure::Workdir { errno: number(&error) }),
    };
    let found = (workdir.device, workdir.inode);
    if place.folder.is_some_and(|wanted| wanted != found) {
        return Err(Failure::OtherFolder { device: found.0, inode: found.1 });
    }
    if place.directory.is_empty() {
        return fchdir(&workdir.descriptor).map_err(|errno| Failure::Workdir { errno: errno.raw_os_error() });
    }
    enter_directory(&workdir.descriptor, path)
}

fn enter_directory(from: impl AsFd, path: &std::path::Path) -> Result<(), Failure> {
    let directory = folders::open(from, path);
    let directory = directory.map_err(|error| Failure::Directory { errno: number(&error) })?;
    fchdir(&directory.descriptor).map_err(|errno| Failure::Directory { errno: errno.raw_os_error() })
}

/// `passed` has standard output and error, or a terminal for all three streams; then the standard input of a call that
/// has one.
fn spawn_here(start: &Start, passed: &mut impl Iterator<Item = OwnedFd>) -> io::Result<Child> {
    let output = passed.next().ok_or(ErrorKind::InvalidInput)?;
    let (input, error) = match passed.next() {
        Some(error) if start.input => (Stdio::from(passed.next().ok_or(ErrorKind::InvalidInput)?), error),
        Some(error) => (Stdio::null(), error),
        None => (Stdio::from(output.try_clone()?), output.try_clone()?),
    };
    let program = match resolve(start) {
        Some(program) => program,
        None => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
    };
    let mut command = if start.launcher.is_empty() {
        let mut args = start.args.iter();
        let mut command = Command::new(program);
        if let Some(name) = args.next() {
            command.arg0(name);
        }
        command.args(args);
        command
    } else {
        let mut command = Command::new("/proc/self/exe");
        command.arg("launch").arg(&start.launcher).arg(program).args(&start.args);
        command
    };
    // The environment of the call may give orders to the loader, which must not affect the launcher.
    let hide = |name: &OsString| if start.launcher.is_empty() { name.clone() } else { launch::hidden(name) };
    command.env_clear().envs(start.env.iter().map(|(name, value)| (hide(name), value)));
    command.stdin(input).stdout(output).stderr(error);
    if start.group {
        command.process_group(0);
    }
    command.spawn()
}

/// Looks for a name without a slash in the PATH that the process gets: in the library, that would cost a fork.
fn resolve(start: &Start) -> Option<std::path::PathBuf> {
    let name = start.program.as_os_str();
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = start.env.iter().rev().find(|(variable, _)| variable == "PATH").map(|(_, path)| path.as_os_str());
    let directories = path.unwrap_or(OsStr::new("/usr/bin:/bin"));
    // The path needs a slash, or the library would search PATH once more.
    let here = std::path::Path::new(".");
    let candidates = std::env::split_paths(directories).map(|directory| here.join(directory).join(name));
    let mut first = None;
    for candidate in candidates.filter(|candidate| candidate.is_file()) {
        if nix::unistd::access(&candidate, nix::unistd::AccessFlags::X_OK).is_ok() {
            return Some(candidate);
        }
        // A file that may not be executed is reported, if no later directory has a file that may.
        first.get_or_insert(candidate);
    }
    first
}
