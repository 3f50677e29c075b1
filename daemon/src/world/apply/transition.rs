//! Moves a run to another phase, together with the markers that queries ask for. It is the one place that does, so that
//! the markers never differ from the phase.

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;

use super::super::model::components::{Life, WantsInference};
use super::super::model::phase::Phase;

/// A run comes to a phase.
pub(super) fn enter(world: &mut World, entity: Entity, phase: Phase) {
    let Some(mut life) = world.get_mut::<Life>(entity) else { return };
    let before = life.phase();
    life.set_phase(phase);
    match (wants(before), wants(phase)) {
        (false, true) => drop(world.entity_mut(entity).insert(WantsInference)),
        (true, false) => drop(world.entity_mut(entity).remove::<WantsInference>()),
        (true, true) | (false, false) => {}
    }
}

fn wants(phase: Phase) -> bool {
    matches!(phase, Phase::Wanting(_))
}
