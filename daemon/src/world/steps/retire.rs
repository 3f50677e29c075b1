//! Archives the oldest finished trees (the set Publish). The driver hands out the results of the step after it.

use bevy_ecs::schedule::{IntoScheduleConfigs as _, Schedule};
use harness_protocol::id::RunId;

use super::{StepSystems, exclusive};
use crate::world::model::components::Identity;
use crate::world::model::indexes::Runs;
use crate::world::tx::Tx;

pub(in crate::world) fn install(schedule: &mut Schedule) {
    schedule.add_systems(exclusive(archive_oldest).in_set(StepSystems::Publish));
}

/// Keeps the finished runs within their bound.
fn archive_oldest(tx: &mut Tx<'_>) {
    let limits = &tx.setup().config.limits;
    let (runs, bytes) = (limits.finished_runs as usize, limits.finished_bytes);
    while let Some(oldest) = oldest_beyond(tx, runs, bytes) {
        archive_tree(tx, oldest);
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
    let tree = tx.entity(root).map(|top| tx.downward(top)).unwrap_or_default();
    for entity in tree {
        tx.archive(entity);
    }
}
