//! Waiting for runs by long-poll, across losses of the daemon, and what a loss means to whoever watches runs.

use std::time::{Duration, Instant};

use harness_protocol::rpc::{ErrorKind, RpcError, ShowParams, WaitParams, WaitReply, method};
use harness_protocol::run::{RunState, RunView, exit};
use harness_protocol::time::Span;

use crate::client::{ClientError, Flow, is_stopping};
use crate::exit::{FORGETS, Failure};
use crate::patience::PATIENCE;
use crate::session::Session;

/// What is left until `until`.
pub(crate) fn remaining(until: Option<Instant>) -> Option<Duration> {
    until.map(|until| until.saturating_duration_since(Instant::now()))
}

/// What a failure means to whoever watches runs: Ctrl-C leaves them alone, and a daemon that went may have taken them along.
pub(crate) fn of_runs(failure: Failure, session: &Session, runs: impl FnOnce() -> Vec<String>) -> Failure {
    match failure {
        Failure::Client(ClientError::Interrupted) => Failure::Detached { runs: runs() },
        Failure::Gone { seconds, .. } => Failure::Other {
            code: exit::UNREACHABLE,
            message: match runs().as_slice() {
                [run] => format!(
                    "the daemon stopped, and none came back within {seconds} s; the state of run {run} is not known"
                ),
                runs => format!(
                    "the daemon stopped, and none came back within {seconds} s; the state of {} runs is not known",
                    runs.len()
                ),
            },
            hint: Some(FORGETS.to_owned()),
        },
        other if other.is_unknown() && session.lost_at().is_some() => match runs().as_slice() {
            [run] => forgotten(run),
            _ => other,
        },
        other => other,
    }
}

/// The daemon that has come back does not know the run of the one that went.
fn forgotten(run: &str) -> Failure {
    Failure::Other {
        code: exit::NOT_FOUND,
        message: format!("run {run} is not known any more: the daemon was started again, and has forgotten it"),
        hint: Some("runs live in the daemon's memory, and in this version they end with it".to_owned()),
    }
}

/// Whether a run was made after the daemon was lost: then it only has the name of the one that was waited for.
fn is_another(session: &Session, run: &RunView) -> bool {
    session.lost_at().is_some_and(|lost| run.submitted_at > lost)
}

/// Waits for one run: for any of `states`, or its end.
pub(crate) fn one(
    session: &mut Session,
    run: &str,
    states: &[RunState],
    until: Option<Instant>,
) -> Result<WaitReply, Failure> {
    session.heed_interrupts()?;
    loop {
        match ask(session, run, states, until) {
            Err(failure) if failure.is_loss() => session.recover(&failure),
            Err(failure) => Err(failure),
            Ok(reply) if is_another(session, &reply.run) => return Err(forgotten(run)),
            Ok(reply) => return Ok(reply),
        }
        .map_err(|failure| of_runs(failure, session, || vec![run.to_owned()]))?;
    }
}

fn ask(session: &mut Session, run: &str, states: &[RunState], until: Option<Instant>) -> Result<WaitReply, Failure> {
    let params = wait_params(run, states, until);
    let limit = params.timeout_seconds.map(|span| span.to_std() + PATIENCE);
    Ok(session.client()?.call_within::<method::RunWait>(&params, limit)?)
}

fn wait_params(run: &str, states: &[RunState], until: Option<Instant>) -> WaitParams {
    WaitParams { run: run.to_owned(), states: states.to_vec(), timeout_seconds: remaining(until).map(Span::from) }
}

/// Waits for each of several runs to reach one of `states`. The replies stand in the order of the runs.
pub(crate) fn each_for(
    session: &mut Session,
    runs: &[String],
    states: &[RunState],
    until: Option<Instant>,
) -> Result<Vec<Result<WaitReply, RpcError>>, Failure> {
    session.heed_interrupts()?;
    let mut replies: Vec<Option<Result<WaitReply, RpcError>>> = vec![None; runs.len()];
    loop {
        let open: Vec<usize> = (0..runs.len()).filter(|&index| replies[index].is_none()).collect();
        let params: Vec<WaitParams> = open.iter().map(|&index| wait_params(&runs[index], states, until)).collect();
        let limit = remaining(until).map(|left| left + PATIENCE);
        let mut stopping = None;
        let lost = session.lost_at();
        let asked = session.client().and_then(|client| {
            let each = |index: usize, reply: Result<WaitReply, RpcError>| {
                match reply {
                    Err(error) if is_stopping(&error) => stopping = Some(error),
                    Ok(reply) if lost.is_some_and(|lost| reply.run.submitted_at > lost) => {
                        let gone = "the daemon was started again, and has forgotten it";
                        replies[open[index]] = Some(Err(RpcError::new(ErrorKind::NotFound, gone)));
                    }
                    reply => replies[open[index]] = Some(reply),
                }
                Flow::Go
            };
            Ok(client.pipeline::<method::RunWait>(&params, limit, each)?)
        });
        match asked.and_then(|()| stopping.map_or(Ok(()), |error| Err(Failure::Refused(error)))) {
            Ok(()) => return Ok(replies.into_iter().flatten().collect()),
            Err(failure) if failure.is_loss() => session.recover(&failure),
            Err(failure) => Err(failure),
        }
        .map_err(|failure| of_runs(failure, session, || runs.to_vec()))?;
    }
}

/// A run without its transcript.
pub(crate) fn show_params(run: &(impl ToString + ?Sized)) -> ShowParams {
    ShowParams { run: run.to_string(), ..ShowParams::default() }
}
