//! Defines scripts of the embedded provider. A script has the answers of the model in a file, so that a machine without
//! a key and without a network runs the real product. Pure: the daemon plays scripts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exact_size_list;
use crate::interaction::CallAsk;
use crate::time::Span;

/// An estimate of the allocator's overhead for each allocation, in bytes.
const OF_AN_ALLOCATION: usize = 24;

/// The answers of the scripted provider, turn by turn, and the scripts of children by name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The turns, in order: one for each inference.
    #[serde(default, rename = "turn", deserialize_with = "exact_size_list::deserialize")]
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
    /// Text of the answer. `${name}` stands for a captured text. A turn without calls ends the run with its text as the
    /// answer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Calls that the turn asks for, in order.
    #[serde(
        default,
        rename = "call",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "exact_size_list::deserialize"
    )]
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
    /// Delay of the answer, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// A fault of the provider instead of the first attempt at this turn.
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
    /// What a person is asked about the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Arc<CallAsk>>,
}

impl ScriptedCall {
    /// A call about which no person is asked.
    pub fn new(tool: impl Into<String>, args: Value) -> Self {
        Self { tool: tool.into(), args, ask: None }
    }
}

impl Script {
    /// An estimate of its bytes in memory.
    pub fn approximate_bytes(&self) -> usize {
        let turns: usize = self.turns.iter().map(Turn::approximate_bytes).sum();
        let scripts = self.scripts.iter().map(|(name, script)| text(name) + script.approximate_bytes());
        size_of::<Self>() + turns + scripts.sum::<usize>()
    }
}

impl Turn {
    fn approximate_bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| {
            let ask = call.ask.as_deref().map_or(0, |ask| size_of::<CallAsk>() + ask.text.as_deref().map_or(0, text));
            size_of::<ScriptedCall>() + call.tool.len() + within(&call.args) + ask
        });
        let texts = self.expect.iter().chain(&self.expect_regex).map(|expected| text(expected));
        let captures = self.capture.iter().map(|(name, pattern)| text(name) + text(pattern));
        size_of::<Self>() + self.text.len() + calls.sum::<usize>() + texts.chain(captures).sum::<usize>()
    }
}

/// An estimate of the memory of a text in a list, with the allocator's overhead.
fn text(text: &str) -> usize {
    size_of::<String>() + OF_AN_ALLOCATION + text.len()
}

/// An estimate of the memory that a value takes outside its own place.
fn within(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(string) => OF_AN_ALLOCATION + string.len(),
        Value::Array(values) => values.iter().map(|value| size_of::<Value>() + within(value)).sum(),
        Value::Object(map) => {
            map.iter().map(|(name, value)| text(name) + size_of::<Value>() + OF_AN_ALLOCATION + within(value)).sum()
        }
    }
}

fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

/// Faults of the scripted provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// It refuses for now, and says when to retry.
    RateLimit,
    /// It refuses for now.
    Overloaded,
    /// It breaks off in the middle of its answer.
    Cut,
    /// It stops sending.
    Stall,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    /// A7: a script with a large part counts as large, whichever part that is.
    #[test]
    fn a_script_is_as_large_as_what_it_holds() {
        let long = "x".repeat(100_000);
        let many = vec!["x"; 10_000];
        let turns = [
            json!({"text": long}),
            json!({"call": [{"tool": "shell", "args": {"command": long}}]}),
            json!({"call": [{"tool": "shell", "args": {"a": [[{"b": [long]}]]}}]}),
            json!({"call": [{"tool": "shell", "args": {"a": vec![0; 10_000]}}]}),
            json!({"call": [{"tool": long}]}),
            json!({"call": [{"tool": "shell", "ask": {"kind": "form", "text": long}}]}),
            json!({"expect": [long]}),
            json!({"expect": many}),
            json!({"expect_regex": many}),
            json!({"capture": {"a": long}}),
        ];
        for turn in turns {
            let script = json!({"turn": [turn]});
            let within = json!({"turn": [], "script": {"child": script}});
            for script in [script, within] {
                let read: Script = serde_json::from_value(script.clone()).unwrap();
                assert!(read.approximate_bytes() >= 100_000, "{}", script.to_string().get(..60).unwrap());
            }
        }
        assert!(Script::default().approximate_bytes() < 1_000);
    }
}
