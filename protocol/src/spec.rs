//! Defines the specification of a run, and its limits: the fields on the wire. Pure. It does not check their values:
//! the daemon does, at the submit.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::blob::BlobHash;
use crate::folder::FolderId;
use crate::script::Script;
use crate::time::{Span, Timestamp};

/// Specification of a run, as submitted. Missing fields come from the daemon's configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The task. May be missing with a script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Arc<str>>,
    /// The name of the prompt in the store of texts, for `blob.get`, if it is long. Events have this name in place of
    /// the prompt. The daemon makes it; in a submit it is ignored. Since protocol 1.4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_blob: Option<Box<BlobHash>>,
    /// A name, unique among live runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// Labels, for selectors and accounting.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The share of the lanes' capacity that the run uses. A run inside another run has the share of that run, and may
    /// name no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Arc<str>>,
    /// Precedence within a lane. A run inside another run never has a higher one than that run.
    #[serde(default)]
    pub priority: Priority,
    /// Name of the provider, as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Arc<str>>,
    /// Name of the model, as its provider knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// A script for the scripted provider. With it, no prompt is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Arc<Script>>,
    /// The name of the script, as JSON, in the store of texts, if it is long. The same holds for it as for
    /// `prompt_blob`. Since protocol 1.4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_blob: Option<Box<BlobHash>>,
    /// Directory in which calls start; absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<Arc<str>>,
    /// Identity of that folder: its device and inode, as `stat` gives them to the client. The submit is refused if the
    /// path leads to another folder for the daemon. If it is missing, the daemon looks for itself. Since protocol 1.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir_id: Option<FolderId>,
    /// Environment variables for the calls, in addition to the allow-list and PATH.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Limits at which the run must stop. A run inside another run has at most the limits of that run, also on steps,
    /// tokens, cost and time.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// What happens when the run asks a person a question.
    #[serde(default)]
    pub on_interaction: OnInteraction,
    /// Names of the tools that it may call; all tools if missing. A run inside another run has at most the tools of
    /// that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Arc<[Arc<str>]>>,
}

impl RunSpec {
    /// Most bytes as JSON for each byte of [`RunSpec::approximate_bytes`]: a control character takes six, and the JSON
    /// syntax around a text takes less than the place of the text in memory.
    pub const MOST_AS_JSON: usize = 6;

    /// An estimate of its bytes in memory. As JSON it takes at most [`RunSpec::MOST_AS_JSON`] times as much.
    pub fn approximate_bytes(&self) -> usize {
        let texts = [&self.prompt, &self.name, &self.share, &self.provider, &self.model, &self.workdir];
        let texts: usize = texts.into_iter().flatten().map(|text| text.len()).sum();
        let pairs = self.env.iter().chain(&self.labels).map(|(name, value)| name.len() + value.len() + 96);
        let tools = self.tools.iter().flat_map(|tools| tools.iter()).map(|tool| tool.len() + 32);
        let script = self.script.as_ref().map_or(0, |script| script.approximate_bytes());
        let names = [&self.prompt_blob, &self.script_blob].into_iter().flatten().map(|_| size_of::<BlobHash>());
        let texts = texts + names.sum::<usize>();
        size_of::<Self>() + texts + pairs.chain(tools).sum::<usize>() + script
    }

    /// Whether the run may call the tool of this name. The tool need not exist.
    pub fn allows_tool(&self, name: &str) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.iter().any(|tool| **tool == *name))
    }
}

/// Changes to the specification of a run that is retried. Missing fields stay as they were.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SpecChanges {
    /// The new name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// Labels that are added, or have another value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The new share of the lanes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Arc<str>>,
    /// The new precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The new provider. If no model is named as well, the model becomes that of the new provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Arc<str>>,
    /// The new model, by its name at the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Variables that are added, or have another value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// New limits: each limit that is set here. A deadline replaces both deadlines.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// What happens when the new run asks a person a question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_interaction: Option<OnInteraction>,
}

