//! Applies the events in the life of a run.

use std::sync::Arc;

use bevy_ecs::entity::Entity;
use bevy_ecs::world::{EntityWorldMut, World};
use harness_protocol::event::{Ending, Event, EventBody, StopReason};
use harness_protocol::id::{RunId, Seq};
use harness_protocol::run::{Entry, RunState};
use harness_protocol::spec::RunSpec;
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Timestamp;

use super::super::model::components::{
    Batch, BudgetReserve, Compacting, CompactionFailures, ContextOverflow, Denials, Ended, Identity, Life, MayLeave,
    NewRun, Origin, QueuedMessages, SentAs, Shown, SpawnedBy, Spec, Stage, Stopping, Stopwatch, ToldUnder, Transcript,
    WaitedOnBy,
};
use super::super::model::ids::Ids;
use super::super::model::indexes::{Lanes, Runs, Timer, Timers};
use super::super::model::phase::{Bucket, Phase};
use super::calls::{interaction_closed, leave_batch};
use super::clock::end_of;
use super::transition::enter;
use super::{downward, edit, entity, inferences, phase, pools, upward, wake, with_provider_lane};

/// Keys of messages that a run remembers.
const MOST_TOLD: usize = 64;

pub(super) fn submitted(world: &mut World, event: &Event, run: RunId) {
    let body = &event.body;
    let EventBody::RunSubmitted { number, owner, parent, spec, earlier, .. } = body else { return };
    let at = event.at;
    let parent_entity = parent.and_then(|parent| entity(world, parent));
    let above = parent_entity.and_then(|parent| world.get::<Identity>(parent));
    let (root, depth) = above.map_or((run, 1), |parent| (parent.root, parent.depth + 1));
    let identity = Identity { id: run, number: *number, seq: event.seq, parent: *parent, root, owner: *owner, depth };
    let watch = Stopwatch { timing: Default::default(), bucket: Bucket::Queued, since: at };
    let made = world.spawn(NewRun {
        identity,
        life: Life::new(at),
        shown: Shown(RunState::Queued),
        watch,
        transcript: Transcript(first_entries(spec, earlier)),
        spec: Spec(Arc::clone(spec)),
    });
    let made = with_what_it_comes_from(made, body, parent_entity).id();
    pools::joined(world, made);
    let mut ids = world.resource_mut::<Ids>();
    ids.runs = ids.runs.max(*number);
    let deadline = deadline(world, made);
    world.resource_mut::<Timers>().set(Timer::Deadline(run), deadline);
    wake(world, run);
}

/// What a run has besides, where it does not come from a plain submit.
fn with_what_it_comes_from<'w>(
    mut made: EntityWorldMut<'w>,
    body: &EventBody,
    parent: Option<Entity>,
) -> EntityWorldMut<'w> {
    let EventBody::RunSubmitted { retry_of, continues, idempotency_key, submit_key, earlier, .. } = body else {
        return made;
    };
    if let Some(key) = submit_key {
        made.insert(SentAs(*key));
    }
    if retry_of.is_some() || continues.is_some() || idempotency_key.is_some() {
        made.insert(Origin {
            retry_of: *retry_of,
            continues: *continues,
            earlier: earlier.len(),
            idempotency_key: idempotency_key.clone(),
        });
    }
    if let Some(parent) = parent {
        made.insert(SpawnedBy(parent));
    }
    made
}

fn first_entries(spec: &RunSpec, earlier: &[Entry]) -> Vec<Entry> {
    let prompt = spec.prompt.clone().map(|text| Entry::User { text });
    earlier.iter().cloned().chain(prompt).collect()
}

/// When a run has to end: its own deadline, or that of a run above it, whichever comes first. So a deadline ends the
/// whole tree below it.
pub(super) fn deadline(world: &World, of: Entity) -> Option<Timestamp> {
    earliest(upward(world, of).filter_map(|at| Some((world.get::<Spec>(at)?, world.get::<Life>(at)?))))
}

/// The earliest deadline of these runs.
pub(crate) fn earliest<'r>(runs: impl Iterator<Item = (&'r Spec, &'r Life)>) -> Option<Timestamp> {
    let relative = |spec: &Spec, life: &Life| {
        spec.0.limits.deadline_seconds.map(|span| end_of(life.submitted_at, span, life.moved))
    };
    runs.flat_map(|(spec, life)| [relative(spec, life), spec.0.limits.deadline_at]).flatten().min()
}

