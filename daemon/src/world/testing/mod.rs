//! Tests the whole world: by a simulation, and by tables of cases for faulty answers, holds, crowds, clock jumps,
//! preparation, long texts, persons, and what a run learns of other trees.

pub(super) mod answers;
pub(super) mod clock_jumps;
pub(super) mod crowds;
mod own_tree;
mod persons;
mod preparation;
pub(super) mod provider_holds;
pub(crate) mod simulation;
mod texts;
mod visit_counts;