impl SpecChanges {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The specification with these changes.
    #[must_use]
    pub fn applied_to(&self, spec: &RunSpec) -> RunSpec {
        let mut spec = spec.clone();
        let is_other = self.provider.is_some() && self.provider != spec.provider;
        if is_other {
            // The name of a model is valid only for its provider.
            spec.model = None;
        }
        for (to, from) in [
            (&mut spec.name, &self.name),
            (&mut spec.share, &self.share),
            (&mut spec.provider, &self.provider),
            (&mut spec.model, &self.model),
        ] {
            if from.is_some() {
                to.clone_from(from);
            }
        }
        spec.labels.extend(self.labels.clone());
        spec.env.extend(self.env.clone());
        spec.priority = self.priority.unwrap_or(spec.priority);
        spec.on_interaction = self.on_interaction.unwrap_or(spec.on_interaction);
        spec.limits = self.limits.or(&spec.limits);
        spec
    }
}

/// Limits of a run. A run ends at a limit of steps, tokens, cost or time; see the exit codes 9 and 124. The other
/// limits hold for each process of its calls, and replace the configured ones; at such a limit the call fails, and the
/// run continues.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Number of inferences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Input and output tokens together, of the run and all below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Cost in USD, of the run and all below it. Refused if no price is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// Time spent in inference and execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_time_seconds: Option<Span>,
    /// Wall-clock time from the submit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<Span>,
    /// Wall-clock instant. The earlier of the two deadlines counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    /// Seconds of CPU time of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<u64>,
    /// Bytes of address space of a process; if a cgroup sets it, of memory of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_space_bytes: Option<u64>,
    /// Open file descriptors of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Bytes of a file that a process writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    /// Processes of the run, if a cgroup sets it. Otherwise processes of the same user on the whole machine; root is
    /// not bound by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
}

impl Limits {
    /// Whether it has a budget that it shares with the runs below it.
    pub fn has_budget(&self) -> bool {
        self.max_tokens.is_some() || self.max_cost_usd.is_some()
    }

    /// These limits; those that are not set are taken from `others`. A deadline replaces both of theirs.
    #[must_use]
    pub fn or(&self, others: &Self) -> Self {
        let has_deadline = self.deadline_seconds.is_some() || self.deadline_at.is_some();
        let deadlines = if has_deadline {
            (self.deadline_seconds, self.deadline_at)
        } else {
            (others.deadline_seconds, others.deadline_at)
        };
        Self {
            max_steps: self.max_steps.or(others.max_steps),
            max_tokens: self.max_tokens.or(others.max_tokens),
            max_cost_usd: self.max_cost_usd.or(others.max_cost_usd),
            max_time_seconds: self.max_time_seconds.or(others.max_time_seconds),
            deadline_seconds: deadlines.0,
            deadline_at: deadlines.1,
            cpu_seconds: self.cpu_seconds.or(others.cpu_seconds),
            address_space_bytes: self.address_space_bytes.or(others.address_space_bytes),
            open_files: self.open_files.or(others.open_files),
            file_size_bytes: self.file_size_bytes.or(others.file_size_bytes),
            processes: self.processes.or(others.processes),
        }
    }

    /// Whether no limit is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Precedence within a lane. Every class is served at least once in eight grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// Before `normal` and `low`.
    High,
    /// Between `high` and `low`.
    #[default]
    Normal,
    /// After `high` and `normal`.
    Low,
}

