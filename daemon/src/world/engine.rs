//! Steps the world by its schedule, for the driver.
//!
//! The only place with the order of one step: time, inputs, schedule, results. The order of the sets within the
//! schedule is in `steps`. Must not decide anything about a run: the systems do.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bevy_ecs::schedule::Schedule;
use harness_protocol::event::{Event, EventBody};
use harness_protocol::run::RunView;
use harness_protocol::time::{Span, Timestamp};

use super::api::{Damage, Effect, Input, Now};
use super::fold::Folded;
use super::model::clock::Reading;
use super::model::indexes::{Daemon, Setup, Timers};
use super::model::step_io::{Incoming, Outgoing};
use super::tx::Tx;
use super::{recover, steps};
use crate::config::Config;
use crate::tools::Catalogue;

/// What a step came to.
#[derive(Debug, Default)]
pub struct Step {
    /// What happened, in order. To be in the journal before anything of `effects` is done or anything is shown.
    pub events: Vec<Arc<Event>>,
    /// What is to be done.
    pub effects: Vec<Effect>,
    /// Runs that left the world: from here on they are listed like this. To be in the journal together with the events.
    pub archived: Vec<RunView>,
}

/// The world and its schedule.
pub struct Engine {
    folded: Folded,
    schedule: Schedule,
    held: bool,
}

impl Deref for Engine {
    type Target = Folded;

    fn deref(&self) -> &Folded {
        &self.folded
    }
}

impl DerefMut for Engine {
    fn deref_mut(&mut self) -> &mut Folded {
        &mut self.folded
    }
}

impl Engine {
    /// An empty world. `id_key` makes its ids; it is made once for a state directory.
    pub fn new(config: Config, tools: Catalogue, id_key: u64) -> Self {
        Self { folded: Folded::new(config, tools, id_key), schedule: steps::schedule(), held: false }
    }

    /// The world that these events made, as it was when the last of them had happened.
    pub fn rebuild<'e>(
        config: Config,
        tools: Catalogue,
        id_key: u64,
        events: impl IntoIterator<Item = &'e Event>,
    ) -> Self {
        Self { folded: Folded::of(config, tools, id_key, events), schedule: steps::schedule(), held: false }
    }

    /// What is configured of providers, from here on. What has happened stays as it is.
    pub fn configure(&mut self, config: &Config) {
        let mut setup = self.world.resource_mut::<Setup>();
        setup.config.providers.clone_from(&config.providers);
        setup.config.run.clone_from(&config.run);
    }

    /// While held, nothing new is started: there is no room to record what it comes to.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
        // What a run waits for depends on it, also before the next step.
        self.world.resource_mut::<Incoming>().held = held;
    }

    /// The first step of a daemon: its jobs of before are gone, and so are the runs of which a record cannot be read.
    pub fn recover(&mut self, now: Now, damage: Damage) -> Step {
        let set_from = self.begin(now, Vec::new());
        recover::start(&mut Tx::new(&mut self.folded.world));
        // The time of being away is accounted for by then.
        self.set_clock(set_from);
        recover::recover(&mut Tx::new(&mut self.folded.world), damage);
        self.run()
    }

    /// Performs one step with these inputs, at the time `now`. Returns its events and effects.
    pub fn step(&mut self, now: Now, inputs: Vec<Input>) -> Step {
        let set_from = self.begin(now, inputs);
        self.set_clock(set_from);
        self.run()
    }

    /// Tells where time is set, and from what.
    fn begin(&mut self, now: Now, inputs: Vec<Input>) -> Option<Timestamp> {
        let last = self.world.resource::<Daemon>().last_at;
        let Reading { time, set_from } = self.clock.read(now, last);
        *self.world.resource_mut::<Incoming>() = Incoming { inputs, now: time, held: self.held };
        set_from
    }

    fn set_clock(&mut self, set_from: Option<Timestamp>) {
        if let Some(from) = set_from {
            Tx::new(&mut self.world).emit(None, EventBody::ClockSet { from });
        }
    }

    fn run(&mut self) -> Step {
        self.schedule.run(&mut self.folded.world);
        let outgoing = std::mem::take(&mut *self.world.resource_mut::<Outgoing>());
        Step { events: outgoing.events, effects: outgoing.effects, archived: outgoing.archived }
    }

    /// When a step is due even if nothing comes, as time since the daemon started; `None` where nothing is.
    pub fn next_deadline(&self) -> Option<Span> {
        let timer = self.world.resource::<Timers>().first().map(|at| self.clock.mono_at(at));
        timer.into_iter().chain(self.clock.due()).min()
    }
}

#[cfg(test)]
mod tests {
    use bevy_ecs::schedule::IntoScheduleConfigs as _;

    use super::*;
    use crate::world::StepSystems;

    #[test]
    fn the_schedule_has_no_ambiguity() {
        let mut engine = Engine::new(Config::default(), Catalogue::default(), 1);
        engine.schedule.initialize(&mut engine.folded.world).unwrap();
    }

    #[test]
    fn a_system_without_an_order_is_an_error() {
        fn one(_: bevy_ecs::system::ResMut<Daemon>) {}
        fn other(_: bevy_ecs::system::ResMut<Daemon>) {}
        let mut engine = Engine::new(Config::default(), Catalogue::default(), 1);
        engine.schedule.add_systems((one.in_set(StepSystems::Settle), other.in_set(StepSystems::Settle)));
        assert!(engine.schedule.initialize(&mut engine.folded.world).is_err());
    }
}
