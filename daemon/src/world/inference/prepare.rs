//! Prepares a run once: an event fixes what the run's inferences are built from, such as the descriptions of its tools.
//!
//! These descriptions are long and the same for many runs, so the journal has them by their hash.

use std::sync::Arc;

use harness_protocol::event::EventBody;
use harness_protocol::id::RunId;

use crate::world::api::ToolsTold;
use crate::world::model::components::Prepared;
use crate::world::model::toolsets::Toolset;
use crate::world::tx::Tx;

/// Prepares a run, unless it is prepared. Runs of older journals are prepared before their next inference.
pub(in crate::world) fn prepare(tx: &mut Tx<'_>, run: RunId) {
    if toolset(tx, run).is_none() {
        let told = tx.setup().toolset.told.clone();
        prepare_like(tx, run, Some(told));
    }
}

/// Prepares a run like the one that it comes from, if that one was prepared.
pub(in crate::world) fn prepare_like(tx: &mut Tx<'_>, run: RunId, told: Option<ToolsTold>) {
    if let Some(ToolsTold { definitions, blob }) = told {
        let body = EventBody::RunPrepared { definitions: Some(definitions), definitions_blob: blob };
        tx.emit(Some(run), body);
    }
}

/// The tools of a run, once it is prepared. Which of them it may call its specification says.
pub(in crate::world) fn toolset<'t>(tx: &'t Tx<'_>, run: RunId) -> Option<&'t Arc<Toolset>> {
    tx.get::<Prepared>(tx.entity(run)?).map(|prepared| &prepared.0)
}
