//! Defines the kinds of events, each in this one place. Pure: what an event does is decided by the daemon's world.

use std::sync::Arc;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, EnumAccess, Error as _, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, forward_to_deserialize_any};

use super::{Ending, LaneShare, LaneWidth, ProviderFault, StopReason, ToolDefinition};
use crate::blob::BlobHash;
use crate::folder::FolderId;
use crate::id::{CallId, InteractionId, ReliefId, RunId, Seq};
use crate::interaction::{InteractionKind, Resolution, Scope};
use crate::lane::Limiter;
use crate::run::{CallRequest, CallResult, Carried, Compaction, Entry, Reserve, Usage};
use crate::spec::RunSpec;
use crate::submit_key::SubmitKey;
use crate::time::Timestamp;

/// Defines the kinds twice: for writing, with the kind among the fields, and for reading where the kind is known before
/// the fields. The second way is several times faster.
macro_rules! kinds {
    ($($kinds:tt)*) => {
        /// A kind of event, with its data. The whole world can be rebuilt from the events.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum EventBody {
            $($kinds)*
        }

        #[derive(Deserialize)]
        #[serde(remote = "EventBody", rename_all = "kebab-case")]
        #[allow(dead_code)]
        enum ByKind {
            $($kinds)*
        }
    };
}

