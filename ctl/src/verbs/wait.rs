//! `wait`: until runs end, or reach a state.

use std::time::Instant;

use harness_protocol::id::Seq;
use harness_protocol::rpc::{RpcError, ShowParams, SubscribeParams, WaitReply, method};
use harness_protocol::run::{RunView, exit};

use crate::cli::runs::WaitArgs;
use crate::client::Flow;
use crate::ctx::Ctx;
use crate::ending::{check_output, end};
use crate::exit::Failure;
use crate::outcome::Outcome;
use crate::patience::PATIENCE;
use crate::sink::Sink;
use crate::standing::Teller;
use crate::waiting::{self, show_params};
use crate::waiting_many::Many;

pub(super) fn run(ctx: &mut Ctx, args: &WaitArgs) -> Result<u8, Failure> {
    args.output.as_deref().map_or(Ok(()), check_output)?;
    let until = args.timeout.map(|span| Instant::now() + span.to_std());
    match args.runs.as_slice() {
        [run] => one(ctx, args, run, until),
        runs if args.states.is_empty() => several(ctx, args, runs, until),
        runs => several_for(ctx, args, runs, until),
    }
}

fn one(ctx: &mut Ctx, args: &WaitArgs, name: &str, until: Option<Instant>) -> Result<u8, Failure> {
    let run = waiting::id_of(&mut ctx.session, name)?;
    let reply = waiting::one(&mut ctx.session, &run, &args.states, until, &mut Teller::default())?;
    let run = &reply.run;
    if run.state.is_terminal() {
        let code = end(ctx, run, args.output.as_deref())?;
        return Ok(code_for(&reply, !args.states.is_empty(), code));
    }
    if ctx.json {
        ctx.json(run)?;
    }
    ctx.done()?;
    if reply.reached {
        return Ok(exit::SUCCEEDED);
    }
    Err(still_running(&run.id.to_string(), run.state.as_str()))
}

/// Whoever waits for a state that was named succeeds when it is reached, and otherwise ends as the run did.
fn code_for(reply: &WaitReply, named: bool, code: u8) -> u8 {
    match (named, reply.reached) {
        (true, true) => exit::SUCCEEDED,
        // It succeeded, and so never gets to the state that was asked for.
        (true, false) if code == exit::SUCCEEDED => exit::NOT_FOUND,
        _ => code,
    }
}

fn still_running(run: &str, state: &str) -> Failure {
    Failure::Other {
        code: exit::STILL_RUNNING,
        message: format!("run {run} is still {state}"),
        hint: Some(format!("wait on, or watch it: harnessctl follow {run}")),
    }
}

fn several(ctx: &mut Ctx, args: &WaitArgs, names: &[String], until: Option<Instant>) -> Result<u8, Failure> {
    let (from, known) = loop {
        match look(ctx, names) {
            Err(failure) if failure.is_loss() => ctx.session.recover(&failure)?,
            looked => break looked?,
        }
    };
    // A subscription serves one wait; the wait makes its own.
    ctx.session.hang_up();
    let runs = known.iter().map(|run| run.id).collect();
    let mut many = Many::new(runs, Sink::new(args.output.as_deref())?);
    known.iter().for_each(|run| many.know(run));
    many.wait(ctx, Some(from), until)
}

/// The runs as they are, and the number of the last event before them.
fn look(ctx: &mut Ctx, names: &[String]) -> Result<(Seq, Vec<RunView>), Failure> {
    // Subscribed first, then looked at: an end in between is seen by one or the other.
    let now = SubscribeParams { kinds: vec!["run-finished".to_owned()], ..SubscribeParams::default() };
    let from = ctx.session.call::<method::EventSubscribe>(&now)?.last_seq;
    let params: Vec<ShowParams> = names.iter().map(show_params).collect();
    let mut views = vec![None; names.len()];
    ctx.session.client()?.pipeline::<method::RunShow>(&params, Some(PATIENCE), |index, reply| {
        views[index] = Some(reply);
        Flow::Go
    })?;
    let runs = views.into_iter().flatten().map(|reply| Ok(reply.map_err(Failure::Refused)?.run));
    Ok((from, runs.collect::<Result<_, Failure>>()?))
}

fn several_for(ctx: &mut Ctx, args: &WaitArgs, names: &[String], until: Option<Instant>) -> Result<u8, Failure> {
    let ids = names.iter().map(|name| waiting::id_of(&mut ctx.session, name)).collect::<Result<Vec<_>, _>>()?;
    let replies = waiting::each_for(&mut ctx.session, &ids, &args.states, until)?;
    let mut sink = Sink::new(args.output.as_deref())?;
    let out = &mut ctx.out;
    for (name, reply) in ids.iter().zip(&replies) {
        match reply {
            Ok(reply) if ctx.json => sink.json(out, &reply.run)?,
            Ok(reply) => sink.line(out, &Outcome::of(&reply.run).line(&reply.run.id.to_string()))?,
            Err(error) if ctx.json => sink.json(out, &serde_json::json!({ "id": name, "error": error }))?,
            Err(error) => sink.line(out, &Outcome::refused(error).line(name))?,
        }
    }
    sink.flush(out)?;
    Ok(code_of_several(&replies))
}

fn code_of_several(replies: &[Result<WaitReply, RpcError>]) -> u8 {
    let live = |reply: &WaitReply| !reply.reached && !reply.run.state.is_terminal();
    if replies.iter().flatten().any(live) {
        exit::STILL_RUNNING
    } else if replies.iter().all(|reply| reply.as_ref().is_ok_and(|reply| reply.reached)) {
        exit::SUCCEEDED
    } else {
        exit::FAILED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::run::tests::sample;
    use harness_protocol::rpc::ErrorKind;
    use harness_protocol::run::RunState;

    fn reply(state: RunState, reached: bool) -> WaitReply {
        let mut run = sample();
        run.state = state;
        WaitReply { run, reached }
    }

    #[test]
    fn the_code_is_the_runs_unless_a_state_was_named_and_reached() {
        assert_eq!(code_for(&reply(RunState::Failed, true), false, 9), 9);
        assert_eq!(code_for(&reply(RunState::Failed, true), true, 9), 0);
        assert_eq!(code_for(&reply(RunState::Failed, false), true, 9), 9);
        assert_eq!(code_for(&reply(RunState::Succeeded, false), true, 0), 6);
        assert_eq!(still_running("abc", "acting").code(), 8);
    }

    #[test]
    fn of_several_all_must_have_reached_it() {
        let well = || Ok(reply(RunState::Waiting, true));
        let live = || Ok(reply(RunState::Acting, false));
        let over = || Ok(reply(RunState::Failed, false));
        let gone = || Err(RpcError::new(ErrorKind::NotFound, "no such run"));
        assert_eq!(code_of_several(&[well(), well()]), 0);
        assert_eq!(code_of_several(&[well(), live(), over()]), 8);
        assert_eq!(code_of_several(&[well(), over()]), 1);
        assert_eq!(code_of_several(&[well(), gone()]), 1);
    }
}
