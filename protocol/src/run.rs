//! Defines the view of a run that clients get: its state, the reason why it waits, the use of its time, its usage. The
//! only place with the format `harness.run/1` and with the exit codes. Pure.

mod line;
mod waits;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::exact_size_list;
use crate::id::{CallId, RunId};
use crate::interaction::CallAsk;
use crate::limit::CallLimit;
use crate::spec::{Limits, OnInteraction, Priority};
use crate::time::Timestamp;
pub use line::RunLine;
pub use waits::*;

/// Value of `schema` in a run view.
pub const RUN_SCHEMA: &str = "harness.run/1";

/// State of a run.
///
/// ```text
///            ┌────────────── next step ──────────────┐
///            ▼                                        │
/// queued ─▶ thinking ─▶ acting ◀──▶ waiting ──────────┘
///    │         │           │           │         paused: from any of these, and back
///    └─────────┴─────┬─────┴───────────┘
///                    ▼
///        succeeded │ failed │ cancelled
/// ```
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum RunState {
    /// Submitted; its first inference has not begun.
    Queued,
    /// An inference is wanted, or sent to the provider.
    Thinking,
    /// Its batch executes, or waits for a permit of the tool lane.
    Acting,
    /// Its batch is parked: it waits for a person or for another run.
    Waiting,
    /// Paused by a person: nothing new starts.
    Paused,
    /// Ended with an answer.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// Ended by a cancel.
    Cancelled,
}

impl RunState {
    /// Every state, in the order of a run's life.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Whether the state is final.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// The name of the state, as in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that names no state of a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no state: queued, thinking, acting, waiting, paused, succeeded, failed or cancelled")]
pub struct UnknownState(String);

impl FromStr for RunState {
    type Err = UnknownState;
    fn from_str(text: &str) -> Result<Self, UnknownState> {
        Self::ALL.iter().copied().find(|s| s.as_str() == text).ok_or_else(|| UnknownState(text.to_owned()))
    }
}

/// Exit codes of a run and of the commands that wait for one (section 12 of the design).
pub mod exit {
    /// The run succeeded.
    pub const SUCCEEDED: u8 = 0;
    /// The run failed.
    pub const FAILED: u8 = 1;
    /// The command was used wrongly, or the configuration is wrong.
    pub const USAGE: u8 = 2;
    /// The run needs an answer, and no person may give it.
    pub const NEEDS_ANSWER: u8 = 3;
    /// The provider refused the credentials.
    pub const CREDENTIALS: u8 = 4;
    /// The run was cancelled.
    pub const CANCELLED: u8 = 5;
    /// There is no such run, or the request no longer applies.
    pub const NOT_FOUND: u8 = 6;
    /// The daemon cannot be reached.
    pub const UNREACHABLE: u8 = 7;
    /// The time limit of the wait itself is up; the run still goes on.
    pub const STILL_RUNNING: u8 = 8;
    /// The run reached a budget: steps, tokens or cost.
    pub const BUDGET: u8 = 9;
    /// Internal error (bug).
    pub const INTERNAL: u8 = 70;
    /// Refused for now; try later.
    pub const TRY_LATER: u8 = 75;
    /// The run's own time limit ended it.
    pub const TIME_LIMIT: u8 = 124;
    /// Ctrl-C was pressed: the command detached, and the run goes on.
    pub const INTERRUPTED: u8 = 130;
}

/// A run, without its transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunView {
    /// Version of this format: always [`RUN_SCHEMA`].
    pub schema: String,
    /// Id of the run.
    pub id: RunId,
    /// Its name, if it has one.
    pub name: Option<Arc<str>>,
    /// Root of its tree; its own id if it has no parent.
    pub root: RunId,
    /// The run inside of which it was submitted.
    pub parent: Option<RunId>,
    /// The run whose specification this one repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<RunId>,
    /// The finished run that this one continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<RunId>,
    /// Labels of the run, by key.
    pub labels: BTreeMap<String, String>,
    /// Its share of the lanes.
    pub share: Arc<str>,
    /// Precedence of the run within a lane.
    pub priority: Priority,
    /// Numeric user id of the client that submitted it.
    pub owner: u32,
    /// State of the run.
    pub state: RunState,
    /// What it waits for now, if it waits.
    pub waiting_for: Option<WaitingFor>,
    /// Directory in which its calls start.
    pub workdir: Arc<str>,
    /// Names of the variables that the submit gave to its calls, in addition to those that every call has. Their values
    /// are never shown. Left out in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Name of the provider that it asks.
    pub provider: Arc<str>,
    /// Its model, if the provider has more than one.
    pub model: Option<Arc<str>>,
    /// Its task, shortened to one line of at most 200 characters.
    pub title: String,
    /// Number of inferences that have begun.
    pub steps: u32,
    /// The limits in force for the run.
    pub limits: Limits,
    /// What happens when the run asks a person a question.
    pub on_interaction: OnInteraction,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// When its first inference began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// When a cancel or a limit told it to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_requested_at: Option<Timestamp>,
    /// Its answer, if it succeeded.
    pub answer: Option<Arc<str>>,
    /// Why it failed or was cancelled.
    pub error: Option<Arc<str>>,
    /// Its exit code, if it has ended.
    pub exit_code: Option<u8>,
    /// Tokens and cost of the run.
    pub usage: Usage,
    /// Tokens and cost of the run and of all its descendants, finished and live.
    pub usage_tree: Usage,
    /// The use of its time.
    pub timing: Timing,
    /// Questions and approvals that were refused because no person was there.
    pub denials: Vec<String>,
    /// State of its inference, once an attempt has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<InferenceView>,
    /// The fallback that it uses while its own provider is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stand_in: Option<Arc<str>>,
    /// The calls of the current step, if there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<LiveCall>,
    /// Open interactions of the run and of the runs below it, oldest first; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<OpenQuestion>,
    /// Fields that are shown only in part, because the whole would not fit. Their texts end with `… [N more bytes]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<CutField>,
}

