//! Makes a world from events, and reads it. The only place that makes and owns the `World` of bevy.
//!
//! A world of this module has no schedule, so it changes only by the events that it is given, and by `catch_up`, which
//! sets the counters of what a start did not replay. [`super::Engine`] adds the schedule and steps it. To read a run
//! that has left the world, a new world is made from that run's events alone.

use std::cell::RefCell;
use std::sync::Arc;

use bevy_ecs::world::World;
use harness_protocol::event::Event;
use harness_protocol::id::Seq;

use super::api::{Made, Unfit};
use super::apply;
use super::model::clock::Clock;
use super::model::ids::Ids;
#[cfg(test)]
use super::model::indexes::Looked;
use super::model::indexes::{
    Agenda, Daemon, Interactions, Lanes, Postponed, ProviderHealth, Runs, Setup, Texts, Timers, WantsExtra,
};
use super::model::step_io::{Incoming, Outgoing};
use super::model::toolsets::{Toolset, Toolsets};
use super::view::reads::{ReadState, Reads};
use crate::config::Config;
use crate::tools::Catalogue;

/// A world that events have made.
pub struct Folded {
    pub(super) world: World,
    pub(super) clock: Clock,
    reads: RefCell<ReadState>,
}

impl Folded {
    /// An empty world. `id_key` makes its ids; it is made once for a state directory.
    pub fn new(config: Config, tools: Catalogue, id_key: u64) -> Self {
        let mut world = World::new();
        world.insert_resource(Lanes::new(&config));
        let toolset = Arc::new(Toolset::of(&tools));
        world.insert_resource(Setup { config, tools, toolset });
        world.init_resource::<Toolsets>();
        world.init_resource::<Texts>();
        world.insert_resource(Ids::new(id_key));
        world.init_resource::<Runs>();
        world.init_resource::<Interactions>();
        world.init_resource::<Timers>();
        world.init_resource::<ProviderHealth>();
        world.init_resource::<Agenda>();
        world.init_resource::<WantsExtra>();
        world.init_resource::<Postponed>();
        world.init_resource::<Daemon>();
        world.init_resource::<Incoming>();
        world.init_resource::<Outgoing>();
        #[cfg(test)]
        world.init_resource::<Looked>();
        // One for the steps, one for those who read beside them.
        let (of_steps, reads) = (ReadState::new(&mut world), RefCell::new(ReadState::new(&mut world)));
        world.insert_resource(of_steps);
        Self { world, clock: Clock::default(), reads }
    }

    /// The world that these events made, as it was when the last of them had happened.
    pub fn of<'e>(config: Config, tools: Catalogue, id_key: u64, events: impl IntoIterator<Item = &'e Event>) -> Self {
        let mut folded = Self::new(config, tools, id_key);
        events.into_iter().for_each(|event| folded.replay(event));
        folded
    }

    /// Lets something that has happened happen again: the world after all of it is the world that was.
    pub fn replay(&mut self, event: &Event) {
        if self.world.resource::<Daemon>().last_seq == Seq(0) {
            let lanes = self.world.resource::<Lanes>().before_all_events();
            self.world.insert_resource(lanes);
        }
        apply::apply(&mut self.world, event);
        self.world.resource_mut::<Agenda>().0.clear();
    }

    /// Whether an event can follow on what the world is.
    ///
    /// # Errors
    /// Why not: something is missing before it.
    pub fn can_follow(&self, event: &Event) -> Result<(), Unfit> {
        apply::fits(&self.world, event)
    }

    /// What was made by events that were not replayed, because their runs have left the world: no number is used twice.
    pub fn catch_up(&mut self, made: &Made) {
        let mut ids = self.world.resource_mut::<Ids>();
        ids.runs = ids.runs.max(made.runs);
        ids.calls = ids.calls.max(made.calls);
        ids.interactions = ids.interactions.max(made.interactions);
        ids.reliefs = ids.reliefs.max(made.reliefs);
        let mut daemon = self.world.resource_mut::<Daemon>();
        daemon.last_seq = daemon.last_seq.max(made.last_seq);
        daemon.last_at = daemon.last_at.max(made.last_at);
    }

    /// Lets `look` read the world by queries. `look` must not call this again: what it needs, [`Reads`] has.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Reads<'_, '_>) -> T) -> T {
        self.reads.borrow_mut().read(&self.world, look)
    }
}
