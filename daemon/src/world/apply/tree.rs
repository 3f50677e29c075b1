//! Walks up and down the trees of runs.

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;

use super::super::model::components::{Children, SpawnedBy};

/// A run and those above it, up to the top of its tree. A query made for one walk of a few levels would cost more than
/// the walk.
pub(crate) fn upward(world: &World, from: Entity) -> impl Iterator<Item = Entity> {
    std::iter::successors(Some(from), |&at| world.get::<SpawnedBy>(at).map(|above| above.0))
}

/// A run and all below it: level by level, each in the order of the runs' numbers.
pub(crate) fn downward(world: &World, top: Entity) -> Vec<Entity> {
    let mut tree = vec![top];
    // Most runs have no children, and a query is not free.
    if world.get::<Children>(top).is_some()
        && let Some(children) = world.try_query::<&Children>()
    {
        tree.extend(children.query_manual(world).iter_descendants::<Children>(top));
    }
    tree
}
