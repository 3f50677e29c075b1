//! Defines the components of a run. Data only; only `apply` writes them.
//!
//! A component from which an index is made is immutable: it changes by being inserted anew, so that the hooks that keep
//! the index (`indexes/hooks.rs`) see every change of it.

use std::collections::VecDeque;
use std::sync::Arc;

use bevy_ecs::bundle::Bundle;
use bevy_ecs::component::Component;
use bevy_ecs::entity::Entity;
use harness_protocol::event::{Ending, ProviderFault, StopReason};
use harness_protocol::id::{CallId, InteractionId, RunId, Seq};
use harness_protocol::interaction::CallAsk;
use harness_protocol::run::{CallState, Compaction, Entry, Reserve, RunState, Timing, Usage};
use harness_protocol::spec::RunSpec;
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Timestamp;

use super::indexes::hooks;
use super::phase::{Bucket, Phase};
use super::toolsets::Toolset;
use crate::lane::TicketId;
use crate::tools::ToolKind;
use crate::world::settlement::Settlement;

/// Failures of one inference before its run fails.
pub(crate) const MAX_FAILURES: u32 = 10;

/// Who a run is. Never changes.
#[derive(Component, Debug, Clone, PartialEq)]
#[component(immutable, on_add = hooks::run_came, on_remove = hooks::run_left)]
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

/// The components that every run has from the moment in which it is in the world. They lie in one table. What a run has
/// at times lies in sparse sets, so that a run that gets it or loses it is copied to no other table: that would cost as
/// much as all that is copied, and the memory that the runs leave behind in a table is never given back.
#[derive(Bundle)]
pub(crate) struct NewRun {
    pub(crate) identity: Identity,
    pub(crate) life: Life,
    pub(crate) shown: Shown,
    pub(crate) watch: Stopwatch,
    pub(crate) transcript: Transcript,
    pub(crate) spec: Spec,
}

/// Where a run came from, if not from a plain submit. Never changes.
#[derive(Component, Debug, Clone, PartialEq)]
#[component(storage = "SparseSet", immutable, on_add = hooks::origin_came, on_remove = hooks::origin_left)]
pub(crate) struct Origin {
    pub(crate) retry_of: Option<RunId>,
    pub(crate) continues: Option<RunId>,
    /// Entries at the begin of its transcript that are those of the run that it continues.
    pub(crate) earlier: usize,
    pub(crate) idempotency_key: Option<Arc<str>>,
}

/// What the inferences of a run are built from: its tools.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Prepared(pub(crate) Arc<Toolset>);

/// The key that a client made for the submit of a run. Never changes.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(storage = "SparseSet", immutable, on_add = hooks::submit_key_came, on_remove = hooks::submit_key_left)]
pub(crate) struct SentAs(pub(crate) SubmitKey);

/// The keys that clients made for messages to a run, with the events by which they came.
#[derive(Component, Debug, Clone, PartialEq, Eq, Default)]
#[component(
    storage = "SparseSet", immutable, on_insert = hooks::message_keys_came, on_discard = hooks::message_keys_left
)]
pub(crate) struct ToldUnder(pub(crate) VecDeque<(SubmitKey, Seq)>);

/// What a run was asked to be, defaults filled in. Its texts never change.
#[derive(Component, Debug, Clone, PartialEq)]
#[component(on_add = hooks::texts_came, on_remove = hooks::texts_left)]
pub(crate) struct Spec(pub(crate) Arc<RunSpec>);

