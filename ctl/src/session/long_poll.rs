//! Waits for runs by long-poll requests, and repeats them when the daemon was lost and comes back. Tells the user what
//! the loss of a daemon means for a command that watches runs.

use std::time::{Duration, Instant};

use harness_protocol::rpc::{ErrorKind, ShowParams, WaitParams, WaitReply, method};
use harness_protocol::run::{RunState, exit};
use harness_protocol::time::Span;

use crate::client::ClientError;
use crate::client::timeouts::PATIENCE;
use crate::error::{Failure, starts};
use crate::session::Session;
use crate::session::wait_reasons::{LOOK_EVERY, Teller};

/// What is left until `until`.
pub(crate) fn remaining(until: Option<Instant>) -> Option<Duration> {
    until.map(|until| until.saturating_duration_since(Instant::now()))
}

/// What a failure means for a command that watches runs: Ctrl-C leaves them alone, a daemon that went away continues
/// them once it is started again, and only a lost journal has lost them.
pub(crate) fn of_runs(failure: Failure, session: &Session, runs: impl FnOnce() -> Vec<String>) -> Failure {
    match failure {
        Failure::Client(ClientError::Interrupted) => Failure::Detached { runs: runs() },
        Failure::Gone { socket, seconds } => {
            let gone = format!("the daemon went away, and none came back within {seconds} s");
            let start = starts(&socket);
            let (message, hint) = match runs().as_slice() {
                [] => return Failure::Gone { socket, seconds },
                [run] => (
                    format!("{gone}; run {run} goes on once it is started again"),
                    format!("{start}; harnessctl follow {run}"),
                ),
                runs => (
                    format!("{gone}; the {} runs go on once it is started again", runs.len()),
                    format!("{start}; harnessctl list"),
                ),
            };
            Failure::Other { code: exit::UNREACHABLE, message, hint: Some(hint) }
        }
        Failure::Refused(error) if error.kind() == ErrorKind::NotFound && session.was_lost() => match runs().as_slice()
        {
            [run] => unknown(run),
            _ => Failure::Refused(error),
        },
        Failure::Refused(error) if error.kind() == ErrorKind::NoLongerApplies && session.was_lost() => {
            another_journal(&match runs().as_slice() {
                [run] => format!("what was seen of run {run} is not in it"),
                _ => "what was seen is not in it".to_owned(),
            })
        }
        other => other,
    }
}

/// The daemon that has come back does not have the run in its journal.
fn unknown(run: &str) -> Failure {
    Failure::Other {
        code: exit::NOT_FOUND,
        message: format!("run {run} is not known any more: the daemon that came back has a journal without it"),
        hint: Some(
            "it was pruned, or the journal was lost or replaced; what there is: harnessctl list --all".to_owned(),
        ),
    }
}

/// The daemon that has come back has another journal than before.
pub(crate) fn another_journal(why: &str) -> Failure {
    Failure::Other {
        code: exit::NOT_FOUND,
        message: format!("the daemon that came back has another journal: {why}"),
        hint: Some(
            "the one that was followed was lost or replaced; from the start: harnessctl events --after 0".to_owned(),
        ),
    }
}

/// The id of the run that a name means now. At another daemon the name may mean another run.
pub(crate) fn id_of(session: &mut Session, name: &str) -> Result<String, Failure> {
    Ok(session.call::<method::RunShow>(&show_params(name))?.run.id.to_string())
}

/// Waits for one run, named by its id: for any of `states`, or its end.
pub(crate) fn one(
    session: &mut Session,
    run: &str,
    states: &[RunState],
    until: Option<Instant>,
    teller: &mut Teller,
) -> Result<WaitReply, Failure> {
    session.heed_interrupts()?;
    loop {
        match ask(session, run, states, until) {
            Err(failure) if failure.is_loss() => session.recover(&failure),
            Err(failure) => Err(failure),
            Ok(reply) if reply.reached || reply.run.state.is_terminal() => return Ok(reply),
            Ok(reply) if until.is_some_and(|until| Instant::now() >= until) => return Ok(reply),
            Ok(reply) => {
                teller.look(&reply.run);
                Ok(())
            }
        }
        .map_err(|failure| of_runs(failure, session, || vec![run.to_owned()]))?;
    }
}

fn ask(session: &mut Session, run: &str, states: &[RunState], until: Option<Instant>) -> Result<WaitReply, Failure> {
    // In pieces: between two of them, a look examines the run.
    let until = until.map_or_else(|| Instant::now() + LOOK_EVERY, |until| until.min(Instant::now() + LOOK_EVERY));
    let params = wait_params(run, states, Some(until));
    let limit = params.timeout_seconds.map(|span| span.to_std() + PATIENCE);
    Ok(session.client()?.call_within::<method::RunWait>(&params, limit)?)
}

pub(crate) fn wait_params(run: &str, states: &[RunState], until: Option<Instant>) -> WaitParams {
    WaitParams { run: run.to_owned(), states: states.to_vec(), timeout_seconds: remaining(until).map(Span::from) }
}

/// Parameters for a run without its transcript.
pub(crate) fn show_params(run: &(impl ToString + ?Sized)) -> ShowParams {
    ShowParams { run: run.to_string(), ..ShowParams::default() }
}
