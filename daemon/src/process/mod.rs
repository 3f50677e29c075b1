//! Executes processes: a command from its start until no process of it is left.
//!
//! ```text
//! start ──▶ running ──ended──▶ draining (2 s at most) ──▶ done; processes that are left live on, with their pipes
//!              └─time limit, cancel──▶ ending: SIGTERM, 2 s, SIGKILL, until none is left ──▶ done
//!                                                                  └─ the kernel does not end them ──▶ given up, done
//! ```
//!
//! Calls are started by keepers ([`supervisor`]), small processes of ours that no descendant of a call can leave. The
//! only place that starts processes, captures their output, sends signals to other processes, and knows which process
//! belongs to which run. Must not know a tool or an envelope, or decide about a run. Keeps no task of its own while a
//! command executes; one task reads on for processes that live on afterwards.

mod cancel;
mod cgroup;
mod input;
mod output;
mod owner;
mod pool;
pub mod rlimits;
mod spawn;
pub mod supervisor;
mod timing;
mod tree;
mod unkillable;

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::id::RunId;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use self::cancel::{Cancel, Canceller, Stop, canceller};
pub use self::cgroup::{Grouped, Meeting};
pub use self::input::input;
pub use self::output::files::{CallOutputs, Outputs, Range};
pub use self::output::{Captured, OnPiece};
pub use self::owner::deputy;
pub use self::owner::false_holders::{Freed, end_false_holders, end_false_holders_of_socket};
pub use self::owner::own_mark::Standing;
pub use self::owner::reach::OutOfReach;
pub use self::owner::survivors::{InsideError, KeepersLock, StateOf, TakeOverError, may_mend};
pub use self::owner::{Lineage, Untraced};
pub use self::pool::connection::KeeperProgram;
pub use self::pool::sealed_program::Sealed;
pub use self::pool::{Keepers, Process};
pub use self::spawn::{Launch, Program, SpawnError, TooLong};
pub use self::supervisor::protocol::Owner;
pub use harness_protocol::inside_run::RUN_VARIABLE;

use self::output::Streams;
use self::output::pty::Terminal;
use self::pool::Parked;
use self::pool::running_call::{Heard, Held, TRIES, TooMany};
use self::supervisor::protocol::Used;

/// How much later than the daemon a keeper ends a command whose time is up, so that it does so only where the daemon
/// does not.
const KEEPER_SLACK: Duration = Duration::from_secs(1);
/// How long pipes may stay open after the process has ended.
const DRAIN: Duration = Duration::from_secs(2);
/// First and longest pause between attempts to start a call while a resource that it needs is used up.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The output of a process that ends within this time is read in one go; the runtime is not asked to watch its pipes.
const QUICK: Duration = Duration::from_millis(2);

/// Bounds of a command.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Time limit of the command.
    pub timeout: Duration,
    /// Bytes of each stream that are kept in memory.
    pub keep: usize,
}

