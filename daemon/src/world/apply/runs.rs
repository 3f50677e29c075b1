//! Applies the events in the life of a run.

use std::sync::Arc;

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;
use harness_protocol::event::{Ending, Event, EventBody, StopReason};
use harness_protocol::id::{RunId, Seq};
use harness_protocol::run::{Entry, RunState};
use harness_protocol::spec::RunSpec;
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Timestamp;

use super::super::api::KeySpace;
use super::super::model::components::{
    Batch, BudgetReserve, Children, ClosedQuestions, Compacting, CompactionFailures, ContextOverflow, Denials, Ended,
    Identity, Life, Origin, QueuedMessages, SentAs, Spec, Stage, Stopping, Stopwatch, ToldUnder, Transcript,
    WaitedOnBy,
};
use super::super::model::ids::Ids;
use super::super::model::indexes::{Agenda, Interactions, Lanes, Runs, Timer, Timers, WantsExtra};
use super::super::model::phase::{Bucket, Phase};
use super::calls::{interaction_closed, leave_batch};
use super::clock::end_of;
use super::{edit, entity, inferences, phase, pools, wake, with_provider_lane};

/// Keys of messages that a run remembers.
const MOST_TOLD: usize = 64;

pub(super) fn submitted(world: &mut World, event: &Event, run: RunId) {
    let EventBody::RunSubmitted {
        number,
        owner,
        parent,
        retry_of,
        continues,
        idempotency_key,
        submit_key,
        spec,
        earlier,
    } = &event.body
    else {
        return;
    };
    let at = event.at;
    let parent_entity = parent.and_then(|parent| entity(world, parent));
    let above = parent_entity.and_then(|parent| world.get::<Identity>(parent));
    let (root, depth) = above.map_or((run, 1), |parent| (parent.root, parent.depth + 1));
    let identity = Identity { id: run, number: *number, seq: event.seq, parent: *parent, root, owner: *owner, depth };
    let life = Life {
        phase: Phase::Resting,
        paused: false,
        stopping: None,
        step: 0,
        attempt: 0,
        failures: 0,
        unusable: 0,
        trouble: None,
        provider: None,
        answered: false,
        submitted_at: at,
        moved: 0,
        started_at: None,
    };
    let watch = Stopwatch { timing: Default::default(), bucket: Bucket::Queued, shown: RunState::Queued, since: at };
    let transcript = Transcript(first_entries(spec, earlier));
    let parts = (identity, life, watch, transcript, Spec(Arc::clone(spec)));
    let made = match submit_key {
        Some(key) => world.spawn((parts, SentAs(*key))).id(),
        None => world.spawn(parts).id(),
    };
    if retry_of.is_some() || continues.is_some() || idempotency_key.is_some() {
        let origin = Origin {
            retry_of: *retry_of,
            continues: *continues,
            earlier: earlier.len(),
            idempotency_key: idempotency_key.clone(),
        };
        world.entity_mut(made).insert(origin);
    }
    if let Some(key) = submit_key {
        world.resource_mut::<Runs>().submit_keys.insert(*key, run);
    }
    if let Some(parent) = parent_entity {
        world.entity_mut(parent).entry::<Children>().or_default().get_mut().0.push(run);
    }
    pools::joined(world, made);
    let mut runs = world.resource_mut::<Runs>();
    runs.by_id.insert(run, made);
    runs.live.insert(*number, made);
    // What a run spawned is not what its owner submitted.
    if parent.is_none() {
        runs.last_of.insert(*owner, run);
    }
    *runs.states.entry(RunState::Queued).or_default() += 1;
    if let Some(name) = &spec.name {
        runs.names.insert(Arc::clone(name), parent.is_some().then_some(root), run);
    }
    if let Some(key) = idempotency_key {
        let space = KeySpace::of(parent.is_some().then_some(root), *owner);
        runs.keys.insert((space, Arc::clone(key)), run);
    }
    let mut ids = world.resource_mut::<Ids>();
    ids.runs = ids.runs.max(*number);
    let deadline = deadline(world, made);
    world.resource_mut::<Timers>().set(Timer::Deadline(run), deadline);
    wake(world, run);
}

