//! Tells a process that a dead daemon has left from one that belongs to a living daemon, and from an operator's.
//!
//! Has the rule only: it is asked about one process at a time and gets its facts from the caller. It must not end a
//! process.
//!
//! Every process of a run has a mark. But a mark alone does not tell that a process was left: a run can lower the
//! limits of all processes of its user, also those of its operator's shell and of living daemons, and its own. The
//! rule uses what no process can do to another one:
//!
//! - *Parents.* A process gets its parent by birth, and loses it only to the first process or to a subreaper above. So
//!   what is below a living daemon has that daemon in its chain of parents.
//! - *Sessions.* A process is in the session that it was born into, or begins one of its own. Each keeper begins one
//!   before it starts anything. So no process of a run is in a session whose first process is unmarked: a process that
//!   is in one is an operator's whose limit a run has lowered.
//! - *A mark only gets smaller.* No process of a run has the mark of a daemon that was started outside of all runs.
//!   Such a daemon is also the process that took an exclusive lock, which a run cannot do for it.
//!
//! ```text
//!   no mark ───────────────────────────────────────────────────▶ Outside
//!   a daemon above, with the mark of one outside of all runs ──▶ Living
//!   a session that an operator has begun ──────────────────────▶ Operators   never ended, named where it matters
//!   a process above that took an exclusive lock, as a daemon ──▶ LikeADaemon ended last
//!   else ──────────────────────────────────────────────────────▶ Left
//! ```
//!
//! What cannot be told:
//!
//! - A session with a terminal whose first process has a mark, and a parent that inherits no orphans, as far as is
//!   known: an operator's shell whose limit a run has lowered looks like that, and so does a process of a run which has
//!   made a terminal for itself and was inherited by an unknown subreaper. It counts as an operator's: a shell is not
//!   to be ended by mistake. (A shell is the child of a terminal's program, of sshd or of login, not of a manager, and
//!   not of the first process of a container.)
//! - A server without a terminal that an operator has started (a server of `tmux`, a user manager) and whose limit a
//!   run has lowered looks like a process of a run that has left its parents. It counts as left. So callers end what
//!   is seen to have, or to hide, what is looked for, and only then the others.
//! - A daemon whose own limit a run has lowered looks like a process of a run that took a lock.

use harness_protocol::inside_run;

use super::ancestry::{Look, NoChain, Step, chain};

/// The owner of a process, as far as it matters after the death of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kin {
    /// It has no mark: it is outside of all runs.
    Outside,
    /// A living daemon, or a process below one.
    Living,
    /// An operator's process whose limit was lowered, or a process that looks like that.
    Operators,
    /// A process that took a lock as daemons do, with a mark that a daemon outside of all runs does not have; or a
    /// process below one.
    LikeADaemon,
    /// A dead daemon has left it.
    Left,
    /// Its parents are hidden, outside of this pid namespace, or change too fast.
    Unseen,
}

/// The facts that are asked of the kernel.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) look: Look<'a>,
    /// Whether a living process took an exclusive lock on a file. It must be asked anew each time for a process with
    /// the mark of a daemon (`true`), so that a daemon that has just started is not taken for another process.
    pub(super) took_lock: &'a dyn Fn(i32, bool) -> bool,
    /// Whether a process is known to inherit orphans: the first process of a pid namespace, or a user
    /// manager.
    pub(super) inherits: &'a dyn Fn(i32) -> bool,
}

