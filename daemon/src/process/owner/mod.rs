//! Finds the owner of a process, a run or an operator, by following the chain of its parents to its end.
//!
//! A process whose chain cannot be followed to the end has no rights. The end is the first process of this machine, or
//! of this pid namespace. A keeper on the way makes the process part of a run. If the keeper serves no run, the process
//! has no rights; nor if the keeper belongs to another daemon, unless this daemon is below that keeper as well. A child
//! of the daemon that is not a keeper has lost its keeper, and has no rights.
//!
//! A pid may be reused while the process is looked at. So the caller must hold the process itself by a descriptor, and
//! say whether the pid still means it; each step to a parent is checked twice, and the parent must be the older of the
//! two. Reads `/proc`; changes nothing.

mod ancestry;
pub mod deputy;
mod ending;
pub(super) mod false_holders;
mod leftover;
#[cfg(test)]
mod marked;
pub(super) mod own_mark;
pub(super) mod reach;
pub(super) mod survivors;

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};

use harness_protocol::id::RunId;
use harness_protocol::inside_run;
use nix::errno::Errno;

pub(super) use self::ancestry::KeeperAbove;
use super::tree::proc_stat::Stat;

/// Longest chain of parents that is followed, so that a look has a bound. A process below a longer one has no rights.
pub(super) const LONGEST: usize = 256;
/// Attempts at following a chain that changes meanwhile.
const ATTEMPTS: usize = 8;

/// The owner of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lineage {
    /// Of no run: its chain of parents reaches the first process without passing a keeper.
    Outside,
    /// A process of a call of another daemon's run: the call that this daemon was started in, or a call above that.
    Beside,
    /// A process of this run.
    Of(RunId),
    /// The owner is unknown, or is a run that this daemon does not serve.
    Unknown(Untraced),
}

/// Why the owner of a process is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Untraced {
    /// It has no pid in our namespace.
    #[error("it is of another pid namespace")]
    NoNumber,
    /// It had ended before it could be looked at.
    #[error("its process has ended")]
    Gone,
    /// It is below a keeper that serves no run.
    #[error("it was left by a run that is over")]
    FreeKeeper,
    /// It is below another daemon's keeper.
    #[error("it belongs to a run of another daemon")]
    OtherDaemon,
    /// This daemon is inside a run itself, and the process is below another keeper of that run's daemon.
    #[error("this daemon was itself started by a call of a run, and it belongs to another call")]
    OtherCall,
    /// It has a mark, like this daemon, and no keeper is above it.
    #[error(
        "it and this daemon both have the limit of file locks that runs get, and no keeper above says that they are \
         of the same call (start the daemon from where that limit is unlimited, as a new login has it)"
    )]
    BothMarked,
    /// `/proc` cannot be read at all.
    #[error("this daemon cannot read /proc ({0})")]
    NoProc(Errno),
    /// It is below this daemon and below no keeper.
    #[error("it was left by a run whose keeper is gone")]
    LostKeeper,
    /// It has the mark of a run, and nothing above it tells which run.
    #[error("it was started by a run")]
    Marked,
    /// A process that is not outside all runs traces it as a debugger.
    #[error("a process of a run traces it")]
    Steered,
    /// `/proc` does not show one of its parents.
    #[error("its parents are hidden (/proc is mounted with hidepid)")]
    Hidden,
    /// Its chain of parents is too long.
    #[error("it has more than {LONGEST} parents")]
    TooDeep,
    /// Its chain changed each time that it was followed.
    #[error("its parents change too fast")]
    Unsteady,
}

/// The facts about the machine that tracing needs; the tests have machines of their own.
pub(super) struct Machine<'a> {
    /// Pid of the daemon.
    pub(super) own: i32,
    /// The present state of a process.
    pub(super) stat: &'a dyn Fn(i32) -> Option<Stat>,
    /// The run that a keeper of ours serves; `None` for other processes.
    pub(super) keeper: &'a dyn Fn(i32) -> Option<Option<RunId>>,
    /// Whether the first process is the keeper of another daemon, and the second that daemon.
    pub(super) is_other_keeper: &'a dyn Fn(i32, i32) -> bool,
    /// The keepers of other daemons that are above this daemon.
    pub(super) above: &'a [KeeperAbove],
    /// The longest chain of parents that is followed.
    pub(super) longest: usize,
}

/// The chain was different at the second look.
struct Changed;

