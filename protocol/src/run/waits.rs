//! What a run waits for, the state of its inference, and where its time went. Reached through [`crate::run`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{InteractionId, RunId};
use crate::lane::Limiter;
use crate::time::{Span, Timestamp};

/// What a run waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitingFor {
    /// What kind of thing it waits for.
    pub kind: WaitKind,
    /// What exactly: a lane or provider by name, an interaction or a run by id.
    pub id: String,
    /// When the wait began.
    pub since: Timestamp,
    /// Place in the queue of a lane, 1 is next, within its share. Counted to 1,000 at most.
    pub position: Option<u32>,
    /// What holds it back there, in the word that the lane reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limiter: Option<Limiter>,
    /// Until when, where that is known: the end of a hold, or the next try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Runs that wait there, itself included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u32>,
    /// What the provider said that is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
    /// Where it waits for a run that stands still itself: what that comes down to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Box<HeldRun>>,
}

/// The run that others wait for and that stands still itself: where they wait for each other in a row, the last one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeldRun {
    /// The run at the end of the chain of waits.
    pub run: RunId,
    /// The share of the tool lane that the run draws from.
    pub share: Arc<str>,
    /// What it waits for.
    pub waiting_for: WaitingFor,
    /// How its inference goes, where a try has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference: Option<InferenceView>,
}

impl WaitingFor {
    /// A wait of which nothing more is known.
    pub fn new(kind: WaitKind, id: impl Into<String>, since: Timestamp) -> Self {
        let id = id.into();
        Self { kind, id, since, position: None, limiter: None, until: None, runs: None, error: None, because: None }
    }
}

/// An open question of a run or of one below it, as the page of a run shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenQuestion {
    /// Its id, for `reply`.
    pub id: InteractionId,
    /// The run that asks.
    pub run: RunId,
    /// The question, shortened to one line of at most 200 characters. `interaction.list` has it whole.
    pub question: String,
}

/// How the inference of the step at hand goes, once a try at it has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InferenceView {
    /// The try that is out, or comes next, from 1. Holds of the provider count as none.
    pub attempt: u32,
    /// Tries after which the run fails.
    pub attempts: u32,
    /// Why the last one failed.
    pub error: Arc<str>,
    /// What that says of the provider.
    pub fault: ProviderFault,
    /// When it failed.
    pub failed_at: Timestamp,
    /// When the next one is due; absent where one is out, or the lane decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
}

/// Kinds of what a run may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WaitKind {
    /// A permit of the tool lane.
    Lane,
    /// A permit of the provider's lane, or the provider itself.
    Provider,
    /// A person's answer to an interaction.
    Person,
    /// The end of another run.
    Run,
    /// What others hold of a budget.
    Budget,
    /// Nothing: it is paused, and goes on when it is resumed.
    Paused,
    /// The journal, which cannot commit.
    Storage,
}

impl WaitKind {
    /// Every kind, in the order of the variants.
    pub const ALL: [Self; 7] =
        [Self::Lane, Self::Provider, Self::Person, Self::Run, Self::Budget, Self::Paused, Self::Storage];

    /// The word for it, as in JSON and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Provider => "provider",
            Self::Person => "person",
            Self::Run => "run",
            Self::Budget => "budget",
            Self::Paused => "paused",
            Self::Storage => "storage",
        }
    }
}

impl fmt::Display for WaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that is no kind of what a run may wait for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a run waits for lane, provider, person, run, budget or storage, or is paused; {0:?} is none of these")]
pub struct UnknownWait(String);

impl FromStr for WaitKind {
    type Err = UnknownWait;
    fn from_str(text: &str) -> Result<Self, UnknownWait> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| UnknownWait(text.to_owned()))
    }
}

/// Where the wall time of a run went. The parts add up to the time from submit to end, or to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timing {
    /// Submitted, first inference not begun.
    pub queued: Span,
    /// Waiting for a permit of the tool lane, or of the provider's.
    pub lane: Span,
    /// An inference out.
    pub model: Span,
    /// Waiting to ask the provider again.
    pub retry: Span,
    /// A call executing.
    pub tools: Span,
    /// Waiting for a person or another run.
    pub waiting: Span,
    /// The run was paused.
    pub paused: Span,
    /// The daemon was not there. Absent where that was never so.
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

/// What a failed inference says of its provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ProviderFault {
    /// Nothing: it was interrupted, or cancelled.
    #[default]
    Unknown,
    /// That it fails, or cannot be reached, or breaks off.
    Failing,
    /// That it wants to be asked less often.
    RateLimit,
    /// That a limit of the account behind it is used up.
    Quota,
    /// That it refuses the credentials.
    Credentials,
    /// That its key is not where it should be: it was not asked.
    NoKey,
    /// Nothing: it is well, and will not answer this.
    Refused,
    /// Nothing: it is well, and the prompt is too long for its model.
    ContextTooLong,
    /// Nothing: what it answered is more than is taken.
    AnswerTooLarge,
}

impl ProviderFault {
    /// Whether nothing is said.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}
