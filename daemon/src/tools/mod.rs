//! The tools that a model may call by name.
//!
//! Owns their names, their arguments and the text of their results. Must never know a job or a lane; `world` sees only
//! the catalogue.

mod environment;
mod limits;
pub mod shell;

use crate::catalogue::{Catalogue, ToolKind, WorldTool};

/// Runs a command.
pub const SHELL: &str = "shell";
/// Asks a person.
pub const ASK_USER: &str = "ask_user";
/// Spawns a child.
pub const SPAWN_AGENT: &str = "spawn_agent";
/// Waits for runs of the same tree.
pub const WAIT_FOR_AGENT: &str = "wait_for_agent";

/// Every tool that there is, and whether it is a job or a transition of the world.
pub fn catalogue() -> Catalogue {
    Catalogue::from([
        (SHELL.into(), ToolKind::Job { parallel_safe: false }),
        (ASK_USER.into(), ToolKind::World(WorldTool::AskUser)),
        (SPAWN_AGENT.into(), ToolKind::World(WorldTool::SpawnAgent)),
        (WAIT_FOR_AGENT.into(), ToolKind::World(WorldTool::WaitForAgent)),
    ])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::catalogue::specs;
    use serde_json::Value;

    #[test]
    fn a_model_is_told_of_every_tool_with_a_schema_of_an_object() {
        let catalogue = catalogue();
        let specs = specs(&catalogue);
        assert!(specs.iter().map(|spec| &spec.name).eq(catalogue.keys()));
        for spec in specs.iter() {
            let schema: Value = serde_json::from_str(&spec.parameters).unwrap();
            assert_eq!(schema["type"], "object", "{}", spec.name);
            assert!(schema["properties"].is_object() && !spec.description.contains("  "), "{}", spec.name);
        }
    }
}
