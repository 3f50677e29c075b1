//! The position of this process: the mark with which it was started, and the keepers above it.
//!
//! Owns the rule that this is read once, at the very start of the process, and never again: every process of the same
//! user can lower the limit that is the mark later (`prlimit` asks for the user, and for nothing else). Changes
//! nothing.

use harness_protocol::inside;
use nix::sys::resource::{Resource, getrlimit};

use super::{Untraced, is_keeper};
use crate::process::tree::proc_stat::{Stat, stat};

/// Longest chain of parents that is followed, and attempts at a chain that changes meanwhile.
const LONGEST: usize = 256;
const ATTEMPTS: usize = 8;

/// A keeper, by its pid and its start time, since pids are reused.
pub(in crate::process) type KeeperAbove = (i32, u64);

/// The position of a daemon at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    mark: u64,
    above: Vec<KeeperAbove>,
}

impl Standing {
    /// Reads it. To be called once, before any wait.
    pub fn read() -> Self {
        // The smallest where it cannot be read: that counts as inside of all runs, without rights anywhere.
        let mark = getrlimit(Resource::RLIMIT_LOCKS).map_or(0, |(_, hard)| hard);
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        let above = if inside::is_marked(mark) { keepers_above(own, &stat, &is_keeper) } else { Vec::new() };
        Self { mark, above }
    }

    /// The hard limit that is the mark, as it was at the start.
    pub(in crate::process) const fn mark(&self) -> u64 {
        self.mark
    }

    /// The keepers above, the nearest first. Empty for a daemon outside of all runs.
    pub(in crate::process) fn above(&self) -> &[KeeperAbove] {
        &self.above
    }

    /// What speaks against the rights of a process with the hard limit `hard`. A process that is `beside` us is below a
    /// keeper that is above us too; any other one is below no keeper.
    ///
    /// Any process of the user can give us, at our start, the limit that a run has. So an equal limit alone proves
    /// nothing.
    pub(in crate::process) const fn objection(&self, beside: bool, hard: u64) -> Option<Untraced> {
        match (inside::is_marked_below(hard, self.mark), inside::is_marked(hard)) {
            (true, _) => Some(Untraced::Marked),
            (false, true) if !beside => Some(Untraced::BothMarked),
            (false, _) => None,
        }
    }

    /// Whether this process was started inside a run.
    pub const fn is_inside(&self) -> bool {
        inside::is_marked(self.mark)
    }

    /// A daemon outside of all runs, or inside one, with that mark below those keepers.
    #[cfg(test)]
    pub(in crate::process) const fn of(mark: u64, above: Vec<KeeperAbove>) -> Self {
        Self { mark, above }
    }
}

/// Empty where the chain cannot be followed to its end: then no process below those keepers is known to belong to us.
fn keepers_above(pid: i32, stat: &dyn Fn(i32) -> Option<Stat>, is_keeper: &dyn Fn(i32) -> bool) -> Vec<KeeperAbove> {
    (0..ATTEMPTS).find_map(|_| follow(pid, stat, is_keeper)).unwrap_or_default()
}

fn follow(
    mut pid: i32,
    stat: &dyn Fn(i32) -> Option<Stat>,
    is_keeper: &dyn Fn(i32) -> bool,
) -> Option<Vec<KeeperAbove>> {
    let (mut here, mut found) = (stat(pid)?, Vec::new());
    for _ in 0..LONGEST {
        let parent = here.parent;
        if pid == 1 || parent == 0 {
            return Some(found);
        }
        let above = stat(parent)?;
        let is_it = is_keeper(parent);
        // If a process has the same parent at both looks, that parent has lived all the while.
        let again = stat(pid)?;
        if again.parent != parent || again.started != here.started || above.started > here.started {
            return None;
        }
        if is_it {
            found.push((parent, above.started));
        }
        (pid, here) = (parent, above);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn process(parent: i32, started: u64) -> Stat {
        Stat { dead: false, parent, group: 1, session: 1, started }
    }

    #[test]
    fn the_keepers_above_are_found_nearest_first_and_none_where_the_chain_cannot_be_followed() {
        let all: HashMap<i32, Stat> = [
            (1, process(0, 0)),
            (20, process(1, 5)),
            (30, process(20, 6)),
            (31, process(30, 7)),
            (40, process(31, 8)),
            (41, process(40, 9)),
            (50, process(49, 9)),
            (60, process(41, 3)),
            (70, process(1, 4)),
            (80, process(81, 9)),
            (81, process(80, 9)),
            (90, process(0, 9)),
        ]
        .into();
        let stat = |pid: i32| all.get(&pid).copied();
        let is_keeper = |pid: i32| [30, 40].contains(&pid);
        let table: [(&str, i32, &[KeeperAbove]); 9] = [
            ("below two", 41, &[(40, 8), (30, 6)]),
            ("a keeper is not above itself", 40, &[(30, 6)]),
            ("below one", 31, &[(30, 6)]),
            ("the daemon above", 20, &[]),
            ("outside", 70, &[]),
            ("its parent is not shown", 50, &[]),
            ("its parent is younger", 60, &[]),
            ("a ring", 80, &[]),
            ("the parent is of another namespace", 90, &[]),
        ];
        for (what, pid, expected) in table {
            assert_eq!(keepers_above(pid, &stat, &is_keeper), expected, "{what}");
        }
    }

    /// Every process of the user can give the limit of a run to a daemon that starts. That makes none its operator.
    #[test]
    fn an_equal_limit_alone_makes_nobody_an_operator() {
        let none = u64::MAX;
        let run = inside::mark_below(inside::mark_below(none, 7), 7);
        let below = inside::mark_below(run, 9);
        let (marked, both) = (Some(Untraced::Marked), Some(Untraced::BothMarked));
        let table = [
            ("outside, for a daemon outside", none, false, none, None),
            ("a run, for a daemon outside", none, false, run, marked),
            ("a daemon, for a daemon outside", none, false, inside::mark_below(none, 7), marked),
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
