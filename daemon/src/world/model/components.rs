//! The components of a run. Data only; only `apply` writes them.

use std::collections::VecDeque;
use std::sync::Arc;

use bevy_ecs::component::Component;
use harness_protocol::event::{Ending, ProviderFault, StopReason};
use harness_protocol::id::{CallId, InteractionId, RunId, Seq};
use harness_protocol::run::{CallState, Compaction, Entry, Reserve, RunState, Timing, Usage};
use harness_protocol::spec::RunSpec;
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Timestamp;

use super::phase::{Bucket, Phase};
use crate::lane::TicketId;
use crate::tools::ToolKind;

/// Failures of one inference before its run fails.
pub(crate) const MAX_FAILURES: u32 = 10;

/// Who a run is. Never changes.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Identity {
    pub(crate) id: RunId,
    /// Order of submission.
    pub(crate) number: u64,
    /// The event that made it: nothing of it comes before.
    pub(crate) seq: Seq,
    pub(crate) parent: Option<RunId>,
    pub(crate) root: RunId,
    pub(crate) owner: u32,
    /// A run without a parent has depth 1.
    pub(crate) depth: u32,
}

/// Where a run came from, if not from a plain submit. Never changes.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Origin {
    pub(crate) retry_of: Option<RunId>,
    pub(crate) continues: Option<RunId>,
    /// Entries at the begin of its transcript that are those of the run that it continues.
    pub(crate) earlier: usize,
    pub(crate) idempotency_key: Option<Arc<str>>,
}

/// The key that a client made for the submit of a run. Never changes.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentAs(pub(crate) SubmitKey);

/// The keys that clients made for messages to a run, with the events by which they came.
#[derive(Component, Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ToldUnder(pub(crate) VecDeque<(SubmitKey, Seq)>);

/// What a run was asked to be, defaults filled in. Never changes.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Spec(pub(crate) Arc<RunSpec>);

/// How far a run is.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Life {
    pub(crate) phase: Phase,
    pub(crate) paused: bool,
    pub(crate) stopping: Option<Stopping>,
    /// The step at hand, from 1; 0 before the first.
    pub(crate) step: u32,
    /// Attempts at its inference.
    pub(crate) attempt: u32,
    /// Of these, those that count against it: a restart, a prompt that is too long, credentials and limits do not.
    pub(crate) failures: u32,
    /// Of these, answers of which nothing could be used.
    pub(crate) unusable: u32,
    /// Why the last one failed, until the model answers.
    pub(crate) trouble: Option<Arc<Trouble>>,
    /// Whom it asks, where that is another provider than its own.
    pub(crate) provider: Option<Arc<str>>,
    /// Its model has answered at least once.
    pub(crate) answered: bool,
    pub(crate) submitted_at: Timestamp,
    /// By so many microseconds time was set since then.
    pub(crate) moved: i64,
    pub(crate) started_at: Option<Timestamp>,
}

impl Life {
    /// It is at this step, and so far in it. Attempts are counted anew for each.
    pub(crate) fn comes_to(&mut self, step: u32, phase: Phase) {
        if self.step != step {
            (self.attempt, self.failures, self.unusable, self.trouble) = (0, 0, 0, None);
        }
        (self.step, self.phase) = (step, phase);
    }
}

/// Why the inference at hand was not answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trouble {
    pub(crate) error: Arc<str>,
    pub(crate) fault: ProviderFault,
    pub(crate) at: Timestamp,
}

/// That a run was told to end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stopping {
    pub(crate) reason: StopReason,
    pub(crate) at: Timestamp,
}

/// Where its time went, up to `since`; the time after that belongs to `bucket`.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Stopwatch {
    pub(crate) timing: Timing,
    pub(crate) bucket: Bucket,
    /// The state that is shown and counted.
    pub(crate) shown: RunState,
    pub(crate) since: Timestamp,
}

/// The conversation of a run, in order.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Transcript(pub(crate) Vec<Entry>);

impl Transcript {
    /// About how much memory its texts take.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|entry| entry.approximate_bytes() as u64).sum()
    }
}

/// What it used. Absent until its first answer.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct UsageTotal(pub(crate) Usage);

/// What of its budget is used and held back, by it and by all below it. Present for runs with a budget.
#[derive(Component, Debug, Clone, PartialEq, Default)]
pub(crate) struct Pool {
    /// What was used. `None` until the first answer.
    pub(crate) spent: Option<Usage>,
    /// What is held back for inferences that are wanted or out.
    pub(crate) held: Reserve,
    /// So many of those.
    pub(crate) holding: u32,
    /// Runs that draw from it and have not ended.
    pub(crate) live: u32,
}

/// What is held back for the inference that it wants, or that is out.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BudgetReserve(pub(crate) Reserve);

/// What its last prompt and the answer to it took, and how long its transcript was then.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastAsked {
    pub(crate) tokens: u64,
    pub(crate) entries: usize,
}

/// That its prompt was too long for its model. Absent once that has answered.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextOverflow {
    /// So often in a row, be it the prompt itself or that for its summary.
    pub(crate) refused: u32,
    /// Nothing was done about it yet.
    pub(crate) due: bool,
}

