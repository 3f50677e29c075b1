//! Sheds what was in the daemon's environment and is not for tools to see: a process's first environment stays readable in
//! /proc for as long as it lives, so the daemon starts itself anew without it.
//!
//! Owns the list of what stays. Never reads a value that it sheds.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl::set_dumpable;

/// What the daemon itself goes by, and what tools may get of it.
const STAYS: &[&str] = &[
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TERM",
    "NO_COLOR",
    "RUST_BACKTRACE",
    // From systemd.
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "JOURNAL_STREAM",
    "INVOCATION_ID",
    "CREDENTIALS_DIRECTORY",
    "STATE_DIRECTORY",
    "RUNTIME_DIRECTORY",
    // Where the daemon's own things are.
    "HARNESS_SOCKET",
    "HARNESS_STATE_DIR",
    "HARNESS_CONFIG",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
    // Where a test wants it to die; see `journal::crash`.
    "HARNESS_CRASH_AT",
];

fn stays(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| STAYS.contains(&name) || name.starts_with("LC_"))
}

/// Starts this program anew, with the same arguments, descriptors and process number, if its environment holds anything
/// that does not stay; then makes the process unreadable for others of its user. To be called before anything is opened.
///
/// # Errors
/// Where it cannot be started anew. With the environment as it is, it must not go on.
pub fn shed() -> io::Result<()> {
    let (kept, shed): (Vec<_>, Vec<_>) = std::env::vars_os().partition(|(name, _)| stays(name));
    if !shed.is_empty() {
        return Err(anew(kept));
    }
    // No core dump and no ptrace by other processes of this user. Where the kernel refuses, that is all that is lost.
    let _ = set_dumpable(false);
    Ok(())
}

fn anew(kept: Vec<(OsString, OsString)>) -> io::Error {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "harnessd".into());
    // By its own path, so that it keeps its name in the list of processes; a file that was replaced meanwhile is still there
    // under the other one.
    let path = std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into());
    Command::new(path).arg0(name).args(args).env_clear().envs(kept).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_and_what_the_daemon_goes_by_stays() {
        for name in ["HOME", "LC_ALL", "LISTEN_FDS", "HARNESS_SOCKET"] {
            assert!(stays(OsStr::new(name)), "{name}");
        }
        for name in ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "https_proxy", "SSH_AUTH_SOCK", "HARNESS_TOKEN"] {
            assert!(!stays(OsStr::new(name)), "{name}");
        }
    }
}