fn first_entries(spec: &RunSpec, earlier: &[Entry]) -> Vec<Entry> {
    let prompt = spec.prompt.clone().map(|text| Entry::User { text });
    earlier.iter().cloned().chain(prompt).collect()
}

/// When a run has to end: its own deadline, or that of a run above it, whichever comes first. So a deadline ends the
/// whole tree below it.
pub(crate) fn deadline(world: &World, of: Entity) -> Option<Timestamp> {
    let mut earliest: Option<Timestamp> = None;
    let mut at = Some(of);
    while let Some(current) = at {
        if let (Some(spec), Some(life)) = (world.get::<Spec>(current), world.get::<Life>(current)) {
            let limits = &spec.0.limits;
            let relative = limits.deadline_seconds.map(|span| end_of(life.submitted_at, span, life.moved));
            earliest = [earliest, relative, limits.deadline_at].into_iter().flatten().min();
        }
        let parent = world.get::<Identity>(current).and_then(|identity| identity.parent);
        at = parent.and_then(|parent| entity(world, parent));
    }
    earliest
}

pub(super) fn denied(world: &mut World, entity: Entity, what: &Arc<str>) {
    world.entity_mut(entity).entry::<Denials>().or_default().get_mut().0.push(Arc::clone(what));
}

pub(super) fn message_received(world: &mut World, run: RunId, entity: Entity, text: &Arc<str>) {
    world.entity_mut(entity).entry::<QueuedMessages>().or_default().get_mut().0.push(Arc::clone(text));
    wake(world, run);
}

/// A message came under a key of its sender's. The latest keys are known here, the others by the journal.
pub(super) fn told_under(world: &mut World, run: RunId, entity: Entity, key: SubmitKey, seq: Seq) {
    world.resource_mut::<Runs>().submit_keys.insert(key, run);
    let mut entity = world.entity_mut(entity);
    let mut told = entity.entry::<ToldUnder>().or_default();
    let keys = &mut told.get_mut().0;
    keys.push_back((key, seq));
    let forgotten = if keys.len() > MOST_TOLD { keys.pop_front() } else { None };
    if let Some((key, _)) = forgotten {
        world.resource_mut::<Runs>().submit_keys.remove(&key);
    }
}

pub(super) fn paused(world: &mut World, run: RunId, entity: Entity, at: Timestamp) {
    edit::<Life>(world, entity, |life| life.paused = true);
    match phase(world, entity) {
        // A paused run releases its budget reserve, because other runs would wait for it.
        Some(Phase::Wanting(ticket)) if world.get::<BudgetReserve>(entity).is_some() => {
            with_provider_lane(world, entity, |lane| lane.leave(ticket, at));
            edit::<Life>(world, entity, |life| life.phase = Phase::Retrying(at));
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
            edit::<Life>(world, entity, |life| life.phase = Phase::Resting);
            pools::hold(world, entity, None);
        }
        Some(Phase::Postponed(_)) => {
            pools::stop_waiting(world, entity);
            edit::<Life>(world, entity, |life| life.phase = Phase::Resting);
        }
        Some(Phase::Retrying(_)) => edit::<Life>(world, entity, |life| life.phase = Phase::Resting),
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
    edit::<Life>(world, entity, |life| (life.phase, life.trouble) = (Phase::Ended(state), None));
    world.entity_mut(entity).remove::<(Compacting, ContextOverflow, CompactionFailures)>();
    let watchers = world.entity_mut(entity).take::<WaitedOnBy>();
    let said = world.get::<Transcript>(entity).map_or(0, |transcript| transcript.bytes());
    let bytes = said + world.get::<Spec>(entity).map_or(0, |spec| spec.0.approximate_bytes() as u64);
    world.entity_mut(entity).insert(Ended { ending: ending.clone(), at, bytes });
    let Some(&Identity { number, root, parent, .. }) = world.get::<Identity>(entity) else { return };
    let name = world.get::<Spec>(entity).and_then(|spec| spec.0.name.clone());
    let mut runs = world.resource_mut::<Runs>();
    runs.live.remove(&number);
    runs.finished.insert(number, entity);
    *runs.kept.entry(root).or_default() += 1;
    runs.finished_bytes += bytes;
    if let Some(name) = name {
        runs.names.remove(name, parent.is_some().then_some(root), run);
    }
    let mut timers = world.resource_mut::<Timers>();
    for timer in [Timer::Deadline(run), Timer::MaxTime(run), Timer::Retry(run)] {
        timers.set(timer, None);
    }
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
        if let Stage::Asking(interaction) = stage {
            interaction_closed(world, interaction, None, at);
        }
    }
    leave_batch(world, entity, at);
}

