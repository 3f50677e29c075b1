//! Tests of the world as a whole: a simulation, and tables of what it makes of odd answers, holds, crowds and clocks.

pub(super) mod answers;
pub(super) mod clock_jumps;
pub(super) mod crowds;
pub(super) mod holds;
pub(crate) mod simulation;