/// How often in a row its model was asked for a summary and gave none. Absent before, and once there is one.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompactionFailures(pub(crate) u32);

/// That the inference that it wants, or that is out, is to summarise what is older. Present for so long.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Compacting(pub(crate) Arc<Compaction>);

/// Messages that its model has not read.
#[derive(Component, Debug, Clone, PartialEq, Default)]
pub(crate) struct QueuedMessages(pub(crate) Vec<Arc<str>>);

/// Runs that it spawned.
#[derive(Component, Debug, Clone, PartialEq, Default)]
pub(crate) struct Children(pub(crate) Vec<RunId>);

/// Calls of other runs that wait for it.
#[derive(Component, Debug, Clone, PartialEq, Default)]
pub(crate) struct WaitedOnBy(pub(crate) Vec<RunId>);

/// Its questions that have been answered or withdrawn. They are named so that they leave the world with the run.
#[derive(Component, Debug, Clone, PartialEq, Default)]
pub(crate) struct ClosedQuestions(pub(crate) Vec<InteractionId>);

/// Questions that were refused because no person was available.
#[derive(Component, Debug, Clone, PartialEq, Default)]
pub(crate) struct Denials(pub(crate) Vec<Arc<str>>);

/// How it ended. Present once it has.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Ended {
    pub(crate) ending: Ending,
    pub(crate) at: Timestamp,
    /// About how much memory its texts take.
    pub(crate) bytes: u64,
}

/// The calls of the step at hand. Present while it has some.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Batch(pub(crate) Box<BatchState>);

/// The inside of a batch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BatchState {
    /// Its claim on the tool lane, once it has one.
    pub(crate) ticket: Option<TicketId>,
    pub(crate) calls: Vec<Call>,
}

/// One call of a batch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: CallId,
    pub(crate) tool: Arc<str>,
    pub(crate) args: Arc<str>,
    /// `None` for an unknown tool and for unusable arguments.
    pub(crate) kind: Option<ToolKind>,
    /// Why its arguments cannot be used, in words for the model.
    pub(crate) unusable: Option<Arc<str>>,
    pub(crate) stage: Stage,
    /// Since when it has been at its stage.
    pub(crate) since: Timestamp,
}

/// How far a call is.
///
/// ```text
///            ┌──────────▶ Asking ─────────┐
///            ├──────────▶ Waiting ────────┤
///  Pending ──┤                            ├──▶ Done
///            │    ┌───── OffLane ◀──┐     │
///            │    ▼                 │     │
///            │  Returning ──▶ Executing ──┘
///            └──────────────────▲
/// ```
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stage {
    /// It has not started.
    Pending,
    /// Its job executes, under a permit.
    Executing,
    /// Its job waits, without a permit.
    OffLane,
    /// Its job has done waiting, and wants a permit.
    Returning,
    /// A person is asked.
    Asking(InteractionId),
    /// Other runs are waited for; one of them is enough when `any`.
    Waiting { runs: Vec<RunId>, any: bool },
    /// It has its result.
    Done,
}

impl Stage {
    /// Whether a job is out for it.
    pub(crate) fn has_job(&self) -> bool {
        matches!(self, Self::Executing | Self::OffLane | Self::Returning)
    }

    pub(crate) fn shown(&self) -> CallState {
        match self {
            Self::Pending => CallState::Pending,
            Self::Executing => CallState::Executing,
            Self::OffLane => CallState::OffLane,
            Self::Returning => CallState::Returning,
            Self::Asking(_) => CallState::Asking,
            Self::Waiting { .. } => CallState::Waiting,
            Self::Done => CallState::Finished,
        }
    }
}

impl BatchState {
    pub(crate) fn call(&self, id: CallId) -> Option<&Call> {
        self.calls.iter().find(|call| call.id == id)
    }

    pub(crate) fn executing(&self) -> u16 {
        let count = self.calls.iter().filter(|call| call.stage == Stage::Executing).count();
        u16::try_from(count).unwrap_or(u16::MAX)
    }

    /// The calls that may be at work now: the first that has no result, and its neighbours as far as all may execute
    /// together.
    pub(crate) fn group(&self) -> &[Call] {
        let Some(first) = self.calls.iter().position(|call| call.stage != Stage::Done) else { return &[] };
        let rest = &self.calls[first..];
        let together = rest.iter().take_while(|call| call.is_parallel_safe()).count();
        &rest[..together.max(1)]
    }

    /// The call that gets the next permit: one that returns goes before one that has not begun.
    pub(crate) fn candidate(&self) -> Option<&Call> {
        let group = self.group();
        group.iter().find(|call| call.stage == Stage::Returning).or_else(|| {
            group.iter().find(|call| call.stage == Stage::Pending && matches!(call.kind, Some(ToolKind::Job { .. })))
        })
    }
}

impl Call {
    fn is_parallel_safe(&self) -> bool {
        match self.kind {
            Some(ToolKind::Job { parallel_safe }) => parallel_safe,
            Some(ToolKind::World) => true,
            None => false,
        }
    }
}
