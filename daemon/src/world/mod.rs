//! Holds the runs of the daemon as data: every run is an entity, every change an event.
//!
//! `step(now, inputs) -> (events, effects)`: synchronous and deterministic. It reads no clock and no file, and knows no
//! process, no socket and no task. Its sets, in the order of a step:
//!
//! | set | |
//! |---|---|
//! | [`StepSystems::Ingest`] | the commands of people and programs |
//! | [`StepSystems::Settle`] | the reports of jobs, and timers that are due |
//! | [`StepSystems::Decide`] | the next action of each run concerned |
//! | [`StepSystems::Dispatch`] | the grants of permits, and the work that they allow |
//! | [`StepSystems::Publish`] | the archiving of finished trees |
//!
//! Systems read and emit events; `apply` alone changes runs and what follows from them. So the world is the fold of its
//! events, and a restart is a replay ([`Engine::rebuild`]). Only the configuration, and the inputs and results of a
//! step, do not come from events.

pub mod api;
mod apply;
mod commands;
#[cfg(test)]
mod digest;
mod ending;
mod engine;
mod fold;
mod inference;
mod interactions;
mod model;
mod name_or_id;
pub mod queries;
mod recover;
pub mod redundant_events;
mod settlement;
mod steps;
#[cfg(test)]
pub(crate) mod testing;
mod tools;
mod tx;
pub mod view;

pub use engine::{Engine, Step};
pub use fold::Folded;
pub use steps::StepSystems;
