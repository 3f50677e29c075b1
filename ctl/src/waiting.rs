//! Waiting for runs to end, across restarts of the daemon.
//!
//! One run is a long-poll. Many are one subscription to their ends: a thousand cost one line each.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

use harness_protocol::event::{Ending, EventBody};
use harness_protocol::id::{RunId, Seq};
use harness_protocol::rpc::{ErrorKind, RpcError, ShowParams, SubscribeParams, WaitParams, WaitReply, method};
use harness_protocol::run::{RunState, RunView, exit};
use harness_protocol::time::Span;

use crate::client::{ClientError, Flow, Note, is_stopping};
use crate::ctx::{Ctx, write_json};
use crate::exit::{FORGETS, Failure};
use crate::output::Progress;
use crate::patience::PATIENCE;
use crate::render::text::first_line;
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

/// How a run ended, or that it is not there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    /// Its state; `None` where there is no such run.
    pub(crate) state: Option<RunState>,
    /// Its exit code; `None` while it is live.
    pub(crate) code: Option<u8>,
    /// Its answer, or its error.
    pub(crate) text: String,
}

impl Outcome {
    fn ended(ending: &Ending) -> Self {
        let (state, code, text) = match ending {
            Ending::Succeeded { answer } => (RunState::Succeeded, exit::SUCCEEDED, answer),
            Ending::Failed { error, exit_code } => (RunState::Failed, *exit_code, error),
            Ending::Cancelled { error } => (RunState::Cancelled, exit::CANCELLED, error),
        };
        Self { state: Some(state), code: Some(code), text: text.to_string() }
    }

    /// What a view tells.
    pub(crate) fn of(run: &RunView) -> Self {
        let text = run.answer.as_deref().or(run.error.as_deref()).unwrap_or_default();
        Self { state: Some(run.state), code: run.exit_code, text: text.to_owned() }
    }

    /// That there is no such run.
    pub(crate) fn refused(error: &RpcError) -> Self {
        Self { state: None, code: Some(error.data.exit_code), text: error.message.clone() }
    }

    /// The line of a run: `ID STATE EXIT TEXT`.
    pub(crate) fn line(&self, run: &str) -> String {
        let state = self.state.map_or("unknown", RunState::as_str);
        let code = self.code.map_or_else(|| "-".to_owned(), |code| code.to_string());
        let text = first_line(&self.text);
        // What is the same as the state says nothing more.
        let text = if text == state { "" } else { &text };
        format!("{run} {state} {code} {text}").trim_end().to_owned()
    }
}

/// Several runs that are waited for.
#[derive(Debug)]
pub(crate) struct Many {
    runs: Vec<RunId>,
    /// Those of them that are not known to have ended.
    open: BTreeSet<RunId>,
    outcomes: BTreeMap<RunId, Outcome>,
    printed: usize,
    progress: Progress,
}

impl Many {
    /// These runs; lines are printed in this order.
    pub(crate) fn new(runs: Vec<RunId>) -> Self {
        let open = runs.iter().copied().collect();
        Self { runs, open, outcomes: BTreeMap::new(), printed: 0, progress: Progress::new() }
    }

    /// Takes what is known already.
    pub(crate) fn know(&mut self, run: &RunView) {
        if run.state.is_terminal() {
            self.settle(run.id, Outcome::of(run));
        }
    }

    fn settle(&mut self, run: RunId, outcome: Outcome) {
        if self.open.remove(&run) {
            self.outcomes.insert(run, outcome);
        }
    }

    /// Waits until all have ended, or the time is up, and prints a line for each; gives the exit code of section 12.
    ///
    /// `after`: their ends have higher numbers than this. Without it they are asked for their states first.
    pub(crate) fn wait(mut self, ctx: &mut Ctx, mut after: Option<Seq>, until: Option<Instant>) -> Result<u8, Failure> {
        ctx.session.heed_interrupts()?;
        let mut ask_first = after.is_none();
        loop {
            match self.listen(ctx, &mut after, ask_first, until) {
                Ok(()) => break,
                Err(failure) if failure.is_loss() => ctx.session.recover(&failure),
                Err(failure) => Err(failure),
            }
            .map_err(|failure| {
                of_runs(failure, &ctx.session, || self.open.iter().map(ToString::to_string).collect())
            })?;
            // A daemon that was started again may not know them, nor its events the old numbers: they are asked for, and
            // followed from now on.
            (ask_first, after) = (true, None);
        }
        self.progress.clear();
        let still_live = !self.open.is_empty();
        self.finish(ctx)?;
        let all_well = self.outcomes.values().all(|outcome| outcome.state == Some(RunState::Succeeded));
        ctx.done()?;
        Ok(match (still_live, all_well) {
            (true, _) => exit::STILL_RUNNING,
            (false, true) => exit::SUCCEEDED,
            (false, false) => exit::FAILED,
        })
    }