/// The owner of process `pid`.
pub(super) fn kin(pid: i32, facts: Facts<'_>) -> Kin {
    // Most processes have no mark, and their parents need not be looked at.
    if (facts.look.limit)(pid).is_some_and(|hard| !inside_run::is_marked(hard)) {
        return Kin::Outside;
    }
    let chain = match chain(pid, facts.look) {
        Ok(chain) => chain,
        // A process of a live run is never nested as deeply.
        Err(NoChain::TooLong) => return Kin::Left,
        Err(NoChain::Unseen) => return Kin::Unseen,
    };
    let marked = chain.iter().take_while(|step| inside_run::is_marked(step.hard)).count();
    let (marked, above) = chain.split_at(marked);
    if marked.is_empty() {
        return Kin::Outside;
    }
    let is_daemon = |step: &Step| inside_run::depth(step.hard) == 1 && (facts.took_lock)(step.pid, true);
    if marked.iter().any(is_daemon) {
        return Kin::Living;
    }
    if above.is_empty() {
        // Its daemon may be outside of this pid namespace.
        return Kin::Unseen;
    }
    if marked.iter().any(|step| is_operators(step.session, facts)) {
        return Kin::Operators;
    }
    if marked.iter().any(|step| (facts.took_lock)(step.pid, false)) {
        return Kin::LikeADaemon;
    }
    Kin::Left
}