/// A field of a run that may be shown only in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CutField {
    /// `answer`. The transcript has it whole.
    Answer,
    /// `error`, the message of a failed run.
    Error,
    /// `denials`: some of them, or parts of some.
    Denials,
    /// `workdir`, the directory of the calls.
    Workdir,
    /// `model`, the name of the model.
    Model,
    /// Another field, known to a later daemon.
    #[serde(other)]
    Other,
}

/// A call of the current step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LiveCall {
    /// Id of the call.
    pub call: CallId,
    /// Name of the tool.
    pub tool: Arc<str>,
    /// The command or the task, shortened to one line.
    pub summary: String,
    /// What the call does now.
    pub state: CallState,
    /// When it reached this state.
    pub since: Timestamp,
}

/// States of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CallState {
    /// Not yet begun.
    Pending,
    /// Its job runs, with a permit.
    Executing,
    /// It waits inside its job, off the lane.
    OffLane,
    /// It wants its permit back.
    Returning,
    /// It waits for a person.
    Asking,
    /// It waits for other runs.
    Waiting,
    /// It has its result.
    Finished,
}

/// Use of tokens and money.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Tokens of the prompts.
    pub input_tokens: u64,
    /// Tokens of the answers.
    pub output_tokens: u64,
    /// Input tokens among them that were read from the provider's cache.
    pub cache_read_input_tokens: u64,
    /// Input tokens among them that were written to the provider's cache.
    pub cache_creation_input_tokens: u64,
    /// Output tokens among them that were spent on reasoning.
    pub reasoning_output_tokens: u64,
    /// Cost in USD; `None` if no price is known.
    pub cost_usd: Option<f64>,
}

