//! What `/proc/PID/stat` tells of a process. Reads only; a process that has gone is `None`.

use std::fs::File;
use std::io::Read;

/// Where a process stands among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// It has ended and only waits to be reaped, or is just going.
    pub(super) dead: bool,
    /// Its parent.
    pub(super) parent: i32,
    /// Its process group.
    pub(super) group: i32,
    /// Its session.
    pub(super) session: i32,
}

/// Reads the state of process `pid`.
pub(super) fn stat(pid: i32) -> Option<Stat> {
    let mut file = File::open(format!("/proc/{pid}/stat")).ok()?;
    // The name takes 16 bytes at most; what is wanted stands right behind it.
    let mut buffer = [0; 256];
    let length = file.read(&mut buffer).ok()?;
    parse(&buffer[..length])
}

/// The name may hold anything, also blanks and parentheses: what follows begins after the last one.
fn parse(line: &[u8]) -> Option<Stat> {
    let after = line.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = str::from_utf8(line.get(after..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X" | "x");
    let mut number = || fields.next()?.parse().ok();
    Some(Stat { dead, parent: number()?, group: number()?, session: number()? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let stat = parse(b"42 (a) Z 1 (b) S 7 8 9 0 -1 4194304");
        assert_eq!(stat, Some(Stat { dead: false, parent: 7, group: 8, session: 9 }));
        assert_eq!(parse(b"42 (sh) Z 7 8 9 0").map(|stat| stat.dead), Some(true));
        assert_eq!(parse(b"42 (sh"), None);
    }

    #[test]
    fn a_living_process_has_one() {
        let own = stat(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(own.parent, nix::unistd::getppid().as_raw());
        assert_eq!(own.session, nix::unistd::getsid(None).unwrap().as_raw());
    }
}
