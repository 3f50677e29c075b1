//! Ends processes that hold the locks of a daemon without a right to them: a run has taken the locks, and has killed
//! the daemon that had them. No daemon could start any more.
//!
//! ```text
//!   who took the lock lives ─┬─▶ is a daemon, or may be one: it keeps the lock, and we do not start
//!                            └─▶ is inside of a run: ended
//!   who took it is dead ─┬─▶ others show that they have it: ended, if they are inside of a run
//!                        └─▶ none shows it, and it is held: what was left is ended
//!                               1. what hides files   2. all that was left   3. what looks like a daemon
//! ```
//!
//! The only place with the order in which processes are ended to free a lock: first those of which more is known (for
//! root, at last also what was left under other users). The kernel's list of locks names the process that took a lock.
//! That process may be dead, while others have inherited the lock and show it nowhere: as a file that is registered
//! with an `io_uring`, as a message that no socket has received, or because each of them has forked and exited before
//! it can be looked at. So after each step the lock itself is asked, and nothing more is ended once it is free. Must
//! not end what belongs to a living daemon outside of all runs; a process that may be an operator's is only named
//! ([`super::leftover`]). A start calls it where it did not get a lock, and then tries again.
//!
//! No content of a file proves anything, neither that of a lock file nor that of the journal: any process of the user
//! can write it. So a start from outside of all runs takes every holder inside of a run for a false one, also a daemon
//! that a run has started, whatever the directory says of itself.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use harness_files::{Opening, locks, open_regular};
use harness_protocol::inside_run;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Signal;

use super::ending::{self, Ended, Machine, Meant};
use super::leftover::Kin;
use super::limit_of;
use super::own_mark::Standing;
use super::reach::{OutOfReach, Reach, Sent};
use super::survivors::Marks;
use crate::process::tree::proc_stat::stat;
use crate::process::unkillable::{self, Step, Stuck};
use crate::timed_read;

/// Number and interval of looks whether killed processes are gone: 5 s together, longer than it takes to give one up.
const TRIES: u32 = 250;
const PAUSE: Duration = Duration::from_millis(20);
/// How often all is looked at for a lock that none shows: what forks and exits all the time may escape one look.
const ROUNDS: usize = 5;
/// How long a look at the files of one process may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often the list of locks is read.
const LOOKS_AT_LOCKS: u32 = 2;
/// Processes that are named at most.
const MOST_NAMED: usize = 20;

/// The outcome of an attempt to free a lock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Pids of the processes that were ended. If there are any, another attempt at the lock may succeed.
    pub ended: BTreeSet<i32>,
    /// None was ended, and the lock is free meanwhile: another attempt at it may succeed.
    pub is_free: bool,
    /// If none was ended, and the process that took the lock is dead: pids of processes that may hold it, and are not
    /// ended, because they may be an operator's whose limit a run has lowered.
    pub may_hold: Vec<i32>,
    /// If none was ended: processes of runs that hold it or may hold it, and that this process may not end.
    pub out_of_reach: BTreeSet<OutOfReach>,
    /// If none was ended: processes that hold it or may hold it, were killed, and do not end; and what ends them.
    pub stuck: Option<String>,
}

impl Freed {
    /// Whether another attempt at the lock may succeed.
    pub fn may_succeed(&self) -> bool {
        self.is_free || !self.ended.is_empty()
    }

    fn of(ended: Ended) -> Self {
        let stuck = (!ended.stuck.is_empty()).then(|| unkillable::told(&ended.stuck));
        Self { ended: ended.pids, out_of_reach: ended.out_of_reach, stuck, ..Self::default() }
    }
}

/// Ends processes that hold a lock of a state directory (its lock file or the directory itself), although they are
/// inside a run of its daemon, or inside any run where this process is outside of all: a daemon that a run has started
/// on it among them. To be called where an attempt at the lock has failed. Blocks for some seconds at most.
pub fn end_false_holders(state_dir: &Path, lock_file: &Path, standing: &Standing) -> Freed {
    let Ok(marks) = Marks::new(state_dir, standing) else { return Freed::default() };
    let is_of_runs = |hard: u64| inside_run::is_mark_of(hard, marks.name) && hard <= marks.runs;
    // A process with a smaller mark than that of a daemon outside all runs is none, and may have lowered its own limit
    // further.
    let is_below = |hard: u64| !standing.is_inside() && hard < marks.daemon;
    let is_false = |pid: i32, hard: u64| (is_of_runs(hard) || is_below(hard)) && !standing.is_own_line(pid);
    let locked = [lock_file, state_dir];
    match end_holders(&locked, &is_false) {
        Holders::None => end_left(&locked, &is_of_runs, standing),
        Holders::Others => Freed::default(),
        Holders::Ended(ended) => Freed::of(ended),
    }
}

