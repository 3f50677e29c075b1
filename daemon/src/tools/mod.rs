//! Defines the tools that a model may call by name, and makes a plan of each call.
//!
//! ```text
//! arguments ──plan──▶ Plan::World ────▶ the world makes the transition
//!               │  └▶ Plan::Process ──▶ the executor of `jobs` ──▶ Finished ──result──▶ CallResult
//!               └───▶ Refused: a text for the model, nothing was done
//! ```
//!
//! A tool only plans. It must not start or read anything, so that all that must be known of a call before it executes
//! can be read from its plan. Pure. It must not know a job, a lane or a component.

mod ask_user;
mod catalogue;
mod envelope;
mod limits_met;
mod plan;
mod schema;
mod shell;
mod spawn_agent;
mod wait_for_agent;

use std::sync::Arc;

use harness_protocol::run::CallResult;

pub use self::catalogue::{Catalogue, ToolKind, ToolSpec};
pub use self::envelope::not_started;
pub use self::plan::{Command, Confinement, Facts, Finished, Plan, Process, Refused, Spawn, Stdin, Transition, Wait};

/// Every tool that there is: a line each.
pub fn catalogue() -> Catalogue {
    Catalogue::of([
        Arc::new(ask_user::AskUser) as Arc<dyn Tool>,
        Arc::new(shell::Shell),
        Arc::new(spawn_agent::SpawnAgent),
        Arc::new(wait_for_agent::WaitForAgent),
    ])
}

/// A tool that a model can call: its description, its arguments, its plan and its result. Pure.
pub trait Tool: Send + Sync {
    /// The name by which a model calls it.
    fn name(&self) -> &str;

    /// What it does, in words for the model.
    fn description(&self) -> &str;

    /// The JSON schema of its arguments, as text.
    fn parameters(&self) -> String;

    /// Its arguments by example, for a model that got them wrong.
    fn usage(&self) -> &str;

    /// What its calls need to be carried out.
    fn kind(&self) -> ToolKind;

    /// What a call with these arguments, JSON as the model wrote it, is to do.
    ///
    /// # Errors
    /// Where nothing can be done. The model reads why.
    fn plan(&self, args: &str, facts: &Facts<'_>) -> Result<Plan, Refused>;

    /// The result of a call whose process has ended: its exit code and its output, unless the tool knows better.
    fn result(&self, finished: &Finished<'_>) -> CallResult {
        envelope::of_command(finished)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