/// How far a run is.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Life {
    phase: Phase,
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
    /// Of a run that was submitted at that time.
    pub(crate) fn new(submitted_at: Timestamp) -> Self {
        Self {
            phase: Phase::Resting,
            paused: false,
            stopping: None,
            step: 0,
            attempt: 0,
            failures: 0,
            unusable: 0,
            trouble: None,
            provider: None,
            answered: false,
            submitted_at,
            moved: 0,
            started_at: None,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// For `apply/transition.rs` alone, which keeps the markers of the phase.
    pub(in crate::world) fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// It is at this step. Attempts are counted anew for each.
    pub(crate) fn comes_to(&mut self, step: u32) {
        if self.step != step {
            (self.attempt, self.failures, self.unusable, self.trouble) = (0, 0, 0, None);
        }
        self.step = step;
    }
}

/// That a run stands in the lane of its provider. Follows from its phase, for queries.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(storage = "SparseSet")]
pub(crate) struct WantsInference;

/// That a run waits outside its provider's lane. Present in the phase `Postponed`, unless it is paused.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(immutable, storage = "SparseSet", on_insert = hooks::deferral_came, on_discard = hooks::deferral_left)]
pub(crate) enum Deferred {
    /// Until others give back what they hold of the budget of that run.
    ByBudget(RunId),
    /// Until its provider may be asked again.
    Stalled,
}

/// That its batch could use one more permit.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(immutable, storage = "SparseSet", on_add = hooks::extra_came, on_remove = hooks::extra_left)]
pub(crate) struct CouldUseMore;

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

/// The state that is shown and counted.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(immutable, on_insert = hooks::state_came, on_discard = hooks::state_left)]
pub(crate) struct Shown(pub(crate) RunState);

/// Where its time went, up to `since`; the time after that belongs to `bucket`.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Stopwatch {
    pub(crate) timing: Timing,
    pub(crate) bucket: Bucket,
    pub(crate) since: Timestamp,
}

/// The conversation of a run, in order.
#[derive(Component, Debug, Clone, PartialEq)]
pub(crate) struct Transcript(pub(crate) Vec<Entry>);

impl Transcript {
    /// Adds an entry. Most transcripts are short, so that room for four at once would be most of what they take.
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.0.len() == self.0.capacity() && self.0.len() < 4 {
            self.0.reserve_exact(1);
        }
        self.0.push(entry);
    }

    /// About how much memory its texts take.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|entry| entry.approximate_bytes() as u64).sum()
    }
}

/// What it used. Absent until its first answer.
#[derive(Component, Debug, Clone, PartialEq)]
#[component(storage = "SparseSet")]
pub(crate) struct UsageTotal(pub(crate) Usage);

/// What all runs below it used, so that a view of it need not visit them. Absent until the first answer there.
#[derive(Component, Debug, Clone, Copy, PartialEq)]
#[component(storage = "SparseSet")]
pub(crate) struct UsageBelow(pub(crate) Usage);

/// What of its budget is used and held back, by it and by all below it. Present for runs with a budget.
#[derive(Component, Debug, Clone, PartialEq, Default)]
#[component(storage = "SparseSet")]
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
#[component(storage = "SparseSet")]
pub(crate) struct BudgetReserve(pub(crate) Reserve);

/// What its last prompt and the answer to it took, and how long its transcript was then.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(storage = "SparseSet")]
pub(crate) struct LastAsked {
    pub(crate) tokens: u64,
    pub(crate) entries: usize,
}

/// That its prompt was too long for its model. Absent once that has answered.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(storage = "SparseSet")]
pub(crate) struct ContextOverflow {
    /// So often in a row, be it the prompt itself or that for its summary.
    pub(crate) refused: u32,
    /// Nothing was done about it yet.
    pub(crate) due: bool,
}

/// How often in a row its model was asked for a summary and gave none. Absent before, and once there is one.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(storage = "SparseSet")]
pub(crate) struct CompactionFailures(pub(crate) u32);

/// That the inference that it wants, or that is out, is to summarise what is older. Present for so long.
#[derive(Component, Debug, Clone, PartialEq)]
#[component(storage = "SparseSet")]
pub(crate) struct Compacting(pub(crate) Arc<Compaction>);

/// Messages that its model has not read.
#[derive(Component, Debug, Clone, PartialEq, Default)]
#[component(storage = "SparseSet")]
pub(crate) struct QueuedMessages(pub(crate) Vec<Arc<str>>);

/// The run that spawned this one, as long as that is in the world.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(storage = "SparseSet")]
#[relationship(relationship_target = Children)]
pub(crate) struct SpawnedBy(pub(crate) Entity);

/// Runs that it spawned, in the order of their numbers. Without `linked_spawn`, unlike the hierarchy that comes with
/// bevy: a run that leaves takes no other run along.
#[derive(Component, Debug, PartialEq, Eq)]
#[component(storage = "SparseSet")]
#[relationship_target(relationship = SpawnedBy)]
pub(crate) struct Children(Vec<Entity>);