/// Ends the processes that hold the lock beside a socket although they are inside a run, if this process is outside all
/// runs: no daemon that serves processes outside runs has a mark as small. To be called where an attempt at the lock
/// has failed. Blocks for some seconds at most.
pub fn end_false_holders_of_socket(lock_file: &Path, standing: &Standing) -> Freed {
    if standing.is_inside() {
        return Freed::default();
    }
    let smallest_of_a_daemon = inside_run::mark_below(standing.mark(), 0);
    match end_holders(&[lock_file], &|_, hard| hard < smallest_of_a_daemon) {
        Holders::None => end_left(&[lock_file], &|_| false, standing),
        Holders::Others => Freed::default(),
        Holders::Ended(ended) => Freed::of(ended),
    }
}

/// Which processes are ended to free a lock that none of them shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// What was left by our runs, and what was left and shows the lock at a close look, or hides what it has.
    Hiding,
    /// All of our user that was left.
    Left,
    /// Also what looks like a daemon whose limit was lowered. Such a daemon starts again, and loses nothing.
    LikeDaemons,
    /// For root: also what was left under other users.
    OfOthers,
}

/// Ends what dead daemons have left, until one of the locks may be free: the process that took it is dead.
fn end_left(locked: &[&Path], is_of_runs: &dyn Fn(u64) -> bool, standing: &Standing) -> Freed {
    // What is inside of a run does not see what is outside of its pid namespace.
    if standing.is_inside() {
        return Freed::default();
    }
    let files = identities(locked);
    let (mut out_of_reach, mut stuck) = (BTreeSet::new(), BTreeSet::new());
    let extents = [Extent::Hiding, Extent::Left, Extent::LikeDaemons, Extent::OfOthers];
    for extent in extents.into_iter().cycle().take(ROUNDS * extents.len()) {
        // Nothing is ended for a lock that is free: the process that had it was about to end.
        if !locked.iter().any(|path| is_held(path)) {
            return Freed { is_free: true, ..Freed::default() };
        }
        let machine = Machine::now();
        let is_within = |pid: i32| match machine.kin(pid) {
            Kin::Left => matches!(extent, Extent::Hiding | Extent::OfOthers) || ending::is_of_our_user(pid),
            Kin::LikeADaemon => extent == Extent::LikeDaemons && ending::is_of_our_user(pid),
            Kin::Outside | Kin::Living | Kin::Operators | Kin::Unseen => false,
        };
        let maybe = |pid: i32| is_within(pid) && !standing.is_own_line(pid) && !stuck.contains(&pid);
        let surely = |pid: i32| extent != Extent::Hiding || hides(pid, &files) || limit_of(pid).is_some_and(is_of_runs);
        let ended = ending::end(Meant { maybe: &maybe, surely: &surely });
        if !ended.pids.is_empty() {
            return Freed::of(ended);
        }
        out_of_reach.extend(ended.out_of_reach);
        stuck.extend(ended.stuck);
    }
    out_of_reach.retain(OutOfReach::lives);
    let is_ours = |left: &OutOfReach| limit_of(left.pid).is_some_and(is_of_runs);
    if out_of_reach.iter().any(is_ours) {
        // What other daemons' runs have left holds no lock of ours.
        out_of_reach.retain(is_ours);
    }
    stuck.retain(|&pid| lives(pid));
    let told = (!stuck.is_empty()).then(|| unkillable::told(&stuck));
    Freed { may_hold: may_hold(&files, standing), out_of_reach, stuck: told, ..Freed::default() }
}

/// Marked processes of our user that belong to no living daemon: those that hide what they have, or all where none
/// does.
fn may_hold(files: &[(u64, u64)], standing: &Standing) -> Vec<i32> {
    let machine = Machine::now();
    let is_one = |&pid: &i32| {
        let is_marked = limit_of(pid).is_some_and(inside_run::is_marked);
        is_marked
            && ending::has_our_user(pid)
            && !standing.is_own_line(pid)
            && !matches!(machine.kin(pid), Kin::Living | Kin::Outside)
    };
    let all: Vec<i32> = ending::all().filter(is_one).collect();
    let hiding: Vec<i32> = all.iter().copied().filter(|&pid| hides(pid, files)).collect();
    let named = if hiding.is_empty() { all } else { hiding };
    named.into_iter().take(MOST_NAMED).collect()
}

/// Whether any process holds a lock on a file or a directory. The lock is taken for a moment to find out.
fn is_held(path: &Path) -> bool {
    let opened = match path.is_dir() {
        true => File::open(path),
        false => open_regular(path, Opening::ReadInPlace),
    };
    opened.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK))
}