impl Machine<'_> {
    /// The owner of process `pid`. `is_it` tells whether that pid still means the same process.
    pub(super) fn trace(&self, pid: i32, is_it: &dyn Fn() -> bool) -> Lineage {
        for _ in 0..ATTEMPTS {
            let Some(first) = (self.stat)(pid) else { return Lineage::Unknown(Untraced::Gone) };
            if !is_it() {
                return Lineage::Unknown(Untraced::Gone);
            }
            if let Ok(lineage) = self.follow(pid, first) {
                return lineage;
            }
        }
        Lineage::Unknown(Untraced::Unsteady)
    }

    fn follow(&self, pid: i32, first: Stat) -> Result<Lineage, Changed> {
        let (mut pid, mut here) = (pid, first);
        if pid == self.own {
            return Ok(Lineage::Outside);
        }
        for _ in 0..self.longest {
            if let Some(served) = (self.keeper)(pid) {
                return Ok(served.map_or(Lineage::Unknown(Untraced::FreeKeeper), Lineage::Of));
            }
            if self.above.contains(&(pid, here.started)) {
                return Ok(Lineage::Beside);
            }
            let parent = here.parent;
            if (self.is_other_keeper)(pid, parent) {
                let why = if self.above.is_empty() { Untraced::OtherDaemon } else { Untraced::OtherCall };
                return Ok(Lineage::Unknown(why));
            }
            if parent == self.own {
                return Ok(Lineage::Unknown(Untraced::LostKeeper));
            }
            let above = if pid == 1 || parent == 0 { None } else { (self.stat)(parent) };
            // If a process has the same parent at both looks, that parent has lived all the while.
            let still = (self.stat)(pid).filter(|again| again.parent == parent && again.started == here.started);
            let Some(again) = still else { return Err(Changed) };
            match above {
                None if pid == 1 => return Ok(Lineage::Outside),
                // Its parent is outside of this pid namespace. A process that is just being reaped shows no parent
                // either.
                None if parent == 0 && again.dead => return Err(Changed),
                None if parent == 0 => return Ok(Lineage::Outside),
                None => return Ok(Lineage::Unknown(Untraced::Hidden)),
                Some(above) if above.started > here.started => return Err(Changed),
                Some(above) => (pid, here) = (parent, above),
            }
        }
        Ok(Lineage::Unknown(Untraced::TooDeep))
    }
}

/// The pid of a descriptor's process.
///
/// # Errors
/// If it is reaped, or has no pid here, or `/proc` cannot be read.
pub(super) fn number_of(process: BorrowedFd<'_>) -> Result<i32, Untraced> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()));
    number_in(info.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)))
}

fn number_in(info: Result<String, Errno>) -> Result<i32, Untraced> {
    let info = info.map_err(Untraced::NoProc)?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
    number.filter(|&pid| pid > 0).ok_or(Untraced::Gone)
}

/// Whether process `pid`, which has the mark of a run, is a keeper, and `parent` its daemon.
pub(super) fn is_keeper(pid: i32, parent: i32) -> bool {
    ancestry::is_keeper(pid, parent, &limit_of)
}

/// The hard limit that is the mark of a process; the smallest possible mark if it cannot be read.
pub(super) fn mark_of(pid: i32) -> u64 {
    limit_of(pid).unwrap_or(0)
}

