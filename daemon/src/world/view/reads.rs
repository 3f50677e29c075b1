//! Gives a read access to the world: a read declares by this type what it looks at, and can change nothing.
//!
//! The only place with the queries by which reads look up runs and walk trees; systems have `Tx` for that
//! (`world/tx.rs`). Must not decide what is shown.

use bevy_ecs::entity::Entity;
use bevy_ecs::resource::Resource;
use bevy_ecs::system::{Query, Res, SystemParam, SystemState};
use bevy_ecs::world::World;
use harness_protocol::id::RunId;
use harness_protocol::time::Timestamp;

use super::super::apply::earliest;
use super::super::model::components::{Batch, Children, Ended, Identity, Life, Shown, SpawnedBy, Spec};
#[cfg(test)]
use super::super::model::indexes::Looked;
use super::super::model::indexes::{Daemon, Interactions, Lanes, ProviderHealth, Runs, is_stalled};
use super::super::model::run_data::{RunData, RunDataItem};
use super::super::model::step_io::Incoming;

/// The world, to read.
#[derive(SystemParam)]
pub(in crate::world) struct Reads<'w, 's> {
    pub(in crate::world) runs: Res<'w, Runs>,
    pub(in crate::world) interactions: Res<'w, Interactions>,
    pub(in crate::world) lanes: Res<'w, Lanes>,
    pub(in crate::world) health: Res<'w, ProviderHealth>,
    pub(in crate::world) daemon: Res<'w, Daemon>,
    pub(in crate::world) incoming: Res<'w, Incoming>,
    whole: Query<'w, 's, RunData>,
    identities: Query<'w, 's, &'static Identity>,
    specs: Query<'w, 's, &'static Spec>,
    lives: Query<'w, 's, &'static Life>,
    states: Query<'w, 's, &'static Shown>,
    batches: Query<'w, 's, &'static Batch>,
    ends: Query<'w, 's, &'static Ended>,
    above: Query<'w, 's, &'static SpawnedBy>,
    below: Query<'w, 's, &'static Children>,
    #[cfg(test)]
    looked: Res<'w, Looked>,
}

impl Reads<'_, '_> {
    pub(in crate::world) fn entity(&self, run: RunId) -> Option<Entity> {
        self.runs.by_id.get(&run).copied()
    }

    /// A run with all of its components.
    pub(in crate::world) fn whole(&self, run: Entity) -> Option<RunDataItem<'_, '_>> {
        self.note(run);
        self.whole.get(run).ok()
    }

    pub(in crate::world) fn identity(&self, run: Entity) -> Option<&Identity> {
        self.note(run);
        self.identities.get(run).ok()
    }

    pub(in crate::world) fn spec(&self, run: Entity) -> Option<&Spec> {
        self.note(run);
        self.specs.get(run).ok()
    }

    pub(in crate::world) fn life(&self, run: Entity) -> Option<&Life> {
        self.note(run);
        self.lives.get(run).ok()
    }

    pub(in crate::world) fn shown(&self, run: Entity) -> Option<Shown> {
        self.note(run);
        self.states.get(run).ok().copied()
    }

    pub(in crate::world) fn batch(&self, run: Entity) -> Option<&Batch> {
        self.note(run);
        self.batches.get(run).ok()
    }

    pub(in crate::world) fn ended(&self, run: Entity) -> Option<&Ended> {
        self.note(run);
        self.ends.get(run).ok()
    }

    /// A run and those above it, up to the top of its tree.
    pub(in crate::world) fn upward(&self, from: Entity) -> impl Iterator<Item = Entity> {
        std::iter::once(from).chain(self.above.iter_ancestors::<SpawnedBy>(from)).inspect(|&run| self.note(run))
    }

    /// The runs below one: level by level, each in the order of the runs' numbers.
    pub(in crate::world) fn below(&self, top: Entity) -> impl Iterator<Item = Entity> {
        self.below.iter_descendants::<Children>(top).inspect(|&run| self.note(run))
    }

    /// Runs from `run` up to the top of its tree, as far as they are known.
    pub(in crate::world) fn is_in_tree(&self, run: Entity, top: RunId) -> bool {
        let line = self.upward(run).filter_map(|at| self.identity(at));
        line.into_iter().any(|identity| identity.id == top || identity.parent == Some(top))
    }

    /// When a run has to end, by its own deadline or by that of a run above it.
    pub(in crate::world) fn deadline(&self, of: Entity) -> Option<Timestamp> {
        earliest(self.upward(of).filter_map(|at| Some((self.spec(at)?, self.life(at)?))))
    }

    /// Whether a provider is not used for hours, or until an operator acts.
    pub(in crate::world) fn is_stalled(&self, provider: &str) -> bool {
        is_stalled(&self.health, &self.lanes, provider)
    }

    /// What a read costs is measured by how many runs it looks at.
    #[cfg(test)]
    fn note(&self, run: Entity) {
        self.looked.note(run);
    }

    #[cfg(not(test))]
    #[inline]
    #[expect(clippy::unused_self, reason = "the tests count")]
    fn note(&self, _: Entity) {}
}

/// The queries of [`Reads`], made once for a world.
#[derive(Resource)]
pub(in crate::world) struct ReadState(SystemState<Reads<'static, 'static>>);

impl ReadState {
    /// For a world that has all of its resources.
    pub(in crate::world) fn new(world: &mut World) -> Self {
        Self(SystemState::new(world))
    }

    /// Lets `look` read the world for which this was made.
    pub(in crate::world) fn read<T>(&mut self, world: &World, look: impl FnOnce(&Reads<'_, '_>) -> T) -> T {
        match self.0.get(world) {
            Ok(reads) => look(&reads),
            Err(missing) => unreachable!("a world has its resources from the start: {missing}"),
        }
    }
}