/// The outcome of a command.
#[derive(Debug)]
pub struct Finished {
    /// How it ended; `None` if its end was not seen: not even SIGKILL ended it in time.
    pub end: Option<End>,
    /// The time limit ended it.
    pub timed_out: bool,
    /// A cancel ended it.
    pub cancelled: bool,
    /// It left processes running, and these were ended.
    pub children_ended: bool,
    /// It left processes running, and these live on.
    pub left_running: bool,
    /// The command, or another process, has killed its keeper, and so everything was ended.
    pub keeper_lost: bool,
    /// Its processes were killed and execute nothing any more, and the kernel does not end them: they wait for a file
    /// system that does not answer.
    pub stuck: bool,
    /// Whether it met the limits of its whole run.
    pub grouped: Grouped,
    /// Captured standard output; on a terminal, both streams.
    pub stdout: Captured,
    /// Captured standard error; empty on a terminal.
    pub stderr: Captured,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End {
    /// Its exit code, or 128 plus the signal.
    pub code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// CPU time of the process and of its children that it waited for.
    pub cpu: Duration,
    /// The largest resident size among these, in bytes.
    pub max_rss_bytes: u64,
}

impl End {
    fn new(used: &Used) -> Self {
        let status = ExitStatus::from_raw(used.status);
        let code = u8::try_from(code(status)).unwrap_or(u8::MAX);
        Self { code, signal: status.signal(), cpu: used.cpu, max_rss_bytes: used.max_rss_bytes }
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(i32::from(u8::MAX))
}

/// Why the wait for the command ended.
enum Why {
    Heard(Heard),
    TimeLimit,
    Cancel(Stop),
}

/// Runs a command for `run` to its end. If the future is dropped before, all processes of the command are ended.
///
/// # Errors
/// If the command did not start.
pub async fn run(
    launch: Launch<'_>,
    bounds: Bounds,
    run: RunId,
    keepers: &Arc<Keepers>,
    outputs: &CallOutputs,
    cancel: &mut Cancel,
    on_piece: OnPiece<'_>,
) -> Result<Finished, SpawnError> {
    let (mut lost, mut pause, mut waited) = (0, FIRST_PAUSE, Duration::ZERO);
    while lost < TRIES {
        match attempt(&launch, bounds, run, keepers, outputs, cancel, on_piece).await {
            Ok(Some(finished)) => return Ok(finished),
            Ok(None) => lost += 1,
            // Other processes of the user have used the resource up, which is no fault of this command. The call waits,
            // within its time limit.
            Err(SpawnError::UsedUp(error)) if waited + pause < bounds.timeout && !cancel.is_wanted() => {
                if pause == FIRST_PAUSE {
                    tracing::warn!(%error, %run, "a call waits: processes of this user use up what it needs to start");
                }
                // A cancel ends this wait; the attempt reports it.
                let _ = timeout(pause, cancel.wanted()).await;
                waited += pause;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
    Err(SpawnError::Io(ErrorKind::ConnectionReset.into()))
}

/// One attempt at it; `None` where the keeper died before it read the request.
async fn attempt(
    launch: &Launch<'_>,
    bounds: Bounds,
    run: RunId,
    keepers: &Arc<Keepers>,
    outputs: &CallOutputs,
    cancel: &mut Cancel,
    on_piece: OnPiece<'_>,
) -> Result<Option<Finished>, SpawnError> {
    let (mut streams, theirs, terminal) = streams(launch, bounds.keep, outputs).map_err(SpawnError::of_streams)?;
    let descriptors = theirs.iter().map(AsFd::as_fd);
    // The terminal is the input of what runs on it.
    let input = launch.input.filter(|_| terminal.is_none());
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.chain(input).collect();
    let time_limit = bounds.timeout.saturating_add(KEEPER_SLACK);
    let mut held = Held::start(keepers, run, launch, terminal.as_deref(), time_limit, &descriptors).await?;
    drop(theirs);

    let why = {
        let mut ended = std::pin::pin!(wait(&mut held, cancel, bounds.timeout));
        // The pipes of a very short command are read once, without registering them with the runtime.
        match timeout(QUICK, &mut ended).await {
            Ok(why) => why,
            Err(_) => streams.while_waiting_for(on_piece, ended).await,
        }
    };
    // Where the daemon was held up, the keeper has seen the time limit before it.
    let is_late = held.is_expired() || matches!(why, Why::Heard(Heard::Stuck));
    let why = if is_late { Why::TimeLimit } else { why };
    let mut lost = false;
    match why {
        Why::Heard(Heard::Ended | Heard::Stuck) => {}
        Why::Heard(Heard::Failed(failure)) => {
            held.give_back();
            return Err(launch.explain(failure));
        }
        Why::Heard(Heard::Untaken) => {
            held.lost().await;
            return Ok(None);
        }
        Why::Heard(Heard::Lost) => lost = true,
        Why::TimeLimit => streams.while_waiting_for(on_piece, held.end_all(cancel, Stop::Gently)).await,
        Why::Cancel(stop) => streams.while_waiting_for(on_piece, held.end_all(cancel, stop)).await,
    }
    // Most commands close their pipes by ending: these need no timer.
    streams.take(on_piece);
    if lost {
        streams.while_waiting_for(on_piece, held.lost()).await;
        streams.take(on_piece);
    }
    let mut left = if held.is_swept() { Left::Lost } else { Left::Nothing };
    // Also where no process is left: an enlarged pipe holds more than is read at once.
    let open = streams.are_open() && !closed(&mut streams, cancel, on_piece).await;
    if open && !held.is_alone() && cancel.is_wanted() {
        // A cancel does not wait for what background children may still write.
        left = Left::Ended;
        let stop = cancel.level();
        streams.while_waiting_for(on_piece, held.end_all(cancel, stop)).await;
        streams.take(on_piece);
    }
    let used = held.used().copied();
    let alone = held.is_alone();
    let grouped = held.grouped();
    let stuck = held.is_stuck();
    let (stdout, stderr, rest) = streams.finish();
    if alone {
        held.give_back();
    } else {
        match held.park(rest.map(|rest| tokio::spawn(rest.drain()))) {
            Ok(()) => left = Left::Running,
            Err(TooMany { mut held, drainer }) => {
                tracing::warn!(%run, "a run has too much running in the background: the latest of it is ended");
                left = Left::Ended;
                held.end_all(cancel, Stop::Gently).await;
                held.give_back();
                drainer.inspect(|drainer| drainer.abort());
            }
        }
    }
    left = if stuck { Left::Stuck } else { left };
    Ok(Some(finished(used, &why, left, grouped, stdout, stderr)))
}

/// The streams to read, the descriptors to write to, and the path of the terminal, if it is one.
fn streams(
    launch: &Launch<'_>,
    keep: usize,
    outputs: &CallOutputs,
) -> io::Result<(Streams, Vec<OwnedFd>, Option<PathBuf>)> {
    if launch.tty {
        let Terminal { ours, theirs, path } = Terminal::open()?;
        return Ok((Streams::of_terminal(ours, keep, outputs)?, vec![theirs], Some(path)));
    }
    let (streams, theirs) = Streams::piped(keep, outputs)?;
    Ok((streams, theirs.into(), None))
}

/// The fate of processes that a call leaves.
#[derive(Debug, Clone, Copy)]
enum Left {
    /// There were none.
    Nothing,
    /// They live on.
    Running,
    Ended,
    Lost,
    /// They were killed, and the kernel does not end them.
    Stuck,
}

fn finished(
    used: Option<Used>,
    why: &Why,
    left: Left,
    grouped: Grouped,
    stdout: Captured,
    stderr: Captured,
) -> Finished {
    Finished {
        end: used.as_ref().map(End::new),
        timed_out: matches!(why, Why::TimeLimit),
        cancelled: matches!(why, Why::Cancel(_)),
        children_ended: matches!(left, Left::Ended),
        left_running: matches!(left, Left::Running),
        keeper_lost: matches!(left, Left::Lost),
        stuck: matches!(left, Left::Stuck),
        grouped,
        stdout,
        stderr,
    }
}

async fn wait(held: &mut Held, cancel: &mut Cancel, limit: Duration) -> Why {
    tokio::select! {
        biased;
        heard = held.ended() => Why::Heard(heard),
        stop = cancel.wanted() => Why::Cancel(stop),
        () = sleep(limit) => Why::TimeLimit,
    }
}

/// Whether the pipes close in time. A cancel does not wait for what background children may still write.
async fn closed(streams: &mut Streams, cancel: &mut Cancel, on_piece: OnPiece<'_>) -> bool {
    tokio::select! {
        biased;
        drained = timeout(DRAIN, streams.drain(on_piece)) => drained.is_ok(),
        _ = cancel.wanted() => false,
    }
}

/// Ends the processes that earlier calls of `run` have left. Costs nothing if there are none.
pub async fn release(run: RunId, keepers: &Arc<Keepers>, force: bool) {
    let mut ends = JoinSet::new();
    for Parked { link, drainer } in keepers.unpark(run) {
        let mut held = Held::again(keepers, run, link);
        ends.spawn(async move {
            // No caller hurries this end.
            let (_canceller, mut cancel) = canceller();
            held.end_all(&mut cancel, if force { Stop::AtOnce } else { Stop::Gently }).await;
            held.give_back();
            drainer.inspect(|drainer| drainer.abort());
        });
    }
    while ends.join_next().await.is_some() {}
}

/// Whether earlier calls of `run` may have left processes.
pub fn has_background(run: RunId, keepers: &Keepers) -> bool {
    keepers.has_parked(run)
}

/// The runs whose earlier calls may have left processes.
pub fn runs_with_background(keepers: &Keepers) -> Vec<RunId> {
    keepers.runs_with_parked()
}

#[cfg(test)]
pub(crate) mod tests;