impl Usage {
    /// Adds the use of another inference or run. The sum has a cost only if both have one.
    pub fn add(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cache_read_input_tokens = self.cache_read_input_tokens.saturating_add(other.cache_read_input_tokens);
        self.cache_creation_input_tokens =
            self.cache_creation_input_tokens.saturating_add(other.cache_creation_input_tokens);
        self.reasoning_output_tokens = self.reasoning_output_tokens.saturating_add(other.reasoning_output_tokens);
        self.cost_usd = match (self.cost_usd, other.cost_usd) {
            (Some(a), Some(b)) => Some(a + b),
            _ => None,
        };
    }

    /// Input and output tokens together.
    pub const fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// A budget reserve: the most that an inference may cost. It is held back in every budget that pays for the inference,
/// from the wish for the inference until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reserve {
    /// Tokens of prompt and answer.
    pub tokens: u64,
    /// Cost in billionths of a USD.
    pub nano_usd: u64,
    /// Tokens of the answer among these, which are its limit.
    pub answer_tokens: u32,
}

impl Reserve {
    /// Adds another reserve to this one.
    pub fn add(&mut self, other: &Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.nano_usd = self.nano_usd.saturating_add(other.nano_usd);
        self.answer_tokens = self.answer_tokens.saturating_add(other.answer_tokens);
    }

    /// Subtracts a released reserve.
    pub fn take_away(&mut self, other: &Self) {
        self.tokens = self.tokens.saturating_sub(other.tokens);
        self.nano_usd = self.nano_usd.saturating_sub(other.nano_usd);
        self.answer_tokens = self.answer_tokens.saturating_sub(other.answer_tokens);
    }
}

/// One entry of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "role", rename_all = "kebab-case")]
pub enum Entry {
    /// A message of a person: the prompt, or a later message.
    User {
        /// The text of the person.
        text: Arc<str>,
    },
    /// A message of the model, with its calls.
    Assistant {
        /// The text of the model; empty if it only asked for calls.
        text: Arc<str>,
        /// The calls, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "exact_size_list::deserialize")]
        calls: Vec<CallRequest>,
        /// Blocks that the provider wants back unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carried: Option<Arc<Carried>>,
        /// The answer ended at the limit of output tokens.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cut: bool,
    },
    /// The result of one call.
    Result {
        /// The result, with the id of its call.
        result: Arc<CallResult>,
    },
    /// A summary. In the prompts it replaces the older part, which had become too long for the model.
    Summary {
        /// Text of the summary, by the model.
        text: Arc<str>,
        /// Number of entries that it replaces, from the beginning of the transcript.
        entries: u32,
        /// Places of those entries among them that the model still reads word for word: messages of people.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kept: Vec<u32>,
    },
}

impl Entry {
    /// A complete message of a model, without data that the provider wants back.
    pub fn assistant(text: impl Into<Arc<str>>, calls: Vec<CallRequest>) -> Self {
        Self::Assistant { text: text.into(), calls, carried: None, cut: false }
    }

    /// An estimate of the bytes of memory that its texts take.
    pub fn approximate_bytes(&self) -> usize {
        let texts = match self {
            Self::User { text } | Self::Summary { text, .. } => text.len(),
            Self::Assistant { text, calls, carried, .. } => {
                let carried = carried.as_ref().map_or(0, |carried| carried.parts.len());
                let given = |call: &CallRequest| call.given.as_ref().map_or(0, |given| given.id.len());
                text.len() + calls.iter().map(|call| call.args.len() + given(call) + 64).sum::<usize>() + carried
            }
            Self::Result { result } => result.envelope.len() + 256,
        };
        texts + 64
    }
}

/// A plan to shorten the prompts of a run: its model summarises the older part of the transcript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Compaction {
    /// Number of entries that are summarised, from the beginning of the transcript.
    pub entries: u32,
    /// Places of those entries among them that stay word for word in addition to the summary: messages of people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<u32>,
    /// Most bytes of the older part that the model reads; longer texts in it are reduced to their beginning and end.
    pub shown_bytes: u64,
    /// Most tokens of the summary.
    pub max_tokens: u32,
}

