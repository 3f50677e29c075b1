//! Finds the processes below a process, and sends signals to all of them.
//!
//! Reads `/proc`. A pid may be reused between a look and a signal, so each signal goes through a descriptor of the
//! process, after a second look at its parent (a stop of `kill` apart, which has another reason to be sure). Waits for
//! no process.

pub(super) mod kill;
pub(super) mod proc_stat;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::tree::proc_stat::stat;

/// A process below another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) pid: i32,
    pub(super) parent: i32,
}

/// The tree below process `root`, without the children that `spared` names and the processes below these.
#[derive(Clone, Copy)]
pub(super) struct Tree<'a> {
    pub(super) root: i32,
    pub(super) spared: &'a dyn Fn(i32) -> bool,
}

impl Tree<'_> {
    /// Everything below `root`.
    pub(super) fn below(root: i32) -> Self {
        Self { root, spared: &|_| false }
    }

    /// The processes of the tree, parents before their children. Zombies are included, except for this process's own
    /// children.
    pub(super) fn members(self) -> Vec<Member> {
        let children = Children::now();
        let member = |parent| move |pid| Member { pid, parent };
        let mut seen: HashSet<i32> = HashSet::from([self.root]);
        let first = children.of(self.root).into_iter().filter(|&pid| !(self.spared)(pid) && !waits_for_us(pid));
        let mut members: Vec<Member> = first.map(member(self.root)).filter(|member| seen.insert(member.pid)).collect();
        let mut next = 0;
        while let Some(parent) = members.get(next).map(|member| member.pid) {
            next += 1;
            members
                .extend(children.of(parent).into_iter().map(member(parent)).filter(|member| seen.insert(member.pid)));
        }
        members
    }

    /// Sends SIGTERM to all. A stopped process would not handle it, so all are continued.
    pub(super) fn terminate(self) {
        for member in self.members() {
            self.signal(member, &[Signal::TERM, Signal::CONT]);
        }
    }

    /// Signals a member. Gives whether it still belongs to the tree, and lives.
    pub(super) fn signal(self, member: Member, signals: &[Signal]) -> bool {
        let Some(pid) = Pid::from_raw(member.pid) else { return false };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        let Some(stat) = stat(member.pid).filter(|stat| !stat.dead) else { return false };
        // If its parent has died, it is the root's child now.
        let is_it = stat.parent == member.parent || stat.parent == self.root;
        for &signal in signals.iter().filter(|_| is_it) {
            // A process of another user may refuse the signal, and lives on.
            let _ = pidfd_send_signal(&process, signal);
        }
        is_it
    }
}

/// The children of processes: from the kernel's lists, or, where it has none, from a look at every process.
pub(super) enum Children {
    Listed,
    Seen(HashMap<i32, Vec<i32>>),
}

impl Children {
    /// The children now, or at each look.
    pub(super) fn now() -> Self {
        if children_are_listed() { Self::Listed } else { Self::Seen(all_children()) }
    }

    /// The children of process `pid`, zombies included.
    pub(super) fn of(&self, pid: i32) -> Vec<i32> {
        match self {
            Self::Listed => listed_children(pid),
            Self::Seen(all) => all.get(&pid).cloned().unwrap_or_default(),
        }
    }
}

/// Whether a process is a zombie of this one. There may be thousands.
fn waits_for_us(pid: i32) -> bool {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(nix::unistd::Pid::from_raw(pid)), peek).is_ok_and(|status| status != WaitStatus::StillAlive)
}

/// Whether this kernel lists the children of a process; most do.
fn children_are_listed() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

fn listed_children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let list = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let numbers = |list: String| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>();
    tasks.flatten().map(list).flat_map(numbers).collect()
}

/// The children of each process of the machine, by the pid of the parent.
fn all_children() -> HashMap<i32, Vec<i32>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let Ok(processes) = fs::read_dir("/proc") else { return children };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for (pid, stat) in pids.filter_map(|pid| Some((pid, stat(pid)?))) {
        children.entry(stat.parent).or_default().push(pid);
    }
    children
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn children_and_their_children_are_found_both_ways() {
        let mut top = Command::new("sh");
        top.args(["-c", "sh -c 'sleep 100 & echo $!; wait' & wait"]).stdout(Stdio::piped());
        let mut top = top.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(top.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        let root = i32::try_from(top.id()).unwrap();
        let members = Tree::below(root).members();
        assert_eq!(members.len(), 2);
        assert_eq!(members[1].pid, grandchild);
        let all = all_children();
        assert_eq!((&all[&root], &all[&members[0].pid]), (&vec![members[0].pid], &vec![grandchild]));
        Tree::below(root).terminate();
        assert!(top.wait().unwrap().success());
    }

    #[test]
    fn a_spared_process_is_not_touched() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let spared = i32::try_from(child.id()).unwrap();
        let without = Tree { root: own, spared: &|pid| pid == spared }.members();
        assert!(without.iter().all(|member| member.pid != spared));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