pub(super) fn denied(world: &mut World, entity: Entity, what: &Arc<str>) {
    world.entity_mut(entity).entry::<Denials>().or_default().get_mut().0.push(Arc::clone(what));
}

pub(super) fn message_received(world: &mut World, run: RunId, entity: Entity, text: &Arc<str>) {
    world.entity_mut(entity).entry::<QueuedMessages>().or_default().get_mut().0.push(Arc::clone(text));
    wake(world, run);
}

/// A message came under a key of its sender's. The latest keys are known here, the others by the journal.
pub(super) fn told_under(world: &mut World, entity: Entity, key: SubmitKey, seq: Seq) {
    let mut entity = world.entity_mut(entity);
    let mut keys = entity.get::<ToldUnder>().map(|told| told.0.clone()).unwrap_or_default();
    keys.push_back((key, seq));
    if keys.len() > MOST_TOLD {
        keys.pop_front();
    }
    entity.insert(ToldUnder(keys));
}

pub(super) fn paused(world: &mut World, run: RunId, entity: Entity, at: Timestamp) {
    edit::<Life>(world, entity, |life| life.paused = true);
    match phase(world, entity) {
        // A paused run releases its budget reserve, because other runs would wait for it.
        Some(Phase::Wanting(ticket)) if world.get::<BudgetReserve>(entity).is_some() => {
            with_provider_lane(world, entity, |lane| lane.leave(ticket, at));
            enter(world, entity, Phase::Retrying(at));
            world.entity_mut(entity).remove::<Compacting>();
            pools::hold(world, entity, None);
        }
        Some(Phase::Wanting(ticket)) => {
            with_provider_lane(world, entity, |lane| lane.park(ticket, at));
        }
        Some(Phase::Retrying(_)) => world.resource_mut::<Timers>().set(Timer::Retry(run), None),
        // It would be in the way of those that can go on.
        Some(Phase::Postponed(_)) => pools::stop_waiting(world, entity),
        Some(Phase::Acting) => park_if_idle(world, entity, at),
        _ => {}
    }
    wake(world, run);
}

/// Takes a batch of which nothing executes out of the tool lane's queue.
fn park_if_idle(world: &mut World, entity: Entity, at: Timestamp) {
    let idle = world.get::<Batch>(entity).filter(|batch| batch.0.executing() == 0).and_then(|batch| batch.0.ticket);
    if let Some(ticket) = idle {
        world.resource_mut::<Lanes>().tool.park(ticket, at);
    }
}

pub(super) fn resumed(world: &mut World, run: RunId, entity: Entity, at: Timestamp) {
    edit::<Life>(world, entity, |life| life.paused = false);
    match phase(world, entity) {
        Some(Phase::Wanting(ticket)) => {
            with_provider_lane(world, entity, |lane| lane.resume(ticket, at));
        }
        Some(Phase::Retrying(until)) => world.resource_mut::<Timers>().set(Timer::Retry(run), Some(until)),
        // It looks again, and is told if it has to wait for its provider.
        Some(Phase::Postponed(budget_of)) => pools::wait(world, entity, budget_of, false),
        _ => {}
    }
    wake(world, run);
}

pub(super) fn stopping(world: &mut World, run: RunId, entity: Entity, reason: StopReason, at: Timestamp) {
    edit::<Life>(world, entity, |life| {
        life.stopping.get_or_insert(Stopping { reason, at });
    });
    let mut timers = world.resource_mut::<Timers>();
    for timer in [Timer::Deadline(run), Timer::MaxTime(run), Timer::Retry(run)] {
        timers.set(timer, None);
    }
    match phase(world, entity) {
        Some(Phase::Wanting(ticket)) => {
            with_provider_lane(world, entity, |lane| lane.leave(ticket, at));
            enter(world, entity, Phase::Resting);
            pools::hold(world, entity, None);
        }
        Some(Phase::Postponed(_)) => {
            pools::stop_waiting(world, entity);
            enter(world, entity, Phase::Resting);
        }
        Some(Phase::Retrying(_)) => enter(world, entity, Phase::Resting),
        Some(Phase::Acting) => {
            // What executes keeps its permit until it is gone; everything else leaves the lane at once.
            let idle = world.get::<Batch>(entity).is_some_and(|batch| batch.0.executing() == 0);
            if idle && let Some(mut batch) = world.get_mut::<Batch>(entity) {
                let ticket = batch.0.ticket.take();
                if let Some(ticket) = ticket {
                    world.resource_mut::<Lanes>().tool.leave(ticket, at);
                }
            }
        }
        _ => {}
    }
    if reason == StopReason::Unreadable {
        leave_lanes(world, run, entity, at);
    }
    wake(world, run);
}

