//! A process and all that is above it, each with its mark, and what the marks alone say of it.
//!
//! Owns the rule by which a keeper is known that is not one of ours: by what the kernel tells of it and of the process
//! above it, never by its name or its arguments, which every process chooses for itself. A mark only falls, so nothing
//! inside of a run has the mark of the daemon of that run, and a chain that reaches what is outside without passing
//! such a daemon was left by one that is dead. Reads `/proc`; changes nothing.

use harness_protocol::inside_run;

use crate::process::tree::proc_stat::Stat;

/// Longest chain of parents that is followed, and attempts at one that changes meanwhile.
const LONGEST: usize = 256;
const ATTEMPTS: usize = 8;

/// A keeper by its number and by when it began, since numbers are used again.
pub(in crate::process) type KeeperAbove = (i32, u64);

/// A process of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) pid: i32,
    pub(super) started: u64,
    /// Its hard limit that is the mark.
    pub(super) hard: u64,
}

/// What is asked of the kernel.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) stat: &'a dyn Fn(i32) -> Option<Stat>,
    pub(super) limit: &'a dyn Fn(i32) -> Option<u64>,
}

/// Why there is no chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoChain {
    /// It is longer than any that is followed.
    TooLong,
    /// A process of it is hidden or gone, or it changed each time that it was followed.
    Unseen,
}

/// The process `pid` and all above it, up to the first process or to the end of this pid namespace.
pub(super) fn chain(pid: i32, look: Look<'_>) -> Result<Vec<Step>, NoChain> {
    (0..ATTEMPTS).find_map(|_| follow(pid, look).transpose()).unwrap_or(Err(NoChain::Unseen))
}

/// Nothing where it changed meanwhile.
fn follow(pid: i32, look: Look<'_>) -> Result<Option<Vec<Step>>, NoChain> {
    let step = |pid, stat: Stat| {
        let hard = (look.limit)(pid).ok_or(NoChain::Unseen)?;
        Ok(Step { pid, started: stat.started, hard })
    };
    let mut here = (look.stat)(pid).ok_or(NoChain::Unseen)?;
    let mut found = vec![step(pid, here)?];
    let mut pid = pid;
    for _ in 0..LONGEST {
        let parent = here.parent;
        if pid == 1 || parent == 0 {
            return Ok(Some(found));
        }
        let above = (look.stat)(parent).ok_or(NoChain::Unseen)?;
        let next = step(parent, above)?;
        // As long as a process has the same parent at both looks, that one has lived all the while.
        let again = (look.stat)(pid).ok_or(NoChain::Unseen)?;
        if again.parent != parent || again.started != here.started || above.started > here.started {
            return Ok(None);
        }
        found.push(next);
        (pid, here) = (parent, above);
    }
    Err(NoChain::TooLong)
}

/// Where a look up a chain has come to.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Inside of a run whose processes have this mark.
    Run(u64),
    /// At a daemon with this mark.
    Daemon(u64),
    Outside,
}

/// The keepers above the first process of a chain, the nearest first.
///
/// Each has the very mark that the daemon above it sets, that one the mark which it sets itself where it was started,
/// and so on until outside of all runs. None where anything on the way has another mark: what lowered its own is not
/// known to belong to anybody, nor is what outlived its daemon.
pub(super) fn keepers_above(chain: &[Step]) -> Vec<KeeperAbove> {
    let Some((own, above)) = chain.split_first() else { return Vec::new() };
    if !inside_run::is_marked(own.hard) {
        return Vec::new();
    }
    let (mut at, mut below, mut found) = (At::Run(own.hard), own, Vec::new());
    for step in above {
        at = match at {
            At::Run(run) if step.hard == run => At::Run(run),
            At::Run(run) if below.pid != own.pid && inside_run::is_set_by(step.hard, run) => {
                found.push((below.pid, below.started));
                At::Daemon(step.hard)
            }
            At::Daemon(daemon) if inside_run::is_of_a_daemon_below(daemon, step.hard) => {
                if inside_run::is_marked(step.hard) { At::Run(step.hard) } else { At::Outside }
            }
            At::Outside if !inside_run::is_marked(step.hard) => At::Outside,
            At::Run(_) | At::Daemon(_) | At::Outside => return Vec::new(),
        };
        below = step;
    }
    match at {
        At::Outside => found,
        // Who started it is not of this pid namespace.
        At::Daemon(daemon) if inside_run::depth(daemon) == 1 => found,
        At::Daemon(_) | At::Run(_) => Vec::new(),
    }
}

/// Whether the first process of a chain was left by a daemon that is dead: it has a mark, and the last process above it
/// that has one is no daemon that was started outside of all runs.
pub(super) fn is_left(chain: Result<&[Step], NoChain>) -> bool {
    match chain {
        // A process of a run that lives does not nest as deep.
        Err(NoChain::TooLong) => true,
        Err(NoChain::Unseen) => false,
        Ok(chain) => {
            let topmost = chain.iter().rfind(|step| inside_run::is_marked(step.hard));
            topmost.is_some_and(|step| inside_run::depth(step.hard) != 1)
        }
    }
}