kinds! {
    /// The daemon began to serve. Work that was in progress before was interrupted.
    DaemonStarted {
        /// The configured width of each lane.
        lanes: Vec<LaneWidth>,
        /// Time of the last event before. Between then and now the daemon did nothing.
        last_at: Timestamp,
        /// The shares of the lanes by configuration, in the order of their numbers; missing in older journals.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shares: Option<Vec<LaneShare>>,
    },
    /// The clock was set: instead of `from`, it shows the time of this event, which may be earlier. Nothing becomes due
    /// or older by that. The order of events follows from their numbers.
    ClockSet {
        /// The time that the clock would show without the change.
        from: Timestamp,
    },
    /// From here on the daemon starts no new work.
    DrainStarted,
    /// The daemon starts new work again.
    DrainEnded,
    /// A relief widened a lane.
    LaneRelieved {
        /// Name of the lane: `tool`, or the name of a provider.
        lane: Arc<str>,
        /// Id of the relief, for undoing it.
        relief: ReliefId,
        /// Permits that the relief adds.
        by: u32,
        /// When it ends by itself.
        until: Option<Timestamp>,
    },
    /// A relief ended.
    LaneReliefEnded {
        /// Name of the lane: `tool`, or the name of a provider.
        lane: Arc<str>,
        /// Id of the relief that ended.
        relief: ReliefId,
        /// A client undid it; otherwise its time was up.
        undone: bool,
    },
    /// The width of a lane was set.
    LaneResized {
        /// Name of the lane: `tool`, or the name of a provider.
        lane: Arc<str>,
        /// Its width, without the reliefs.
        width: u32,
    },
    /// The configuration gives a lane another width. A width that was set by hand stays.
    LaneConfigured {
        /// Name of the lane: `tool`, or the name of a provider.
        lane: Arc<str>,
        /// Its configured width.
        width: u32,
    },
    /// A lane stopped granting permits.
    LanePaused {
        /// Name of the lane: `tool`, or the name of a provider.
        lane: Arc<str>,
    },
    /// A lane grants permits again.
    LaneResumed {
        /// Name of the lane: `tool`, or the name of a provider.
        lane: Arc<str>,
    },
    /// The circuit breaker of a provider opens: no run asks it.
    ProviderHeld {
        /// Name of the provider.
        provider: Arc<str>,
        /// The reason, as its lane reports it.
        limiter: Limiter,
        /// End of the hold; `None`: until the configuration is read again, or a check of the provider succeeds.
        until: Option<Timestamp>,
        /// The provider's error, in words.
        error: Arc<str>,
        /// Whether one run probes the provider at the end of the hold. Each further hold of this kind is longer than
        /// the one before.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        probe: bool,
    },
    /// The circuit breaker of a provider closes, or lets a few inferences through until one is answered.
    ProviderReleased {
        /// Name of the provider.
        provider: Arc<str>,
        /// Most inferences at once, until the provider answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_most: Option<u32>,
    },
    /// A run was submitted.
    RunSubmitted {
        /// Its number. If no other rule decides, runs are served in the order of these numbers.
        number: u64,
        /// Numeric user id of its owner.
        owner: u32,
        /// The run inside of which it was submitted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<RunId>,
        /// The run whose specification this one repeats.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_of: Option<RunId>,
        /// The finished run whose transcript it continues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        continues: Option<RunId>,
        /// Key under which the same submit can be sent again without a second run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<Arc<str>>,
        /// Key that the client made for this submit alone. Subscribers do not get it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        submit_key: Option<SubmitKey>,
        /// Its specification, with the defaults filled in.
        spec: Arc<RunSpec>,
        /// The transcript that it continues, if it continues another run. Subscribers do not get it.
        #[serde(default, skip_serializing_if = "is_empty")]
        earlier: Arc<[Entry]>,
    },
    /// The run is prepared: every inference of it, also after a restart, is built from this and its specification.
    RunPrepared {
        /// What its model is told of tools, sorted by name. Which of them it may call its specification says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        definitions: Option<Arc<[ToolDefinition]>>,
        /// The name of these definitions, as JSON, in the store of texts, if they are long. In the journal and for
        /// subscribers it stands in their place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        definitions_blob: Option<Box<BlobHash>>,
    },
    /// The run wants its next inference, and waits in its provider's lane.
    StepBegun {
        /// Number of the step, from 1.
        step: u32,
        /// The provider, if it is a fallback: the provider that the run asked for fails.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<Arc<str>>,
        /// The budget reserve for this inference, if it has a budget.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reserve: Option<Reserve>,
    },
    /// The run wants its next inference, but cannot be given a budget reserve: other runs hold the rest of a budget,
    /// until one of their reserves is released. Or the circuit breaker of its provider is open, and no reserve is held
    /// until it closes.
    StepPostponed {
        /// Number of the step.
        step: u32,
        /// The run with the budget: this run, or a run above it.
        budget_of: RunId,
        /// The provider, if the run waits for its circuit breaker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<Arc<str>>,
    },
    /// An inference got its permit and was sent to the provider.
    InferenceStarted {
        /// Number of the step, from 1.
        step: u32,
        /// Number of the attempt at this step, from 1.
        attempt: u32,
    },
    /// The model answered.
    InferenceFinished {
        /// Number of the step, from 1.
        step: u32,
        /// Text of the answer.
        text: Arc<str>,
        /// Calls that the model asks for, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<CallRequest>,
        /// Tokens and cost of the inference.
        usage: Usage,
        /// Blocks that the provider wants back unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carried: Option<Arc<Carried>>,
        /// The answer ended at the limit of output tokens.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cut: bool,
    },
    /// The inference failed: the provider gave no complete answer.
    InferenceFailed {
        /// Number of the step, from 1.
        step: u32,
        /// Number of the attempt at this step, from 1.
        attempt: u32,
        /// What went wrong, in words.
        error: Arc<str>,
        /// Time of the next attempt; `None` if there is none.
        retry_at: Option<Timestamp>,
        /// What the failure means for the provider's circuit breaker.
        #[serde(default, skip_serializing_if = "ProviderFault::is_unknown")]
        fault: ProviderFault,
        /// Tokens and cost, as far as the provider reported them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
    /// The prompt is too long for the model: before the step the run wants a summary of the older part, and waits in
    /// its provider's lane.
    CompactionBegun {
        /// Number of the step.
        step: u32,
        /// The provider, if it is a fallback.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<Arc<str>>,
        /// The part of the transcript that is summarised.
        plan: Arc<Compaction>,
        /// The budget reserve for the summary, if it has a budget.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reserve: Option<Reserve>,
    },
    /// The model gave the summary. The step goes on with a shorter prompt; the transcript keeps everything.
    CompactionFinished {
        /// Number of the step, from 1, that waited for the summary.
        step: u32,
        /// The summary, as the prompts have it from here on.
        text: Arc<str>,
        /// Number of entries that it replaces in the prompts, from the beginning of the transcript.
        entries: u32,
        /// Places of those entries among them that the model still reads word for word: messages of people.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kept: Vec<u32>,
        /// Tokens and cost of the summary.
        usage: Usage,
    },
    /// The batch of the step wants a permit of the tool lane: for the first time, or again.
    BatchQueued,
    /// The batch waits, without a permit.
    BatchParked,
    /// The batch gave back permits that its calls do not use.
    BatchYielded {
        /// Permits that it keeps.
        keeps: u32,
    },
    /// A call executes. It holds a permit.
    CallStarted {
        /// Id of the call.
        call: CallId,
    },
    /// A call waits inside its job, off the lane.
    CallOffLane {
        /// Id of the call.
        call: CallId,
    },
    /// A call that was off the lane has finished waiting and wants a permit.
    CallReturning {
        /// Id of the call.
        call: CallId,
    },
    /// A call that was off the lane continues, with a permit.
    CallResumed {
        /// Id of the call.
        call: CallId,
    },
    /// The daemon was restarted while a call had asked a person and waited: its job is gone. What it asked stays open,
    /// and the call has its result once that is settled.
    CallInterrupted {
        /// Id of the call.
        call: CallId,
    },
    /// A call waits for other runs.
    CallWaiting {
        /// Id of the call that waits.
        call: CallId,
        /// Ids of the runs that it waits for.
        runs: Vec<RunId>,
        /// Whether the end of one of them is enough.
        any: bool,
    },
    /// A call has its result.
    CallFinished {
        /// The result, with the id of its call.
        result: Arc<CallResult>,
    },
    /// A run asks a person.
    InteractionOpened {
        /// Id of the interaction, for answering it.
        interaction: InteractionId,
        /// The call that asks, or that is asked about.
        call: CallId,
        /// Text of the question.
        question: Arc<str>,
        /// Kind of the interaction; a question if left out. (`kind` is the kind of the event.)
        #[serde(default, skip_serializing_if = "InteractionKind::is_question")]
        interaction_kind: InteractionKind,
        /// What is to be executed, if that is the question.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<Arc<str>>,
        /// When it is settled as expired.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<Timestamp>,
    },
    /// A person settled an interaction, or its time was up.
    InteractionSettled {
        /// Id of the interaction.
        interaction: InteractionId,
        /// Text of the answer, or the reason of a refusal.
        answer: Arc<str>,
        /// How it was settled; it was answered if left out.
        #[serde(default, skip_serializing_if = "Resolution::is_answered")]
        resolution: Resolution,
        /// What the person meant to allow or to deny.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<Scope>,
    },
    /// The question is withdrawn: its run ended, or its call no longer asks.
    InteractionClosed {
        /// Id of the interaction.
        interaction: InteractionId,
    },
    /// A request was refused because no person was there to allow or to answer it.
    Denied {
        /// The refused request, in words.
        what: Arc<str>,
    },
    /// A message for the run arrived; the model reads it before its next answer.
    MessageReceived {
        /// Text of the message.
        text: Arc<str>,
        /// The key that its sender made for it alone, so that the same message can be sent again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        submit_key: Option<SubmitKey>,
    },
    /// After another boot its working directory was found again: it has the same inode, and its device has another
    /// number.
    WorkdirFound {
        /// The folder, with its present device.
        folder: FolderId,
    },
    /// The run is paused: nothing new starts in it.
    RunPaused,
    /// The run is no longer paused.
    RunResumed,
    /// The run is being ended: work in progress is interrupted, and nothing else starts.
    RunStopping {
        /// The reason for that.
        reason: StopReason,
        /// The processes are killed at once, without SIGTERM and a grace period before it.
        force: bool,
    },
    /// The run ended. Its state is final.
    RunFinished {
        /// How it ended, with its answer or its error.
        ending: Ending,
    },
    /// The run left the world's memory. From here on the journal answers for it.
    RunArchived,
    /// These finished runs were removed from the journal and the disk. This event is their only trace.
    RunsPruned {
        /// Ids of the removed runs.
        runs: Vec<RunId>,
    },
    /// Old events of the daemon, its lanes and providers were removed, which no longer affected the present state.
    EventsPruned {
        /// Numbers of the removed events.
        events: Vec<Seq>,
    },
}

impl EventBody {
    /// Reads an event whose kind is known. `json` is an object with its fields, and perhaps others, as [`Serialize`]
    /// writes it.
    ///
    /// # Errors
    /// If it is not an event of that kind.
    pub fn of_kind(kind: &str, json: &str) -> Result<Self, serde_json::Error> {
        ByKind::deserialize(OfKind { kind, json })
    }

    /// The kind, as in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::DaemonStarted { .. } => "daemon-started",
            Self::DrainStarted => "drain-started",
            Self::DrainEnded => "drain-ended",
            Self::LaneRelieved { .. } => "lane-relieved",
            Self::LaneReliefEnded { .. } => "lane-relief-ended",
            Self::LaneResized { .. } => "lane-resized",
            Self::LaneConfigured { .. } => "lane-configured",
            Self::ClockSet { .. } => "clock-set",
            Self::LanePaused { .. } => "lane-paused",
            Self::LaneResumed { .. } => "lane-resumed",
            Self::ProviderHeld { .. } => "provider-held",
            Self::ProviderReleased { .. } => "provider-released",
            Self::RunSubmitted { .. } => "run-submitted",
            Self::RunPrepared { .. } => "run-prepared",
            Self::StepBegun { .. } => "step-begun",
            Self::StepPostponed { .. } => "step-postponed",
            Self::InferenceStarted { .. } => "inference-started",
            Self::InferenceFinished { .. } => "inference-finished",
            Self::InferenceFailed { .. } => "inference-failed",
            Self::CompactionBegun { .. } => "compaction-begun",
            Self::CompactionFinished { .. } => "compaction-finished",
            Self::BatchQueued => "batch-queued",
            Self::BatchParked => "batch-parked",
            Self::BatchYielded { .. } => "batch-yielded",
            Self::CallStarted { .. } => "call-started",
            Self::CallOffLane { .. } => "call-off-lane",
            Self::CallReturning { .. } => "call-returning",
            Self::CallResumed { .. } => "call-resumed",
            Self::CallInterrupted { .. } => "call-interrupted",
            Self::CallWaiting { .. } => "call-waiting",
            Self::CallFinished { .. } => "call-finished",
            Self::InteractionOpened { .. } => "interaction-opened",
            Self::InteractionSettled { .. } => "interaction-settled",
            Self::InteractionClosed { .. } => "interaction-closed",
            Self::Denied { .. } => "denied",
            Self::MessageReceived { .. } => "message-received",
            Self::WorkdirFound { .. } => "workdir-found",
            Self::RunPaused => "run-paused",
            Self::RunResumed => "run-resumed",
            Self::RunStopping { .. } => "run-stopping",
            Self::RunFinished { .. } => "run-finished",
            Self::RunArchived => "run-archived",
            Self::RunsPruned { .. } => "runs-pruned",
            Self::EventsPruned { .. } => "events-pruned",
        }
    }
}

