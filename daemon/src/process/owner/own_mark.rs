//! Reads the position of this process: the mark with which it was started, and the keepers above it.
//!
//! `main` reads this once, at the very start of the process. It must not be read again: every process of the same user
//! can later lower the limit that is the mark (`prlimit` asks for the user, and for nothing else). Changes nothing.
//!
//! The marks above this process may be a forgery: a run can lower those of its operator's shell, and of the parent of
//! that shell, to the numbers of a keeper and its daemon, before the operator starts this daemon there. All processes
//! of that shell, and all runs below it, would then look like processes of one call. So a keeper above counts only
//! together with facts that no process can give another one:
//!
//! - both hide from processes of their user, as a keeper and a daemon do from their start: this a process can only do
//!   to itself, and a shell does not do it;
//! - the parent is the process that took an exclusive lock, as each daemon has one on its state directory;
//! - this process descends from both, which a process becomes by birth only.
//!
//! If one of these facts is missing, the keeper above is not believed, but the mark still counts: no process that has a
//! mark gets rights from this daemon, and the daemon serves only processes that their marks show to be outside of all
//! runs.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

use harness_files::locks;
use harness_protocol::inside_run;
use nix::sys::resource::{Resource, getrlimit};

use super::ancestry::{Look, Step, chain, keepers_above};
use super::{KeeperAbove, Untraced, limit_of};
use crate::process::tree::proc_stat::stat;

/// The position of a daemon at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    mark: u64,
    above: Vec<KeeperAbove>,
    /// This process and all processes above it; empty if the chain cannot be followed.
    chain: Vec<Step>,
}

impl Standing {
    /// Reads the position of this process. To be called once, before any wait.
    pub fn read() -> Self {
        // A limit that cannot be read counts as 0: inside all runs, without rights anywhere.
        let mark = getrlimit(Resource::RLIMIT_LOCKS).map_or(0, |(_, hard)| hard);
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        // If the chain cannot be followed to its end, no process below it is known to belong to us.
        let chain = chain(own, Look { stat: &stat, limit: &limit_of }).unwrap_or_default();
        let above = match chain.first() {
            // The limit was lowered meanwhile.
            Some(first) if first.hard != mark => Vec::new(),
            _ => keepers_above(&chain, &are_keeper_and_daemon),
        };
        Self { mark, above, chain }
    }

    /// The hard limit that is the mark, as it was at the start.
    pub(in crate::process) const fn mark(&self) -> u64 {
        self.mark
    }

    /// The keepers above, the nearest first. Empty for a daemon outside of all runs.
    pub(in crate::process) fn above(&self) -> &[KeeperAbove] {
        &self.above
    }

    /// Whether process `pid` is this process or above it.
    pub(in crate::process) fn is_own_line(&self, pid: i32) -> bool {
        u32::try_from(pid).is_ok_and(|pid| pid == std::process::id()) || self.chain.iter().any(|step| step.pid == pid)
    }

    /// The reason why a process with the hard limit `hard` has no rights, if there is one. A process that is `beside`
    /// us is below a keeper that is above us, too; any other process is below no keeper.
    ///
    /// Any process of the user can give us, at our start, the limit that a run has. So an equal limit alone proves
    /// nothing.
    pub(in crate::process) const fn objection(&self, beside: bool, hard: u64) -> Option<Untraced> {
        match (inside_run::is_marked_below(hard, self.mark), inside_run::is_marked(hard)) {
            (true, _) => Some(Untraced::Marked),
            (false, true) if !beside => Some(Untraced::BothMarked),
            (false, _) => None,
        }
    }

    /// Whether this process was started inside a run.
    pub const fn is_inside(&self) -> bool {
        inside_run::is_marked(self.mark)
    }

    /// The position of a daemon with that mark, below those keepers; without keepers it is outside all runs.
    #[cfg(test)]
    pub(in crate::process) const fn of(mark: u64, above: Vec<KeeperAbove>) -> Self {
        Self { mark, above, chain: Vec::new() }
    }
}

/// How often the kernel's list of locks is read.
const LOOKS_AT_LOCKS: u32 = 4;

/// Whether two processes, the first a child of the second, are a keeper and its daemon, by facts that are not marks.
fn are_keeper_and_daemon(keeper: i32, daemon: i32) -> bool {
    let both_are_ours = match (program_of(keeper), program_of(daemon)) {
        (Program::Hidden, Program::Hidden) => true,
        // Nothing hides from root.
        (Program::Seen(keeper), Program::Seen(daemon)) => keeper == daemon && nix::unistd::geteuid().is_root(),
        _ => false,
    };
    both_are_ours && (0..LOOKS_AT_LOCKS).any(|_| locks::takers().contains(&daemon))
}

/// The program of a process.
#[derive(Debug, PartialEq, Eq)]
enum Program {
    /// The process hides from processes of its user.
    Hidden,
    /// Device and inode.
    Seen((u64, u64)),
    /// The process is gone, or the kernel does not tell.
    Unknown,
}

fn program_of(pid: i32) -> Program {
    match fs::metadata(format!("/proc/{pid}/exe")) {
        Ok(program) => Program::Seen((program.dev(), program.ino())),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Program::Hidden,
        Err(_) => Program::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither a shell nor its parent hides, and neither took a lock as a daemon does.
    #[test]
    fn a_shell_and_its_parent_are_no_keeper_and_no_daemon() {
        let own = nix::unistd::getpid().as_raw();
        let parent = nix::unistd::getppid().as_raw();
        assert!(!are_keeper_and_daemon(own, parent));
        assert_eq!(program_of(i32::MAX), Program::Unknown);
        assert!(matches!(program_of(own), Program::Seen(_)));
    }

    /// Every process of the user can give the limit of a run to a daemon that starts. No process becomes an operator of
    /// that daemon by this.
    #[test]
    fn an_equal_limit_alone_makes_no_process_an_operator() {
        let none = u64::MAX;
        let run = inside_run::mark_below(inside_run::mark_below(none, 7), 7);
        let below = inside_run::mark_below(run, 9);
        let (marked, both) = (Some(Untraced::Marked), Some(Untraced::BothMarked));
        let table = [
            ("outside, for a daemon outside", none, false, none, None),
            ("a run, for a daemon outside", none, false, run, marked),
            ("a daemon, for a daemon outside", none, false, inside_run::mark_below(none, 7), marked),
            ("a limit of somebody's own, for a daemon outside", none, false, 0, marked),
            ("outside, for one inside", run, false, none, None),
            ("the same run, below the same keeper", run, true, run, None),
            ("the same run's mark, below no keeper", run, false, run, both),
            ("a larger mark, below no keeper", run, false, run + 1, both),
            ("a larger mark, below the same keeper", below, true, run, None),
            ("a smaller one, below the same keeper", run, true, below, marked),
            ("a smaller one, below no keeper", run, false, below, marked),
            ("any, for a daemon with the smallest", 0, false, run, both),
            ("the smallest, for a daemon with the smallest", 0, false, 0, both),
        ];
        for (what, own, beside, hard, expected) in table {
            assert_eq!(Standing::of(own, Vec::new()).objection(beside, hard), expected, "{what}");
        }
    }
}