/// Whether process `pid` is the keeper of some daemon, which is `parent`.
pub(super) fn is_keeper(pid: i32, parent: i32, limit: &dyn Fn(i32) -> Option<u64>) -> bool {
    let marks = (limit)(pid).filter(|&hard| inside_run::is_marked(hard)).zip((limit)(parent));
    marks.is_some_and(|(run, daemon)| inside_run::is_set_by(daemon, run))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use super::*;

    const NONE: u64 = u64::MAX;
    const DAEMON: u64 = inside_run::mark_below(NONE, 7);
    const RUN: u64 = inside_run::mark_below(DAEMON, 7);
    const INNER: u64 = inside_run::mark_below(RUN, 9);
    const INNER_RUN: u64 = inside_run::mark_below(INNER, 9);

    /// Number, parent, begin, mark.
    type Machine = HashMap<i32, (i32, u64, u64)>;

    fn chain_in(machine: &Machine, pid: i32) -> Result<Vec<Step>, NoChain> {
        let stat = |pid: i32| {
            let (parent, started, _) = machine.get(&pid)?;
            Some(Stat { dead: false, parent: *parent, group: 1, session: 1, started: *started })
        };
        chain(pid, Look { stat: &stat, limit: &|pid| machine.get(&pid).map(|process| process.2) })
    }

    fn machine() -> Machine {
        let all = [
            (1, 0, 0, NONE),
            (2, 1, 1, NONE),
            // A daemon, its keeper, what that has started, and a daemon that this has started.
            (10, 2, 5, DAEMON),
            (11, 10, 6, RUN),
            (12, 11, 7, RUN),
            (13, 12, 8, INNER),
            (14, 13, 9, INNER_RUN),
            (15, 14, 10, INNER_RUN),
            // What has lowered its mark, and what it may make to look like a keeper and a daemon.
            (20, 12, 8, 5),
            (21, 20, 9, 5),
            (22, 12, 8, INNER),
            (23, 22, 9, 5),
            // What a dead daemon has left: a keeper that is stopped, and a child of the first process.
            (30, 1, 6, RUN),
            (31, 30, 7, RUN),
            (32, 31, 8, INNER),
            (33, 32, 9, INNER_RUN),
            (34, 33, 10, INNER_RUN),
            (35, 1, 7, 5),
            (36, 35, 8, 5),
            (37, 1, 7, RUN),
            // An orphan that the daemon has adopted.
            (40, 10, 8, RUN),
            // Below a daemon that is the first process of its namespace, or whose parent is outside of it.
            (50, 0, 1, DAEMON),
            (51, 50, 2, RUN),
            (52, 51, 3, RUN),
            (53, 0, 1, RUN),
            (54, 53, 2, RUN),
            // Where all have a limit that no daemon has set.
            (60, 0, 1, 65_536),
            (61, 60, 2, 65_536),
            // Hidden, younger than its child, and a ring.
            (70, 69, 9, RUN),
            (71, 15, 3, RUN),
            (80, 81, 9, RUN),
            (81, 80, 9, RUN),
        ];
        all.map(|(pid, parent, started, hard)| (pid, (parent, started, hard))).into()
    }

    #[test]
    fn a_keeper_is_known_by_marks_that_nothing_inside_of_a_run_can_have() {
        let machine = machine();
        let table: [(&str, i32, &[KeeperAbove]); 16] = [
            ("outside", 2, &[]),
            ("the daemon", 10, &[]),
            ("a keeper is not above itself", 11, &[]),
            ("below it", 12, &[(11, 6)]),
            ("the daemon inside", 13, &[]),
            ("below two", 15, &[(14, 9), (11, 6)]),
            ("what has lowered its mark", 20, &[]),
            ("below a keeper of its own making", 21, &[]),
            ("below one with the mark of a daemon", 23, &[]),
            ("below a keeper that has outlived its daemon", 31, &[]),
            ("and below a keeper that was made there", 34, &[]),
            ("below nothing any more", 36, &[]),
            ("an orphan is no keeper of itself", 40, &[]),
            ("the daemon is the first process of its namespace", 52, &[(51, 2)]),
            ("the keeper is outside of the namespace", 54, &[]),
            ("where all have a limit", 61, &[]),
        ];
        for (what, pid, expected) in table {
            assert_eq!(keepers_above(&chain_in(&machine, pid).unwrap()), expected, "{what}");
        }
    }

    #[test]
    fn what_a_dead_daemon_has_left_is_told_from_what_a_living_one_has_started() {
        let machine = machine();
        for (what, pid, left) in [
            ("outside", 2, false),
            ("a daemon", 10, false),
            ("a keeper", 11, false),
            ("a run's", 12, false),
            ("a daemon inside of a run, and its runs", 15, false),
            ("a run's, which has lowered its mark", 21, false),
            ("a keeper whose daemon is dead", 30, true),
            ("below it", 31, true),
            ("below a keeper of its own making", 34, true),
            ("without a keeper", 37, true),
            ("with a mark that was lowered", 36, true),
            ("its parent is hidden", 70, false),
            ("its parent is younger", 71, false),
            ("without end", 80, true),
        ] {
            let chain = chain_in(&machine, pid);
            assert_eq!(is_left(chain.as_deref().map_err(|why| *why)), left, "{what}");
        }
        let limit = |pid: i32| machine.get(&pid).map(|process| process.2);
        for (pid, keeper) in
            [(2, false), (10, false), (11, true), (12, false), (13, false), (14, true), (21, false), (30, false)]
        {
            assert_eq!(is_keeper(pid, machine[&pid].0, &limit), keeper, "{pid}");
        }
    }
}
