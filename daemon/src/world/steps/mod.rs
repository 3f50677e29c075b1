//! Contains the sets of a step, one file each.

pub(super) mod decide;
pub(super) mod grant;
pub(super) mod ingest;
pub(super) mod retire;
pub(super) mod settle;

use bevy_ecs::schedule::{
    IntoScheduleConfigs as _, LogLevel, Schedule, ScheduleBuildSettings, SingleThreadedExecutor, SystemSet,
};
use bevy_ecs::world::World;

use super::tx::Tx;

/// The sets of a step, in their order.
#[derive(SystemSet, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepSystems {
    /// Handles commands of clients.
    Ingest,
    /// Outcomes, asks and timers.
    Settle,
    /// What each run concerned does next.
    Decide,
    /// Permits, and the work that they are for.
    Dispatch,
    /// Archives the oldest finished trees.
    Publish,
}

/// A system that has the world to itself and sees it as a [`Tx`] alone.
fn exclusive(system: impl Fn(&mut Tx<'_>) + Send + Sync + 'static) -> impl FnMut(&mut World) + Send + Sync + 'static {
    move |world: &mut World| system(&mut Tx::new(world))
}

/// The sets of a step with their systems.
pub(super) fn schedule() -> Schedule {
    let mut schedule = Schedule::default();
    schedule.set_executor(SingleThreadedExecutor::new());
    schedule.set_build_settings(ScheduleBuildSettings { ambiguity_detection: LogLevel::Error, ..Default::default() });
    schedule.configure_sets(
        (StepSystems::Ingest, StepSystems::Settle, StepSystems::Decide, StepSystems::Dispatch, StepSystems::Publish)
            .chain(),
    );
    ingest::install(&mut schedule);
    settle::install(&mut schedule);
    decide::install(&mut schedule);
    grant::install(&mut schedule);
    retire::install(&mut schedule);
    schedule
}
