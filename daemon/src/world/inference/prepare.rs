//! Prepares a run once: an event fixes what the run's inferences are built from, such as the descriptions of its tools.
//!
//! These descriptions are long and the same for many runs. So they are an event of their own, and the event of a run
//! names that event by its number.

use std::sync::Arc;

use harness_protocol::event::{EventBody, ToolDefinition};
use harness_protocol::id::{RunId, Seq};

use crate::world::model::call_kind;
use crate::world::model::components::Prepared;
use crate::world::model::toolsets::{Toolset, Toolsets};
use crate::world::tx::Tx;

/// Prepares a run, unless it is prepared. Runs of older journals are prepared before their next inference.
pub(in crate::world) fn prepare(tx: &mut Tx<'_>, run: RunId) {
    if toolset(tx, run).is_some() {
        return;
    }
    let tools = tx.res::<Toolsets>().number_of(&tx.setup().toolset);
    let tools = tools.unwrap_or_else(|| {
        let definition = |(spec, kind): (&crate::tools::ToolSpec, _)| ToolDefinition {
            name: Arc::clone(&spec.name),
            description: Arc::clone(&spec.description),
            parameters: Arc::clone(&spec.parameters),
            kind: call_kind::recorded(Some(kind)),
        };
        let tools = tx.setup().toolset.tools().map(definition).collect();
        tx.emit(None, EventBody::ToolsDefined { tools })
    });
    tx.emit(Some(run), EventBody::RunPrepared { tools });
}

/// Prepares a run like the one that it comes from, where that is still known.
pub(in crate::world) fn prepare_like(tx: &mut Tx<'_>, run: RunId, tools: Option<Seq>) {
    if let Some(tools) = tools.filter(|&tools| tx.res::<Toolsets>().get(tools).is_some()) {
        tx.emit(Some(run), EventBody::RunPrepared { tools });
    }
}

/// The tools of a run, once it is prepared. Which of them it may call its specification says.
pub(in crate::world) fn toolset<'t>(tx: &'t Tx<'_>, run: RunId) -> Option<&'t Arc<Toolset>> {
    let prepared = tx.get::<Prepared>(tx.entity(run)?)?;
    tx.res::<Toolsets>().get(prepared.0)
}
