//! Tells whether this command executes inside a run. From there no daemon is started, because the process that starts a
//! daemon becomes its operator: a run would get rights that it must not have.
//!
//! Three signs count, and each is enough: the environment variable that calls get, the mark that a call cannot remove,
//! and a keeper among the ancestors. Reads `/proc`; changes nothing.

use std::fs;

use harness_protocol::inside_run::{RUN_VARIABLE, is_keeper, is_marked};
use nix::sys::resource::{Resource, getrlimit};

/// Longest chain of parents that is followed.
pub(crate) const PARENTS: usize = 256;

/// The sign that this command is inside a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Inside {
    /// The environment names the run.
    #[error("{RUN_VARIABLE} is set")]
    Variable,
    /// This process has the limit that all processes of runs have.
    #[error("its hard limit of file locks is the one that runs get")]
    Marked,
    /// One of the parents is a keeper.
    #[error("process {0} above it is the keeper of a call")]
    Keeper(i32),
    /// One of the parents cannot be looked at.
    #[error("process {0} above it cannot be looked at")]
    Hidden(i32),
}

/// The sign that this command is inside a run; `None` outside.
pub(crate) fn inside() -> Option<Inside> {
    let (_, hard) = getrlimit(Resource::RLIMIT_LOCKS).unwrap_or((0, 0));
    let read = |pid: i32, file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
    signs(std::env::var_os(RUN_VARIABLE).is_some(), hard, nix::unistd::getppid().as_raw(), &read)
}

fn signs(variable: bool, hard: u64, parent: i32, read: &dyn Fn(i32, &str) -> Option<Vec<u8>>) -> Option<Inside> {
    if variable {
        return Some(Inside::Variable);
    }
    if is_marked(hard) {
        return Some(Inside::Marked);
    }
    match chain(parent, read) {
        Chain::Keeper(pid) => Some(Inside::Keeper(pid)),
        Chain::TooLong(pid) => Some(Inside::Hidden(pid)),
        Chain::None => None,
    }
}

/// The keeper among a process and its parents. The end of a chain that is too long counts as a keeper.
pub(crate) fn keeper_above(pid: i32, read: &dyn Fn(i32, &str) -> Option<Vec<u8>>) -> Option<i32> {
    match chain(pid, read) {
        Chain::Keeper(pid) | Chain::TooLong(pid) => Some(pid),
        Chain::None => None,
    }
}

/// The result of following a chain of parents.
enum Chain {
    None,
    Keeper(i32),
    TooLong(i32),
}

fn chain(mut pid: i32, read: &dyn Fn(i32, &str) -> Option<Vec<u8>>) -> Chain {
    for _ in 0..PARENTS {
        // The first process, or a process outside of this pid namespace.
        if pid <= 1 {
            return Chain::None;
        }
        if read(pid, "cmdline").is_some_and(|line| is_keeper(&line)) {
            return Chain::Keeper(pid);
        }
        match read(pid, "stat").as_deref().and_then(parent_of) {
            Some(above) => pid = above,
            // /proc may show only the user's own processes. Without the mark, the hidden process is then the parent of
            // the shell.
            None => return Chain::None,
        }
    }
    Chain::TooLong(pid)
}

/// The pid of the parent, from `/proc/PID/stat`: after the name, which may contain any character.
pub(crate) fn parent_of(stat: &[u8]) -> Option<i32> {
    let after = stat.iter().rposition(|&byte| byte == b')')? + 1;
    str::from_utf8(stat.get(after..)?).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    /// B7: each sign alone is enough, and outside there is none.
    #[test]
    fn each_sign_is_enough_and_outside_there_is_none() {
        // Pid, parent, command line.
        let machine = [
            (10, 1, "bash\0"),
            (11, 10, "sh\0-c\0make\0"),
            (20, 1, "harnessd\0--on-demand\0"),
            (21, 20, "harnessd\0keeper\0mark=4\0"),
            (22, 21, "sh (a) S 1\0"),
            (23, 22, "env\0"),
            (30, 1, "/proc/self/exe\0keeper\0"),
            (31, 30, "sh\0"),
            (40, 41, "a\0"),
            (41, 40, "b\0"),
            (50, 49, "its parent is not shown\0"),
        ];
        let machine: BTreeMap<i32, (i32, &str)> =
            machine.into_iter().map(|(pid, up, line)| (pid, (up, line))).collect();
        let read = |pid: i32, file: &str| {
            let (parent, line) = machine.get(&pid)?;
            Some(if file == "stat" {
                format!("{pid} ({line}) S {parent} 1 1").into()
            } else {
                line.as_bytes().to_vec()
            })
        };
        let none = u64::MAX;
        let table = [
            ((false, none, 10), None),
            ((false, none, 11), None),
            ((false, none, 1), None),
            ((false, none, 0), None),
            ((false, none, 20), None),
            ((false, none, 50), None),
            ((true, none, 10), Some(Inside::Variable)),
            ((false, 7, 10), Some(Inside::Marked)),
            ((false, (1 << 62) - 1, 1), Some(Inside::Marked)),
            ((false, none, 21), Some(Inside::Keeper(21))),
            ((false, none, 23), Some(Inside::Keeper(21))),
            ((false, none, 31), Some(Inside::Keeper(30))),
            ((false, none, 40), Some(Inside::Hidden(40))),
        ];
        for ((variable, hard, parent), expected) in table {
            assert_eq!(signs(variable, hard, parent, &read), expected, "{variable} {hard} {parent}");
        }
    }
}