/// Gives serde an enum whose kind and fields come from two places.
struct OfKind<'de> {
    kind: &'de str,
    json: &'de str,
}

impl<'de> Deserializer<'de> for OfKind<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_enum(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> EnumAccess<'de> for OfKind<'de> {
    type Error = serde_json::Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Self::Error> {
        seed.deserialize(StrDeserializer::new(self.kind)).map(|value| (value, self))
    }
}

impl<'de> VariantAccess<'de> for OfKind<'de> {
    type Error = serde_json::Error;

    fn unit_variant(self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, _: S) -> Result<S::Value, Self::Error> {
        Err(Self::Error::custom("no kind of event is of this shape"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("no kind of event is of this shape"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Self::Error> {
        let mut json = serde_json::Deserializer::from_str(self.json);
        let value = json.deserialize_map(visitor)?;
        json.end().map(|()| value)
    }
}

fn is_empty(entries: &Arc<[Entry]>) -> bool {
    entries.is_empty()
}

/// Every kind of event.
pub const EVENT_KINDS: &[&str] = &[
    "daemon-started",
    "clock-set",
    "drain-started",
    "drain-ended",
    "lane-relieved",
    "lane-relief-ended",
    "lane-resized",
    "lane-configured",
    "lane-paused",
    "lane-resumed",
    "provider-held",
    "provider-released",
    "run-submitted",
    "run-prepared",
    "step-begun",
    "step-postponed",
    "inference-started",
    "inference-finished",
    "inference-failed",
    "compaction-begun",
    "compaction-finished",
    "batch-queued",
    "batch-parked",
    "batch-yielded",
    "call-started",
    "call-off-lane",
    "call-returning",
    "call-resumed",
    "call-interrupted",
    "call-waiting",
    "call-finished",
    "interaction-opened",
    "interaction-settled",
    "interaction-closed",
    "denied",
    "message-received",
    "workdir-found",
    "run-paused",
    "run-resumed",
    "run-stopping",
    "run-finished",
    "run-archived",
    "runs-pruned",
    "events-pruned",
];
