//! Lists the components that a run may have, as one query. A new component must be added here: the digest, the views
//! and the simulation read runs by this list.

use bevy_ecs::query::QueryData;

use super::components::{
    Batch, BudgetReserve, Children, ClosedQuestions, Compacting, CompactionFailures, ContextOverflow, CouldUseMore,
    Deferred, Denials, Ended, Identity, LastAsked, Life, MayLeave, Origin, Pool, Prepared, QueuedMessages, SentAs,
    Shown, SpawnedBy, Spec, Stopwatch, ToldUnder, Transcript, UsageBelow, UsageTotal, WaitedOnBy, WantsInference,
};

/// A run with all of its components: those of `NewRun`, and those that it has at times. What is not in this list is in
/// no digest, and the simulation fails on a run that has such a component.
#[derive(QueryData)]
#[query_data(derive(Debug))]
pub(in crate::world) struct RunData {
    pub(in crate::world) identity: &'static Identity,
    pub(in crate::world) life: &'static Life,
    pub(in crate::world) shown: &'static Shown,
    pub(in crate::world) watch: &'static Stopwatch,
    pub(in crate::world) transcript: &'static Transcript,
    pub(in crate::world) spec: &'static Spec,
    pub(in crate::world) origin: Option<&'static Origin>,
    pub(in crate::world) prepared: Option<&'static Prepared>,
    pub(in crate::world) sent_as: Option<&'static SentAs>,
    pub(in crate::world) told_under: Option<&'static ToldUnder>,
    pub(in crate::world) spawned_by: Option<&'static SpawnedBy>,
    pub(in crate::world) children: Option<&'static Children>,
    pub(in crate::world) waited_on_by: Option<&'static WaitedOnBy>,
    pub(in crate::world) queued_messages: Option<&'static QueuedMessages>,
    pub(in crate::world) closed_questions: Option<&'static ClosedQuestions>,
    pub(in crate::world) denials: Option<&'static Denials>,
    pub(in crate::world) usage_total: Option<&'static UsageTotal>,
    pub(in crate::world) usage_below: Option<&'static UsageBelow>,
    pub(in crate::world) pool: Option<&'static Pool>,
    pub(in crate::world) budget_reserve: Option<&'static BudgetReserve>,
    pub(in crate::world) last_asked: Option<&'static LastAsked>,
    pub(in crate::world) context_overflow: Option<&'static ContextOverflow>,
    pub(in crate::world) compacting: Option<&'static Compacting>,
    pub(in crate::world) compaction_failures: Option<&'static CompactionFailures>,
    pub(in crate::world) wants_inference: Option<&'static WantsInference>,
    pub(in crate::world) deferred: Option<&'static Deferred>,
    pub(in crate::world) could_use_more: Option<&'static CouldUseMore>,
    pub(in crate::world) batch: Option<&'static Batch>,
    pub(in crate::world) ended: Option<&'static Ended>,
    pub(in crate::world) may_leave: Option<&'static MayLeave>,
}
