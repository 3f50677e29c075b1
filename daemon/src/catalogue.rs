//! The catalogue of tools: what the world and the prompts know about each tool. Pure.
//!
//! Must never execute a tool; `tools` and `jobs` do.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The tools by name.
pub type Catalogue = BTreeMap<Arc<str>, ToolKind>;

/// What the world must know of the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolKind {
    /// A transition of the world: needs no permit, has no job.
    World(WorldTool),
    /// The call is a job: it holds a permit of the tool lane while it executes.
    Job {
        /// Neighbours of this kind may execute together.
        parallel_safe: bool,
    },
}

/// Tools that are transitions of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorldTool {
    /// Asks a person.
    AskUser,
    /// Spawns a child.
    SpawnAgent,
    /// Waits for runs of the same tree.
    WaitForAgent,
}

/// A tool as a model is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSpec {
    /// By which it is called.
    pub name: Arc<str>,
    /// What it does, in words for the model.
    pub description: Arc<str>,
    /// JSON schema of its arguments, as text.
    pub parameters: Arc<str>,
}

/// The tools of `tools` in the form that a model gets, sorted by name. A tool without a specification is left out: a
/// model may not call it.
pub fn specs(tools: &Catalogue) -> Arc<[ToolSpec]> {
    let spec = |name: &Arc<str>| {
        let (_, description, parameters) = BUILT_IN.iter().find(|(built_in, ..)| *built_in == &**name)?;
        Some(ToolSpec {
            name: Arc::clone(name),
            description: (*description).into(),
            parameters: compact(parameters).into(),
        })
    };
    tools.keys().filter_map(spec).collect()
}

fn compact(json: &str) -> String {
    serde_json::from_str::<serde_json::Value>(json).map_or_else(|_| json.to_owned(), |value| value.to_string())
}

/// Name, description and argument schema of the built-in tools. The module `tools` parses the arguments.
const BUILT_IN: &[(&str, &str, &str)] = &[
    (
        "shell",
        "Executes a command on this machine and returns its exit code, its standard output and its standard error. Give either \
         `command`, a line for `sh -c`, or `argv`, a program with its arguments and no shell in between. Standard input is empty. \
         Long output is shortened in the middle.",
        r#"{
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command line, for sh -c."},
                "argv": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The program and its arguments, in place of command."
                },
                "timeout": {"type": "number", "description": "Seconds after which the command is ended."},
                "cwd": {"type": "string", "description": "Directory to start in; relative to the working directory."},
                "tty": {"type": "boolean", "description": "Whether the command gets a terminal."}
            },
            "additionalProperties": false
        }"#,
    ),
    (
        "ask_user",
        "Asks a person a question and returns the answer. It may take a long time, and there may be nobody to answer: ask only what \
         you cannot find out yourself.",
        r#"{
            "type": "object",
            "properties": {"question": {"type": "string", "description": "The question."}},
            "required": ["question"],
            "additionalProperties": false
        }"#,
    ),
    (
        "spawn_agent",
        "Starts another agent with a task of its own and returns its id at once, without waiting for it. It has the same tools and the \
         same working directory, and knows nothing of this conversation: the prompt must say everything.",
        r#"{
            "type": "object",
            "properties": {
                "prompt": {"type": "string", "description": "The task."},
                "name": {"type": "string", "description": "A name by which the agent can be waited for."}
            },
            "required": ["prompt"],
            "additionalProperties": false
        }"#,
    ),
    (
        "wait_for_agent",
        "Waits until agents that were started with spawn_agent have ended and returns their answers. Without any arguments it waits for \
         all of them.",
        r#"{
            "type": "object",
            "properties": {
                "agents": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Ids or names of the agents."
                },
                "mode": {
                    "type": "string",
                    "enum": ["all", "any"],
                    "description": "Whether all of them must have ended, or one is enough."
                }
            },
            "additionalProperties": false
        }"#,
    ),
];