/// Whether no run has begun this session, or it looks like that of an operator's shell.
fn is_operators(session: i32, facts: Facts<'_>) -> bool {
    if session == 0 {
        // It was begun outside of this pid namespace. Keepers begin theirs where their daemon is.
        return true;
    }
    // The pid of a session is not reused as long as a process is in it.
    let Some(first) = (facts.look.stat)(session).filter(|first| first.session == session) else { return false };
    match (facts.look.limit)(session) {
        None => false,
        Some(hard) if !inside_run::is_marked(hard) => true,
        Some(_) => !first.dead && first.has_terminal && !(facts.inherits)(first.parent),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use super::*;
    use crate::process::tree::proc_stat::Stat;

    const NONE: u64 = u64::MAX;
    const DAEMON: u64 = inside_run::mark_below(NONE, 7);
    const RUN: u64 = inside_run::mark_below(DAEMON, 7);
    const INNER: u64 = inside_run::mark_below(RUN, 9);
    const INNER_RUN: u64 = inside_run::mark_below(INNER, 9);
    const OTHER: u64 = inside_run::mark_below(NONE, 8);
    const OTHER_RUN: u64 = inside_run::mark_below(OTHER, 8);

    /// Pid, parent, start time, mark, session, whether that has a terminal.
    type Row = (i32, i32, u64, u64, i32, bool);

    /// The processes that have taken exclusive locks: daemons, a process of a run, and an operator's.
    const TAKERS: [i32; 4] = [10, 13, 50, 60];

    const ROWS: [Row; 49] = [
        (1, 0, 0, NONE, 1, false),
        // A login, a shell, and a job of that shell.
        (2, 1, 1, NONE, 2, false),
        (3, 2, 2, NONE, 3, true),
        (4, 3, 3, NONE, 3, true),
        // A daemon that the shell has started, its keeper, a process of that, a daemon inside, and a run of that.
        (10, 3, 5, DAEMON, 3, true),
        (11, 10, 6, RUN, 11, false),
        (12, 11, 7, RUN, 11, false),
        (13, 12, 8, INNER, 11, false),
        (14, 13, 9, INNER_RUN, 14, false),
        (15, 14, 10, INNER_RUN, 14, false),
        // Processes of that run which have lowered their marks, one in a session of its own, one with a terminal.
        (16, 12, 8, 5, 11, false),
        (17, 16, 8, 5, 17, false),
        (18, 16, 8, 0, 18, true),
        // An orphan that the daemon has adopted.
        (19, 10, 8, RUN, 11, false),
        // A shell whose limit a run has lowered, its job, a job in a session of its own, and a login that was lowered.
        (20, 2, 3, RUN, 20, true),
        (21, 20, 4, RUN, 20, true),
        (22, 20, 4, RUN, 22, false),
        (23, 1, 2, 5, 2, false),
        (24, 23, 2, 5, 24, true),
        // A job whose limit was lowered, and one that has left its shell.
        (25, 3, 4, RUN, 3, true),
        (26, 1, 4, 5, 3, true),
        // Left by a dead daemon: a stopped keeper, what is below it, orphans, and one with a terminal of its own.
        (30, 1, 6, RUN, 30, false),
        (31, 30, 7, RUN, 30, false),
        (32, 31, 8, INNER, 30, false),
        (33, 32, 9, INNER_RUN, 33, false),
        (35, 1, 7, 5, 35, false),
        (36, 35, 8, 5, 34, false),
        (37, 1, 7, RUN, 29, false),
        (38, 1, 7, RUN, 38, true),
        // Inherited by a subreaper; with a terminal it looks like a shell.
        (40, 2, 7, 5, 40, false),
        (41, 2, 7, 5, 39, false),
        (42, 2, 7, 5, 42, true),
        // Inherited by a user manager.
        (9, 1, 2, NONE, 9, false),
        (43, 9, 7, 5, 43, true),
        // Another daemon, started for the asking, and a run of it that has lowered its marks.
        (50, 1, 5, OTHER, 50, false),
        (51, 50, 6, OTHER_RUN, 51, false),
        (52, 51, 7, 3, 52, false),
        // A daemon whose limit was lowered, and its run. Or a process of a run that plays a daemon.
        (60, 1, 5, 5, 60, false),
        (61, 60, 6, 5, 61, false),
        // A subreaper with the mark of a daemon, but without its lock; and what it has inherited.
        (62, 1, 1, OTHER, 62, false),
        (63, 62, 7, 5, 63, false),
        // A hidden parent, and a namespace in which everything has a limit.
        (70, 69, 9, RUN, 70, false),
        (80, 0, 1, 65_536, 80, false),
        (81, 80, 2, 65_536, 81, false),
        // The first process of a container, an orphan that it has inherited, one with a terminal, and what is below.
        (92, 2, 5, NONE, 92, false),
        (93, 92, 7, RUN, 93, false),
        (94, 92, 7, 5, 94, true),
        (95, 94, 8, 5, 94, true),
        // Its session was begun outside of this namespace.
        (90, 1, 3, RUN, 0, true),
    ];

    /// The owner of a process of this machine, if a lock was taken by those that `took_lock` names.
    fn kin_of(pid: i32, took_lock: &dyn Fn(i32, bool) -> bool) -> Kin {
        let machine: HashMap<i32, Row> = ROWS.map(|row| (row.0, row)).into();
        let stat = |pid: i32| {
            let &(_, parent, started, _, session, has_terminal) = machine.get(&pid)?;
            Some(Stat { dead: false, parent, group: 1, session, has_terminal, started })
        };
        let limit = |pid: i32| machine.get(&pid).map(|row| row.3);
        let inherits = |pid: i32| [1, 9, 92].contains(&pid);
        kin(pid, Facts { look: Look { stat: &stat, limit: &limit }, took_lock, inherits: &inherits })
    }

    #[test]
    fn what_a_dead_daemon_has_left_is_told_from_what_lives_and_from_an_operators() {
        let expected: [(Kin, &[i32]); 6] = [
            (Kin::Outside, &[1, 2, 3, 4, 9, 92]),
            (Kin::Living, &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 50, 51, 52]),
            (Kin::Operators, &[20, 21, 22, 23, 24, 25, 26, 42, 90]),
            (Kin::LikeADaemon, &[60, 61]),
            (Kin::Left, &[30, 31, 32, 33, 35, 36, 37, 38, 40, 41, 43, 62, 63, 93, 94, 95]),
            (Kin::Unseen, &[70, 80, 81, 1_000]),
        ];
        for (kin, pids) in expected {
            for &pid in pids {
                assert_eq!(kin_of(pid, &|pid, _| TAKERS.contains(&pid)), kin, "{pid}");
            }
        }
        let named: usize = expected.iter().map(|(_, pids)| pids.len()).sum();
        assert_eq!(named, ROWS.len() + 1, "each process is named once");
    }

    /// A daemon that has just taken its lock is not in a list that was read before.
    #[test]
    fn a_daemon_is_asked_about_anew() {
        assert_eq!(kin_of(52, &|_, anew| anew), Kin::Living);
        assert_eq!(kin_of(61, &|_, anew| anew), Kin::Left);
    }
}
