//! Parses `/proc/PID/stat`, and the beginning of a command line. The only place with the positions of the fields. A
//! process that is gone gives `None`.

// The crate `procfs` reads whole files into structs with all fields, and a command line without a bound, which its
// process chooses. A forced end looks at each process of a tree that forks all the time: it needs five fields, without
// an allocation.

use std::fs::File;
use std::io::Read;

/// Positions of the session's terminal, the number of threads and the start time, as proc_pid_stat(5) counts them.
const TERMINAL: usize = 7;
const THREADS: usize = 20;
const STARTED: usize = 22;

/// The state of a process, and its relatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::process) struct Stat {
    /// It has ended and waits to be reaped, or is just ending.
    pub(in crate::process) dead: bool,
    /// Pid of its parent.
    pub(in crate::process) parent: i32,
    /// Id of its process group.
    pub(in crate::process) group: i32,
    /// Id of its session: the pid of the process that began it; 0 if that is outside of this pid namespace.
    pub(in crate::process) session: i32,
    /// Whether its session has a terminal.
    pub(in crate::process) has_terminal: bool,
    /// Its start time, in the kernel's ticks since the boot: the second half of its identity, since pids are reused.
    pub(in crate::process) started: u64,
}

/// Reads the state of process `pid`.
pub(in crate::process) fn stat(pid: i32) -> Option<Stat> {
    let mut file = File::open(format!("/proc/{pid}/stat")).ok()?;
    // The name takes 64 bytes at most, and each number 20; the start time is the 22nd field.
    let mut buffer = [0; 512];
    let length = file.read(&mut buffer).ok()?;
    parse(&buffer[..length])
}

/// The first `most` bytes of the command line of process `pid`, which may be megabytes long.
pub(in crate::process) fn beginning_of(pid: i32, most: u64) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    File::open(format!("/proc/{pid}/cmdline")).ok()?.take(most).read_to_end(&mut line).ok()?;
    Some(line)
}

/// The name may contain any character, also blanks and parentheses: the fields begin after the last parenthesis.
fn parse(line: &[u8]) -> Option<Stat> {
    let after = line.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = str::from_utf8(line.get(after..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X" | "x");
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    let has_terminal = fields.next()? != "0";
    let threads: i64 = fields.nth(THREADS - TERMINAL - 1)?.parse().ok()?;
    let started = fields.nth(STARTED - THREADS - 1)?.parse().ok()?;
    // If the first thread has ended before the others, the whole process looks ended.
    let dead = ended && threads <= 1;
    Some(Stat { dead, parent, group, session, has_terminal, started })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The fields after the session, up to the start time and beyond.
    const REST: &str = "34816 9 4194304 1 2 3 4 5 6 7 8 20 0 1 0 123456 777 8";

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let line = |name: &str, state: &str| format!("42 ({name}) {state} 7 8 9 {REST}");
        let lives = Stat { dead: false, parent: 7, group: 8, session: 9, has_terminal: true, started: 123_456 };
        assert_eq!(parse(line("a) Z 1 (b", "S").as_bytes()), Some(lives));
        assert_eq!(parse(line("sh", "Z").as_bytes()), Some(Stat { dead: true, ..lives }));
        let threads = line("sh", "Z").replace(" 20 0 1 0 ", " 20 0 2 0 ");
        assert_eq!(parse(threads.as_bytes()), Some(lives), "its first thread has ended, and another one lives");
        let alone = line("sh", "S").replace(" 34816 ", " 0 ");
        assert_eq!(parse(alone.as_bytes()), Some(Stat { has_terminal: false, ..lives }));
        assert_eq!(parse(b"42 (sh"), None);
        assert_eq!(parse(b"42 (sh) S 7 8 9 0 -1"), None, "cut off before the time");
    }

    #[test]
    fn a_living_process_has_one() {
        let own = stat(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(own.parent, nix::unistd::getppid().as_raw());
        assert_eq!(own.session, nix::unistd::getsid(None).unwrap().as_raw());
        assert!(own.started >= stat(own.parent).unwrap().started, "a parent is older than its child");
    }
}
