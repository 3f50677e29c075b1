//! Ends a tree of processes by force: stops all of them, then kills all.
//!
//! Processes that fork and exit all the time are gone before they can be looked at twice. A stopped process makes no
//! other one, and no process can catch a stop; only a process of another user may not be reached by it. A process whose
//! parent has exited is a child of the root of the tree, and its pid cannot be reused before the root reaps it: so
//! these processes are stopped as they are listed, without another look, and their groups with them. The caller must be
//! the root. After 32 passes the stopped ones are killed, although there may be more: the caller repeats the kill.
//! Waits for no process.

use std::collections::HashSet;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid, getpgrp};
use rustix::process::Signal as Sent;

use super::{Children, Member, Tree};

/// Passes over the children of the root, and over all of the tree, before the stopped ones are killed although more
/// appear.
const PASSES: usize = 32;

/// The outcome of a [kill](Tree::kill).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::process) enum Found {
    /// There was no process.
    Empty,
    /// All processes were stopped, then killed.
    Whole,
    /// It grew faster than it was stopped: the stopped ones were killed.
    Part,
}

impl Tree<'_> {
    /// Kills all processes, once all are stopped.
    ///
    /// `reap` reaps the child of the root with that pid, if it is dead and may be reaped, and gives whether it did.
    pub(in crate::process) fn kill(self, reap: &dyn Fn(i32) -> bool) -> Found {
        let mut hunt = Hunt { tree: self, reap, stopped: Vec::new(), seen: HashSet::new(), groups: HashSet::new() };
        let is_whole = (0..PASSES).any(|_| !hunt.pass());
        // Children first: a process whose parent has died may have got another parent than the root, and would be taken
        // for a stranger.
        hunt.stopped.iter().rev().for_each(|&member| _ = self.signal(member, &[Sent::KILL]));
        match (is_whole, hunt.stopped.is_empty()) {
            (true, true) => Found::Empty,
            (true, false) => Found::Whole,
            (false, _) => Found::Part,
        }
    }
}

struct Hunt<'a> {
    tree: Tree<'a>,
    reap: &'a dyn Fn(i32) -> bool,
    /// The stopped processes, parents before their children.
    stopped: Vec<Member>,
    /// Pids of the stopped processes, and of dead ones, as long as they are not reaped.
    seen: HashSet<i32>,
    /// The stopped groups.
    groups: HashSet<Pid>,
}

/// Whether a group may be signalled: not our own, and not a number by which the kernel means our own group or all
/// processes. The number is 0 where the leader is outside of our pid namespace.
fn is_for_us(group: Pid) -> bool {
    group.as_raw() > 1 && group != getpgrp()
}

impl Hunt<'_> {
    /// Stops new processes. Gives whether there were any.
    fn pass(&mut self) -> bool {
        // Processes that lose their parents appear here, so nothing else is done before no more appear.
        let grew = (0..PASSES).find(|_| !self.stop_children_of_root()) != Some(0);
        self.take_away_the_dead();
        self.stop_below() || grew
    }

    fn stop_children_of_root(&mut self) -> bool {
        let parent = self.tree.root;
        let before = self.stopped.len();
        // The latest are listed last, and have most of their life before them. Most of the others are dead by then.
        for pid in Children::now().of(parent).into_iter().rev() {
            if !(self.tree.spared)(pid) && self.seen.insert(pid) {
                self.stop_with_group(pid);
                self.stopped.push(Member { pid, parent });
            }
        }
        self.stopped.len() > before
    }

    /// Stops a child of the root, together with its group.
    fn stop_with_group(&mut self, pid: i32) {
        let pid = Pid::from_raw(pid);
        let group = getpgid(Some(pid)).ok().filter(|&group| is_for_us(group) && self.groups.insert(group));
        if let Some(group) = group {
            let _ = killpg(group, Signal::SIGSTOP);
        }
        // If it has just left that group, or the group is stopped already, it is stopped by itself.
        if group != Some(pid) {
            let _ = kill(pid, Signal::SIGSTOP);
        }
    }

    fn take_away_the_dead(&mut self) {
        let Self { tree, reap, stopped, seen, groups: _ } = self;
        stopped.retain(|member| {
            let reaped = member.parent == tree.root && reap(member.pid);
            // Its pid may be reused now.
            !(reaped && seen.remove(&member.pid))
        });
    }

    fn stop_below(&mut self) -> bool {
        let before = self.stopped.len();
        let children = Children::now();
        let mut next = 0;
        while let Some(parent) = self.stopped.get(next).map(|member| member.pid) {
            next += 1;
            for pid in children.of(parent) {
                let member = Member { pid, parent };
                if self.seen.insert(pid) && self.tree.signal(member, &[Sent::STOP]) {
                    self.stopped.push(member);
                }
            }
        }
        self.stopped.len() > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal to group 1 reaches all processes, and group 0 is our own.
    #[test]
    fn neither_the_own_group_nor_a_false_group_is_signalled() {
        assert!(!is_for_us(getpgrp()));
        for none in [-1, 0, 1] {
            assert!(!is_for_us(Pid::from_raw(none)));
        }
        assert!(is_for_us(Pid::from_raw(i32::MAX)));
    }
}
