//! Tests the whole world: by a simulation, and by tables of cases for faulty answers, holds, crowds, clock jumps,
//! preparation, long texts and persons.

pub(super) mod answers;
pub(super) mod clock_jumps;
pub(super) mod crowds;
mod persons;
mod preparation;
pub(super) mod provider_holds;
pub(crate) mod simulation;
mod texts;
mod visit_counts;
