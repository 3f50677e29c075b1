//! Defines [`RunLine`], which holds the fields of a run that one line of a table or a sum over many runs needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{InferenceView, RunState, RunView, Usage, WaitingFor};
use crate::id::RunId;
use crate::time::Timestamp;

/// The fields of a run for one line of a table. Each has the meaning of the field of that name in [`RunView`]. It takes
/// about a quarter of the bytes of a view.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunLine {
    /// Id of the run.
    pub id: RunId,
    /// Name of the run, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// The run inside of which it was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// Labels of the run, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its share of the lanes.
    pub share: Arc<str>,
    /// Numeric user id of the client that submitted it.
    pub owner: u32,
    /// State of the run.
    pub state: RunState,
    /// What it waits for now, if it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// Name of the provider that it asks.
    pub provider: Arc<str>,
    /// Its model, if the provider has more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Its task, shortened to one line of at most 200 characters.
    pub title: String,
    /// Number of inferences that have begun.
    pub steps: u32,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Its exit code, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// Tokens and cost of the run.
    pub usage: Usage,
    /// State of its inference, once an attempt has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<InferenceView>,
}

impl From<RunView> for RunLine {
    fn from(run: RunView) -> Self {
        Self {
            id: run.id,
            name: run.name,
            parent: run.parent,
            labels: run.labels,
            share: run.share,
            owner: run.owner,
            state: run.state,
            waiting_for: run.waiting_for,
            provider: run.provider,
            model: run.model,
            title: run.title,
            steps: run.steps,
            submitted_at: run.submitted_at,
            ended_at: run.ended_at,
            exit_code: run.exit_code,
            usage: run.usage,
            inference: run.inference,
        }
    }
}
