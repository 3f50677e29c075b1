//! Events and deltas. An event happened, is durable and has a number; a delta is live output and may be dropped.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{CallId, InteractionId, ReliefId, RunId, Seq};
use crate::lane::Limiter;
use crate::run::{CallRequest, CallResult, Carried, Entry, Usage};
use crate::spec::RunSpec;
use crate::time::{Span, Timestamp};

/// Version of the kinds below.
pub const EVENT_VERSION: u16 = 1;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its number.
    pub seq: Seq,
    /// Version of its kind.
    pub version: u16,
    /// When it happened.
    pub at: Timestamp,
    /// The run that it belongs to; `None` for what concerns a lane or the daemon.
    pub run: Option<RunId>,
    /// Who caused it.
    pub cause: Cause,
    /// What happened.
    #[serde(flatten)]
    pub body: EventBody,
}

impl Event {
    /// About how much memory it takes.
    pub fn approximate_bytes(&self) -> usize {
        let texts = match &self.body {
            EventBody::RunSubmitted { spec, earlier, .. } => {
                spec.prompt.as_ref().map_or(0, |text| text.len())
                    + spec.env.len() * 128
                    + spec.labels.len() * 64
                    + earlier.iter().map(Entry::approximate_bytes).sum::<usize>()
                    + 1024
            }
            EventBody::RunsPruned { runs } => runs.len() * 8,
            EventBody::InferenceFinished { text, calls, carried, .. } => {
                let carried = carried.as_ref().map_or(0, |carried| carried.parts.len());
                text.len() + calls.iter().map(|call| call.args.len() + 64).sum::<usize>() + carried
            }
            EventBody::CallFinished { result } => result.envelope.len() + 256,
            EventBody::InteractionOpened { question: text, .. }
            | EventBody::InteractionSettled { answer: text, .. }
            | EventBody::Denied { what: text }
            | EventBody::MessageReceived { text }
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

/// Who caused an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Through which door.
    pub via: Via,
    /// Numeric user id of the caller, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The run that the caller descends from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_run: Option<RunId>,
}

impl Cause {
    /// Caused by the harness itself: time, a job's outcome, its own rules.
    pub const HARNESS: Self = Self { via: Via::Harness, uid: None, by_run: None };
}

/// Doors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// The harness itself.
    Harness,
    /// The control socket.
    Socket,
    /// A tool of a run.
    Tool,
}

/// What happened. Everything that the world is can be folded from these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EventBody {
    /// The daemon began to serve. What was executing before was interrupted.
    DaemonStarted {
        /// Widths by configuration, by lane.
        lanes: Vec<LaneWidth>,
        /// Time of the last event before: from then on nothing was done.
        last_at: Timestamp,
    },
    /// No new work starts from here on.
    DrainStarted,
    /// New work starts again.
    DrainEnded,
    /// A lane was widened.
    LaneRelieved {
        /// The lane.
        lane: Arc<str>,
        /// The relief.
        relief: ReliefId,
        /// Permits added.
        by: u32,
        /// When it ends by itself.
        until: Option<Timestamp>,
    },
    /// A relief ended.
    LaneReliefEnded {
        /// The lane.
        lane: Arc<str>,
        /// The relief.
        relief: ReliefId,
        /// It was undone by somebody; otherwise its time was up.
        undone: bool,
    },
    /// The width of a lane was set.
    LaneResized {
        /// The lane.
        lane: Arc<str>,
        /// Its width, reliefs left out.
        width: u32,
    },
    /// The configuration gives a lane another width; one that was set by hand stays.
    LaneConfigured {
        /// The lane.
        lane: Arc<str>,
        /// Its width by configuration.
        width: u32,
    },
    /// A lane stopped granting.
    LanePaused {
        /// The lane.
        lane: Arc<str>,
    },
    /// A lane grants again.
    LaneResumed {
        /// The lane.
        lane: Arc<str>,
    },
    /// A provider is left alone.
    ProviderHeld {
        /// The provider.
        provider: Arc<str>,
        /// Why, as its lane reports it.
        limiter: Limiter,
        /// Until when; `None` is until somebody has seen to it.
        until: Option<Timestamp>,
        /// What it said.
        error: Arc<str>,
    },
    /// A provider is asked again: as before, or little by little until it has answered.
    ProviderReleased {
        /// The provider.
        provider: Arc<str>,
        /// Inferences at once, until it answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_most: Option<u32>,
    },
    /// A run was submitted.
    RunSubmitted {
        /// Its number: runs are served in this order where nothing else decides.
        number: u64,
        /// Numeric user id of its owner.
        owner: u32,
        /// The run that spawned it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<RunId>,
        /// The run that this one tries again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_of: Option<RunId>,
        /// The finished run whose transcript it goes on from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        continues: Option<RunId>,
        /// Key by which the submit can be repeated without effect.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<Arc<str>>,
        /// What it is asked to be, defaults filled in.
        spec: Arc<RunSpec>,
        /// The transcript that it goes on from, where it continues another run. Not shown to subscribers.
        #[serde(default, skip_serializing_if = "is_empty")]
        earlier: Arc<[Entry]>,
    },
    /// It wants its next inference, and stands in its provider's lane.
    StepBegun {
        /// Number of the step, from 1.
        step: u32,
        /// The provider, where it is another one than the run asked for: that one fails, and this is its fallback.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<Arc<str>>,
    },
    /// An inference was granted, and is out.
    InferenceStarted {
        /// Step.
        step: u32,
        /// Attempt at it, from 1.
        attempt: u32,
    },
    /// The model answered.
    InferenceFinished {
        /// Step.
        step: u32,
        /// What it said.
        text: Arc<str>,
        /// What it asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<CallRequest>,
        /// What it used.
        usage: Usage,
        /// What its provider wants back unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carried: Option<Arc<Carried>>,
        /// The limit of output tokens cut it off.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cut: bool,
    },
    /// The provider did not answer.
    InferenceFailed {
        /// Step.
        step: u32,
        /// Attempt.
        attempt: u32,
        /// Why.
        error: Arc<str>,
        /// When it is asked again; `None` when it is not.
        retry_at: Option<Timestamp>,
        /// What that says of the provider.
        #[serde(default, skip_serializing_if = "ProviderFault::is_unknown")]
        fault: ProviderFault,
    },
    /// The batch of the step wants a permit of the tool lane: for the first time, or again.
    BatchQueued,
    /// The batch waits, and holds no permit.
    BatchParked,
    /// The batch gave back the permits that it held beyond those that its calls use.
    BatchYielded {
        /// Permits that it keeps.
        keeps: u32,
    },
    /// A call executes. It holds a permit.
    CallStarted {
        /// The call.
        call: CallId,
    },
    /// A call waits inside its job, off the lane.
    CallOffLane {
        /// The call.
        call: CallId,
    },
    /// Such a call has done waiting and wants a permit.
    CallReturning {
        /// The call.
        call: CallId,
    },
    /// Such a call goes on, with a permit.
    CallResumed {
        /// The call.
        call: CallId,
    },
    /// A call waits for other runs.
    CallWaiting {
        /// The call.
        call: CallId,
        /// The runs.
        runs: Vec<RunId>,
        /// One of them is enough.
        any: bool,
    },
    /// A call has its result.
    CallFinished {
        /// The result.
        result: Arc<CallResult>,
    },
    /// A person is asked something.
    InteractionOpened {
        /// The interaction.
        interaction: InteractionId,
        /// The call that asks.
        call: CallId,
        /// The question.
        question: Arc<str>,
    },
    /// A person answered.
    InteractionSettled {
        /// The interaction.
        interaction: InteractionId,
        /// The answer.
        answer: Arc<str>,
    },
    /// It is no longer asked: its run ended.
    InteractionClosed {
        /// The interaction.
        interaction: InteractionId,
    },
    /// Something was refused because nobody was there to allow or answer it.
    Denied {
        /// What.
        what: Arc<str>,
    },
    /// A message came for the run; the model reads it before its next answer.
    MessageReceived {
        /// The text.
        text: Arc<str>,
    },
    /// Nothing new starts in this run.
    RunPaused,
    /// It goes on.
    RunResumed,
    /// It is to end: what executes is being ended, nothing else starts.
    RunStopping {
        /// Why.
        reason: StopReason,
        /// Without grace.
        force: bool,
    },
    /// It ended.
    RunFinished {
        /// How.
        ending: Ending,
    },
    /// It left the world's memory: from here on it is answered from the journal.
    RunArchived,
    /// What the journal and the disk held of these finished runs was removed. The only trace of them.
    RunsPruned {
        /// The runs.
        runs: Vec<RunId>,
    },
}

