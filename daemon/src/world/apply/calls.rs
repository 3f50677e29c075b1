//! Applies the events of a batch, of its calls and of their questions.

use std::sync::Arc;

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;
use harness_protocol::event::{Cause, Event, EventBody};
use harness_protocol::id::{CallId, InteractionId, RunId};
use harness_protocol::interaction::Resolution;
use harness_protocol::run::{CallResult, Entry};
use harness_protocol::time::Timestamp;

use super::super::model::components::{Asker, Batch, Call, ClosedQuestions, Identity, Stage, Transcript, WaitedOnBy};
use super::super::model::ids::Ids;
use super::super::model::indexes::{ClosedInteraction, Interactions, Lanes, OpenInteraction, Runs, Timer, Timers};
use super::super::settlement::Settlement;
use super::{claim, edit, edit_batch, entity as entity_of, upward, wake};
use crate::lane::{TicketId, TicketState};

fn ticket(world: &World, entity: Entity) -> Option<TicketId> {
    world.get::<Batch>(entity).and_then(|batch| batch.0.ticket)
}

pub(super) fn batch_queued(world: &mut World, entity: Entity, at: Timestamp) {
    match ticket(world, entity) {
        Some(ticket) => world.resource_mut::<Lanes>().tool.resume(ticket, at),
        None => enter(world, entity, at, false),
    }
}

pub(super) fn batch_parked(world: &mut World, entity: Entity, at: Timestamp) {
    match ticket(world, entity) {
        Some(ticket) => world.resource_mut::<Lanes>().tool.park(ticket, at),
        None => enter(world, entity, at, true),
    }
}

fn enter(world: &mut World, entity: Entity, at: Timestamp, parked: bool) {
    let Some(run) = world.get::<Identity>(entity).map(|identity| identity.id) else { return };
    let Some(claim) = claim(world, run, entity, &world.resource::<Lanes>().tool) else { return };
    let lane = &mut world.resource_mut::<Lanes>().tool;
    let ticket = if parked { lane.enter_parked(claim, at) } else { lane.enter(claim, at) };
    edit_batch(world, entity, |batch| batch.ticket = Some(ticket));
}

pub(super) fn batch_yielded(world: &mut World, entity: Entity, keeps: u32, at: Timestamp) {
    if let Some(ticket) = ticket(world, entity) {
        world.resource_mut::<Lanes>().tool.keep(ticket, u16::try_from(keeps).unwrap_or(u16::MAX), at);
    }
}

/// Moves a call to another stage. The count of jobs that are out follows from the stages.
fn stage(world: &mut World, entity: Entity, call: CallId, to: Stage, at: Timestamp) {
    let mut out = 0i32;
    edit_batch(world, entity, |batch| {
        if let Some(call) = batch.calls.iter_mut().find(|c| c.id == call) {
            out = i32::from(to.has_job()) - i32::from(call.stage.has_job());
            call.stage = to;
            call.since = at;
        }
    });
    let mut runs = world.resource_mut::<Runs>();
    runs.executing = runs.executing.saturating_add_signed(out);
}

/// A call executes: under the permit that its batch holds for it, or is granted with this event.
pub(super) fn at_work(world: &mut World, entity: Entity, call: CallId, at: Timestamp) {
    let Some(batch) = world.get::<Batch>(entity) else { return };
    let (Some(ticket), executing) = (batch.0.ticket, batch.0.executing()) else { return };
    let lane = &mut world.resource_mut::<Lanes>().tool;
    if lane.state(ticket) != Some(TicketState::Busy) {
        lane.grant(ticket, at);
    } else if lane.held(ticket) <= executing {
        lane.grant_extra(ticket, at);
    }
    stage(world, entity, call, Stage::Executing, at);
}

pub(super) fn off_lane(world: &mut World, run: RunId, entity: Entity, call: CallId, at: Timestamp) {
    stage(world, entity, call, Stage::OffLane, at);
    wake(world, run);
}

pub(super) fn returning(world: &mut World, run: RunId, entity: Entity, call: CallId, at: Timestamp) {
    stage(world, entity, call, Stage::Returning, at);
    wake(world, run);
}

pub(super) fn waiting(
    world: &mut World,
    run: RunId,
    entity: Entity,
    call: CallId,
    runs: &[RunId],
    any: bool,
    at: Timestamp,
) {
    stage(world, entity, call, Stage::Waiting { runs: runs.to_vec(), any }, at);
    for &target in runs {
        if let Some(target) = entity_of(world, target) {
            let mut target = world.entity_mut(target);
            let mut watchers = target.entry::<WaitedOnBy>().or_default();
            let mut watchers = watchers.get_mut();
            if !watchers.0.contains(&run) {
                watchers.0.push(run);
            }
        }
    }
}

