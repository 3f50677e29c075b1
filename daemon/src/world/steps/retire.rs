//! The set Publish archives the oldest finished trees. The driver hands out the results of the step after it.

use bevy_ecs::schedule::{IntoScheduleConfigs as _, Schedule};
use bevy_ecs::world::World;
use harness_protocol::id::RunId;

use super::StepSystems;
use crate::world::model::components::{Children, Identity};
use crate::world::model::indexes::Runs;
use crate::world::tx::Tx;

pub(in crate::world) fn install(schedule: &mut Schedule) {
    schedule.add_systems(archive_oldest.in_set(StepSystems::Publish));
}

/// Keeps the finished runs within their bound.
fn archive_oldest(world: &mut World) {
    let mut tx = Tx::new(world);
    let limits = &tx.setup().config.limits;
    let (runs, bytes) = (limits.finished_runs as usize, limits.finished_bytes);
    while let Some(oldest) = oldest_beyond(&tx, runs, bytes) {
        archive_tree(&mut tx, oldest);
    }
}

fn oldest_beyond(tx: &Tx<'_>, most: usize, bytes: u64) -> Option<RunId> {
    let runs = tx.res::<Runs>();
    if runs.finished.len() <= most && runs.finished_bytes <= bytes {
        return None;
    }
    let (_, number) = runs.by_end.first()?;
    let entity = *runs.finished.get(number)?;
    tx.get::<Identity>(entity).map(|identity| identity.root)
}

/// Lets a tree of which nothing lives leave as a whole: what stays has its parents.
pub(in crate::world) fn archive_tree(tx: &mut Tx<'_>, root: RunId) {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&at) = tree.get(next) {
        next += 1;
        let children = tx.entity(at).and_then(|entity| tx.get::<Children>(entity));
        tree.extend(children.into_iter().flat_map(|children| children.0.iter().copied()));
    }
    for run in tree {
        if let Some(entity) = tx.entity(run) {
            tx.archive(run, entity);
        }
    }
}