/// A tree stays in the world while any of its runs lives: a live run may still ask for the answer of a finished one.
fn may_be_archived(world: &mut World, root: RunId) {
    let is_live = |world: &World, entity| world.get::<Ended>(entity).is_none();
    let Some(top) = entity(world, root).filter(|&top| !is_live(world, top)) else { return };
    let tree = tree(world, top);
    if tree.iter().any(|&entity| is_live(world, entity)) {
        return;
    }
    tree.into_iter().for_each(|entity| note_end(world, entity));
}

/// A run and all that are below it.
fn tree(world: &World, top: Entity) -> Vec<Entity> {
    let mut tree = vec![top];
    let mut next = 0;
    while let Some(&at) = tree.get(next) {
        next += 1;
        let children = world.get::<Children>(at).into_iter().flat_map(|children| children.0.iter());
        tree.extend(children.filter_map(|&child| entity(world, child)));
    }
    tree
}

fn note_end(world: &mut World, entity: Entity) {
    if let (Some(ended), Some(identity)) = (world.get::<Ended>(entity), world.get::<Identity>(entity)) {
        let entry = (ended.at, identity.number);
        let root = identity.root;
        let mut runs = world.resource_mut::<Runs>();
        if runs.by_end.insert(entry) {
            keeps_one_less(&mut runs, root);
        }
    }
}

/// The tree of this top keeps one finished run less.
fn keeps_one_less(runs: &mut Runs, root: RunId) {
    if let Some(count) = runs.kept.get_mut(&root) {
        *count -= 1;
        if *count == 0 {
            runs.kept.remove(&root);
        }
    }
}

pub(super) fn archived(world: &mut World, run: RunId) {
    let Some(entity) = entity(world, run) else { return };
    let Some(identity) = world.get::<Identity>(entity).cloned() else { return };
    let ended = world.get::<Ended>(entity).map(|ended| (ended.at, ended.bytes));
    let shown = world.get::<Stopwatch>(entity).map(|watch| watch.shown);
    let key = world.get::<Origin>(entity).and_then(|origin| origin.idempotency_key.clone());
    let sent_as = world.get::<SentAs>(entity).copied();
    let told: Vec<SubmitKey> =
        world.get::<ToldUnder>(entity).into_iter().flat_map(|told| told.0.iter().map(|(key, _)| *key)).collect();
    let mut runs = world.resource_mut::<Runs>();
    runs.by_id.remove(&run);
    runs.finished.remove(&identity.number);
    if let Some((at, bytes)) = ended {
        if !runs.by_end.remove(&(at, identity.number)) {
            keeps_one_less(&mut runs, identity.root);
        }
        runs.finished_bytes = runs.finished_bytes.saturating_sub(bytes);
    }
    if let Some(count) = shown.and_then(|state| runs.states.get_mut(&state)) {
        *count = count.saturating_sub(1);
    }
    if let Some(key) = key {
        let space = KeySpace::of(identity.parent.is_some().then_some(identity.root), identity.owner);
        runs.keys.remove(&(space, key));
    }
    for key in sent_as.map(|sent_as| sent_as.0).into_iter().chain(told) {
        runs.submit_keys.remove(&key);
    }
    if runs.last_of.get(&identity.owner) == Some(&run) {
        runs.last_of.remove(&identity.owner);
    }
    let asked = world.entity_mut(entity).take::<ClosedQuestions>();
    let closed = &mut world.resource_mut::<Interactions>().closed;
    for interaction in asked.map(|asked| asked.0).unwrap_or_default() {
        closed.remove(&interaction);
    }
    world.resource_mut::<Agenda>().0.remove(&(identity.number, run));
    world.resource_mut::<WantsExtra>().0.remove(&(identity.number, run));
    world.despawn(entity);
}
