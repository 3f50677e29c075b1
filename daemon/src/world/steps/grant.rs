//! Grants permits, and starts the work that each permit allows (the set Dispatch).

use std::sync::Arc;

use bevy_ecs::schedule::{IntoScheduleConfigs as _, Schedule};
use bevy_ecs::system::Res;
use harness_protocol::event::{EventBody, StopReason};
use harness_protocol::id::RunId;
use harness_protocol::spec::RunSpec;

use super::{StepSystems, exclusive};
use crate::prompt::{Prompt, summarise};
use crate::tools::ToolSpec;
use crate::world::api::{CallTask, Effect, InferenceTask, Job, JobId, Task, Work};
use crate::world::ending::{stop, wind_up};
use crate::world::inference::prepare::{prepare, toolset};
use crate::world::model::components::{BudgetReserve, Call, Compacting, Stage, Transcript};
use crate::world::model::indexes::WantsExtra;
use crate::world::model::step_io::Incoming;
use crate::world::tx::Tx;

pub(in crate::world) fn install(schedule: &mut Schedule) {
    let grants =
        (exclusive(grant_inferences), exclusive(grant_batches), exclusive(grant_extras)).chain().run_if(is_not_held);
    schedule.add_systems(grants.in_set(StepSystems::Dispatch));
}

#[expect(clippy::needless_pass_by_value, reason = "so bevy wants its conditions")]
fn is_not_held(incoming: Res<Incoming>) -> bool {
    !incoming.held
}

fn grant_inferences(tx: &mut Tx<'_>) {
    let next = |tx: &Tx<'_>| tx.lanes().providers.values().find_map(|lane| lane.peek());
    while let Some((ticket, run)) = next(tx) {
        // Numbers of tickets are those of one lane.
        let is_stuck = |tx: &Tx<'_>| next(tx) == Some((ticket, run));
        start_inference(tx, run);
        if is_stuck(tx) {
            end_stuck(tx, run);
            if is_stuck(tx) {
                break;
            }
        }
    }
}

/// Ends a run whose ticket is granted without effect: it does not fit what the run is, so a record of it is missing.
/// Without that the same ticket would be next for ever.
fn end_stuck(tx: &mut Tx<'_>, run: RunId) {
    if stop(tx, run, StopReason::Unreadable, true) {
        wind_up(tx, run, StopReason::Unreadable);
    }
}

fn start_inference(tx: &mut Tx<'_>, run: RunId) -> bool {
    // A run of an older journal may have waited for its permit when its daemon ended.
    prepare(tx, run);
    let (Some(life), Some(spec), Some(entity)) = (tx.life(run), tx.spec(run), tx.entity(run)) else {
        return false;
    };
    let (step, attempt) = (life.step, life.attempt + 1);
    // A fallback is asked for its own configured model.
    let (provider, model) = match &life.provider {
        Some(instead) => (Arc::clone(instead), None),
        None => (spec.0.provider.clone().unwrap_or_else(|| "".into()), spec.0.model.clone()),
    };
    let plan = tx.get::<Compacting>(entity).map(|compacting| &*compacting.0);
    let affordable = tx.get::<BudgetReserve>(entity).map(|held| held.0.answer_tokens);
    let entries = tx.get::<Transcript>(entity).map_or(&[][..], |transcript| &transcript.0);
    let (prompt, tools, room) = match plan {
        Some(plan) => (summarise::request(entries, plan), Arc::default(), Some(plan.max_tokens)),
        None => {
            let room = crate::world::inference::when_to_compact::room(tx, run, life.provider.as_ref(), affordable);
            (Prompt::from_transcript(entries).of_provider(&provider), tools(tx, run, &spec.0), room)
        }
    };
    let task = InferenceTask {
        provider,
        model,
        script: spec.0.script.clone(),
        prompt,
        tools,
        max_output_tokens: [affordable, room].into_iter().flatten().min(),
        is_budgeted: affordable.is_some(),
        is_summary: plan.is_some(),
    };
    let id = JobId { run, work: Work::Inference { step, attempt } };
    tx.emit(Some(run), EventBody::InferenceStarted { step, attempt });
    tx.effect(Effect::Start(Job { id, task: Task::Inference(task) }));
    true
}

/// What a model is told of the tools that its run may call.
fn tools(tx: &Tx<'_>, run: RunId, spec: &RunSpec) -> Arc<[ToolSpec]> {
    let all = toolset(tx, run).map_or_else(|| &tx.setup().toolset.specs, |toolset| &toolset.specs);
    match spec.tools {
        None => Arc::clone(all),
        Some(_) => all.iter().filter(|tool| spec.allows_tool(&tool.name)).cloned().collect(),
    }
}

fn grant_batches(tx: &mut Tx<'_>) {
    let is_stuck = |tx: &Tx<'_>, ticket| tx.lanes().tool.peek().is_some_and(|(again, _)| again == ticket);
    while let Some((ticket, run)) = tx.lanes().tool.peek() {
        match tx.batch(run).and_then(|batch| batch.0.candidate()).cloned() {
            Some(call) => put_to_work(tx, run, &call),
            // Decide queues a ticket only for a call that can use it; without one it leaves the queue again.
            None => {
                tx.emit(Some(run), EventBody::BatchParked);
            }
        }
        if is_stuck(tx, ticket) {
            end_stuck(tx, run);
            if is_stuck(tx, ticket) {
                break;
            }
        }
    }
}

/// Lets a call execute: its job starts, or goes on.
pub(in crate::world) fn put_to_work(tx: &mut Tx<'_>, run: RunId, call: &Call) {
    let id = JobId { run, work: Work::Call(call.id) };
    if call.stage == Stage::Returning {
        tx.emit(Some(run), EventBody::CallResumed { call: call.id });
        tx.effect(Effect::Resume(id));
    } else {
        let Some(spec) = tx.spec(run).map(|spec| Arc::clone(&spec.0)) else { return };
        tx.emit(Some(run), EventBody::CallStarted { call: call.id });
        let ask = call.ask.clone().filter(|ask| !ask.kind.comes_first());
        let task = CallTask { tool: Arc::clone(&call.tool), args: Arc::clone(&call.args), ask, spec };
        tx.effect(Effect::Start(Job { id, task: Task::Call(task) }));
    }
}

/// Lets consecutive calls execute in parallel, while no other ticket waits for the permits.
fn grant_extras(tx: &mut Tx<'_>) {
    let mut after = None;
    loop {
        let wants = &tx.res::<WantsExtra>().0;
        let next = match after {
            None => wants.first().copied(),
            Some(last) => wants.range((std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded)).next().copied(),
        };
        let Some((number, run)) = next else { return };
        after = Some((number, run));
        while let Some(call) = extra_for(tx, run) {
            put_to_work(tx, run, &call);
        }
    }
}

fn extra_for(tx: &Tx<'_>, run: RunId) -> Option<Call> {
    let batch = tx.batch(run)?;
    let lane = &tx.lanes().tool;
    let share = tx.spec(run)?.0.share.as_deref().and_then(|name| lane.share(name)).unwrap_or(crate::lane::ShareId(0));
    let free = batch.0.ticket.is_some_and(|ticket| lane.held(ticket) > 0) && lane.has_extra(share);
    free.then(|| batch.0.candidate().cloned()).flatten()
}