/// What happens when a run asks a person a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnInteraction {
    /// The run waits, without a time limit.
    #[default]
    Wait,
    /// The call is refused; the run continues, and its `denials` record this.
    Deny,
    /// The run fails, with exit code 3.
    Fail,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::json_size::value_bytes;

    fn spec(json: &str) -> RunSpec {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn whatever_a_specification_holds_its_json_is_at_most_so_much_larger_than_its_memory() {
        let control = "\u{1}".repeat(2_000);
        let pairs: BTreeMap<String, String> = (0..2_000).map(|n| (format!("{n}\u{1}"), String::new())).collect();
        let call = |args: Value| json!({"script": {"turn": [{"call": [{"tool": "", "args": args}]}]}});
        let all = json!({"max_steps": u32::MAX, "max_tokens": u64::MAX, "max_cost_usd": 1.0 / 3.0,
            "max_time_seconds": 1.000_001, "deadline_seconds": 8e9, "deadline_at": "2026-11-30T11:00:00.123456Z",
            "cpu_seconds": u64::MAX, "address_space_bytes": u64::MAX, "open_files": u64::MAX,
            "file_size_bytes": u64::MAX, "processes": u64::MAX});
        for spec in [
            json!({}),
            json!({"limits": all}),
            json!({"workdir": control, "workdir_id": {"device": u64::MAX, "inode": u64::MAX}}),
            json!({"prompt": control, "name": control, "share": control, "provider": control, "model": control}),
            json!({"labels": pairs}),
            json!({"env": pairs}),
            json!({"tools": vec![""; 2_000]}),
            json!({"script": {"turn": vec![json!({}); 2_000]}}),
            json!({"script": {"turn": [{"expect": vec![""; 2_000], "expect_regex": vec!["\u{1}"; 2_000],
                "capture": pairs}]}}),
            json!({"script": {"turn": [{"call": vec![json!({"tool": "", "args": {}}); 2_000], "delay": 0.1,
                "fault": "rate-limit"}]}}),
            json!({"script": {"script": {"a": {}, "b": {}, "c": {"turn": [{"text": control}]}}}}),
            call(json!(vec![u64::MAX; 2_000])),
            call(json!(vec![1.0 / 3.0; 2_000])),
            call(json!(vec![json!([]); 2_000])),
            call(json!(vec![json!({"": {"": ""}}); 2_000])),
            call(json!(pairs)),
            call(json!({"a": control})),
        ] {
            let read: RunSpec = serde_json::from_value(spec.clone()).unwrap();
            let (bytes, memory) = (value_bytes(&read), read.approximate_bytes());
            assert!(bytes <= memory * RunSpec::MOST_AS_JSON, "{bytes} of {memory}: {:.80}", spec.to_string());
        }
    }

    /// U11: the named fields change, and no others.
    #[test]
    fn a_retry_changes_the_named_fields_and_leaves_the_rest() {
        let first = r#"{"prompt":"go","name":"a","labels":{"k":"1","l":"2"},"provider":"p","model":"m","env":{"A":"1"},
            "limits":{"max_steps":5,"max_cost_usd":1.0,"deadline_at":"2026-11-30T11:00:00Z","open_files":64}}"#;
        for (changes, place, value) in [
            (r#"{"model":"big"}"#, "/model", r#""big""#),
            (r#"{"provider":"q"}"#, "/model", "null"),
            (r#"{"provider":"p"}"#, "/model", r#""m""#),
            (r#"{"provider":"q","model":"n"}"#, "/model", r#""n""#),
            (r#"{"labels":{"k":"3"}}"#, "/labels", r#"{"k":"3","l":"2"}"#),
            (r#"{"labels":{"z":"9"}}"#, "/labels", r#"{"k":"1","l":"2","z":"9"}"#),
            (r#"{"env":{"B":"2"}}"#, "/env", r#"{"A":"1","B":"2"}"#),
            (r#"{"limits":{"max_cost_usd":4.0}}"#, "/limits/max_cost_usd", "4.0"),
            (r#"{"limits":{"max_cost_usd":4.0}}"#, "/limits/max_steps", "5"),
            (r#"{"limits":{"deadline_seconds":60}}"#, "/limits/deadline_at", "null"),
            (r#"{"limits":{"processes":8}}"#, "/limits/open_files", "64"),
            (r#"{"priority":"low"}"#, "/priority", r#""low""#),
            (r#"{"on_interaction":"fail"}"#, "/on_interaction", r#""fail""#),
            (r#"{"name":"b"}"#, "/name", r#""b""#),
        ] {
            let changes: SpecChanges = serde_json::from_str(changes).unwrap();
            let changed = serde_json::to_value(changes.applied_to(&spec(first))).unwrap();
            let expected: Value = serde_json::from_str(value).unwrap();
            assert_eq!(changed.pointer(place).cloned().unwrap_or_default(), expected, "{place}: {changed}");
        }
        assert_eq!(SpecChanges::default().applied_to(&spec(first)), spec(first));
    }
}
