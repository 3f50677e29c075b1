//! The world: every run is an entity, every change an event.
//!
//! `step(now, inputs) -> (events, effects)`: synchronous and deterministic. It reads no clock and no file, and knows no
//! process, no socket and no task. Its sets, in the order of a step:
//!
//! | set | |
//! |---|---|
//! | [`StepSystems::Ingest`] | what people and programs want |
//! | [`StepSystems::Settle`] | what jobs tell, what time brings |
//! | [`StepSystems::Decide`] | what each run that this concerns does next |
//! | [`StepSystems::Dispatch`] | who gets a permit, and the work that it is for |
//! | [`StepSystems::Publish`] | what is let go of |
//!
//! Systems read and emit events; [`apply`] alone changes. So the world is the fold of its events, and a restart is a
//! replay ([`Engine::rebuild`]).

pub mod api;
mod apply;
mod commands;
mod digest;
mod ending;
mod engine;
mod inference;
mod model;
mod name_or_id;
pub mod queries;
mod recover;
mod steps;
pub mod superseded;
#[cfg(test)]
pub(crate) mod testing;
mod tools;
mod tx;
pub mod view;

pub use engine::{Engine, Step};
pub use steps::StepSystems;
