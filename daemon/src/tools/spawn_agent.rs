//! Plans the tool `spawn_agent`, which starts a run below the one that calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use harness_protocol::json_size::quoted;
use schemars::JsonSchema;
use serde::Deserialize;

use super::plan::arguments;
use super::{Facts, Plan, Refused, Spawn, Tool, ToolKind, Transition, schema};

/// Starts a run below the one that calls.
pub(super) struct SpawnAgent;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    // A script may leave it out, a model may not.
    /// The task.
    #[schemars(required)]
    prompt: Option<Arc<str>>,
    /// A name by which the agent can be waited for.
    #[serde(default)]
    name: Option<Arc<str>>,
    // For scripts: a model is not told of these.
    #[serde(default)]
    #[schemars(skip)]
    script: Option<String>,
    #[serde(default)]
    #[schemars(skip)]
    labels: BTreeMap<String, String>,
}

impl Tool for SpawnAgent {
    fn name(&self) -> &'static str {
        "spawn_agent"
    }

    fn description(&self) -> &'static str {
        "Starts another agent with a task of its own and returns its id at once, without waiting for it. It has the \
         same tools and the same working directory, and knows nothing of this conversation: the prompt must say \
         everything."
    }

    fn parameters(&self) -> String {
        schema::of::<Args>()
    }

    fn usage(&self) -> &'static str {
        r#"{"prompt": "…"}, and if need be "name": "…""#
    }

    fn kind(&self) -> ToolKind {
        ToolKind::World
    }

    fn plan(&self, args: &str, facts: &Facts<'_>) -> Result<Plan, Refused> {
        let Args { prompt, name, script, labels } = arguments(self, args)?;
        let scripts = facts.spec.script.as_ref().map(|script| &script.scripts);
        let named = |name: &String| {
            let script = scripts.and_then(|scripts| scripts.get(name)).cloned();
            script.ok_or_else(|| Refused::Missing(format!("There is no script {} for a child here.", quoted(name))))
        };
        let script = script.as_ref().map(named).transpose()?;
        Ok(Plan::World(Transition::Spawn(Spawn { prompt, name, script, labels })))
    }
}