/// Takes tickets of a run out of the lanes of which it does not know itself. There are none, unless a record is
/// missing.
fn leave_lanes(world: &mut World, run: RunId, entity: Entity, at: Timestamp) {
    let of_phase = match phase(world, entity) {
        Some(Phase::Wanting(ticket) | Phase::Thinking(ticket)) => Some(ticket),
        _ => None,
    };
    let of_batch = world.get::<Batch>(entity).and_then(|batch| batch.0.ticket);
    let mut lanes = world.resource_mut::<Lanes>();
    lanes.tool.leave_all(run, of_batch, at);
    for lane in lanes.providers.values_mut() {
        lane.leave_all(run, of_phase, at);
    }
}

pub(super) fn finished(world: &mut World, run: RunId, entity: Entity, ending: &Ending, at: Timestamp) {
    let_go(world, entity, at);
    pools::left(world, entity);
    let state = match ending {
        Ending::Succeeded { .. } => RunState::Succeeded,
        Ending::Failed { .. } => RunState::Failed,
        Ending::Cancelled { .. } => RunState::Cancelled,
    };
    enter(world, entity, Phase::Ended(state));
    edit::<Life>(world, entity, |life| life.trouble = None);
    world.entity_mut(entity).remove::<(Compacting, ContextOverflow, CompactionFailures)>();
    let watchers = world.entity_mut(entity).take::<WaitedOnBy>();
    let said = world.get::<Transcript>(entity).map_or(0, |transcript| transcript.bytes());
    let bytes = said + world.get::<Spec>(entity).map_or(0, |spec| spec.0.approximate_bytes() as u64);
    world.entity_mut(entity).insert(Ended { ending: ending.clone(), at, bytes });
    let root = world.get::<Identity>(entity).map_or(run, |identity| identity.root);
    may_be_archived(world, root);
    for watcher in watchers.map(|watchers| watchers.0).unwrap_or_default() {
        wake(world, watcher);
    }
}

/// Lets go of what it still holds. That is nothing, unless what came before its end could not be read.
fn let_go(world: &mut World, entity: Entity, at: Timestamp) {
    match phase(world, entity) {
        Some(Phase::Thinking(_)) => inferences::back(world, entity, at),
        Some(Phase::Wanting(ticket)) => drop(with_provider_lane(world, entity, |lane| lane.leave(ticket, at))),
        Some(Phase::Postponed(_)) => pools::stop_waiting(world, entity),
        _ => {}
    }
    let stages: Vec<Stage> = world
        .get::<Batch>(entity)
        .map_or_else(Vec::new, |batch| batch.0.calls.iter().map(|call| call.stage.clone()).collect());
    for stage in stages {
        if stage.has_job() {
            let mut runs = world.resource_mut::<Runs>();
            runs.executing = runs.executing.saturating_sub(1);
        }
        if let Stage::Asking(interaction, _) = stage {
            interaction_closed(world, interaction, None, at);
        }
    }
    leave_batch(world, entity, at);
}

/// A tree stays in the world while any of its runs lives: a live run may still ask for the answer of a finished one.
fn may_be_archived(world: &mut World, root: RunId) {
    let is_live = |world: &World, entity| world.get::<Ended>(entity).is_none();
    let Some(top) = entity(world, root).filter(|&top| !is_live(world, top)) else { return };
    let tree = downward(world, top);
    if tree.iter().any(|&entity| is_live(world, entity)) {
        return;
    }
    for entity in tree {
        let at = world.get::<Ended>(entity).filter(|_| world.get::<MayLeave>(entity).is_none()).map(|ended| ended.at);
        if let Some(at) = at {
            world.entity_mut(entity).insert(MayLeave(at));
        }
    }
}

/// A run leaves: its hooks take it out of all indexes.
pub(super) fn archived(world: &mut World, run: RunId) {
    if let Some(entity) = entity(world, run) {
        world.despawn(entity);
    }
}
