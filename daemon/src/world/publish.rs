//! Set Publish: lets go of what nobody needs any more. What the step made is handed out after it.

use bevy_ecs::schedule::{IntoScheduleConfigs as _, Schedule};
use bevy_ecs::world::World;
use harness_protocol::event::EventBody;
use harness_protocol::id::RunId;

use super::StepSystems;
use super::components::Identity;
use super::resources::Runs;
use super::scene::Scene;

pub(super) fn install(schedule: &mut Schedule) {
    schedule.add_systems(forget_oldest.in_set(StepSystems::Publish));
}

/// Keeps the finished runs within their bound.
fn forget_oldest(world: &mut World) {
    let mut scene = Scene::new(world);
    let limits = &scene.setup().config.limits;
    let (runs, bytes) = (limits.finished_runs as usize, limits.finished_bytes);
    while let Some(run) = oldest_beyond(&scene, runs, bytes) {
        scene.emit(Some(run), EventBody::RunForgotten);
    }
}

fn oldest_beyond(scene: &Scene<'_>, most: usize, bytes: u64) -> Option<RunId> {
    let runs = scene.res::<Runs>();
    if runs.finished.len() <= most && runs.finished_bytes <= bytes {
        return None;
    }
    let (_, number) = runs.by_end.first()?;
    let entity = *runs.finished.get(number)?;
    scene.get::<Identity>(entity).map(|identity| identity.id)
}
