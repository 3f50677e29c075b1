//! Gives a system access to the world: to read everything, and to change it only by emitting events.
//!
//! A system gets a [`Tx`] and nothing else, so it cannot write a component. Beside that it takes the inputs of the
//! step, takes runs from the agenda and puts them there, and hands out effects.

use std::sync::Arc;

use bevy_ecs::change_detection::Mut;
use bevy_ecs::component::Component;
use bevy_ecs::entity::Entity;
use bevy_ecs::query::{QueryFilter, ReadOnlyQueryData};
use bevy_ecs::resource::Resource;
use bevy_ecs::world::World;
use harness_protocol::event::{Cause, EVENT_VERSION, Event, EventBody};
use harness_protocol::id::{RunId, Seq};
use harness_protocol::run::RunView;
use harness_protocol::time::Timestamp;

use crate::world::api::{Effect, Input};
use crate::world::apply::{apply, downward, upward};
use crate::world::model::components::{Batch, Children, Identity, Life, Spec};
use crate::world::model::indexes::{Agenda, Daemon, Lanes, Runs, Setup, is_stalled};
use crate::world::model::step_io::{Incoming, Outgoing};
use crate::world::view;
use crate::world::view::reads::{ReadState, Reads};

/// The world, to read, and to change by events.
pub(crate) struct Tx<'w> {
    world: &'w mut World,
    cause: Cause,
}

impl<'w> Tx<'w> {
    pub(crate) fn new(world: &'w mut World) -> Self {
        Self { world, cause: Cause::HARNESS }
    }

    /// Who causes the events from here on.
    pub(crate) fn caused_by(&mut self, cause: Cause) {
        self.cause = cause;
    }

    /// Lets something happen: it has a number, it is applied, it is handed out.
    pub(crate) fn emit(&mut self, run: Option<RunId>, body: EventBody) -> Seq {
        let event = Event {
            seq: self.res::<Daemon>().last_seq.next(),
            version: EVENT_VERSION,
            at: self.now(),
            run,
            cause: self.cause,
            body,
        };
        apply(self.world, &event);
        let seq = event.seq;
        self.world.resource_mut::<Outgoing>().events.push(Arc::new(event));
        seq
    }

    /// Hands out an effect; it is performed once the events of this step are in the journal.
    pub(crate) fn effect(&mut self, effect: Effect) {
        self.world.resource_mut::<Outgoing>().effects.push(effect);
    }

    /// Lets a finished run leave the world, with what is listed of it from here on.
    pub(crate) fn archive(&mut self, entity: Entity) {
        let now = self.now();
        if let Some(view) = self.read(|reads| view::run::view(reads, entity, now)) {
            self.archive_as(view);
        }
    }

    /// Lets it be listed like this from here on.
    pub(crate) fn archive_as(&mut self, view: RunView) {
        self.emit(Some(view.id), EventBody::RunArchived);
        self.world.resource_mut::<Outgoing>().archived.push(view);
    }

    /// Takes what the step was given.
    pub(crate) fn take_inputs(&mut self) -> Vec<Input> {
        std::mem::take(&mut self.world.resource_mut::<Incoming>().inputs)
    }

    /// Puts back what another set takes.
    pub(crate) fn leave_inputs(&mut self, inputs: Vec<Input>) {
        self.world.resource_mut::<Incoming>().inputs = inputs;
    }

    /// The next run about which something has to be decided.
    pub(crate) fn next_on_agenda(&mut self) -> Option<(RunId, Entity)> {
        while let Some((_, run)) = self.world.resource_mut::<Agenda>().0.pop_first() {
            if let Some(entity) = self.entity(run) {
                #[cfg(test)]
                {
                    self.world.get_resource_or_init::<crate::world::model::indexes::Visits>().0 += 1;
                }
                return Some((run, entity));
            }
        }
        None
    }

    /// Puts a run on the agenda: a timer of its is due.
    pub(crate) fn wake(&mut self, run: RunId) {
        crate::world::apply::wake(self.world, run);
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.res::<Incoming>().now
    }

    /// Lets `look` read the world by queries.
    pub(crate) fn read<T>(&mut self, look: impl FnOnce(&Reads<'_, '_>) -> T) -> T {
        self.world.resource_scope(|world, mut state: Mut<'_, ReadState>| state.read(world, look))
    }

    pub(crate) fn res<R: Resource>(&self) -> &R {
        self.world.resource::<R>()
    }

    pub(crate) fn entity(&self, run: RunId) -> Option<Entity> {
        let entity = self.res::<Runs>().by_id.get(&run).copied();
        #[cfg(test)]
        entity.into_iter().for_each(|entity| self.res::<crate::world::model::indexes::Looked>().note(entity));
        entity
    }

    pub(crate) fn get<C: Component>(&self, entity: Entity) -> Option<&C> {
        self.world.get::<C>(entity)
    }

    /// What `found` makes of each run that a query finds. In no order that means something: sort it by number.
    pub(crate) fn all<D, F, T>(&mut self, found: impl FnMut(D::Item<'_, '_>) -> Option<T>) -> Vec<T>
    where
        D: ReadOnlyQueryData,
        F: QueryFilter,
    {
        self.world.query_filtered::<D, F>().iter(self.world).filter_map(found).collect()
    }

    pub(crate) fn life(&self, run: RunId) -> Option<&Life> {
        self.entity(run).and_then(|entity| self.get(entity))
    }

    pub(crate) fn spec(&self, run: RunId) -> Option<&Spec> {
        self.entity(run).and_then(|entity| self.get(entity))
    }

    pub(crate) fn identity(&self, run: RunId) -> Option<&Identity> {
        self.entity(run).and_then(|entity| self.get(entity))
    }

    pub(crate) fn batch(&self, run: RunId) -> Option<&Batch> {
        self.entity(run).and_then(|entity| self.get(entity))
    }

    /// Whether a run has ended; one that has left has.
    pub(crate) fn has_ended(&self, run: RunId) -> bool {
        self.identity(run).is_none_or(|identity| !self.res::<Runs>().live.contains_key(&identity.number))
    }

    /// A run and those above it, up to the top of its tree.
    pub(crate) fn upward(&self, from: Entity) -> impl Iterator<Item = Entity> {
        upward(self.world, from)
    }

    /// A run and all below it: level by level, each in the order of the runs' numbers.
    pub(crate) fn downward(&self, top: Entity) -> Vec<Entity> {
        downward(self.world, top)
    }

    /// The runs that a run spawned, in the order of their numbers.
    pub(crate) fn children(&self, of: RunId) -> Vec<RunId> {
        let children = self.entity(of).and_then(|entity| self.get::<Children>(entity));
        children.map(|children| self.ids(children.runs())).unwrap_or_default()
    }

    /// The ids of these runs.
    pub(crate) fn ids(&self, runs: &[Entity]) -> Vec<RunId> {
        runs.iter().filter_map(|&run| self.get::<Identity>(run)).map(|identity| identity.id).collect()
    }

    /// Whether a provider is not used for hours, or until an operator acts.
    pub(crate) fn is_stalled(&self, provider: &str) -> bool {
        is_stalled(self.res(), self.lanes(), provider)
    }

    pub(crate) fn setup(&self) -> &Setup {
        self.res()
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        self.res()
    }
}
