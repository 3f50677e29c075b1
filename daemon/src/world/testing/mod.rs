//! Tests of the whole world: a simulation, and tables of cases for faulty answers, holds, crowds, clock jumps and
//! preparation.

pub(super) mod answers;
pub(super) mod clock_jumps;
pub(super) mod crowds;
pub(super) mod holds;
mod looks;
mod prepared;
pub(crate) mod simulation;
