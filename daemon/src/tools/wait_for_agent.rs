//! Plans the tool `wait_for_agent`, which waits for runs of the same tree.

use schemars::JsonSchema;
use serde::Deserialize;

use super::plan::arguments;
use super::{Facts, Plan, Refused, Tool, ToolKind, Transition, Wait, schema};

/// Waits for runs of the same tree.
pub(super) struct WaitForAgent;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    // For scripts: a model is told of the list alone.
    #[serde(default)]
    #[schemars(skip)]
    agent: Option<String>,
    /// Ids or names of the agents.
    #[serde(default)]
    agents: Vec<String>,
    /// Whether all of them must have ended, or one is enough.
    #[serde(default)]
    mode: Mode,
}

#[derive(Deserialize, JsonSchema, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    #[default]
    All,
    Any,
}

impl Tool for WaitForAgent {
    fn name(&self) -> &'static str {
        "wait_for_agent"
    }

    fn description(&self) -> &'static str {
        "Waits until agents that were started with spawn_agent have ended and returns their answers. Without any \
         arguments it waits for all of them."
    }

    fn parameters(&self) -> String {
        schema::of::<Args>()
    }

    fn usage(&self) -> &'static str {
        r#"{"agents": ["…", …]}, and if need be "mode": "all" or "any""#
    }

    fn kind(&self) -> ToolKind {
        ToolKind::World
    }

    fn plan(&self, args: &str, _: &Facts<'_>) -> Result<Plan, Refused> {
        let Args { agent, agents, mode } = arguments(self, args)?;
        let agents = agent.into_iter().chain(agents).collect();
        Ok(Plan::World(Transition::Wait(Wait { agents, any: mode == Mode::Any })))
    }
}
