//! Changes runs, lanes and all else that events make: `apply(event)` is the only code that does, live and in replay
//! alike.
//!
//! Must not decide anything: an event states what has happened. Knows no time but the event's own, and no
//! configuration: one history gives one world, whatever is configured when it is read. (The events of the first
//! journals do not tell the shares of lanes; there the configured ones count.) Indexes that follow from components are
//! updated by hooks (`model/indexes/hooks.rs`).

mod calls;
mod clock;
mod inferences;
mod lanes;
mod pools;
mod providers;
mod replay_check;
mod runs;
mod transition;
mod tree;

pub(crate) use runs::earliest;
pub(crate) use tree::{downward, upward};

use std::sync::Arc;

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;
use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::RunId;
use harness_protocol::time::Timestamp;

use super::model::components::{Batch, BatchState, CouldUseMore, Identity, Life, Prepared, Shown, Spec, Stopwatch};
use super::model::indexes::{Agenda, Daemon, Lanes, Runs, Timer, Timers};
use super::model::phase::{Bucket, Phase};
use super::model::run_state::condition;
use super::model::toolsets::Toolsets;
use super::settlement::Settlement;
use crate::lane::{Claim, Lane, ShareId};

pub(crate) use replay_check::fits;

/// Changes the world as the event says.
pub(crate) fn apply(world: &mut World, event: &Event) {
    let at = event.at;
    let mut daemon = world.resource_mut::<Daemon>();
    daemon.last_seq = event.seq;
    daemon.last_at = at;
    match (&event.body, event.run) {
        (EventBody::RunSubmitted { .. }, Some(run)) => runs::submitted(world, event, run),
        (EventBody::RunArchived, Some(run)) => runs::archived(world, run),
        (body, Some(run)) => {
            let Some(entity) = entity(world, run) else { return };
            about_run(world, event, body, run, entity);
            settle_account(world, run, entity, at);
        }
        (body, None) => lanes::about_daemon(world, body, at),
    }
}

fn about_run(world: &mut World, event: &Event, body: &EventBody, run: RunId, entity: Entity) {
    let at = event.at;
    match body {
        EventBody::StepBegun { step, provider, reserve } => {
            inferences::step_begun(world, entity);
            inferences::wanted(world, run, entity, (*step, provider), at);
            pools::hold(world, entity, *reserve);
        }
        EventBody::StepPostponed { step, budget_of, provider } => {
            inferences::postponed(world, entity, *step, (*budget_of, provider.is_some()), at);
        }
        EventBody::CompactionBegun { step, provider, plan, reserve } => {
            inferences::compaction_begun(world, entity, plan);
            inferences::wanted(world, run, entity, (*step, provider), at);
            pools::hold(world, entity, *reserve);
        }
        EventBody::CompactionFinished { usage, .. } => {
            inferences::compaction_finished(world, run, entity, body, usage, at);
        }
        EventBody::InferenceStarted { attempt, .. } => inferences::started(world, entity, *attempt, at),
        EventBody::InferenceFinished { usage, .. } => inferences::finished(world, run, entity, body, usage, at),
        EventBody::InferenceFailed { error, retry_at, fault, usage, .. } => {
            if let Some(usage) = usage {
                pools::spent(world, entity, usage);
            }
            inferences::failed(world, run, entity, (*retry_at, *fault), error, at);
        }
        EventBody::BatchQueued => calls::batch_queued(world, entity, at),
        EventBody::BatchParked => calls::batch_parked(world, entity, at),
        EventBody::BatchYielded { keeps } => calls::batch_yielded(world, entity, *keeps, at),
        EventBody::CallStarted { call } | EventBody::CallResumed { call } => calls::at_work(world, entity, *call, at),
        EventBody::CallOffLane { call } => calls::off_lane(world, run, entity, *call, at),
        EventBody::CallReturning { call } => calls::returning(world, run, entity, *call, at),
        EventBody::CallWaiting { call, runs, any } => calls::waiting(world, run, entity, *call, runs, *any, at),
        EventBody::CallFinished { result } => calls::finished(world, run, entity, result, at),
        EventBody::CallInterrupted { call } => calls::interrupted(world, entity, *call, at),
        EventBody::InteractionOpened { .. } => calls::interaction_opened(world, run, entity, event),
        EventBody::InteractionSettled { interaction, answer, resolution, scope } => {
            let settlement = Settlement { resolution: *resolution, text: Arc::clone(answer), scope: *scope };
            calls::interaction_closed(world, *interaction, Some((settlement, event.cause)), at);
        }
        EventBody::InteractionClosed { interaction } => calls::interaction_closed(world, *interaction, None, at),
        EventBody::Denied { what } => runs::denied(world, entity, what),
        EventBody::MessageReceived { text, submit_key } => {
            runs::message_received(world, run, entity, text);
            if let Some(key) = submit_key {
                runs::told_under(world, entity, *key, event.seq);
            }
        }
        EventBody::WorkdirFound { folder } => {
            edit::<Spec>(world, entity, |spec| Arc::make_mut(&mut spec.0).workdir_id = Some(*folder));
        }
        EventBody::RunPrepared { definitions: Some(definitions), definitions_blob } => {
            let toolset = world.resource_mut::<Toolsets>().defined(definitions, definitions_blob.as_deref());
            world.entity_mut(entity).insert(Prepared(toolset));
        }
        EventBody::RunPaused => runs::paused(world, run, entity, at),
        EventBody::RunResumed => runs::resumed(world, run, entity, at),
        EventBody::RunStopping { reason, .. } => runs::stopping(world, run, entity, *reason, at),
        EventBody::RunFinished { ending } => runs::finished(world, run, entity, ending, at),
        _ => {}
    }
}

