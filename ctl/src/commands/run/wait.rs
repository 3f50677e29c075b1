//! `wait`: waits until runs end, or reach a state.

use std::time::Instant;

use harness_protocol::id::Seq;
use harness_protocol::rpc::{RpcError, Selector, SubscribeParams, WaitReply, method};
use harness_protocol::run::{RunView, exit};

use crate::cli::runs::WaitArgs;
use crate::context::Ctx;
use crate::error::Failure;
use crate::exit_code::worst;
use crate::progress::end_of_run::{check_output, end};
use crate::progress::line_writer::Sink;
use crate::progress::wait_for_state::each_for;
use crate::progress::wait_many::Many;
use crate::render::result_line::Outcome;
use crate::select::{find, ids_of, live_of_all, only_name, selector};
use crate::session::long_poll;
use crate::session::wait_reasons::Teller;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &WaitArgs) -> Result<u8, Failure> {
    args.output.as_deref().map_or(Ok(()), check_output)?;
    let until = args.timeout.map(|span| Instant::now() + span.to_std());
    match only_name(&args.select) {
        Some(run) if !args.any => return one(ctx, args, run, until),
        _ => {}
    }
    let select = live_of_all(selector(&args.select)?);
    if args.reached.is_empty() { several(ctx, args, &select, until) } else { several_for(ctx, args, &select, until) }
}

fn one(ctx: &mut Ctx, args: &WaitArgs, name: &str, until: Option<Instant>) -> Result<u8, Failure> {
    let run = long_poll::id_of(&mut ctx.session, name)?;
    let reply = long_poll::one(&mut ctx.session, &run, &args.reached, until, &mut Teller::default())?;
    let run = &reply.run;
    if run.state.is_terminal() {
        let code = end(ctx, run, args.output.as_deref())?;
        return Ok(code_for(&reply, !args.reached.is_empty(), code));
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

/// A wait for a named state succeeds when the run reaches it. Otherwise the command ends as the run did.
fn code_for(reply: &WaitReply, named: bool, code: u8) -> u8 {
    match (named, reply.reached) {
        (true, true) => exit::SUCCEEDED,
        // It succeeded, and so can never reach the wanted state.
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

fn several(ctx: &mut Ctx, args: &WaitArgs, select: &Selector, until: Option<Instant>) -> Result<u8, Failure> {
    let (from, known) = loop {
        match look(ctx, select) {
            Err(failure) if failure.is_loss() => ctx.session.recover(&failure)?,
            looked => break looked?,
        }
    };
    if known.is_empty() {
        return Err(Failure::nothing_applied("no run matches"));
    }
    // A subscription serves one wait; the wait makes its own.
    ctx.session.hang_up();
    let many = Many::new(ids_of(&known), Sink::new(args.output.as_deref())?);
    let mut many = if args.any { many.any() } else { many.line_by_line() };
    many.know_all(&known);
    many.wait(ctx, Some(from), until)
}

/// The runs as they are now, and the number of the last event before that.
fn look(ctx: &mut Ctx, select: &Selector) -> Result<(Seq, Vec<RunView>), Failure> {
    // Subscribed first, then looked at: an end in between is seen by one or the other.
    let now = SubscribeParams { kinds: vec!["run-finished".to_owned()], ..SubscribeParams::default() };
    let from = ctx.session.call::<method::EventSubscribe>(&now)?.last_seq;
    Ok((from, find(ctx, select)?))
}

fn several_for(ctx: &mut Ctx, args: &WaitArgs, select: &Selector, until: Option<Instant>) -> Result<u8, Failure> {
    let runs = find(ctx, select)?;
    if runs.is_empty() {
        return Err(Failure::nothing_applied("no run matches"));
    }
    let ids: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
    let mut sink = Sink::new(args.output.as_deref())?;
    let replies = each_for(ctx, &ids, (&args.reached, until, args.any), |ctx, run, reply| {
        if args.any && !reply.as_ref().is_ok_and(|reply| reply.reached) {
            return Ok(());
        }
        let out = &mut ctx.out;
        match reply {
            Ok(reply) if ctx.json => sink.json(out, &reply.run)?,
            Ok(reply) => sink.line(out, &Outcome::of(&reply.run).line(run))?,
            Err(error) if ctx.json => sink.json(out, &serde_json::json!({ "id": run, "error": error }))?,
            Err(error) => sink.line(out, &Outcome::refused(error).line(run))?,
        }
        sink.flush(out)
    })?;
    ctx.done()?;
    let reached = replies.iter().any(|reply| reply.as_ref().is_ok_and(|reply| reply.reached));
    Ok(if args.any && reached { exit::SUCCEEDED } else { code_of_several(&replies) })
}

/// The worst exit code of the waits, as for runs that are waited for to their ends.
fn code_of_several(replies: &[Result<WaitReply, RpcError>]) -> u8 {
    worst(replies.iter().map(|reply| match reply {
        Ok(reply) if !reply.reached && !reply.run.state.is_terminal() => exit::STILL_RUNNING,
        Ok(reply) => code_for(reply, true, reply.run.exit_code.unwrap_or(exit::FAILED)),
        Err(error) => error.data.exit_code,
    }))
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
        let over = |code| {
            let mut reply = reply(RunState::Failed, false);
            reply.run.exit_code = Some(code);
            Ok(reply)
        };
        let gone = || Err(RpcError::new(ErrorKind::NotFound, "no such run"));
        assert_eq!(code_of_several(&[well(), well()]), 0);
        assert_eq!(code_of_several(&[well(), live(), over(1)]), 8);
        assert_eq!(code_of_several(&[well(), over(3)]), 3);
        assert_eq!(code_of_several(&[over(3), well(), over(1)]), 1);
        assert_eq!(code_of_several(&[well(), over(0)]), 6, "it never comes to that state");
        assert_eq!(code_of_several(&[well(), gone()]), 6);
        assert_eq!(code_of_several(&[gone(), over(124)]), 124);
    }
}
