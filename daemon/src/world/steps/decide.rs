//! Determines the next action of each run on the agenda, in the order of run numbers, until no run has one (the set
//! Decide).
//!
//! Decides from the run alone: its phase, whether it is paused or being stopped, its transcript, batch and limits. Must
//! not give a permit: it requests one, and Dispatch grants it. If the run's batch already holds a permit that no call
//! uses, the next call is started with it at once.

use std::sync::Arc;

use bevy_ecs::schedule::{IntoScheduleConfigs as _, Schedule};
use harness_protocol::event::{Ending, EventBody};
use harness_protocol::id::{CallId, RunId};
use harness_protocol::json_size::quoted;
use harness_protocol::run::{Entry, exit};

use super::grant;
use super::{StepSystems, exclusive};
use crate::lane::TicketState;
use crate::tools::{Facts, Plan, Refused, ToolKind, Transition};
use crate::world::api::Asked;
use crate::world::ending::{fail_run, finish_call, finish_run, wind_up};
use crate::world::inference::next_inference::begin;
use crate::world::inference::prepare::toolset;
use crate::world::interactions;
use crate::world::model::components::{Call, QueuedMessages, Stage, Transcript};
use crate::world::model::indexes::Daemon;
use crate::world::model::phase::Phase;
use crate::world::tools;
use crate::world::tx::Tx;
use crate::world::view::run::brief;

pub(in crate::world) fn install(schedule: &mut Schedule) {
    schedule.add_systems(exclusive(decide).in_set(StepSystems::Decide));
}

fn decide(tx: &mut Tx<'_>) {
    while let Some((run, _)) = tx.next_on_agenda() {
        next(tx, run);
    }
}

/// Lets a run do what it does next. What that changes puts it on the agenda again.
fn next(tx: &mut Tx<'_>, run: RunId) {
    let Some(life) = tx.life(run) else { return };
    if let Phase::Ended(_) = life.phase() {
        return;
    }
    if let Some(stopping) = life.stopping {
        wind_up(tx, run, stopping.reason);
        return;
    }
    match life.phase() {
        Phase::Acting => act(tx, run),
        _ if life.paused => {}
        Phase::Resting => go_on(tx, run),
        Phase::Retrying(until) if until <= tx.now() => {
            let step = life.step;
            begin(tx, run, step);
        }
        Phase::Postponed(_) => {
            let step = life.step;
            begin(tx, run, step);
        }
        Phase::Retrying(_) | Phase::Wanting(_) | Phase::Thinking(_) | Phase::Ended(_) => {}
    }
}

/// Every call has its result, or there was none: the run answers, or asks its model again, or is at a limit.
fn go_on(tx: &mut Tx<'_>, run: RunId) {
    let Some(entity) = tx.entity(run) else { return };
    let (Some(life), Some(spec)) = (tx.life(run), tx.spec(run)) else { return };
    let unread = tx.get::<QueuedMessages>(entity).is_some();
    // An answer that an earlier run gave is not this one's.
    if life.step > 0
        && !unread
        && let Some(Entry::Assistant { text, calls, cut, .. }) = tx.get::<Transcript>(entity).and_then(|t| t.0.last())
        && calls.is_empty()
    {
        // An answer that was cut off is still useful, but its text has to say so.
        let answer = if *cut { with_note(text).into() } else { Arc::clone(text) };
        finish_run(tx, run, Ending::Succeeded { answer });
        return;
    }
    let limits = &spec.0.limits;
    if let Some(max) = limits.max_steps
        && life.step >= max
    {
        fail_run(tx, run, format!("its budget of {max} steps is used up (--max-steps)"), exit::BUDGET);
        return;
    }
    let step = life.step + 1;
    begin(tx, run, step);
}

fn with_note(text: &str) -> String {
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{newline}[cut off by the limit of output tokens]")
}

/// A batch: its world calls are carried out, the waits that are over end, and its ticket wants what its calls need.
fn act(tx: &mut Tx<'_>, run: RunId) {
    while let Some(call) = settled_wait(tx, run) {
        tools::end_wait(tx, run, call);
    }
    refuse_surplus(tx, run);
    let Some((life, batch)) = tx.life(run).zip(tx.batch(run)) else { return };
    let batch = &batch.0;
    if batch.group().is_empty() {
        // A paused run keeps its batch, and gives back what that held.
        if life.paused {
            balance(tx, run)
        } else {
            go_on(tx, run)
        }
        return;
    }
    if !life.paused {
        let is_at_hand = |call: &&Call| call.stage == Stage::Pending && (!is_job(call) || call.must_be_cleared());
        let at_hand = batch.group().iter().find(is_at_hand);
        // A child that may not start now is not refused for good: it waits for the end of the drain.
        let starts_run = |call: &Call| matches!(plan(tx, run, call), Some(Ok(Plan::World(Transition::Spawn(_)))));
        let put_off = |call: &Call| tx.res::<Daemon>().draining && starts_run(call);
        if let Some(call) = at_hand.filter(|call| !put_off(call)).cloned() {
            perform(tx, run, &call);
            // It may be first in line again, and is on the agenda only where something about it changed.
            tx.wake(run);
            return;
        }
    }
    balance(tx, run);
}

