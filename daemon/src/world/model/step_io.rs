//! Holds the inputs of the current step, and the events and effects that it has produced so far.

use std::sync::Arc;

use bevy_ecs::resource::Resource;
use harness_protocol::event::Event;
use harness_protocol::run::RunView;
use harness_protocol::time::Timestamp;

use crate::world::api::{Effect, Input};

/// What a step is given, and the time that its events bear.
#[derive(Resource, Debug, Default)]
pub(crate) struct Incoming {
    pub(crate) inputs: Vec<Input>,
    pub(crate) now: Timestamp,
    /// Nothing new is started.
    pub(crate) held: bool,
}

/// What a step hands out.
#[derive(Resource, Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) events: Vec<Arc<Event>>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) archived: Vec<RunView>,
}
