//! Counts what each budget has used, and what is reserved for inferences that are wanted or running.
//!
//! A pool belongs to a run with a budget. Usage and reserves of a run count in its own pool and in the pools of the
//! runs above it. When something comes back to a pool, the first few runs that wait for it are put on the agenda. Must
//! not decide what is reserved: `inference/budget.rs` does.

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;
use harness_protocol::id::RunId;
use harness_protocol::run::{Reserve, Usage};

use super::super::model::components::{
    BudgetReserve, Deferred, Identity, Pool, SpawnedBy, Spec, UsageBelow, UsageTotal,
};
use super::super::model::indexes::Postponed;
use super::{upward, wake};

/// Runs that look again when something comes back to a budget that they wait for.
const LOOK_AGAIN: usize = 4;

/// Changes the pools that a run draws from.
fn each_pool(world: &mut World, of: Entity, change: impl Fn(&mut Pool)) {
    let mut at = Some(of);
    while let Some(current) = at {
        if let Some(mut pool) = world.get_mut::<Pool>(current) {
            change(&mut pool);
        }
        at = world.get::<SpawnedBy>(current).map(|above| above.0);
    }
}

/// A run is there.
pub(super) fn joined(world: &mut World, of: Entity) {
    let has_budget = world.get::<Spec>(of).is_some_and(|spec| spec.0.limits.has_budget());
    if has_budget {
        world.entity_mut(of).insert(Pool::default());
    }
    each_pool(world, of, |pool| pool.live += 1);
}

/// A run has ended.
pub(super) fn left(world: &mut World, of: Entity) {
    hold(world, of, None);
    each_pool(world, of, |pool| pool.live = pool.live.saturating_sub(1));
}

/// An answer was paid for.
pub(super) fn spent(world: &mut World, of: Entity, usage: &Usage) {
    match world.get_mut::<UsageTotal>(of) {
        Some(mut spent) => spent.0.add(usage),
        None => {
            world.entity_mut(of).insert(UsageTotal(*usage));
        }
    }
    let above: Vec<Entity> = upward(world, of).skip(1).collect();
    for run in above {
        match world.get_mut::<UsageBelow>(run) {
            Some(mut below) => below.0.add(usage),
            None => drop(world.entity_mut(run).insert(UsageBelow(*usage))),
        }
    }
    each_pool(world, of, |pool| match &mut pool.spent {
        Some(spent) => spent.add(usage),
        none => *none = Some(*usage),
    });
}

/// So much is held back for a run from here on, in place of what was.
pub(super) fn hold(world: &mut World, of: Entity, reserve: Option<Reserve>) {
    let before = world.entity_mut(of).take::<BudgetReserve>().map(|held| held.0);
    if before == reserve && reserve.is_none() {
        return;
    }
    each_pool(world, of, |pool| {
        if let Some(before) = before {
            pool.held.take_away(&before);
            pool.holding = pool.holding.saturating_sub(1);
        }
        if let Some(reserve) = reserve {
            pool.held.add(&reserve);
            pool.holding += 1;
        }
    });
    if let Some(reserve) = reserve {
        world.entity_mut(of).insert(BudgetReserve(reserve));
    }
    if before.is_some() {
        wake_next(world, of);
    }
}

/// Something came back to the pools that a run draws from, or a run that waited for one of them does so no longer: the
/// first that wait for them look again. Each of them that finds enough wakes the next, so that what an answer costs
/// follows from what it gives back, and not from how many wait. A few look, and not one, so that a run that needs much
/// does not keep those away that need little.
fn wake_next(world: &mut World, of: Entity) {
    let owners = upward(world, of).filter(|&at| world.get::<Pool>(at).is_some());
    let owners = owners.filter_map(|at| world.get::<Identity>(at)).map(|identity| identity.id);
    let by_budget = &world.resource::<Postponed>().by_budget;
    let first = owners.flat_map(|owner| by_budget.get(&owner).into_iter().flatten().take(LOOK_AGAIN));
    let first: Vec<RunId> = first.map(|(_, run)| *run).collect();
    first.into_iter().for_each(|run| wake(world, run));
}

/// A provider may be used again: the runs that were deferred because of it are considered again.
pub(super) fn wake_stalled(world: &mut World) {
    let waiting: Vec<RunId> = world.resource::<Postponed>().stalled.iter().map(|(_, run)| *run).collect();
    waiting.into_iter().for_each(|run| wake(world, run));
}

/// A run waits for what others hold of a budget, or for its provider.
pub(super) fn wait(world: &mut World, of: Entity, budget_of: RunId, is_stalled: bool) {
    let left = world.get::<Deferred>(of).is_some();
    world.entity_mut(of).insert(if is_stalled { Deferred::Stalled } else { Deferred::ByBudget(budget_of) });
    // A run that keeps waiting for another budget above does not come here: it wakes the next run when it gets what it
    // needs.
    if left && is_stalled {
        wake_next(world, of);
    }
}

/// A run waits no longer: it goes on, ends, or is paused.
pub(super) fn stop_waiting(world: &mut World, of: Entity) {
    if world.entity_mut(of).take::<Deferred>().is_some() {
        wake_next(world, of);
    }
}