impl EventBody {
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
            Self::LanePaused { .. } => "lane-paused",
            Self::LaneResumed { .. } => "lane-resumed",
            Self::ProviderHeld { .. } => "provider-held",
            Self::ProviderReleased { .. } => "provider-released",
            Self::RunSubmitted { .. } => "run-submitted",
            Self::StepBegun { .. } => "step-begun",
            Self::InferenceStarted { .. } => "inference-started",
            Self::InferenceFinished { .. } => "inference-finished",
            Self::InferenceFailed { .. } => "inference-failed",
            Self::BatchQueued => "batch-queued",
            Self::BatchParked => "batch-parked",
            Self::BatchYielded { .. } => "batch-yielded",
            Self::CallStarted { .. } => "call-started",
            Self::CallOffLane { .. } => "call-off-lane",
            Self::CallReturning { .. } => "call-returning",
            Self::CallResumed { .. } => "call-resumed",
            Self::CallWaiting { .. } => "call-waiting",
            Self::CallFinished { .. } => "call-finished",
            Self::InteractionOpened { .. } => "interaction-opened",
            Self::InteractionSettled { .. } => "interaction-settled",
            Self::InteractionClosed { .. } => "interaction-closed",
            Self::Denied { .. } => "denied",
            Self::MessageReceived { .. } => "message-received",
            Self::RunPaused => "run-paused",
            Self::RunResumed => "run-resumed",
            Self::RunStopping { .. } => "run-stopping",
            Self::RunFinished { .. } => "run-finished",
            Self::RunArchived => "run-archived",
            Self::RunsPruned { .. } => "runs-pruned",
        }
    }
}