/// The hard limit that is the mark of a process.
pub(super) fn limit_of(pid: i32) -> Option<u64> {
    inside_run::hard_limit(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

/// The process that traces another one, if there is one.
///
/// # Errors
/// If it cannot be told: the process has gone, or `/proc` does not say.
pub(super) fn tracer_of(pid: i32) -> Result<Option<i32>, Untraced> {
    // Bytes: the name of a process, which is among them, need not be text.
    let status = fs::read(format!("/proc/{pid}/status")).map_err(|_| Untraced::Gone)?;
    tracer_in(&status).ok_or(Untraced::Gone)
}

fn tracer_in(status: &[u8]) -> Option<Option<i32>> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"TracerPid:"))?;
    let tracer: i32 = str::from_utf8(line).ok()?.trim().parse().ok()?;
    Some((tracer > 0).then_some(tracer))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::cell::{Cell, RefCell};
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_tracer_is_found_whatever_the_name_of_its_process_is() {
        for name in [&b"sh"[..], b"\xff\xfe", b"a\\nTracerPid:\\t0", b""] {
            for (tracer, found) in [("0", Some(None)), ("77", Some(Some(77))), ("x", None)] {
                let status =
                    [b"Name:\t", name, b"\nUmask:\t0022\nTracerPid:\t", tracer.as_bytes(), b"\nUid:\t0\n"].concat();
                assert_eq!(tracer_in(&status), found, "{name:?} {tracer}");
            }
        }
        assert_eq!(tracer_in(b"Name:\tsh\n"), None);
    }

    const RUN: RunId = RunId::from_u64(7);
    const DAEMON: i32 = 50;
    const KEEPER: i32 = 60;
    const FREE: i32 = 61;
    const FOREIGN: i32 = 62;

    fn process(parent: i32, started: u64) -> Stat {
        Stat { dead: false, parent, group: 1, session: 1, has_terminal: false, started }
    }

    /// Additional processes: pid, parent, start time.
    type More = Vec<(i32, i32, u64)>;

    /// The processes of a machine.
    fn machine(more: &[(i32, i32, u64)]) -> HashMap<i32, Stat> {
        let fixed = [(1, 0, 0), (DAEMON, 1, 5), (KEEPER, DAEMON, 6), (FREE, DAEMON, 6), (FOREIGN, 1, 6), (40, 1, 2)];
        fixed.iter().chain(more).map(|&(pid, parent, started)| (pid, process(parent, started))).collect()
    }

    fn trace_with(stat: &dyn Fn(i32) -> Option<Stat>, pid: i32, is_it: &dyn Fn() -> bool) -> Lineage {
        trace_below(&[], stat, pid, is_it)
    }

    /// The owner of a process, for a daemon with these keepers above it.
    fn trace_below(
        above: &[KeeperAbove],
        stat: &dyn Fn(i32) -> Option<Stat>,
        pid: i32,
        is_it: &dyn Fn() -> bool,
    ) -> Lineage {
        let keeper = |pid| match pid {
            KEEPER => Some(Some(RUN)),
            FREE => Some(None),
            _ => None,
        };
        let is_other_keeper = |pid, _| [FOREIGN, 63].contains(&pid);
        Machine { own: DAEMON, stat, keeper: &keeper, is_other_keeper: &is_other_keeper, above, longest: LONGEST }
            .trace(pid, is_it)
    }

    fn trace(more: &[(i32, i32, u64)], pid: i32) -> Lineage {
        let processes = machine(more);
        trace_with(&|pid| processes.get(&pid).copied(), pid, &|| true)
    }

    /// A1: a process whose chain cannot be followed to the end is not an operator.
    #[test]
    fn only_a_chain_that_ends_outside_without_a_keeper_is_an_operators() {
        let unknown = Lineage::Unknown;
        let deep: Vec<_> = (1_000..2_000).map(|pid| (pid, if pid == 1_000 { 40 } else { pid - 1 }, 9)).collect();
        let table: [(&str, More, i32, Lineage); 17] = [
            ("a shell's child", vec![(100, 40, 9)], 100, Lineage::Outside),
            ("its parent has exited: it is the first process's", vec![(100, 1, 9)], 100, Lineage::Outside),
            ("its parent is outside of this pid namespace", vec![(100, 0, 9)], 100, Lineage::Outside),
            ("it began with its parent, in the same tick", vec![(100, 40, 2)], 100, Lineage::Outside),
            ("the first process", vec![], 1, Lineage::Outside),
            ("who started the daemon", vec![], 40, Lineage::Outside),
            ("a child of a keeper", vec![(100, KEEPER, 9)], 100, Lineage::Of(RUN)),
            ("far below a keeper", vec![(100, KEEPER, 9), (101, 100, 9), (102, 101, 10)], 102, Lineage::Of(RUN)),
            ("the keeper itself", vec![], KEEPER, Lineage::Of(RUN)),
            ("below a free keeper", vec![(100, FREE, 9), (101, 100, 9)], 101, unknown(Untraced::FreeKeeper)),
            ("below another daemon's keeper", vec![(100, FOREIGN, 9)], 100, unknown(Untraced::OtherDaemon)),
            ("left by a keeper that was killed", vec![(100, DAEMON, 9)], 100, unknown(Untraced::LostKeeper)),
            ("below one that was left", vec![(100, DAEMON, 9), (101, 100, 9)], 101, unknown(Untraced::LostKeeper)),
            ("gone", vec![], 100, unknown(Untraced::Gone)),
            ("its parent is not shown", vec![(100, 99, 9)], 100, unknown(Untraced::Hidden)),
            (
                "its parent is younger: another has the number",
                vec![(99, 40, 11), (100, 99, 9)],
                100,
                unknown(Untraced::Unsteady),
            ),
            ("without end", deep, 1_999, unknown(Untraced::TooDeep)),
        ];
        for (what, more, pid, expected) in table {
            assert_eq!(trace(&more, pid), expected, "{what}");
        }
        assert_eq!(trace(&[(100, 101, 9), (101, 100, 9)], 100), unknown(Untraced::TooDeep), "a ring");
    }

    /// A daemon that was started by a call accepts as operators the processes below the same keeper, and never
    /// processes below another keeper.
    #[test]
    fn beside_a_daemon_inside_a_run_are_processes_below_the_same_keeper_only() {
        let more = [(63, 1, 4), (100, FOREIGN, 9), (101, 63, 9), (102, KEEPER, 9), (103, 100, 10), (104, 40, 9)];
        let processes = machine(&more);
        let other = Lineage::Unknown(Untraced::OtherCall);
        let same: &[KeeperAbove] = &[(FOREIGN, 6)];
        let table: [(&str, &[KeeperAbove], i32, Lineage); 8] = [
            ("below the same keeper", same, 100, Lineage::Beside),
            ("far below it", same, 103, Lineage::Beside),
            ("below another one", same, 101, other),
            ("below one that has its number by now", &[(FOREIGN, 5)], 100, other),
            ("below the second one above", &[(63, 4), (FOREIGN, 6)], 100, Lineage::Beside),
            ("below a keeper of its own", same, 102, Lineage::Of(RUN)),
            ("below none", same, 104, Lineage::Outside),
            ("where none is above the daemon", &[], 100, Lineage::Unknown(Untraced::OtherDaemon)),
        ];
        for (what, above, pid, expected) in table {
            let lineage = trace_below(above, &|pid| processes.get(&pid).copied(), pid, &|| true);
            assert_eq!(lineage, expected, "{what}");
        }
    }

    #[test]
    fn where_proc_cannot_be_read_it_is_said_so() {
        for (errno, words) in [
            (Errno::EACCES, "this daemon cannot read /proc (EACCES: Permission denied)"),
            (Errno::ENOENT, "this daemon cannot read /proc (ENOENT: No such file or directory)"),
            (Errno::EPERM, "this daemon cannot read /proc (EPERM: Operation not permitted)"),
            (Errno::EMFILE, "this daemon cannot read /proc (EMFILE: Too many open files)"),
            (Errno::EIO, "this daemon cannot read /proc (EIO: I/O error)"),
        ] {
            assert_eq!(number_in(Err(errno)).unwrap_err().to_string(), words);
        }
        assert_eq!(number_in(Ok("pos:\t0\nPid:\t-1\n".to_owned())), Err(Untraced::Gone));
        assert_eq!(number_in(Ok("pos:\t0\nPid:\t17\n".to_owned())), Ok(17));
    }

    #[test]
    fn a_pid_that_means_another_process_has_no_owner() {
        let processes = machine(&[(100, 40, 9)]);
        let lineage = trace_with(&|pid| processes.get(&pid).copied(), 100, &|| false);
        assert_eq!(lineage, Lineage::Unknown(Untraced::Gone));
    }

    /// The chain changes between two looks, at each of the first few looks: at no moment does a process below a keeper
    /// become an operator.
    #[test]
    fn a_chain_that_changes_while_it_is_followed_makes_no_process_an_operator() {
        type Change = fn(&mut HashMap<i32, Stat>);
        let changes: [(&str, Change); 6] = [
            ("the parent exits, and the keeper has it", |all| {
                all.remove(&101);
                all.insert(102, process(KEEPER, 10));
            }),
            ("the parent exits, and another one gets its number", |all| {
                all.insert(101, process(40, 20));
                all.insert(102, process(KEEPER, 10));
            }),
            ("the keeper is killed, and the daemon has it", |all| {
                all.remove(&KEEPER);
                all.insert(100, process(DAEMON, 8));
            }),
            ("the process exits", |all| {
                all.remove(&102);
            }),
            ("it exits, and another one gets its number", |all| {
                all.insert(102, process(40, 30));
            }),
            ("all that is between them exits", |all| {
                all.remove(&100);
                all.remove(&101);
                all.insert(102, process(KEEPER, 10));
            }),
        ];
        for (what, change) in changes {
            for moment in 0..12 {
                let all = RefCell::new(machine(&[(100, KEEPER, 8), (101, 100, 9), (102, 101, 10)]));
                let looks = Cell::new(0);
                let stat = |pid: i32| {
                    if looks.replace(looks.get() + 1) == moment {
                        change(&mut all.borrow_mut());
                    }
                    all.borrow().get(&pid).copied()
                };
                // The descriptor tells whether the pid still means the same process.
                let is_it = || all.borrow().get(&102).is_some_and(|stat| stat.started == 10);
                let lineage = trace_with(&stat, 102, &is_it);
                assert_ne!(lineage, Lineage::Outside, "{what}, at look {moment}");
            }
        }
    }

    #[test]
    fn a_descriptor_has_a_number_until_its_process_is_reaped() {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        use std::os::fd::AsFd;
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        assert_eq!(number_of(process.as_fd()), Ok(pid));
        child.wait().unwrap();
        assert_eq!(number_of(process.as_fd()), Err(Untraced::Gone));
    }
}