fn identities(paths: &[&Path]) -> Vec<(u64, u64)> {
    paths.iter().filter_map(|path| locks::identity_of(path)).collect()
}

/// Whether process `pid` has a lock on these files, or may have it because its descriptors cannot be read.
fn hides(pid: i32, files: &[(u64, u64)]) -> bool {
    has(pid, files) != Some(false)
}

/// [`locks::has`]. A process may keep its mappings from being read, by a thread that waits with the lock of its memory
/// for a file system of its own: it hides them.
fn has(pid: i32, files: &[(u64, u64)]) -> Option<bool> {
    let files = files.to_vec();
    timed_read::within(Path::new(&format!("/proc/{pid}/maps")), PATIENCE, move || locks::has(pid, &files)).ok()?
}

fn lives(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| !stat.dead)
}

/// The fate of processes that hold locks.
#[derive(Debug)]
enum Holders {
    /// As far as the kernel tells, no live process holds a lock.
    None,
    /// A process that is not to be ended holds a lock. No process was ended.
    Others,
    /// All of them were ended, as far as we may.
    Ended(Ended),
}

/// Whether a process, with its pid and its limit, is to be ended.
type IsMeant<'a> = &'a dyn Fn(i32, u64) -> bool;

/// Ends all processes that hold locks on these files, if all of them are to be ended, and waits for their end.
///
/// The kernel names the process that took a lock. That process may be dead, and its pid reused by now, while processes
/// that inherited the descriptor still hold the lock. Their own lists of descriptors tell it, unless they hide these.
fn end_holders(locked: &[&Path], is_meant: IsMeant<'_>) -> Holders {
    let files = identities(locked);
    // The kernel's list may leave out a line where others change meanwhile.
    let takers = (0..LOOKS_AT_LOCKS).flat_map(|_| locked.iter().flat_map(|path| locks::holders(path)));
    // A process that hides its descriptors is taken to have the lock that it took, and so is one that is past its end:
    // it shows none any more.
    let has_it = |pid: i32| unkillable::is_past_end(pid) || hides(pid, &files);
    let taken: Vec<i32> = takers.filter(|&pid| lives(pid) && has_it(pid)).collect();
    // A process whose limit cannot be read may be a daemon. One that was killed is none any more.
    let is_of_run = |pid: i32| limit_of(pid).is_some_and(|hard| is_meant(pid, hard));
    let is_meant = |pid: i32| unkillable::is_past_end(pid) || is_of_run(pid);
    if !taken.iter().all(|&pid| is_meant(pid)) {
        return Holders::Others;
    }
    let inherited = || {
        let meant = ending::all().filter(|&pid| is_meant(pid));
        meant.filter(|&pid| lives(pid) && has(pid, &files) == Some(true)).collect()
    };
    let (holders, is_it): (Vec<i32>, &dyn Fn(i32) -> bool) = match taken.is_empty() {
        false => (taken, &has_it),
        true => (inherited(), &|pid| has(pid, &files) == Some(true)),
    };
    if holders.is_empty() {
        return Holders::None;
    }
    let (mut ended, mut reach) = (Ended::default(), Reach::default());
    for &pid in &holders {
        // Checked again once the process is held by a descriptor: its pid may have been reused.
        let still = |_: &_| is_meant(pid) && is_it(pid);
        match reach.send(pid, Signal::KILL, &still) {
            Sent::Forbidden(left) => _ = ended.out_of_reach.insert(left),
            Sent::To(_) | Sent::No => _ = ended.pids.insert(pid),
        }
    }
    await_end(&mut ended, &is_of_run);
    Holders::Ended(ended)
}

