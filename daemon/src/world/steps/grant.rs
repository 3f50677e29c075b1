//! Set Dispatch: hands out permits, and with each the work that it is for.

use std::sync::Arc;

use bevy_ecs::schedule::{IntoScheduleConfigs as _, Schedule};
use bevy_ecs::system::Res;
use bevy_ecs::world::World;
use harness_protocol::event::{EventBody, StopReason};
use harness_protocol::id::RunId;
use harness_protocol::spec::RunSpec;

use super::StepSystems;
use crate::catalogue::ToolSpec;
use crate::prompt::{Prompt, compaction};
use crate::world::api::{CallTask, Effect, InferenceTask, Job, JobId, Task, Work};
use crate::world::ending::{stop, wind_up};
use crate::world::model::components::{Call, Compacting, Held, Stage, Transcript};
use crate::world::model::indexes::WantsExtra;
use crate::world::model::step_io::Incoming;
use crate::world::tx::Scene;

pub(in crate::world) fn install(schedule: &mut Schedule) {
    let grants = (grant_inferences, grant_batches, grant_extras).chain().run_if(is_not_held);
    schedule.add_systems(grants.in_set(StepSystems::Dispatch));
}

#[expect(clippy::needless_pass_by_value, reason = "so bevy wants its conditions")]
fn is_not_held(incoming: Res<Incoming>) -> bool {
    !incoming.held
}

fn grant_inferences(world: &mut World) {
    let mut scene = Scene::new(world);
    let next = |scene: &Scene<'_>| scene.lanes().providers.values().find_map(|lane| lane.peek());
    while let Some((ticket, run)) = next(&scene) {
        // Numbers of tickets are those of one lane.
        let is_stuck = |scene: &Scene<'_>| next(scene) == Some((ticket, run));
        start_inference(&mut scene, run);
        if is_stuck(&scene) {
            end_stuck(&mut scene, run);
            if is_stuck(&scene) {
                break;
            }
        }
    }
}

/// Ends a run whose ticket is granted without effect: it does not fit what the run is, so a record of it is missing. Without that
/// the same ticket would be next for ever.
fn end_stuck(scene: &mut Scene<'_>, run: RunId) {
    if stop(scene, run, StopReason::Unreadable, true) {
        wind_up(scene, run, StopReason::Unreadable);
    }
}

fn start_inference(scene: &mut Scene<'_>, run: RunId) -> bool {
    let (Some(life), Some(spec), Some(entity)) = (scene.life(run), scene.spec(run), scene.entity(run)) else {
        return false;
    };
    let (step, attempt) = (life.step, life.attempt + 1);
    // Whoever stands in is asked for its own model.
    let (provider, model) = match &life.provider {
        Some(instead) => (Arc::clone(instead), None),
        None => (spec.0.provider.clone().unwrap_or_else(|| "".into()), spec.0.model.clone()),
    };
    let plan = scene.get::<Compacting>(entity).map(|compacting| &*compacting.0);
    let affordable = scene.get::<Held>(entity).map(|held| held.0.answer_tokens);
    let entries = scene.get::<Transcript>(entity).map_or(&[][..], |transcript| &transcript.0);
    let (prompt, tools, room) = match plan {
        Some(plan) => (compaction::request(entries, plan), Arc::default(), Some(plan.max_tokens)),
        None => {
            let room = crate::world::inference::compaction::room(scene, run, life.provider.as_ref(), affordable);
            (Prompt::from_transcript(entries).of_provider(&provider), tools(scene, &spec.0), room)
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
    scene.emit(Some(run), EventBody::InferenceStarted { step, attempt });
    scene.effect(Effect::Start(Job { id, task: Task::Inference(task) }));
    true
}

/// What a model is told of the tools that its run may call.
fn tools(scene: &Scene<'_>, spec: &RunSpec) -> Arc<[ToolSpec]> {
    let all = &scene.setup().specs;
    match spec.tools {
        None => Arc::clone(all),
        Some(_) => all.iter().filter(|tool| spec.allows_tool(&tool.name)).cloned().collect(),
    }
}

fn grant_batches(world: &mut World) {
    let mut scene = Scene::new(world);
    let is_stuck = |scene: &Scene<'_>, ticket| scene.lanes().tool.peek().is_some_and(|(again, _)| again == ticket);
    while let Some((ticket, run)) = scene.lanes().tool.peek() {
        match scene.batch(run).and_then(|batch| batch.0.candidate()).cloned() {
            Some(call) => put_to_work(&mut scene, run, &call),
            // Decide queues a ticket only for a call that can use it; without one it leaves the queue again.
            None => {
                scene.emit(Some(run), EventBody::BatchParked);
            }
        }
        if is_stuck(&scene, ticket) {
            end_stuck(&mut scene, run);
            if is_stuck(&scene, ticket) {
                break;
            }
        }
    }
}

/// Lets a call execute: its job starts, or goes on.
pub(in crate::world) fn put_to_work(scene: &mut Scene<'_>, run: RunId, call: &Call) {
    let id = JobId { run, work: Work::Call(call.id) };
    if call.stage == Stage::Returning {
        scene.emit(Some(run), EventBody::CallResumed { call: call.id });
        scene.effect(Effect::GoOn(id));
    } else {
        let Some(spec) = scene.spec(run).map(|spec| Arc::clone(&spec.0)) else { return };
        scene.emit(Some(run), EventBody::CallStarted { call: call.id });
        let task = CallTask { tool: Arc::clone(&call.tool), args: Arc::clone(&call.args), spec };
        scene.effect(Effect::Start(Job { id, task: Task::Call(task) }));
    }
}

/// Lets neighbours execute beside each other, while nobody else wants the permits.
fn grant_extras(world: &mut World) {
    let mut scene = Scene::new(world);
    let mut after = None;
    loop {
        let wants = &scene.res::<WantsExtra>().0;
        let next = match after {
            None => wants.first().copied(),
            Some(last) => wants.range((std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded)).next().copied(),
        };
        let Some((number, run)) = next else { return };
        after = Some((number, run));
        while let Some(call) = extra_for(&scene, run) {
            put_to_work(&mut scene, run, &call);
        }
    }
}

fn extra_for(scene: &Scene<'_>, run: RunId) -> Option<Call> {
    let batch = scene.batch(run)?;
    let lane = &scene.lanes().tool;
    let share =
        scene.spec(run)?.0.share.as_deref().and_then(|name| lane.share(name)).unwrap_or(crate::lane::ShareId(0));
    let free = batch.0.ticket.is_some_and(|ticket| lane.held(ticket) > 0) && lane.has_extra(share);
    free.then(|| batch.0.candidate().cloned()).flatten()
}