fn is_empty(entries: &Arc<[Entry]>) -> bool {
    entries.is_empty()
}

/// Every kind of event.
pub const EVENT_KINDS: &[&str] = &[
    "daemon-started",
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
    "step-begun",
    "inference-started",
    "inference-finished",
    "inference-failed",
    "batch-queued",
    "batch-parked",
    "batch-yielded",
    "call-started",
    "call-off-lane",
    "call-returning",
    "call-resumed",
    "call-waiting",
    "call-finished",
    "interaction-opened",
    "interaction-settled",
    "interaction-closed",
    "denied",
    "message-received",
    "run-paused",
    "run-resumed",
    "run-stopping",
    "run-finished",
    "run-archived",
    "runs-pruned",
];

/// What a failed inference says of its provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderFault {
    /// Nothing: it was interrupted, or cancelled.
    #[default]
    Unknown,
    /// That it fails, or cannot be reached, or breaks off.
    Failing,
    /// That it wants to be asked less often.
    RateLimit,
    /// That it refuses the credentials.
    Credentials,
    /// Nothing: it is well, and will not answer this.
    Refused,
}

impl ProviderFault {
    /// Whether nothing is said.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// A lane and its width.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneWidth {
    /// The lane.
    pub lane: Arc<str>,
    /// Its width by configuration.
    pub width: u32,
}

/// Why a run was told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// Somebody cancelled it, or the run above it.
    Cancelled,
    /// Its time for inference and execution is used up.
    MaxTime,
    /// Its deadline has passed.
    Deadline,
    /// It asked a person something, and was told to fail then.
    NeedsAnswer,
    /// A record of it cannot be read: how far it was is not known.
    Unreadable,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Ending {
    /// With an answer.
    Succeeded {
        /// The answer.
        answer: Arc<str>,
    },
    /// With an error.
    Failed {
        /// The error.
        error: Arc<str>,
        /// The exit code of whoever waits for it.
        exit_code: u8,
    },
    /// Because it was told to.
    Cancelled {
        /// By whom, in words.
        error: Arc<str>,
    },
}

/// A piece of live output. Its offset tells a reader whether it missed something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// The run.
    pub run: RunId,
    /// The call, for the output of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// Which stream.
    pub stream: DeltaStream,
    /// Where the piece begins in the stream, in bytes.
    pub offset: u64,
    /// The piece, decoded leniently. A character cut in two appears whole in a later piece.
    pub text: String,
}

/// Streams that have deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeltaStream {
    /// What the model says.
    Text,
    /// What the model thinks, where it says so.
    Reasoning,
    /// Standard output of a call.
    Stdout,
    /// Standard error of a call.
    Stderr,
}

/// Events that a subscriber does not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The first number that is missing.
    pub from: Seq,
    /// The last number that is missing.
    pub to: Seq,
}

/// How long until something is tried again, in whole seconds, at least 1.
pub fn retry_seconds(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000_000).max(1)
}
