//! Prepares itself for a call, and then becomes the call's program (`harnessd launch`): enters a cgroup, sets limits,
//! takes a terminal.
//!
//! All of this has to happen between fork and exec, which no program can do for another one without a hook that costs a
//! real fork. So a launcher is used only where one of these is wanted. It must not do anything else, and the
//! environment of the program has no effect on it. If it cannot become the program, it writes the error to standard
//! error, and exits with the code that a shell would give.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use harness_protocol::limit::{CallLimit, CallLimits};
use harness_protocol::terminal_safe::clean;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::setsid;

/// Prefix of the argument with the path of the file by which a process enters a cgroup.
const ENTER: &str = "enter=";

/// Prefix of each variable for the program: until the program is executed, the variable has no effect. Variables of the
/// loader could otherwise undo the limits before they are set.
const HIDDEN: &[u8] = b"+";

/// The name of a variable that is for the program, and not for the launcher.
pub(in crate::process) fn hidden(name: &OsStr) -> OsString {
    OsString::from_vec([HIDDEN, name.as_bytes()].concat())
}

/// The variables for the program.
fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(HIDDEN)?;
        Some((OsStr::from_bytes(name).to_owned(), value))
    })
}

/// The kernel's name of a limit.
const fn resource(limit: CallLimit) -> Resource {
    match limit {
        CallLimit::CpuSeconds => Resource::RLIMIT_CPU,
        CallLimit::AddressSpaceBytes => Resource::RLIMIT_AS,
        CallLimit::OpenFiles => Resource::RLIMIT_NOFILE,
        CallLimit::FileSizeBytes => Resource::RLIMIT_FSIZE,
        CallLimit::Processes => Resource::RLIMIT_NPROC,
    }
}

/// The instructions for a launcher, as its first argument; empty if there is nothing to do.
pub(in crate::process) fn instructions(
    limits: &CallLimits,
    terminal: Option<&Path>,
    entrance: Option<&Path>,
) -> OsString {
    let mut text = OsString::new();
    for (limit, value) in limits.set() {
        text.push(format!("{}={value},", limit.name()));
    }
    if let Some(terminal) = terminal {
        text.push("tty=");
        text.push(terminal);
        text.push(",");
    }
    // It is the last instruction, since its path may contain any character.
    if let Some(entrance) = entrance {
        text.push(ENTER);
        text.push(entrance);
    }
    text
}

/// Follows the instructions in the first of `arguments`, then becomes the second, which is named by the third.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(instructions), Some(program)) = (arguments.next(), arguments.next()) else {
        return ExitCode::from(2);
    };
    let name = arguments.next().unwrap_or_else(|| program.clone());
    let error = match follow(&instructions) {
        Ok(()) => Command::new(&program).arg0(&name).args(arguments).env_clear().envs(environment()).exec(),
        Err(error) => error,
    };
    _ = writeln!(io::stderr(), "{}: {error}", clean(&name.to_string_lossy()));
    ExitCode::from(if error.kind() == ErrorKind::NotFound { 127 } else { 126 })
}

fn follow(instructions: &OsStr) -> io::Result<()> {
    let Instructions { limits, terminal, entrance } = parse(instructions);
    if let Some(entrance) = entrance {
        let enter = std::fs::write(entrance, "0");
        enter.map_err(|error| io::Error::other(format!("cannot enter the cgroup of the call: {error}")))?;
    }
    if let Some(terminal) = terminal {
        setsid()?;
        // The first terminal that the leader of a session opens becomes the session's terminal.
        drop(OpenOptions::new().read(true).write(true).open(terminal)?);
    }
    for (limit, value) in limits {
        // For CPU time the soft limit sends a signal of its own, the hard one SIGKILL.
        let hard = if limit == CallLimit::CpuSeconds { value.saturating_add(1) } else { value };
        let (_, most) = getrlimit(resource(limit))?;
        setrlimit(resource(limit), value.min(most), hard.min(most))?;
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq, Default)]
struct Instructions {
    limits: Vec<(CallLimit, u64)>,
    terminal: Option<PathBuf>,
    entrance: Option<PathBuf>,
}

fn parse(instructions: &OsStr) -> Instructions {
    let Instructions { mut limits, mut terminal, mut entrance } = Instructions::default();
    let mut rest = instructions.as_bytes();
    while !rest.is_empty() {
        if let Some(path) = rest.strip_prefix(ENTER.as_bytes()) {
            entrance = Some(PathBuf::from(OsStr::from_bytes(path)));
            break;
        }
        let length = rest.iter().position(|&byte| byte == b',').unwrap_or(rest.len());
        let one = &rest[..length];
        rest = rest.get(length + 1..).unwrap_or_default();
        if let Some(path) = one.strip_prefix(b"tty=") {
            terminal = Some(PathBuf::from(OsStr::from_bytes(path)));
        } else if let Some((name, limit)) = str::from_utf8(one).ok().and_then(|one| one.split_once('=')) {
            limits.extend(CallLimit::named(name).zip(limit.parse().ok()));
        }
    }
    Instructions { limits, terminal, entrance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_name_is_no_variable_of_the_loader() {
        for name in ["LD_PRELOAD", "GLIBC_TUNABLES", "LD_AUDIT", "A", "+", ""] {
            let hidden = hidden(OsStr::new(name));
            assert_eq!(hidden.as_bytes().strip_prefix(HIDDEN), Some(name.as_bytes()));
            assert!(!hidden.as_bytes().starts_with(b"LD_") && !hidden.as_bytes().starts_with(b"GLIBC_"));
        }
    }

    #[test]
    fn instructions_are_understood() {
        assert!(instructions(&CallLimits::default(), None, None).is_empty());
        let limits = CallLimits { cpu_seconds: Some(3), processes: Some(7), ..CallLimits::default() };
        let text = instructions(&limits, Some(Path::new("/dev/pts/4")), Some(Path::new("/a,b=c/cgroup.procs")));
        let limits = vec![(CallLimit::CpuSeconds, 3), (CallLimit::Processes, 7)];
        let (terminal, entrance) = (Some("/dev/pts/4".into()), Some("/a,b=c/cgroup.procs".into()));
        assert_eq!(parse(&text), Instructions { limits, terminal, entrance });
        assert_eq!(parse(OsStr::new("nonsense=1,cpu_seconds=x,")), Instructions::default());
    }
}