    /// Follows the ends of the runs on one connection; `Ok` when all have ended or the time is up.
    fn listen(
        &mut self,
        ctx: &mut Ctx,
        after: &mut Option<Seq>,
        ask_first: bool,
        until: Option<Instant>,
    ) -> Result<(), Failure> {
        if self.open.is_empty() {
            return Ok(());
        }
        let kinds = vec!["run-finished".to_owned()];
        let params = SubscribeParams { after: *after, kinds, ..SubscribeParams::default() };
        let subscribed = ctx.session.client()?.call::<method::EventSubscribe>(&params)?;
        after.get_or_insert(subscribed.last_seq);
        if ask_first {
            self.ask(ctx)?;
        }
        loop {
            self.print(ctx)?;
            if self.open.is_empty() {
                return Ok(());
            }
            let Some(note) = ctx.session.client()?.note(remaining(until))? else {
                return Ok(());
            };
            match note {
                Note::Event(event) => {
                    *after = Some(event.seq);
                    // Others' answers are not even read.
                    if let Some(run) = event.run.filter(|run| self.open.contains(run))
                        && let Some(EventBody::RunFinished { ending }) = event.event().map(|event| event.body)
                    {
                        self.settle(run, Outcome::ended(&ending));
                    }
                }
                Note::Gap(gap) => {
                    *after = Some(gap.to);
                    self.ask(ctx)?;
                }
                Note::Delta(_) => {}
            }
        }
    }

    /// Asks for the states of those that are not known to have ended.
    fn ask(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let open: Vec<RunId> = self.open.iter().copied().collect();
        let params: Vec<ShowParams> = open.iter().map(show_params).collect();
        let mut refused = None;
        ctx.session.client()?.pipeline::<method::RunShow>(&params, Some(PATIENCE), |index, reply| {
            match reply {
                Ok(shown) => self.know(&shown.run),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.settle(open[index], Outcome::refused(&error));
                }
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
            Flow::Go
        })?;
        refused.map_or(Ok(()), |error| Err(Failure::Refused(error)))
    }

    /// Prints the lines that can be printed in order.
    fn print(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let before = self.printed;
        while !ctx.json
            && let Some(run) = self.runs.get(self.printed)
            && let Some(outcome) = self.outcomes.get(run)
        {
            self.progress.clear();
            writeln!(ctx.out, "{}", outcome.line(&run.to_string()))?;
            self.printed += 1;
        }
        if self.printed > before {
            ctx.out.flush()?;
        }
        self.progress.show(format_args!("{} of {} ended", self.outcomes.len(), self.runs.len()));
        Ok(())
    }

    /// Prints the rest: lines of those that are live still, or everything as JSON.
    fn finish(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        self.print(ctx)?;
        self.progress.clear();
        let rest = &self.runs[self.printed..];
        let params: Vec<ShowParams> = rest.iter().map(show_params).collect();
        let mut views = vec![None; params.len()];
        if !params.is_empty() {
            ctx.session.client()?.pipeline::<method::RunShow>(&params, Some(PATIENCE), |index, reply| {
                views[index] = Some(reply);
                Flow::Go
            })?;
        }
        for (run, view) in rest.iter().zip(views) {
            match view {
                Some(Ok(shown)) if ctx.json => write_json(&mut ctx.out, &shown.run)?,
                Some(Ok(shown)) => writeln!(ctx.out, "{}", Outcome::of(&shown.run).line(&run.to_string()))?,
                Some(Err(error)) if ctx.json => {
                    write_json(&mut ctx.out, &serde_json::json!({"id": run, "error": error}))?
                }
                Some(Err(error)) => writeln!(ctx.out, "{}", Outcome::refused(&error).line(&run.to_string()))?,
                None => {}
            }
        }
        Ok(())
    }
}

/// A run without its transcript.
pub(crate) fn show_params(run: &(impl ToString + ?Sized)) -> ShowParams {
    ShowParams { run: run.to_string(), ..ShowParams::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_id_the_state_the_code_and_the_first_line() {
        let outcome = Outcome { state: Some(RunState::Succeeded), code: Some(0), text: "\none\ntwo".to_owned() };
        assert_eq!(outcome.line("abc"), "abc succeeded 0 one");
        let live = Outcome { state: Some(RunState::Thinking), code: None, text: String::new() };
        assert_eq!(live.line("abc"), "abc thinking -");
        let failed = Outcome::ended(&Ending::Failed { error: "steps".into(), exit_code: 9 });
        assert_eq!(failed.line("abc"), "abc failed 9 steps");
        let cancelled = Outcome::ended(&Ending::Cancelled { error: "cancelled".into() });
        assert_eq!(cancelled.line("abc"), "abc cancelled 5");
    }
}