/// Waits until the killed processes are gone, and ends the waits that keep those of runs. A daemon waits for what is an
/// operator's.
fn await_end(ended: &mut Ended, is_of_run: &dyn Fn(i32) -> bool) {
    let mut stuck = Stuck::default();
    for _ in 0..TRIES {
        let left: BTreeSet<i32> = ended.pids.iter().copied().filter(|&pid| lives(pid)).collect();
        if left.is_empty() {
            return;
        }
        match stuck.step(left.iter().all(|&pid| unkillable::is_past_end(pid))) {
            Step::Wait => {}
            Step::Abort => _ = unkillable::end_waits(left.into_iter().filter(|&pid| is_of_run(pid))),
            Step::GiveUp => {
                ended.pids.retain(|pid| !left.contains(pid));
                ended.stuck = left;
                return;
            }
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::fs;

    use super::*;
    use crate::process::owner::marked::{OUTSIDE_OF_ALL, STAYS, lives, marked_process, state, take_over, was_killed};

    /// A leftover that holds the locks of its daemon is ended; a live daemon and unrelated processes are not.
    #[test]
    fn a_process_inside_of_runs_with_the_locks_of_their_daemon_is_ended() {
        let from_outside = || Standing::of(OUTSIDE_OF_ALL, Vec::new());
        // A shell gives a background command another standard input.
        let inherited = "exec 3<&0; (exec sleep 100 <&3) & echo it runs >&2";
        /// Description, mark, file, command, whether the process is ended.
        type Row = (&'static str, fn(Marks) -> u64, &'static str, &'static str, bool);
        let table: [Row; 12] = [
            ("a run's process", |marks| marks.runs, "harnessd.lock", STAYS, true),
            ("on the directory", |marks| marks.runs, "", STAYS, true),
            ("which has lowered its mark", |marks| marks.runs - 1, "harnessd.lock", STAYS, true),
            ("which has lowered it to nothing", |_| 0, "", STAYS, true),
            ("which has left it to its child", |marks| marks.runs, "harnessd.lock", inherited, true),
            ("which has left the directory to its child", |marks| marks.runs, "", inherited, true),
            ("a child, and both have lowered their mark", |_| 1, "harnessd.lock", inherited, true),
            ("a daemon inside of a run", |marks| inside_run::mark_below(marks.runs, 9), "harnessd.lock", STAYS, true),
            ("one of the same name", |marks| inside_run::mark_below(marks.runs, marks.name), "", STAYS, true),
            ("the daemon", |marks| marks.daemon, "harnessd.lock", STAYS, false),
            ("a daemon of an earlier version", |_| u64::MAX, "", STAYS, false),
            ("of something else", |marks| marks.runs, "other", STAYS, false),
        ];
        for (what, mark, locked, command, expected) in table {
            let dir = state();
            for name in ["harnessd.lock", "other"] {
                File::create(dir.path().join(name)).unwrap();
            }
            let lock = take_over(dir.path()).unwrap();
            // An emptied file, as a run may leave it.
            fs::write(dir.path().join("keepers.lock"), "").unwrap();
            let daemon = File::open(dir.path().join("harnessd.lock")).unwrap();
            if locked == "other" {
                flock(&daemon, FlockOperation::NonBlockingLockExclusive).unwrap();
            }
            let mut holder = marked_process(mark(lock.marks), &dir.path().join(locked), command);
            if command == inherited {
                holder.wait().unwrap();
            }
            let lock_file = dir.path().join("harnessd.lock");
            let ended = || !end_false_holders(dir.path(), &lock_file, &from_outside()).ended.is_empty();
            assert_eq!(ended(), expected, "{what}");
            match expected {
                true => assert!(command == inherited || was_killed(&mut holder), "{what}"),
                false => assert!(lives(&mut holder), "{what}"),
            }
            assert!(!ended(), "{what}: no process is left");
        }
    }

    /// A process inside a run cannot keep the lock beside the socket, however far it has lowered its limit; any daemon
    /// outside can.
    #[test]
    fn a_process_inside_of_a_run_with_the_lock_beside_a_socket_is_ended() {
        let from_outside = Standing::of(OUTSIDE_OF_ALL, Vec::new());
        let dir = state();
        let lock = take_over(dir.path()).unwrap();
        let other = inside_run::mark_below(OUTSIDE_OF_ALL, lock.marks.name.wrapping_sub(7));
        let table = [
            ("a run's process", lock.marks.runs, true),
            ("one of another daemon's run", inside_run::mark_below(other, 9), true),
            ("which has lowered its mark", 5, true),
            ("to nothing", 0, true),
            ("a daemon", lock.marks.daemon, false),
            ("another one", other, false),
            ("the one with the smallest mark", inside_run::mark_below(OUTSIDE_OF_ALL, 0), false),
            ("one of an earlier version", OUTSIDE_OF_ALL, false),
        ];
        let path = dir.path().join("control.sock.lock");
        File::create(&path).unwrap();
        for (what, mark, expected) in table {
            let mut holder = marked_process(mark, &path, STAYS);
            let within = Standing::of(lock.marks.runs, Vec::new());
            let ended = |standing: &Standing| !end_false_holders_of_socket(&path, standing).ended.is_empty();
            assert!(!ended(&within), "{what}: no process inside ends one");
            assert_eq!(ended(&from_outside), expected, "{what}");
            assert!(if expected { was_killed(&mut holder) } else { lives(&mut holder) }, "{what}");
            assert!(!ended(&from_outside), "{what}: no process is left");
        }
    }
}
