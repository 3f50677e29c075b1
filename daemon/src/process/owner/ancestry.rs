//! Reads the chain of parents of a process, with the mark of each process in it, and tells what these marks mean.
//!
//! The only place with the rule that recognises a keeper of another daemon: by what the kernel tells about it and about
//! its parent, never by its name or its arguments, which every process chooses for itself. Only root can raise a mark,
//! so no process inside a run can have the mark of that run's daemon. Reads `/proc`; changes nothing.
//!
//! Marks alone prove nothing about processes outside of runs: every process of a user can lower the marks of that
//! user's other processes. It can so give a shell and the shell's parent the marks of a keeper and of a daemon. So a
//! keeper above a daemon is believed only if it also shows what no process can give another one ([`super::own_mark`]).

use harness_protocol::inside_run;

use crate::process::tree::proc_stat::Stat;

/// Longest chain of parents that is followed, and number of attempts at a chain that changes meanwhile.
const LONGEST: usize = 256;
const ATTEMPTS: usize = 8;

/// A keeper, by its pid and its start time, since pids are reused.
pub(in crate::process) type KeeperAbove = (i32, u64);

/// A process of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) pid: i32,
    pub(super) started: u64,
    /// The hard limit that is its mark.
    pub(super) hard: u64,
    /// The pid of the process that began its session.
    pub(super) session: i32,
}

/// The facts that are asked of the kernel.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) stat: &'a dyn Fn(i32) -> Option<Stat>,
    pub(super) limit: &'a dyn Fn(i32) -> Option<u64>,
}

/// Why there is no chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoChain {
    /// It is longer than the longest chain that is followed.
    TooLong,
    /// A process of it is hidden or gone, or the chain changed each time that it was followed.
    Unseen,
}

/// The process `pid` and all above it, up to the first process or to the end of this pid namespace.
pub(super) fn chain(pid: i32, look: Look<'_>) -> Result<Vec<Step>, NoChain> {
    (0..ATTEMPTS).find_map(|_| follow(pid, look).transpose()).unwrap_or(Err(NoChain::Unseen))
}

/// One attempt to follow the chain; `None` if it changed meanwhile.
fn follow(pid: i32, look: Look<'_>) -> Result<Option<Vec<Step>>, NoChain> {
    let step = |pid, stat: Stat| {
        let hard = (look.limit)(pid).ok_or(NoChain::Unseen)?;
        Ok(Step { pid, started: stat.started, hard, session: stat.session })
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
        // If a process has the same parent at both looks, that parent has lived all the while.
        let again = (look.stat)(pid).ok_or(NoChain::Unseen)?;
        if again.parent != parent || again.started != here.started || above.started > here.started {
            return Ok(None);
        }
        found.push(next);
        (pid, here) = (parent, above);
    }
    Err(NoChain::TooLong)
}

/// The position on the way up a chain.
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
/// Each keeper has exactly the mark that its daemon gives to keepers. That daemon has exactly the mark that it gives
/// itself, depending on where it was started; and so on until the chain is outside all runs. The result is empty if a
/// process on the way has any other mark: a process that lowered its own mark, or outlived its daemon, is not known to
/// belong to any run. It is empty as well if `is_pair` denies that a process with the mark of a keeper (the first) and
/// its parent (the second) are a keeper and its daemon.
pub(super) fn keepers_above(chain: &[Step], is_pair: &dyn Fn(i32, i32) -> bool) -> Vec<KeeperAbove> {
    let Some((own, above)) = chain.split_first() else { return Vec::new() };
    if !inside_run::is_marked(own.hard) {
        return Vec::new();
    }
    let (mut at, mut below, mut found) = (At::Run(own.hard), own, Vec::new());
    for step in above {
        at = match at {
            At::Run(run) if step.hard == run => At::Run(run),
            At::Run(run)
                if below.pid != own.pid && inside_run::is_set_by(step.hard, run) && is_pair(below.pid, step.pid) =>
            {
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
        // The parent of the daemon is outside of this pid namespace.
        At::Daemon(daemon) if inside_run::depth(daemon) == 1 => found,
        At::Daemon(_) | At::Run(_) => Vec::new(),
    }
}

/// Whether process `pid` is a keeper, and its process `parent` the daemon of that keeper.
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

    /// By pid: parent, start time, mark.
    type Machine = HashMap<i32, (i32, u64, u64)>;

    fn chain_in(machine: &Machine, pid: i32) -> Result<Vec<Step>, NoChain> {
        let stat = |pid: i32| {
            let (parent, started, _) = machine.get(&pid)?;
            Some(Stat { dead: false, parent: *parent, group: 1, session: 1, has_terminal: false, started: *started })
        };
        chain(pid, Look { stat: &stat, limit: &|pid| machine.get(&pid).map(|process| process.2) })
    }

    fn machine() -> Machine {
        let all = [
            (1, 0, 0, NONE),
            (2, 1, 1, NONE),
            // A daemon, its keeper, a process of that keeper, and a daemon that this process has started.
            (10, 2, 5, DAEMON),
            (11, 10, 6, RUN),
            (12, 11, 7, RUN),
            (13, 12, 8, INNER),
            (14, 13, 9, INNER_RUN),
            (15, 14, 10, INNER_RUN),
            // A process that has lowered its mark, and processes that it made to look like a keeper and a daemon.
            (20, 12, 8, 5),
            (21, 20, 9, 5),
            (22, 12, 8, INNER),
            (23, 22, 9, 5),
            // Leftovers of a dead daemon: a stopped keeper, and a child of the first process.
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
            // Children of a daemon that is the first process of its namespace, or whose parent is outside of it.
            (50, 0, 1, DAEMON),
            (51, 50, 2, RUN),
            (52, 51, 3, RUN),
            (53, 0, 1, RUN),
            (54, 53, 2, RUN),
            // Processes that all have a limit which no daemon has set.
            (60, 0, 1, 65_536),
            (61, 60, 2, 65_536),
            // A hidden parent, a parent younger than its child, and a ring.
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
            let chain = chain_in(&machine, pid).unwrap();
            assert_eq!(keepers_above(&chain, &|_, _| true), expected, "{what}");
        }
    }

    /// Two processes of an operator whose marks a run has lowered to those of a keeper and its daemon are neither.
    #[test]
    fn the_marks_of_a_keeper_and_its_daemon_make_no_keeper() {
        let machine = machine();
        let below_two = chain_in(&machine, 15).unwrap();
        for (what, forged) in [("the nearest keeper", 14), ("the one above", 11)] {
            assert!(keepers_above(&below_two, &|keeper, _| keeper != forged).is_empty(), "{what}");
        }
        for (what, forged) in [("the nearest daemon", 13), ("the one above", 10)] {
            assert!(keepers_above(&below_two, &|_, daemon| daemon != forged).is_empty(), "{what}");
        }
    }

    #[test]
    fn a_keeper_has_the_mark_that_its_parent_sets() {
        let machine = machine();
        let limit = |pid: i32| machine.get(&pid).map(|process| process.2);
        for (pid, keeper) in
            [(2, false), (10, false), (11, true), (12, false), (13, false), (14, true), (21, false), (30, false)]
        {
            assert_eq!(is_keeper(pid, machine[&pid].0, &limit), keeper, "{pid}");
        }
    }
}
