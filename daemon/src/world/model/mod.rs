//! Defines the data model of the world: components, indexes, the phase of a run, ids, names, and the world's clock.

pub(super) mod by_id;
pub(super) mod call_kind;
pub(super) mod clock;
pub(super) mod components;
pub(super) mod ids;
pub(super) mod indexes;
pub(super) mod names;
pub(super) mod phase;
pub(super) mod run_data;
pub(super) mod run_state;
pub(super) mod step_io;
pub(super) mod toolsets;
