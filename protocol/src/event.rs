//! Defines the fields of events and deltas on the wire. An event has happened, is stored and has a number; a delta is
//! live output without a number, and may be dropped. Pure: what an event does is decided by the daemon's world.

mod body;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

pub use self::body::{EVENT_KINDS, EventBody};
use crate::id::{CallId, RunId, Seq};
pub use crate::run::ProviderFault;
use crate::run::{CallKind, Entry};
use crate::time::{Span, Timestamp};

/// Version of the kinds of events.
pub const EVENT_VERSION: u16 = 1;

/// Why an epoch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum EpochReason {
    /// The journal is a new one.
    Begun,
    /// A backup was put in the place of the journal.
    Restored,
    /// The journal, or the state directory, is a copy of another one, or was moved.
    Copied,
    /// The journal lacks events that it had.
    WentBack,
}

impl EpochReason {
    /// Every reason, in the order of the variants.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name of the reason, as in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for EpochReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begun => "the journal is a new one",
            Self::Restored => "a backup was put in the place of the journal",
            Self::Copied => "the state directory is a copy, or was moved",
            Self::WentBack => "the journal lacks events that it had",
        })
    }
}

/// One event: a durable change of the world, with its number and its cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Number of the event. Each later event of the journal has a greater one.
    pub seq: Seq,
    /// Version of the kind's fields; see [`EVENT_VERSION`].
    pub version: u16,
    /// When it happened.
    pub at: Timestamp,
    /// The run that it belongs to; `None` for an event about a lane or the daemon.
    pub run: Option<RunId>,
    /// The origin of the change.
    pub cause: Cause,
    /// Kind of the event and its data. On the wire these fields stand beside `seq`.
    #[serde(flatten)]
    pub body: EventBody,
}

impl Event {
    /// An estimate of the bytes of memory that the event takes.
    pub fn approximate_bytes(&self) -> usize {
        let texts = match &self.body {
            EventBody::RunSubmitted { spec, earlier, .. } => {
                spec.approximate_bytes() + earlier.iter().map(Entry::approximate_bytes).sum::<usize>() + 512
            }
            EventBody::RunsPruned { runs } => runs.len() * 8,
            EventBody::EventsPruned { events } => events.len() * 8,
            EventBody::InferenceFinished { text, calls, carried, .. } => {
                let carried = carried.as_ref().map_or(0, |carried| carried.parts.len());
                text.len() + calls.iter().map(|call| call.args.len() + 64).sum::<usize>() + carried
            }
            EventBody::CallFinished { result } => result.envelope.len() + 256,
            EventBody::InteractionOpened { question, subject, .. } => {
                question.len() + subject.as_ref().map_or(0, |subject| subject.len())
            }
            EventBody::InteractionSettled { answer: text, .. }
            | EventBody::Denied { what: text }
            | EventBody::MessageReceived { text, .. }
            | EventBody::CompactionFinished { text, .. }
            | EventBody::ProviderHeld { error: text, .. }
            | EventBody::InferenceFailed { error: text, .. } => text.len(),
            EventBody::RunFinished { ending } => match ending {
                Ending::Succeeded { answer: text }
                | Ending::Failed { error: text, .. }
                | Ending::Cancelled { error: text } => text.len(),
            },
            _ => 0,
        };
        size_of::<Self>() + texts
    }
}

/// The origin of an event: the way by which the request came, and its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    /// The way by which the request came.
    pub via: Via,
    /// Numeric user id of the caller, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The run that the caller descends from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_run: Option<RunId>,
}

impl Cause {
    /// Caused by the harness itself: by time, the outcome of a job, or a rule.
    pub const HARNESS: Self = Self { via: Via::Harness, uid: None, by_run: None };
}

/// Where a change comes from: the origin of the request that caused an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The harness itself.
    Harness,
    /// The control socket.
    Socket,
    /// A tool of a run.
    Tool,
}

/// A lane and its width.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaneWidth {
    /// Name of the lane: `tool`, or the name of a provider.
    pub lane: Arc<str>,
    /// Its configured width.
    pub width: u32,
}

/// A tool, as models are told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolDefinition {
    /// The name by which it is called.
    pub name: Arc<str>,
    /// What it does, in words for the model.
    pub description: Arc<str>,
    /// JSON schema of its arguments, as text.
    pub parameters: Arc<str>,
    /// What kind of call its calls are.
    pub kind: CallKind,
}

/// A share of the lanes' capacity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaneShare {
    /// Name of the share.
    pub name: Arc<str>,
    /// Its part of the grants, in proportion to the weights of the others.
    pub weight: u32,
    /// Most permits at once; missing for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// Why a run was told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// A client cancelled the run, or the run above it.
    Cancelled,
    /// Its time for inference and execution is used up.
    MaxTime,
    /// Its deadline has passed.
    Deadline,
    /// It asked a person a question, and was told to fail in that case.
    NeedsAnswer,
    /// A record of it cannot be read, so it is not known how far the run was.
    Unreadable,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Ending {
    /// With the model's last answer.
    Succeeded {
        /// Text of the model's last answer.
        answer: Arc<str>,
    },
    /// With an error.
    Failed {
        /// What went wrong, in words.
        error: Arc<str>,
        /// Exit code of a command that waits for the run; see [`crate::run::exit`].
        exit_code: u8,
    },
    /// By a cancel of the run, or of a run above it.
    Cancelled {
        /// The reason, in words.
        error: Arc<str>,
    },
}

/// A piece of live output. Its offset shows a reader whether a piece before it is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Delta {
    /// The run that the output belongs to.
    pub run: RunId,
    /// The call, if the output is that of a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// The stream that the piece belongs to.
    pub stream: DeltaStream,
    /// Where the piece begins in the stream, in bytes.
    pub offset: u64,
    /// The piece, decoded leniently. A character cut in two appears whole in a later piece.
    pub text: String,
}

/// Streams that have deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DeltaStream {
    /// The text of the model's answer.
    Text,
    /// The model's reasoning, where the provider shows it.
    Reasoning,
    /// Standard output of a call.
    Stdout,
    /// Standard error of a call.
    Stderr,
}

/// Events that a subscriber does not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gap {
    /// The first number that is missing.
    pub from: Seq,
    /// The last number that is missing.
    pub to: Seq,
    /// The reason of the epoch that begins after the gap: no event of this history has these numbers. If the gap begins
    /// at 1, the epoch of the cursor is not known here, and the client may have seen another history. Left out: the
    /// events were pruned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EpochReason>,
}

/// The time until a retry, in whole seconds, at least 1.
pub fn retry_seconds(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000_000).max(1)
}