/// After each event about a run: what is shown, where its time goes, and what follows from these.
fn settle_account(world: &mut World, run: RunId, entity: Entity, at: Timestamp) {
    let Some((before, bucket_before, (after, bucket))) = world.get::<Stopwatch>(entity).and_then(|watch| {
        let (life, shown) = (world.get::<Life>(entity)?, world.get::<Shown>(entity)?);
        let batch = world.get::<Batch>(entity).map(|batch| &*batch.0);
        Some((shown.0, watch.bucket, condition(life, batch, &world.resource::<Lanes>().tool)))
    }) else {
        return;
    };
    if bucket_before != bucket
        && let Some(mut watch) = world.get_mut::<Stopwatch>(entity)
    {
        watch.turn_to(bucket, at);
    }
    if before != after {
        world.entity_mut(entity).insert(Shown(after));
    }
    let works = |bucket| matches!(bucket, Bucket::Model | Bucket::Tools);
    if works(bucket_before) != works(bucket) {
        set_max_time(world, run, entity, works(bucket), at);
    }
    note_extra(world, entity);
}

/// The timer of `max_time` runs while the run works.
fn set_max_time(world: &mut World, run: RunId, entity: Entity, works: bool, at: Timestamp) {
    let limit = world.get::<Spec>(entity).and_then(|spec| spec.0.limits.max_time_seconds);
    let Some(limit) = limit else { return };
    let worked = world.get::<Stopwatch>(entity).map(|watch| watch.worked(at)).unwrap_or_default();
    let stopping = world.get::<Life>(entity).is_none_or(|life| life.stopping.is_some());
    let due = (works && !stopping).then(|| at + (limit - worked));
    world.resource_mut::<Timers>().set(Timer::MaxTime(run), due);
}

/// Marks a batch that could use one more permit.
fn note_extra(world: &mut World, entity: Entity) {
    let wants = world
        .get::<Batch>(entity)
        .is_some_and(|batch| batch.0.calls.len() > 1 && batch.0.executing() > 0 && batch.0.candidate().is_some())
        && world.get::<Life>(entity).is_some_and(|life| life.stopping.is_none() && !life.paused);
    match (world.get::<CouldUseMore>(entity).is_some(), wants) {
        (false, true) => drop(world.entity_mut(entity).insert(CouldUseMore)),
        (true, false) => drop(world.entity_mut(entity).remove::<CouldUseMore>()),
        (true, true) | (false, false) => {}
    }
}

/// Puts a run on the agenda.
pub(crate) fn wake(world: &mut World, run: RunId) {
    let number = entity(world, run).and_then(|entity| world.get::<Identity>(entity)).map(|identity| identity.number);
    if let Some(number) = number {
        world.resource_mut::<Agenda>().0.insert((number, run));
    }
}

fn entity(world: &World, run: RunId) -> Option<Entity> {
    world.resource::<Runs>().by_id.get(&run).copied()
}

/// Writes a component, if the entity has it.
fn edit<C>(world: &mut World, entity: Entity, change: impl FnOnce(&mut C))
where
    C: bevy_ecs::component::Component<Mutability = bevy_ecs::component::Mutable>,
{
    if let Some(mut component) = world.get_mut::<C>(entity) {
        change(&mut component);
    }
}

fn edit_batch(world: &mut World, entity: Entity, change: impl FnOnce(&mut BatchState)) {
    edit::<Batch>(world, entity, |batch| change(&mut batch.0));
}

fn phase(world: &World, entity: Entity) -> Option<Phase> {
    world.get::<Life>(entity).map(Life::phase)
}

fn claim(world: &World, run: RunId, entity: Entity, lane: &Lane) -> Option<Claim> {
    let identity = world.get::<Identity>(entity)?;
    let spec = world.get::<Spec>(entity)?;
    let share = spec.0.share.as_deref().and_then(|name| lane.share(name)).unwrap_or(ShareId(0));
    Some(Claim { run, root: identity.root, share, priority: spec.0.priority })
}

/// The provider that a run asks now.
fn asked(world: &World, entity: Entity) -> Option<Arc<str>> {
    let instead = world.get::<Life>(entity).and_then(|life| life.provider.clone());
    instead.or_else(|| world.get::<Spec>(entity)?.0.provider.clone())
}

/// Changes the lane of a run's provider.
fn with_provider_lane<T>(world: &mut World, entity: Entity, change: impl FnOnce(&mut Lane) -> T) -> Option<T> {
    let name = asked(world, entity)?;
    Some(change(world.resource_mut::<Lanes>().provider(&name)))
}
