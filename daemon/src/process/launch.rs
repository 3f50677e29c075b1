//! The launcher: sets limits and a terminal on itself, then becomes the program (`harnessd launch`).
//!
//! Both have to be set between fork and exec, which no program can do for another one without a hook that costs a real fork. Used
//! only where one of them is wanted. It must never do anything else; what keeps it from its program is told on standard error, with the
//! exit code that a shell would give.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use harness_protocol::limit::{CallLimit, CallLimits};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::setsid;

/// How the kernel calls a limit.
const fn resource(limit: CallLimit) -> Resource {
    match limit {
        CallLimit::CpuSeconds => Resource::RLIMIT_CPU,
        CallLimit::AddressSpaceBytes => Resource::RLIMIT_AS,
        CallLimit::OpenFiles => Resource::RLIMIT_NOFILE,
        CallLimit::FileSizeBytes => Resource::RLIMIT_FSIZE,
        CallLimit::Processes => Resource::RLIMIT_NPROC,
    }
}

/// What a launcher is to do, as its first argument: nothing where it is empty.
pub(super) fn instructions(limits: &CallLimits, terminal: Option<&Path>) -> OsString {
    let mut text = OsString::new();
    for (limit, value) in limits.set() {
        text.push(format!("{}={value},", limit.name()));
    }
    if let Some(terminal) = terminal {
        text.push("tty=");
        text.push(terminal);
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
        Ok(()) => Command::new(&program).arg0(&name).args(arguments).exec(),
        Err(error) => error,
    };
    _ = writeln!(io::stderr(), "{}: {error}", name.display());
    ExitCode::from(if error.kind() == ErrorKind::NotFound { 127 } else { 126 })
}

fn follow(instructions: &OsStr) -> io::Result<()> {
    let (limits, terminal) = parse(instructions);
    if let Some(terminal) = terminal {
        setsid()?;
        // The first terminal that the leader of a session opens becomes that session's.
        drop(OpenOptions::new().read(true).write(true).open(terminal)?);
    }
    for (limit, value) in limits {
        // With CPU time the soft limit is a signal that says what it is, the hard one is SIGKILL.
        let hard = if limit == CallLimit::CpuSeconds { value.saturating_add(1) } else { value };
        let (_, most) = getrlimit(resource(limit))?;
        setrlimit(resource(limit), value.min(most), hard.min(most))?;
    }
    Ok(())
}

fn parse(instructions: &OsStr) -> (Vec<(CallLimit, u64)>, Option<PathBuf>) {
    let (mut limits, mut terminal) = (Vec::new(), None);
    for one in instructions.as_bytes().split(|&byte| byte == b',') {
        if let Some(path) = one.strip_prefix(b"tty=") {
            terminal = Some(PathBuf::from(OsStr::from_bytes(path)));
        } else if let Some((name, limit)) = str::from_utf8(one).ok().and_then(|one| one.split_once('=')) {
            limits.extend(CallLimit::named(name).zip(limit.parse().ok()));
        }
    }
    (limits, terminal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_understood() {
        assert!(instructions(&CallLimits::default(), None).is_empty());
        let limits = CallLimits { cpu_seconds: Some(3), processes: Some(7), ..CallLimits::default() };
        let text = instructions(&limits, Some(Path::new("/dev/pts/4")));
        let expected = vec![(CallLimit::CpuSeconds, 3), (CallLimit::Processes, 7)];
        assert_eq!(parse(&text), (expected, Some("/dev/pts/4".into())));
        assert_eq!(parse(OsStr::new("nonsense=1,cpu_seconds=x,")), (Vec::new(), None));
    }
}
