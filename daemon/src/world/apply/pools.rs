//! What of the budgets of runs is used, and what is held back for inferences that are wanted or out: of the run itself and all below it.
//!
//! A pool belongs to a run with a budget. What happens to a run goes into its own pool and into those of the runs above it.

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;
use harness_protocol::id::RunId;
use harness_protocol::run::{Reserve, Usage};

use super::super::components::{Held, Identity, Pool, Spec, Spent};
use super::super::resources::Postponed;
use super::{entity, wake};

/// Changes the pools that a run draws from.
fn each_pool(world: &mut World, of: Entity, change: impl Fn(&mut Pool)) {
    let mut at = Some(of);
    while let Some(current) = at {
        if let Some(mut pool) = world.get_mut::<Pool>(current) {
            change(&mut pool);
        }
        let parent = world.get::<Identity>(current).and_then(|identity| identity.parent);
        at = parent.and_then(|parent| entity(world, parent));
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
    match world.get_mut::<Spent>(of) {
        Some(mut spent) => spent.0.add(usage),
        None => {
            world.entity_mut(of).insert(Spent(*usage));
        }
    }
    each_pool(world, of, |pool| match &mut pool.spent {
        Some(spent) => spent.add(usage),
        none => *none = Some(*usage),
    });
}

/// So much is held back for a run from here on, in place of what was.
pub(super) fn hold(world: &mut World, of: Entity, reserve: Option<Reserve>) {
    let before = world.entity_mut(of).take::<Held>().map(|held| held.0);
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
        world.entity_mut(of).insert(Held(reserve));
    }
    if before.is_some() {
        wake_postponed(world, of);
    }
}

/// Something came back: whoever waits for that in the same tree looks again.
fn wake_postponed(world: &mut World, of: Entity) {
    let Some(root) = world.get::<Identity>(of).map(|identity| identity.root) else { return };
    let waiting: Vec<RunId> =
        world.resource::<Postponed>().0.get(&root).into_iter().flatten().map(|(_, run)| *run).collect();
    waiting.into_iter().for_each(|run| wake(world, run));
}

/// A provider is asked again: whoever waits for that looks again.
pub(super) fn wake_all(world: &mut World) {
    let waiting: Vec<RunId> = world.resource::<Postponed>().0.values().flatten().map(|(_, run)| *run).collect();
    waiting.into_iter().for_each(|run| wake(world, run));
}

/// A run waits for what others hold, or no longer does.
pub(super) fn set_postponed(world: &mut World, of: Entity, waits: bool) {
    let Some(identity) = world.get::<Identity>(of) else { return };
    let (root, entry) = (identity.root, (identity.number, identity.id));
    let postponed = &mut world.resource_mut::<Postponed>().0;
    if waits {
        postponed.entry(root).or_default().insert(entry);
    } else if let Some(waiting) = postponed.get_mut(&root) {
        waiting.remove(&entry);
        if waiting.is_empty() {
            postponed.remove(&root);
        }
    }
}