impl Children {
    pub(crate) fn runs(&self) -> &[Entity] {
        &self.0
    }
}

/// Calls of other runs that wait for it.
#[derive(Component, Debug, Clone, PartialEq, Default)]
#[component(storage = "SparseSet")]
pub(crate) struct WaitedOnBy(pub(crate) Vec<RunId>);

/// Its questions that have been answered or withdrawn. They are named so that they leave the world with the run.
#[derive(Component, Debug, Clone, PartialEq, Default)]
#[component(storage = "SparseSet", on_remove = hooks::closed_questions_left)]
pub(crate) struct ClosedQuestions(pub(crate) Vec<InteractionId>);

/// Questions that were refused because no person was available.
#[derive(Component, Debug, Clone, PartialEq, Default)]
#[component(storage = "SparseSet")]
pub(crate) struct Denials(pub(crate) Vec<Arc<str>>);

/// How it ended. Present once it has.
#[derive(Component, Debug, Clone, PartialEq)]
#[component(storage = "SparseSet", immutable, on_add = hooks::end_came, on_remove = hooks::end_left)]
pub(crate) struct Ended {
    pub(crate) ending: Ending,
    pub(crate) at: Timestamp,
    /// About how much memory its texts take.
    pub(crate) bytes: u64,
}

/// That its whole tree has ended, so that it can leave: since that time, by which the oldest leave first.
#[derive(Component, Debug, Clone, Copy, PartialEq, Eq)]
#[component(
    storage = "SparseSet", immutable, on_add = hooks::not_kept, on_insert = hooks::may_leave,
    on_discard = hooks::may_leave_no_more
)]
pub(crate) struct MayLeave(pub(crate) Timestamp);

/// The calls of the step at hand. Present while it has some.
#[derive(Component, Debug, Clone, PartialEq)]
#[component(storage = "SparseSet")]
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
    /// What a person is asked about it.
    pub(crate) ask: Option<Arc<CallAsk>>,
    /// A person has allowed it.
    pub(crate) cleared: bool,
    /// What a person last said to its job.
    pub(crate) told: Option<Settlement>,
    pub(crate) stage: Stage,
    /// Since when it has been at its stage.
    pub(crate) since: Timestamp,
}

/// How far a call is.
///
/// ```text
///            ┌──────────▶ Asking ─────────┐   (back to Pending where the call is allowed)
///            ├──────────▶ Waiting ────────┤
///  Pending ──┤                            ├──▶ Done
///            │    ┌───── OffLane ◀──┐     │   (by way of Asking where the job asks a person)
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
    Asking(InteractionId, Asker),
    /// Other runs are waited for; one of them is enough when `any`.
    Waiting { runs: Vec<RunId>, any: bool },
    /// It has its result.
    Done,
}

/// Who goes on when a person has settled an interaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The call itself: it has not begun.
    Call,
    /// The job of the call, which is out and waits.
    Job,
    /// That job is gone since a restart: the call only gets its result.
    Gone,
}

impl Stage {
    /// Whether a job is out for it.
    pub(crate) fn has_job(&self) -> bool {
        matches!(self, Self::Executing | Self::OffLane | Self::Returning | Self::Asking(_, Asker::Job))
    }

    pub(crate) fn shown(&self) -> CallState {
        match self {
            Self::Pending => CallState::Pending,
            Self::Executing => CallState::Executing,
            Self::OffLane => CallState::OffLane,
            Self::Returning => CallState::Returning,
            Self::Asking(..) => CallState::Asking,
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
            let is_job = |call: &Call| matches!(call.kind, Some(ToolKind::Job { .. }));
            group.iter().find(|call| call.stage == Stage::Pending && is_job(call) && !call.must_be_cleared())
        })
    }
}

impl Call {
    /// Whether a person has to allow it before it begins, and has not yet.
    pub(crate) fn must_be_cleared(&self) -> bool {
        !self.cleared && self.ask.as_ref().is_some_and(|ask| ask.kind.comes_first())
    }

    fn is_parallel_safe(&self) -> bool {
        match self.kind {
            Some(ToolKind::Job { parallel_safe }) => parallel_safe,
            Some(ToolKind::World) => true,
            None => false,
        }
    }
}
