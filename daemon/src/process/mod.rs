//! Processes: a command from its start until nothing of it is left.
//!
//! ```text
//! start ──▶ running ──ended──▶ draining (2 s) ──closed──▶ done; who is left of the group lives on with the run
//!              │                    └──held open──▶ ending ──▶ done; who was left has been ended
//!              └─time limit, cancel──▶ ending: SIGTERM, 2 s, SIGKILL, until the group is gone ──▶ draining
//! ```
//!
//! Owns spawning, capture, signals and the knowledge of which process belongs to which run. Knows no tool and no envelope, decides
//! nothing about a run, and keeps no task of its own while a command runs.

mod cancel;
mod capture;
mod group;
mod lineage;
mod outputs;
mod spawn;
mod stat;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::id::RunId;
use nix::sys::signal::Signal;
use tokio::time::{sleep, timeout};
use wait4::ResUse;

pub use self::cancel::{Cancel, Canceller, Stop, canceller};
pub use self::capture::{Captured, OnPiece};
pub use self::lineage::{Lineage, RUN_VARIABLE};
pub use self::outputs::{CallOutputs, Outputs, Range};
pub use self::spawn::{Launch, SpawnError, expect_children};

use self::capture::Pipes;
use self::group::{GRACE, KILL_WAIT};
use self::spawn::{Leader, Spawned};

/// How long pipes may stay open after the process has ended.
const DRAIN: Duration = Duration::from_secs(2);

/// Within what a command runs.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Time until it is ended.
    pub timeout: Duration,
    /// Bytes of each stream that are kept in memory.
    pub keep: usize,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How; `None` where the end was not seen: not even SIGKILL ended it in time.
    pub end: Option<End>,
    /// The time limit ended it.
    pub timed_out: bool,
    /// A cancel ended it.
    pub cancelled: bool,
    /// It left others of its group behind that held its output open, and these were ended.
    pub children_ended: bool,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End {
    /// Its own exit code, or 128 and the signal.
    pub code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// CPU time of it and of those that it waited for.
    pub cpu: Duration,
    /// The largest resident size among these, in bytes.
    pub max_rss_bytes: u64,
}

impl End {
    fn new(used: &ResUse) -> Self {
        let signal = used.status.signal();
        let code = u8::try_from(code(used.status)).unwrap_or(u8::MAX);
        Self { code, signal, cpu: used.rusage.utime + used.rusage.stime, max_rss_bytes: used.rusage.maxrss }
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(i32::from(u8::MAX))
}

/// Why the running ended.
enum Why {
    Ended,
    TimeLimit,
    Cancel(Stop),
}

/// Runs a command for `run` to its end. Dropped before, its group is killed.
///
/// # Errors
/// Where it did not start.
pub async fn run(
    launch: Launch<'_>,
    bounds: Bounds,
    run: RunId,
    lineage: &Arc<Lineage>,
    outputs: &CallOutputs<'_>,
    cancel: &mut Cancel,
    on_piece: OnPiece<'_>,
) -> Result<Finished, SpawnError> {
    let (entry, spawned) = lineage.enter(run, || spawn::spawn(launch).map(|s| (s.leader.group(), s)))?;
    let Spawned { mut leader, stdout, stderr } = spawned;
    let mut pipes = Pipes::new(stdout, stderr, bounds.keep, outputs, on_piece);

    let why = pipes
        .while_waiting_for(async {
            tokio::select! {
                biased;
                () = leader.ended() => Why::Ended,
                stop = cancel.wanted() => Why::Cancel(stop),
                () = sleep(bounds.timeout) => Why::TimeLimit,
            }
        })
        .await;
    match why {
        Why::Ended => {}
        Why::TimeLimit => pipes.while_waiting_for(end_all(&mut leader, cancel, Stop::Gently)).await,
        Why::Cancel(stop) => pipes.while_waiting_for(end_all(&mut leader, cancel, stop)).await,
    }
    // Most commands close their pipes by ending: these need no clock.
    let mut children_ended = false;
    if pipes.are_open() && !closed(&mut pipes, cancel).await && leader.group().is_alive() {
        children_ended = true;
        pipes.while_waiting_for(end_all(&mut leader, cancel, Stop::Gently)).await;
    }
    let (stdout, stderr) = pipes.finish();
    if leader.is_reaped() && leader.group().is_alive() {
        entry.leave_orphans();
    }
    Ok(Finished {
        end: leader.used().map(End::new),
        timed_out: matches!(why, Why::TimeLimit),
        cancelled: matches!(why, Why::Cancel(_)),
        children_ended,
        stdout,
        stderr,
    })
}

/// Whether the pipes close in time. A cancel does not wait for what background children may still write.
async fn closed(pipes: &mut Pipes<'_>, cancel: &mut Cancel) -> bool {
    tokio::select! {
        biased;
        drained = timeout(DRAIN, pipes.drain()) => drained.is_ok(),
        _ = cancel.wanted() => false,
    }
}

/// Ends the leader and its group, and waits until nobody is left, or until even SIGKILL has not helped for a while.
async fn end_all(leader: &mut Leader, cancel: &mut Cancel, stop: Stop) {
    if stop != Stop::AtOnce {
        leader.signal_group(Signal::SIGTERM);
        tokio::select! {
            biased;
            () = all_gone(leader) => return,
            () = cancel.forced() => {}
            () = sleep(GRACE) => {}
        }
    }
    leader.signal_group(Signal::SIGKILL);
    if timeout(KILL_WAIT, all_gone(leader)).await.is_err() {
        tracing::error!(group = leader.group().0, "processes of a call live on after SIGKILL");
    }
}

async fn all_gone(leader: &mut Leader) {
    leader.ended().await;
    leader.group().gone().await;
}

/// Ends what earlier calls of `run` have left behind. Does nothing, at no cost, where that is nothing.
pub async fn release(run: RunId, lineage: &Lineage, force: bool) {
    for group in lineage.orphaned(run) {
        if group.end(force).await {
            lineage.forget_group(group);
        } else {
            tracing::error!(group = group.0, %run, "background processes of a run live on after SIGKILL");
        }
    }
    lineage.forget_run(run);
}

/// Forgets a run that has left nothing behind and starts nothing more.
pub fn forget(run: RunId, lineage: &Lineage) {
    lineage.forget_run(run);
}

/// Whether earlier calls of `run` may have left something behind.
pub fn has_orphans(run: RunId, lineage: &Lineage) -> bool {
    !lineage.orphaned(run).is_empty()
}

/// The runs whose earlier calls left something behind.
pub fn runs_with_orphans(lineage: &Lineage) -> Vec<RunId> {
    lineage.runs_with_orphans()
}

#[cfg(test)]
mod tests;