/// A model may ask for any number of calls at once; those beyond the bound are refused before any of the batch begins.
fn refuse_surplus(tx: &mut Tx<'_>, run: RunId) {
    let bound = tx.setup().config.limits.calls_per_step as usize;
    let surplus: Vec<CallId> = tx.batch(run).map_or_else(Vec::new, |batch| {
        batch.0.calls.iter().skip(bound).filter(|call| call.stage == Stage::Pending).map(|call| call.id).collect()
    });
    for call in surplus {
        let text = format!("Not run: at most {bound} calls are executed in one step (limits.calls_per_step).");
        finish_call(tx, run, call, text, true);
    }
}

fn is_job(call: &Call) -> bool {
    matches!(call.kind, Some(ToolKind::Job { .. }))
}

/// What a call is to do; `None` where it is of no tool.
fn plan(tx: &Tx<'_>, run: RunId, call: &Call) -> Option<Result<Plan, Refused>> {
    call.kind?;
    let (setup, spec) = (tx.setup(), tx.spec(run)?);
    let tool = setup.tools.get(&call.tool)?;
    Some(tool.plan(&call.args, &Facts { spec: &spec.0, shell: &setup.config.shell }))
}

fn perform(tx: &mut Tx<'_>, run: RunId, call: &Call) {
    match plan(tx, run, call) {
        Some(Ok(plan)) if call.must_be_cleared() => ask_first(tx, run, call, &plan),
        Some(Ok(Plan::World(_))) if call.ask.as_ref().is_some_and(|ask| !ask.kind.comes_first()) => {
            finish_call(
                tx,
                run,
                call.id,
                "Not run: only a call that starts a process can ask while it executes.",
                true,
            );
        }
        Some(Ok(Plan::World(transition))) => tools::carry_out(tx, run, call.id, transition),
        Some(Ok(Plan::Process(_))) => {
            finish_call(tx, run, call.id, "internal error (bug): this call has to be executed", true);
        }
        Some(Err(refused)) => finish_call(tx, run, call.id, refused.to_string(), true),
        None => {
            let text = call.unusable.clone().unwrap_or_else(|| unknown_tool(tx, run, &call.tool).into());
            finish_call(tx, run, call.id, text, true);
        }
    }
}

/// A person has to allow the call. What it is to do is told as its plan has it.
fn ask_first(tx: &mut Tx<'_>, run: RunId, call: &Call, plan: &Plan) {
    let Some(ask) = call.ask.as_deref() else { return };
    let subject: Arc<str> = match plan {
        Plan::Process(process) => process.subject.as_str().into(),
        Plan::World(_) => Arc::clone(&call.args),
    };
    let mut question = brief(&format!("allow {}: ", call.tool), &subject);
    if let Some(text) = &ask.text {
        question = format!("{question} ({text})");
    }
    let asked =
        Asked { kind: ask.kind, question: question.into(), subject: Some(subject), within: ask.expires_seconds };
    interactions::open(tx, run, call.id, asked);
}

fn unknown_tool(tx: &Tx<'_>, run: RunId, name: &str) -> String {
    let is_allowed = |name: &&str| tx.spec(run).is_none_or(|spec| spec.0.allows_tool(name));
    let toolset = toolset(tx, run).unwrap_or(&tx.setup().toolset);
    let known: Vec<&str> = toolset.tools().map(|(spec, _)| &*spec.name).filter(is_allowed).collect();
    format!("There is no tool {}. There are: {}.", quoted(name), known.join(", "))
}

/// A wait for other runs that is over.
fn settled_wait(tx: &Tx<'_>, run: RunId) -> Option<CallId> {
    let batch = tx.batch(run)?;
    let over = |call: &&Call| match &call.stage {
        Stage::Waiting { runs, any: true } => runs.iter().any(|&target| tx.has_ended(target)),
        Stage::Waiting { runs, any: false } => runs.iter().all(|&target| tx.has_ended(target)),
        _ => false,
    };
    batch.0.calls.iter().find(over).map(|call| call.id)
}

/// Makes the ticket of a batch fit its calls. Permits held and not used go to the next call, or back to the lane; where
/// nothing executes and something waits, the ticket is parked; where a call needs a permit, the ticket wants one.
fn balance(tx: &mut Tx<'_>, run: RunId) {
    let Some((life, batch)) = tx.life(run).zip(tx.batch(run)) else { return };
    let lane = &tx.lanes().tool;
    let state = batch.0.ticket.and_then(|ticket| lane.state(ticket));
    let held = batch.0.ticket.map_or(0, |ticket| lane.held(ticket));
    let executing = batch.0.executing();
    let candidate = if life.paused { None } else { batch.0.candidate().cloned() };
    match (state, candidate) {
        (Some(TicketState::Busy), Some(call)) if held > executing => {
            grant::put_to_work(tx, run, &call);
            // It may hold permits for more of its calls.
            tx.wake(run);
        }
        (Some(TicketState::Busy), None) if held > executing && executing == 0 => {
            tx.emit(Some(run), EventBody::BatchParked);
        }
        (Some(TicketState::Busy), None) if held > executing => {
            tx.emit(Some(run), EventBody::BatchYielded { keeps: u32::from(executing) });
        }
        (None | Some(TicketState::Parked | TicketState::Deferred), Some(_)) => {
            tx.emit(Some(run), EventBody::BatchQueued);
        }
        (None | Some(TicketState::Queued | TicketState::Resuming), None) => {
            tx.emit(Some(run), EventBody::BatchParked);
        }
        _ => {}
    }
}
