//! The trait of tools whose calls are jobs, and the built-in shell tool.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use harness_protocol::id::{CallId, RunId};
use harness_protocol::run::CallResult;

use super::deltas::Deltas;
use super::off_lane::LaneHandle;
use crate::process::Cancel;
use crate::tools::shell::{Asked, Shell};
use crate::world::api::CallTask;

/// A call that executes.
pub type Execution<'a> = Pin<Box<dyn Future<Output = CallResult> + Send + 'a>>;

/// A tool whose calls are jobs.
pub trait Tool: Send + Sync {
    /// Executes a call. What fails is a result, too; what panics is an outcome, too.
    fn call<'a>(&'a self, task: &'a CallTask, context: Context) -> Execution<'a>;
}

/// What a call gets beside its task.
pub struct Context {
    /// The run that made the call.
    pub run: RunId,
    /// The id of the call within its run.
    pub call: CallId,
    /// Tells it to end.
    pub cancel: Cancel,
    /// Takes its output as it comes.
    pub deltas: Deltas,
    /// Its place in the lane.
    pub lane_handle: LaneHandle,
}

/// Tools by name.
pub type Tools = BTreeMap<Arc<str>, Arc<dyn Tool>>;

pub(super) async fn execute(tools: &Tools, task: &CallTask, context: Context) -> CallResult {
    match tools.get(&task.tool) {
        Some(tool) => tool.call(task, context).await,
        None => {
            let names: Vec<&str> = tools.keys().map(|name| &**name).collect();
            let text = format!("there is no tool {:?} to execute; there is: {}", task.tool, names.join(", "));
            CallResult::plain(context.call, task.tool.clone(), text, true)
        }
    }
}

impl Tool for Shell {
    fn call<'a>(&'a self, task: &'a CallTask, context: Context) -> Execution<'a> {
        let Context { run, call, mut cancel, mut deltas, lane_handle } = context;
        Box::pin(async move {
            let mut on_piece = |stream, offset, bytes: &[u8]| deltas.piece(stream, offset, bytes);
            let asked = Asked { tool: &task.tool, args: &task.args, spec: &task.spec };
            let on_found = |folder| lane_handle.found(folder);
            let result = self.call(run, call, asked, &mut cancel, &mut on_piece, &on_found).await;
            deltas.finish();
            result
        })
    }
}