/// A call that the model asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallRequest {
    /// Id that the harness gave to the call.
    pub call: CallId,
    /// Name of the tool.
    pub tool: Arc<str>,
    /// Arguments of the call, as JSON text.
    pub args: Arc<str>,
    /// Why its arguments cannot be used, in words for the model. Such a call is never executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<Arc<str>>,
    /// The id that the provider gave it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<Box<GivenId>>,
    /// What kind of call it is, where the name of its tool does not say it: `shell` is a job, and `ask_user`,
    /// `spawn_agent` and `wait_for_agent` are transitions of the world, as far as the run may call them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<CallKind>,
    /// What a person is asked about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Arc<CallAsk>>,
}

/// What kind of call it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CallKind {
    /// There is no such tool, or the run may not call it.
    Unknown,
    /// A transition of the world: it needs no permit.
    World,
    /// A job, which holds a permit while it executes.
    Job,
    /// A job that may execute beside its neighbours.
    ParallelJob,
}

impl CallRequest {
    /// A call with usable arguments, and without an id of a provider.
    pub fn new(call: CallId, tool: impl Into<Arc<str>>, args: impl Into<Arc<str>>) -> Self {
        Self { call, tool: tool.into(), args: args.into(), unusable: None, given: None, kind: None, ask: None }
    }
}

/// The id that a provider gave to a call. It is sent back to that provider with the call and its result, and to no
/// other provider: some servers keep state under the id, or in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GivenId {
    /// The id, as the provider wrote it.
    pub id: Arc<str>,
    /// Name of the provider, as configured.
    pub provider: Arc<str>,
}

/// Blocks of a provider's answer, other than text and calls, that the provider wants back unchanged, such as signed
/// thinking. Only the dialect that wrote them reads and sends them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Carried {
    /// Name of the dialect.
    pub dialect: Arc<str>,
    /// Name of the provider that sent them, as configured; no other provider gets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Arc<str>>,
    /// The blocks, as JSON text.
    pub parts: Arc<str>,
}

/// A finished call. Programs read these fields; only the model reads the envelope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallResult {
    /// Id that the harness gave to the call.
    pub call: CallId,
    /// Name of the tool.
    pub tool: Arc<str>,
    /// Exit code: that of the process, 128 + signal, 124, 126 or 127; `None` if its end was not seen.
    pub exit_code: Option<u8>,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// Whether the time limit ended it.
    pub timed_out: bool,
    /// Whether a cancel ended it, or kept it from starting.
    pub cancelled: bool,
    /// Whether a restart of the daemon interrupted it.
    pub interrupted: bool,
    /// Whether the model is told that it failed.
    pub is_error: bool,
    /// The text that the model reads.
    pub envelope: Arc<str>,
    /// Data about standard output, if a process ran.
    pub stdout: Option<StreamInfo>,
    /// Data about standard error, if a process ran.
    pub stderr: Option<StreamInfo>,
    /// CPU time of the process and of the children that it waited for, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Largest resident size of one of its processes, in bytes.
    pub max_rss_bytes: Option<u64>,
    /// The limit that it reached; `None` if that is not certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<CallLimit>,
    /// Whether it left processes running in the background. They end with its run, or with the daemon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_running: bool,
}

impl CallResult {
    /// A plain-text result without an exit code: for a call without a process, or one whose end was not seen.
    pub fn plain(call: CallId, tool: Arc<str>, text: impl Into<Arc<str>>, is_error: bool) -> Self {
        Self {
            call,
            tool,
            exit_code: None,
            signal: None,
            timed_out: false,
            cancelled: false,
            interrupted: false,
            is_error,
            envelope: text.into(),
            stdout: None,
            stderr: None,
            cpu_seconds: None,
            max_rss_bytes: None,
            limit: None,
            left_running: false,
        }
    }
}

/// One output stream of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamInfo {
    /// Number of bytes that the process wrote.
    pub bytes: u64,
    /// Number of bytes among them that the envelope leaves out.
    pub omitted: u64,
    /// Path of the file with the whole stream; `None` if the stream is empty or could not be kept.
    pub path: Option<Arc<str>>,
}
