//! Set Publish: lets go of what nobody needs any more. What the step made is handed out after it.

use bevy_ecs::schedule::{IntoScheduleConfigs as _, Schedule};
use bevy_ecs::world::World;
use harness_protocol::id::RunId;

use super::StepSystems;
use crate::world::model::components::{Children, Identity};
use crate::world::model::indexes::Runs;
use crate::world::tx::Scene;

pub(in crate::world) fn install(schedule: &mut Schedule) {
    schedule.add_systems(archive_oldest.in_set(StepSystems::Publish));
}

/// Keeps the finished runs within their bound.
fn archive_oldest(world: &mut World) {
    let mut scene = Scene::new(world);
    let limits = &scene.setup().config.limits;
    let (runs, bytes) = (limits.finished_runs as usize, limits.finished_bytes);
    while let Some(oldest) = oldest_beyond(&scene, runs, bytes) {
        archive_tree(&mut scene, oldest);
    }
}

fn oldest_beyond(scene: &Scene<'_>, most: usize, bytes: u64) -> Option<RunId> {
    let runs = scene.res::<Runs>();
    if runs.finished.len() <= most && runs.finished_bytes <= bytes {
        return None;
    }
    let (_, number) = runs.by_end.first()?;
    let entity = *runs.finished.get(number)?;
    scene.get::<Identity>(entity).map(|identity| identity.root)
}

/// Lets a tree of which nothing lives leave as a whole: what stays has its parents.
pub(in crate::world) fn archive_tree(scene: &mut Scene<'_>, root: RunId) {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&at) = tree.get(next) {
        next += 1;
        let children = scene.entity(at).and_then(|entity| scene.get::<Children>(entity));
        tree.extend(children.into_iter().flat_map(|children| children.0.iter().copied()));
    }
    for run in tree {
        if let Some(entity) = scene.entity(run) {
            scene.archive(run, entity);
        }
    }
}
