//! Tests of the whole world: a simulation, and tables of cases for faulty answers, holds, crowds and clock jumps.

pub(super) mod answers;
pub(super) mod clock_jumps;
pub(super) mod crowds;
pub(super) mod holds;
mod looks;
pub(crate) mod simulation;