pub(super) fn finished(world: &mut World, run: RunId, entity: Entity, result: &Arc<CallResult>, at: Timestamp) {
    stage(world, entity, result.call, Stage::Done, at);
    edit_batch(world, entity, |batch| {
        batch.calls.iter_mut().filter(|call| call.id == result.call).for_each(|call| call.told = None);
    });
    edit::<Transcript>(world, entity, |t| t.push(Entry::Result { result: Arc::clone(result) }));
    wake(world, run);
}

pub(super) fn interaction_opened(world: &mut World, run: RunId, entity: Entity, event: &Event) {
    let EventBody::InteractionOpened { interaction, call, question, interaction_kind, subject, expires_at } =
        &event.body
    else {
        return;
    };
    let (interaction, call, at) = (*interaction, *call, event.at);
    world.resource_mut::<Ids>().interactions += 1;
    let above = upward(world, entity).skip(1).filter_map(|at| world.get::<Identity>(at)).map(|above| above.id);
    let open = OpenInteraction {
        number: event.seq.0,
        run,
        above: above.collect(),
        call,
        kind: *interaction_kind,
        question: Arc::clone(question),
        subject: subject.clone(),
        since: at,
        expires_at: *expires_at,
    };
    world.resource_mut::<Interactions>().opened(interaction, open);
    world.resource_mut::<Timers>().set(Timer::Expiry(interaction), *expires_at);
    let asks =
        if stage_of(world, entity, call).is_some_and(|stage| stage.has_job()) { Asker::Job } else { Asker::Call };
    stage(world, entity, call, Stage::Asking(interaction, asks), at);
    wake(world, run);
}

/// It is settled like this, or withdrawn. A call that is allowed can begin; a job that asked waits for its permit.
pub(super) fn interaction_closed(
    world: &mut World,
    interaction: InteractionId,
    settled: Option<(Settlement, Cause)>,
    at: Timestamp,
) {
    world.resource_mut::<Timers>().set(Timer::Expiry(interaction), None);
    let decided = settled.as_ref().map(|(settlement, cause)| (settlement.resolution, *cause));
    let mut interactions = world.resource_mut::<Interactions>();
    let Some(open) = interactions.close(interaction) else { return };
    interactions.closed.insert(interaction, ClosedInteraction { run: open.run, at, settled: decided });
    let Some(entity) = entity_of(world, open.run) else { return };
    world.entity_mut(entity).entry::<ClosedQuestions>().or_default().get_mut().0.push(interaction);
    let edit_call = |world: &mut World, edit: &dyn Fn(&mut Call)| {
        edit_batch(world, entity, |batch| batch.calls.iter_mut().filter(|call| call.id == open.call).for_each(edit));
    };
    let asks = stage_of(world, entity, open.call);
    if let (Some(Stage::Asking(_, Asker::Job | Asker::Gone)), Some((settlement, _))) = (&asks, settled) {
        edit_call(world, &|call| call.told = Some(settlement.clone()));
    }
    match (asks, decided) {
        (Some(Stage::Asking(_, Asker::Job)), _) => stage(world, entity, open.call, Stage::OffLane, at),
        (Some(Stage::Asking(_, Asker::Call)), Some((Resolution::Allowed, _))) => {
            edit_call(world, &|call| call.cleared = true);
            stage(world, entity, open.call, Stage::Pending, at);
        }
        _ => {}
    }
    wake(world, open.run);
}

/// The job that asked a person is gone.
pub(super) fn interrupted(world: &mut World, entity: Entity, call: CallId, at: Timestamp) {
    if let Some(Stage::Asking(interaction, _)) = stage_of(world, entity, call) {
        stage(world, entity, call, Stage::Asking(interaction, Asker::Gone), at);
    }
}

fn stage_of(world: &World, entity: Entity, call: CallId) -> Option<Stage> {
    world.get::<Batch>(entity)?.0.call(call).map(|call| call.stage.clone())
}

/// The step is over: its batch leaves the tool lane.
pub(super) fn leave_batch(world: &mut World, entity: Entity, at: Timestamp) {
    let Some(batch) = world.entity_mut(entity).take::<Batch>() else { return };
    if let Some(ticket) = batch.0.ticket {
        world.resource_mut::<Lanes>().tool.leave(ticket, at);
    }
}
