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

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::setsid;

/// Bounds of each process of a call, by the kernel. What is left out is what the daemon has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Seconds of CPU time.
    pub cpu_seconds: Option<u64>,
    /// Bytes of address space.
    pub address_space_bytes: Option<u64>,
    /// Descriptors.
    pub open_files: Option<u64>,
    /// Bytes of a file that is written.
    pub file_size_bytes: Option<u64>,
    /// Processes of the same user, on the whole machine. Root is not bound by it.
    pub processes: Option<u64>,
}

impl Limits {
    const fn all(&self) -> [(&'static str, Resource, Option<u64>); 5] {
        [
            ("cpu", Resource::RLIMIT_CPU, self.cpu_seconds),
            ("as", Resource::RLIMIT_AS, self.address_space_bytes),
            ("files", Resource::RLIMIT_NOFILE, self.open_files),
            ("size", Resource::RLIMIT_FSIZE, self.file_size_bytes),
            ("processes", Resource::RLIMIT_NPROC, self.processes),
        ]
    }
}

/// What a launcher is to do, as its first argument: nothing where it is empty.
pub(super) fn instructions(limits: &Limits, terminal: Option<&Path>) -> OsString {
    let mut text = OsString::new();
    for (name, _, limit) in limits.all() {
        if let Some(limit) = limit {
            text.push(format!("{name}={limit},"));
        }
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
    for (resource, limit) in limits {
        // With CPU time the soft limit is a signal that says what it is, the hard one is SIGKILL.
        let hard = if resource == Resource::RLIMIT_CPU { limit.saturating_add(1) } else { limit };
        let (_, most) = nix::sys::resource::getrlimit(resource)?;
        setrlimit(resource, limit.min(most), hard.min(most))?;
    }
    Ok(())
}

fn parse(instructions: &OsStr) -> (Vec<(Resource, u64)>, Option<PathBuf>) {
    let (mut limits, mut terminal) = (Vec::new(), None);
    for one in instructions.as_bytes().split(|&byte| byte == b',') {
        if let Some(path) = one.strip_prefix(b"tty=") {
            terminal = Some(PathBuf::from(OsStr::from_bytes(path)));
        } else if let Some((name, limit)) = str::from_utf8(one).ok().and_then(|one| one.split_once('=')) {
            let known = Limits::default().all().into_iter().find(|(known, _, _)| *known == name);
            limits.extend(known.map(|(_, resource, _)| resource).zip(limit.parse().ok()));
        }
    }
    (limits, terminal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_understood() {
        assert!(instructions(&Limits::default(), None).is_empty());
        let limits = Limits { cpu_seconds: Some(3), processes: Some(7), ..Limits::default() };
        let text = instructions(&limits, Some(Path::new("/dev/pts/4")));
        let expected = vec![(Resource::RLIMIT_CPU, 3), (Resource::RLIMIT_NPROC, 7)];
        assert_eq!(parse(&text), (expected, Some("/dev/pts/4".into())));
        assert_eq!(parse(OsStr::new("nonsense=1,cpu=x,")), (Vec::new(), None));
    }
}
