//! What a run is asked to be: its specification and its limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::script::Script;
use crate::time::{Span, Timestamp};

/// Specification of a run, as submitted. What is left out comes from the daemon's configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The task. May be left out with a script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Arc<str>>,
    /// A name, unique among live runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// Labels, for selectors and accounting.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The share of the lanes' capacity that the run belongs to. A run inside another one is of the other one's, and may name no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Arc<str>>,
    /// Who goes first within a lane. A run inside another one never goes before it.
    #[serde(default)]
    pub priority: Priority,
    /// The provider by its configured name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Arc<str>>,
    /// The model by the provider's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// A script for the scripted provider. With it, no prompt is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Arc<Script>>,
    /// Directory in which calls start; absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<Arc<str>>,
    /// Environment variables for the calls, beside the allow-list and PATH.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where the run must stop. A run inside another one has at most the limits of that one, those on steps, tokens, cost and time included.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// What happens when the run asks a person something.
    #[serde(default)]
    pub on_interaction: OnInteraction,
    /// The tools that it may call, by name; all that there are where left out. A run inside another one has at most the tools of that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Arc<[Arc<str>]>>,
}

impl RunSpec {
    /// Whether the run may call this tool, if there is one.
    pub fn allows_tool(&self, name: &str) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.iter().any(|tool| **tool == *name))
    }
}

/// Limits of a run. At one of steps, tokens, cost or time the run ends; see the exit codes 9 and 124. The others are those of each
/// process of its calls, and take the place of the configured ones; at these a call fails, and the run goes on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Inferences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Input and output tokens together, of the run and all below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Cost in USD, of the run and all below it. Refused where no price is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// Time spent in inference and execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_time_seconds: Option<Span>,
    /// Wall clock, from the submit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<Span>,
    /// Wall clock, absolute. The earlier of the two deadlines counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// Seconds of CPU time of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<u64>,
    /// Bytes of address space of a process; of memory of the whole run, where a cgroup sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_space_bytes: Option<u64>,
    /// Descriptors of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Bytes of a file that a process writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    /// Processes of the run, where a cgroup sets it; else those of the same user on the whole machine, and root is not bound by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
}

impl Limits {
    /// Whether it may use so much and no more, together with the runs below it.
    pub fn has_budget(&self) -> bool {
        self.max_tokens.is_some() || self.max_cost_usd.is_some()
    }

    /// Whether nothing is limited here.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Precedence within a lane. Every class is served at least once in eight grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// Before `normal`.
    High,
    /// Between the two.
    #[default]
    Normal,
    /// After `normal`.
    Low,
}

/// What happens when a run asks a person something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnInteraction {
    /// It waits, as long as it takes.
    #[default]
    Wait,
    /// The call is refused, the run goes on and its `denials` say so.
    Deny,
    /// The run fails, with exit code 3.
    Fail,
}
