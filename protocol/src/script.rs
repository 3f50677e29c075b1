//! Scripts of the embedded provider: turns from a file, so that a machine with no key and no network runs the real thing.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exact;
use crate::time::Span;

/// What the scripted provider says, turn by turn, and the scripts that children may ask for by name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The turns, in order: one for each inference.
    #[serde(default, rename = "turn", deserialize_with = "exact::deserialize")]
    pub turns: Vec<Turn>,
    /// Scripts for children: `spawn_agent` with `script = "NAME"` uses one of these.
    #[serde(default, rename = "script", skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<String, Arc<Script>>,
}

/// One answer of the scripted model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// What the model says. `${name}` stands for a captured text. A turn without calls ends the run with it as the answer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The calls that it asks for, in order.
    #[serde(default, rename = "call", skip_serializing_if = "Vec::is_empty", deserialize_with = "exact::deserialize")]
    pub calls: Vec<ScriptedCall>,
    /// Texts that the results of the turn before must contain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<String>,
    /// Patterns that the results of the turn before must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect_regex: Vec<String>,
    /// Texts taken from those results: the first group of each pattern, usable from this turn on as `${name}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capture: BTreeMap<String, String>,
    /// Seconds until the answer comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// A fault of the provider in place of the first attempt at this turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

/// A call that a scripted turn asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// Name of the tool.
    pub tool: String,
    /// Arguments; `${name}` in their texts stands for a captured text.
    #[serde(default = "empty_object")]
    pub args: Value,
}

fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

/// What a provider may do instead of answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Refuses for now, and says when to come back.
    RateLimit,
    /// Refuses for now.
    Overloaded,
    /// Breaks off in the middle of its answer.
    Cut,
    /// Says nothing more.
    Stall,
}
