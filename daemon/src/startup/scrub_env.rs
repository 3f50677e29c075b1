//! Removes from the daemon's environment every variable that is not on a list, so that tools cannot see secrets. The
//! first environment of a process stays readable in /proc for as long as it lives, so the daemon executes itself again
//! without them. Then it also has the settings of the C library's allocator, and hides from other processes of its
//! user.
//!
//! The values that the daemon itself needs, keys of providers and addresses of proxies, it passes to itself in a sealed
//! memory file, which is closed as soon as it is read.
//!
//! The only place with the list of variables that stay. Must not use the value of a removed variable, except those that
//! are passed on. `main` must call it before anything is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_dumpable;

/// The variable with the descriptor number of the memory file.
const HANDED_ON: &str = "HARNESS_HANDED_ON";
/// Name of the memory file, as `/proc` shows it.
const NAME: &str = "harness-handed-on";
/// Variables with addresses of proxies. They may contain a password, so they are removed.
const PROXIES: &[&str] = &["http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// Variables that stay: those of the daemon itself, and those that tools may get.
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
    // The daemon's own paths.
    "HARNESS_SOCKET",
    "HARNESS_STATE_DIR",
    "HARNESS_CONFIG",
    // The daemon's log level.
    "HARNESS_LOG",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
    HANDED_ON,
    // Settings of the C library's allocator; see `ALLOCATOR`.
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    // The point at which a test kills the daemon.
    #[cfg(feature = "failpoints")]
    crate::journal::failpoints::VARIABLE,
];

/// Settings of the C library's allocator, unless the environment has its own. The library reads them when a program
/// starts. Without them it would keep memory that once was large: after the first frame of megabytes it would take such
/// frames from heaps that only shrink from their ends, one heap for nearly each thread. A page of a list has 2 MiB: it
/// comes from a heap, since each block from the kernel costs page faults.
const ALLOCATOR: &[(&str, &str)] =
    &[("MALLOC_ARENA_MAX", "2"), ("MALLOC_MMAP_THRESHOLD_", "4194304"), ("MALLOC_TRIM_THRESHOLD_", "1048576")];

fn stays(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| STAYS.contains(&name) || name.starts_with("LC_"))
}

/// Executes this program again, with the same arguments, descriptors and pid, if its environment contains a variable
/// that does not stay, or lacks the allocator's settings; then makes the process unreadable for other processes of its
/// user. To be called before anything is opened.
///
/// Gives the variables that were passed on: those that `wanted` names, which is called while they are still there, and
/// the proxies.
///
/// # Errors
/// If it cannot be executed again. With the environment as it is, it must not go on.
pub fn shed(wanted: impl FnOnce() -> BTreeSet<String>) -> io::Result<BTreeMap<String, OsString>> {
    let (mut kept, shed): (Vec<_>, Vec<_>) = std::env::vars_os().partition(|(name, _)| stays(name));
    let unsaid = ALLOCATOR.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let unsaid: Vec<(OsString, OsString)> = unsaid.map(|(name, value)| (name.into(), value.into())).collect();
    if !shed.is_empty() || !unsaid.is_empty() {
        kept.extend(unsaid);
        let wanted = wanted();
        let is_wanted = |name: &OsStr| {
            let name = name.to_str().unwrap_or_default();
            wanted.contains(name) || PROXIES.contains(&name.to_ascii_lowercase().as_str())
        };
        let handed: Vec<_> = shed.into_iter().filter(|(name, _)| is_wanted(name)).collect();
        return Err(anew(kept, &handed));
    }
    // No core dump and no ptrace by other processes of this user. If the kernel refuses, nothing else is lost.
    let _ = set_dumpable(false);
    Ok(std::env::var(HANDED_ON).ok().and_then(|number| number.parse().ok()).and_then(take).unwrap_or_default())
}

/// A memory file with these variables. It outlives the exec, and no process can change it.
fn hand_on(variables: &[(OsString, OsString)]) -> io::Result<OwnedFd> {
    let memory = memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING)?;
    let mut file = File::from(memory);
    for (name, value) in variables {
        file.write_all(&[name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat())?;
    }
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

/// Reads the memory file with this descriptor number, and closes it. `None` where the descriptor is something else.
fn take(number: RawFd) -> Option<BTreeMap<String, OsString>> {
    let mut path = String::new();
    // Writing to a String cannot fail.
    let _ = write!(path, "/proc/self/fd/{number}");
    let is_ours = fs::read_link(&path).ok()?.as_os_str().as_bytes().starts_with(format!("/memfd:{NAME}").as_bytes());
    if !is_ours {
        return None;
    }
    let mut bytes = Vec::new();
    let read = File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes));
    let _ = nix::unistd::close(number);
    read.ok()?;
    let variable = |bytes: &[u8]| {
        let equals = bytes.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (std::str::from_utf8(&bytes[..equals]).ok()?, &bytes[equals + 1..]);
        // A value that is not UTF-8 is reported where it is used.
        Some((name.to_owned(), OsString::from_vec(value.to_vec())))
    };
    Some(bytes.split(|&byte| byte == 0).filter_map(variable).collect())
}

fn anew(kept: Vec<(OsString, OsString)>, handed: &[(OsString, OsString)]) -> io::Error {
    let memory = match (!handed.is_empty()).then(|| hand_on(handed)).transpose() {
        Ok(memory) => memory,
        Err(error) => return error,
    };
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "harnessd".into());
    // By its own path, so that it keeps its name in the list of processes; if the file was replaced meanwhile, by the
    // path in /proc.
    let path = std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into());
    let mut command = Command::new(path);
    command.arg0(name).args(args).env_clear().envs(kept).env_remove(HANDED_ON);
    if let Some(memory) = &memory {
        command.env(HANDED_ON, memory.as_raw_fd().to_string());
    }
    command.exec()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_go_and_what_the_daemon_goes_by_stays() {
        for name in ["HOME", "LC_ALL", "LISTEN_FDS", "HARNESS_SOCKET", "HARNESS_LOG"] {
            assert!(stays(OsStr::new(name)), "{name}");
        }
        for name in ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "https_proxy", "SSH_AUTH_SOCK", "HARNESS_TOKEN"] {
            assert!(!stays(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn what_is_handed_on_is_read_once_and_nothing_else_is() {
        let odd = OsString::from_vec(b"k\xff".to_vec());
        let variables =
            [("A_KEY".into(), "sk-1=2".into()), ("https_proxy".into(), "http://p".into()), ("ODD".into(), odd.clone())];
        let memory = hand_on(&variables).unwrap();
        let number = nix::unistd::dup(&memory).unwrap();
        let taken = take(std::os::fd::IntoRawFd::into_raw_fd(number)).unwrap();
        assert_eq!(
            taken,
            BTreeMap::from([
                ("A_KEY".into(), "sk-1=2".into()),
                ("https_proxy".into(), "http://p".into()),
                ("ODD".into(), odd)
            ])
        );
        assert!(File::from(memory).write_all(b"x").is_err(), "it is sealed");
        assert_eq!(take(1), None);
        assert_eq!(take(-1), None);
    }
}
