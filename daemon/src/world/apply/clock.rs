//! Applies a jump of the clock: moves the times by which the world measures spans, so that the jump makes nothing due
//! or old.
//!
//! Times that are only shown (when a run began, when it ended) stay, and are moved back if they would be in the future.
//! Instants that a person named stay: a deadline at a time of day remains at that time of day. Events that were
//! recorded do not change.

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;
use harness_protocol::id::RunId;
use harness_protocol::time::{Span, Timestamp};

use super::super::model::components::{Batch, Ended, Life, MayLeave, Stopwatch};
use super::super::model::indexes::{Interactions, Lanes, ProviderHealth, Runs, Timer, Timers};
use super::super::model::phase::Phase;
use super::runs::deadline;
use super::transition::enter;
use super::{edit, phase};
use crate::lane::TimeSet;

/// Moves all that is measured.
pub(super) fn set(world: &mut World, from: Timestamp, to: Timestamp) {
    let set = TimeSet { from, to };
    let runs: Vec<Entity> = world.resource::<Runs>().by_id.iter().map(|(_, entity)| entity).collect();
    for &entity in &runs {
        of_run(world, entity, set);
    }
    let mut interactions = world.resource_mut::<Interactions>();
    for open in interactions.open.values_mut() {
        (open.since, open.expires_at) = (set.shown(open.since), open.expires_at.map(|at| set.future(at)));
    }
    interactions.closed.values_mut().for_each(|closed| closed.at = set.shown(closed.at));
    for breaker in world.resource_mut::<ProviderHealth>().0.values_mut() {
        breaker.failed_at = set.measured(breaker.failed_at);
        if let Some(hold) = &mut breaker.hold {
            (hold.since, hold.until) = (set.shown(hold.since), hold.until.map(|until| set.future(until)));
        }
    }
    world.resource_mut::<Lanes>().iter_mut().for_each(|lane| lane.set_time(set));
    let due = |timer: &Timer| match timer {
        Timer::Deadline(run) => Some(*run),
        _ => None,
    };
    let deadlines: Vec<RunId> =
        world.resource_mut::<Timers>().moved(|at| set.future(at)).iter().filter_map(due).collect();
    for run in deadlines {
        let at = world.resource::<Runs>().by_id.get(&run).and_then(|&entity| deadline(world, entity));
        world.resource_mut::<Timers>().set(Timer::Deadline(run), at);
    }
}

fn of_run(world: &mut World, entity: Entity, set: TimeSet) {
    let ended = world.get::<Ended>(entity).map(|ended| ended.at);
    // What has ended before does not concern what is measured now.
    if ended.is_some_and(|at| set.shown(at) == at) {
        return;
    }
    edit::<Life>(world, entity, |life| {
        let submitted_at = set.shown(life.submitted_at);
        if submitted_at == life.submitted_at {
            life.moved = life.moved.saturating_add(set.by());
        }
        life.submitted_at = submitted_at;
        life.started_at = life.started_at.map(|at| set.shown(at));
        if let Some(stopping) = &mut life.stopping {
            stopping.at = set.shown(stopping.at);
        }
    });
    if let Some(Phase::Retrying(until)) = phase(world, entity) {
        enter(world, entity, Phase::Retrying(set.future(until)));
    }
    edit::<Stopwatch>(world, entity, |watch| watch.since = set.measured(watch.since));
    edit::<Batch>(world, entity, |batch| {
        batch.0.calls.iter_mut().for_each(|call| call.since = set.shown(call.since));
    });
    if let Some(ended) = world.get::<Ended>(entity).cloned() {
        let at = set.shown(ended.at);
        world.entity_mut(entity).insert(Ended { at, ..ended });
        if world.get::<MayLeave>(entity).is_some() {
            world.entity_mut(entity).insert(MayLeave(at));
        }
    }
}

/// When a span that began at `start` ends, where time was set meanwhile by so many microseconds.
pub(super) fn end_of(start: Timestamp, span: Span, moved: i64) -> Timestamp {
    Timestamp::from_micros((start + span).as_micros().saturating_add_signed(moved))
}
