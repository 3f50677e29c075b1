//! Defines the parts of a run's view about waiting: the reason why it waits, the state of its inference, and the use of
//! its time. Used through [`crate::run`]. Pure.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::id::{InteractionId, RunId};
use crate::interaction::InteractionKind;
use crate::lane::Limiter;
use crate::time::{Span, Timestamp};

/// The reason why a run waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitingFor {
    /// Kind of the awaited thing.
    pub kind: WaitKind,
    /// The awaited thing: a lane or provider by name, an interaction or a run by id.
    pub id: String,
    /// When the wait began.
    pub since: Timestamp,
    /// Place in the queue of a lane, 1 is next, within its share. Counted to 1,000 at most.
    pub position: Option<u32>,
    /// Why the lane grants it no permit, as the lane reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limiter: Option<Limiter>,
    /// When the wait ends, if known: the end of a hold, or the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Number of runs that wait there, this one included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u32>,
    /// Error of the provider whose circuit breaker is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
    /// If it waits for a run that does not proceed either: that run, or the last run in a chain of waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Box<HeldRun>>,
}

/// A run that does not proceed, and that others wait for: the last run in the chain of waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeldRun {
    /// The run at the end of the chain of waits.
    pub run: RunId,
    /// The share of the tool lane that the run draws from.
    pub share: Arc<str>,
    /// What it waits for.
    pub waiting_for: WaitingFor,
    /// State of its inference, once an attempt has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<InferenceView>,
}

impl WaitingFor {
    /// A wait with only these data.
    pub fn new(kind: WaitKind, id: impl Into<String>, since: Timestamp) -> Self {
        let id = id.into();
        Self { kind, id, since, position: None, limiter: None, until: None, runs: None, error: None, because: None }
    }
}

/// An open interaction of a run or of one below it, as the page of a run shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenQuestion {
    /// Id of the interaction, for `reply`.
    pub id: InteractionId,
    /// The run that asks.
    pub run: RunId,
    /// Kind of the interaction; a question if left out.
    #[serde(default, skip_serializing_if = "InteractionKind::is_question")]
    pub kind: InteractionKind,
    /// The question, shortened to one line of at most 200 characters. `interaction.list` has it whole.
    pub question: String,
}

/// State of the current step's inference, once an attempt has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InferenceView {
    /// Number of the attempt in progress, or of the next one, from 1. Attempts during a hold of the provider do not
    /// count.
    pub attempt: u32,
    /// Number of attempts after which the run fails.
    pub attempts: u32,
    /// Error of the last attempt.
    pub error: Arc<str>,
    /// What the failure means for the provider's circuit breaker.
    pub fault: ProviderFault,
    /// When the last attempt failed.
    pub failed_at: Timestamp,
    /// When the next attempt is due; absent if an attempt is in progress, or if the lane decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
}

/// Kinds of things that a run may wait for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum WaitKind {
    /// A permit of the tool lane.
    Lane,
    /// A permit of the provider's lane, or the provider itself.
    Provider,
    /// A person's answer to an interaction.
    Person,
    /// The end of another run.
    Run,
    /// A part of a budget that other runs hold in reserve.
    Budget,
    /// Nothing: it is paused, and proceeds when it is resumed.
    Paused,
    /// The journal, while it cannot commit.
    Storage,
}

impl WaitKind {
    /// Every kind, in the order of the variants.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name of the kind, as in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for WaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that is not the name of a kind of wait.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a run waits for lane, provider, person, run, budget or storage, or is paused; {0:?} is none of these")]
pub struct UnknownWait(String);

impl FromStr for WaitKind {
    type Err = UnknownWait;
    fn from_str(text: &str) -> Result<Self, UnknownWait> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text).ok_or_else(|| UnknownWait(text.to_owned()))
    }
}

/// Wall time of a run, by activity. The parts add up to the time from submit to end, or to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timing {
    /// Between the submit and the first inference.
    pub queued: Span,
    /// Waiting for a permit of the tool lane, or of the provider's.
    pub lane: Span,
    /// An inference was in progress.
    pub model: Span,
    /// Waiting for the next attempt at an inference.
    pub retry: Span,
    /// A call executed.
    pub tools: Span,
    /// Waiting for a person or another run.
    pub waiting: Span,
    /// The run was paused.
    pub paused: Span,
    /// The daemon did not run. Absent if it always ran.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub down: Span,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "so serde wants it")]
fn is_zero(span: &Span) -> bool {
    *span == Span::ZERO
}

impl Timing {
    /// All parts together.
    pub fn total(&self) -> Span {
        self.queued + self.lane + self.model + self.retry + self.tools + self.waiting + self.paused + self.down
    }
}

/// The meaning of a failed inference for its provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ProviderFault {
    /// None: the inference was interrupted, or cancelled.
    #[default]
    Unknown,
    /// The provider fails, cannot be reached, or breaks off its answer.
    Failing,
    /// The provider wants fewer requests.
    RateLimit,
    /// A limit of the account behind it is used up.
    Quota,
    /// It refuses the credentials.
    Credentials,
    /// Its key cannot be found, so it was not asked.
    NoKey,
    /// None: the provider works, and refuses this request.
    Refused,
    /// None: the provider works, and the prompt is too long for its model.
    ContextTooLong,
    /// None: the provider works, and its answer is larger than the daemon reads.
    AnswerTooLarge,
}

impl ProviderFault {
    /// Whether the failure has no meaning for the provider.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}
