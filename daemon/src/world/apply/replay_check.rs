//! Checks in a replay whether an event can follow on the state of its run, or whether a record between them is missing.
//!
//! It is asked before the event is applied, so that a run with a missing record keeps its last good state. Changes
//! nothing. The end of a run fits every state but an end, because the state before it no longer matters.

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;
use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::{CallId, InteractionId, RunId};

use super::super::api::Unfit;
use super::super::model::components::{Asker, Batch, Call, Compacting, Life, Stage};
use super::super::model::indexes::{Interactions, Lanes, Runs};
use super::super::model::phase::Phase;
use crate::lane::TicketState;

/// Whether an event can be applied.
pub(crate) fn fits(world: &World, event: &Event) -> Result<(), Unfit> {
    let Some(run) = event.run else { return Ok(()) };
    let entity = world.resource::<Runs>().by_id.get(&run).copied();
    match (&event.body, entity) {
        (EventBody::RunSubmitted { .. }, None) => Ok(()),
        (EventBody::RunSubmitted { .. }, Some(_)) => Err(Unfit::MadeTwice),
        (_, None) => Err(Unfit::NoRun),
        (body, Some(entity)) => about_run(world, run, entity, body),
    }
}

fn about_run(world: &World, run: RunId, entity: Entity, body: &EventBody) -> Result<(), Unfit> {
    let Some(life) = world.get::<Life>(entity) else { return Err(Unfit::NoRun) };
    if matches!(life.phase(), Phase::Ended(_)) {
        return if matches!(body, EventBody::RunArchived) { Ok(()) } else { Err(Unfit::Ended) };
    }
    let is_at = |step: u32| step == life.step;
    let call_of = |call: CallId| world.get::<Batch>(entity)?.0.call(call);
    let stage = |call: CallId| call_of(call).map(|call| &call.stage);
    let is_asked = |interaction: &InteractionId| {
        world.resource::<Interactions>().open.get(interaction).is_some_and(|open| open.run == run)
    };
    let acts = life.phase() == Phase::Acting && world.get::<Batch>(entity).is_some();
    let thinks = matches!(life.phase(), Phase::Thinking(_));
    let is_compacting = world.get::<Compacting>(entity).is_some();
    let in_order = match body {
        EventBody::StepBegun { step, .. }
        | EventBody::CompactionBegun { step, .. }
        | EventBody::StepPostponed { step, .. } => {
            let has_done = world.get::<Batch>(entity).is_none_or(|batch| batch.0.group().is_empty());
            !thinks && has_done && (is_at(*step) || life.step.checked_add(1) == Some(*step))
        }
        EventBody::InferenceStarted { step, .. } => matches!(life.phase(), Phase::Wanting(_)) && is_at(*step),
        EventBody::InferenceFinished { step, .. } => thinks && is_at(*step) && !is_compacting,
        EventBody::CompactionFinished { step, .. } => {
            // One that stands in for a summary that was not given follows on the last failure.
            let is_makeshift = matches!(life.phase(), Phase::Retrying(_)) && !is_compacting;
            is_at(*step) && (thinks && is_compacting || is_makeshift)
        }
        EventBody::InferenceFailed { step, .. } => thinks && is_at(*step),
        EventBody::BatchQueued | EventBody::BatchParked | EventBody::BatchYielded { .. } => acts,
        EventBody::CallStarted { call } => {
            let may_begin = |call: &Call| call.stage == Stage::Pending && !call.must_be_cleared();
            acts && call_of(*call).is_some_and(may_begin) && has_ticket(world, entity)
        }
        EventBody::CallResumed { call } => acts && stage(*call) == Some(&Stage::Returning) && has_ticket(world, entity),
        EventBody::CallOffLane { call } => acts && stage(*call) == Some(&Stage::Executing),
        EventBody::CallReturning { call } => acts && stage(*call) == Some(&Stage::OffLane),
        EventBody::CallWaiting { call, .. } => acts && stage(*call) == Some(&Stage::Pending),
        EventBody::InteractionOpened { call, .. } => {
            acts && matches!(stage(*call), Some(Stage::Pending | Stage::Executing))
        }
        EventBody::CallInterrupted { call } => acts && matches!(stage(*call), Some(Stage::Asking(_, Asker::Job))),
        EventBody::CallFinished { result } => acts && stage(result.call).is_some_and(|stage| *stage != Stage::Done),
        EventBody::InteractionSettled { interaction, .. } | EventBody::InteractionClosed { interaction } => {
            is_asked(interaction)
        }
        EventBody::RunPaused => !life.paused,
        EventBody::RunResumed => life.paused,
        EventBody::RunArchived => false,
        _ => true,
    };
    if in_order { Ok(()) } else { Err(Unfit::OutOfOrder) }
}

/// Whether its batch stands in the lane, and can hold a permit.
fn has_ticket(world: &World, entity: Entity) -> bool {
    let lane = &world.resource::<Lanes>().tool;
    let state = world.get::<Batch>(entity).and_then(|batch| batch.0.ticket).and_then(|ticket| lane.state(ticket));
    matches!(state, Some(TicketState::Queued | TicketState::Resuming | TicketState::Busy))
}
