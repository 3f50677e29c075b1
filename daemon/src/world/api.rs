//! Defines the interface of the world: its inputs, its effects and its replies. The modules above must use nothing else
//! of the world.

use std::sync::Arc;

use harness_protocol::blob::BlobHash;
use harness_protocol::event::ToolDefinition;
use harness_protocol::folder::FolderId;
use harness_protocol::id::{CallId, ReliefId, RunId, Seq};
use harness_protocol::interaction::CallAsk;
use harness_protocol::lane::LaneChanged;
use harness_protocol::rpc::{Answered, Changed, Selector, Submitted};
use harness_protocol::run::{CallResult, Entry, RunView};
use harness_protocol::script::Script;
use harness_protocol::spec::{RunSpec, SpecChanges};
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::{Span, Timestamp};

pub(crate) use super::name_or_id::{may_be_an_id, name_and_id, short};
pub use super::settlement::{Asked, Settlement};
use crate::prompt::{Completion, InferenceError, Prompt};
use crate::refusal::Refusal;
use crate::tools::ToolSpec;

/// Why an event does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The record that made the run is missing.
    #[error("its run was never made")]
    NoRun,
    /// It was made already.
    #[error("its run was made before")]
    MadeTwice,
    /// It has ended.
    #[error("its run has ended before")]
    Ended,
    /// Something else has to happen first.
    #[error("what has to be before it is missing")]
    OutOfOrder,
}

/// The time of a step, read once by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Wall clock. May jump.
    pub wall: Timestamp,
    /// Time since the daemon started. Never jumps.
    pub mono: Span,
}

/// How much was made so far, and what happened last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Made {
    /// The highest number of a run.
    pub runs: u64,
    /// Calls made so far.
    pub calls: u64,
    /// Interactions opened so far.
    pub interactions: u64,
    /// Reliefs granted so far.
    pub reliefs: u64,
    /// Number of the last event.
    pub last_seq: Seq,
    /// Time of the last event.
    pub last_at: Timestamp,
}

/// What of the runs that have not left the world could not be read when it was made from the journal.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Damage {
    /// Runs that had not ended, and of which a record cannot be read.
    pub unreadable: Vec<RunId>,
    /// Runs whose first record cannot be read, with everything else that is known of them. They are not in the world.
    pub lost: Vec<RunView>,
}

/// Everything that can wake the world.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A command of a client.
    Command {
        /// The number under which the reply is sent.
        reply: ReplyId,
        /// The sender of the command.
        caller: Caller,
        /// The command itself.
        command: Command,
    },
    /// A job ended.
    Outcome {
        /// The job that ended.
        job: JobId,
        /// Its result, or the reason why there is none.
        outcome: Outcome,
    },
    /// A job that executes wants something of its lane, or of a person.
    Ask {
        /// The job that asks.
        job: JobId,
        /// The change that it asks for.
        ask: Ask,
    },
}

/// Number of a request that waits for its answer; made by the driver, opaque here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyId(pub u64);

/// Who sent a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User id of the peer.
    pub uid: u32,
    /// The run that the peer descends from. Of all commands, such a caller may only submit children of that run.
    pub run: Option<RunId>,
}

impl Caller {
    /// The operator that this is; `None` for a process of a run.
    pub fn operator(self) -> Option<Operator> {
        self.run.is_none().then_some(Operator(self.uid))
    }
}

/// An operator who asks. Made of a caller that comes from no run: what means something beyond one tree wants it, and
/// a run's own process has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operator(u32);

impl Operator {
    /// The user id.
    pub fn uid(self) -> u32 {
        self.0
    }
}

impl From<Operator> for Caller {
    fn from(operator: Operator) -> Self {
        Self { uid: operator.0, run: None }
    }
}

/// Within what an idempotency key is unique: a run's own processes cannot take one that their operator will use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeySpace {
    /// The keys of an operator, by user.
    Operator(u32),
    /// The keys of what the runs of a tree submit, by the top of the tree.
    Tree(RunId),
}

impl KeySpace {
    /// The space of a run with this top above it, where it has a parent, and this owner.
    pub fn of(root_above: Option<RunId>, owner: u32) -> Self {
        root_above.map_or(Self::Operator(owner), Self::Tree)
    }
}

/// What a client says of a submit itself, beside what is to run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sent {
    /// The key that it made for this submit alone.
    pub key: Option<SubmitKey>,
    /// It has not sent that key before.
    pub first: bool,
    /// The run that was made under that key, where it has left the world; or that was told something under it.
    pub made: Option<MadeRun>,
    /// It can send variables of its environment along, where the configuration wants some.
    pub asks_variables: bool,
    /// The refusal of a new run, because its working directory is not as it should be. A run that was made before under
    /// the same key is found nevertheless.
    pub refused: Option<Box<Refusal>>,
}

impl Sent {
    /// The key, where it may have come before and was not looked for.
    pub fn to_be_looked_up(&self) -> Option<SubmitKey> {
        self.key.filter(|_| !self.first && self.made.is_none())
    }
}

/// A run that a submit has made, as far as its repetition is answered from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadeRun {
    /// The run that was made.
    pub id: RunId,
    /// The event that made it.
    pub seq: Seq,
    /// The run that spawned it.
    pub parent: Option<RunId>,
}

/// What can be asked of the world. Reading is not among it.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Queue a run.
    Submit {
        /// The specification, with defaults not yet filled in.
        spec: Arc<RunSpec>,
        /// Key by which the submit can be repeated.
        idempotency_key: Option<Arc<str>>,
        /// The run that was made under that key, where it has left the world.
        known: Option<Box<Finished>>,
        /// What the client said of the submit itself.
        sent: Sent,
    },
    /// Run a finished one's specification again.
    Retry {
        /// The finished run: its id, a unique prefix of it, or its name.
        run: String,
        /// What the new run has in place of what the finished one had.
        changes: Box<SpecChanges>,
        /// Whether it may be a run that another run has submitted.
        takes_child: bool,
        /// That run, where it has left the world.
        left: Option<Box<Finished>>,
        /// What the client said of the request itself.
        sent: Sent,
    },
    /// Tell a run something; a finished one goes on as a new run.
    Message {
        /// The run: its id, a unique prefix of it, or its name.
        run: String,
        /// The message for its model.
        text: Arc<str>,
        /// That run, where it has left the world.
        left: Option<Box<Finished>>,
        /// What the client said of the request itself.
        sent: Sent,
    },
    /// End runs and what is below them.
    Cancel {
        /// The runs to end.
        select: Selector,
        /// Whether their processes are killed at once.
        force: bool,
    },
    /// Pause the selected runs.
    Pause(Selector),
    /// Let paused runs go on.
    Resume(Selector),
    /// Change these runs and none below them: a piece of a change of many.
    Each(Change, Vec<RunId>),
    /// Remove what the journal and the disk hold of finished runs.
    Prune(Vec<RunId>),
    /// Remove these events of the daemon, its lanes and providers, which say nothing any more.
    PruneEvents(Vec<Seq>),
    /// Settle an interaction.
    Answer {
        /// By id, unique prefix, or the run that waits.
        interaction: String,
        /// The decision, with its words.
        settlement: Settlement,
    },
    /// Change a lane.
    Lane {
        /// The name of a provider's lane; `None` is the tool lane.
        lane: Option<Arc<str>>,
        /// The change to make.
        change: LaneChange,
    },
    /// Start nothing new, or do so again.
    Drain(bool),
    /// The configuration was read again: widths by lane.
    Reconfigure(Vec<(Arc<str>, u32)>),
    /// A provider was checked and is well: it is asked again.
    Release(Arc<str>),
}

/// What can be done to many runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// End the selected runs.
    Cancel {
        /// Whether their processes are killed at once.
        force: bool,
    },
    /// Pause the selected runs.
    Pause,
    /// Let them go on.
    Resume,
}

impl Command {
    /// What this does to the runs that it selects, where it can be done to many.
    pub fn change(&self) -> Option<(Change, &Selector)> {
        match self {
            Self::Cancel { select, force } => Some((Change::Cancel { force: *force }, select)),
            Self::Pause(select) => Some((Change::Pause, select)),
            Self::Resume(select) => Some((Change::Resume, select)),
            _ => None,
        }
    }
}

/// A finished run, as far as another one can come from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The id of the run.
    pub id: RunId,
    /// The run that spawned it.
    pub parent: Option<RunId>,
    /// Number of the event that made it.
    pub seq: Seq,
    /// What it was asked to be.
    pub spec: Arc<RunSpec>,
    /// The run that it continued.
    pub continues: Option<RunId>,
    /// The whole conversation of the run.
    pub transcript: Vec<Entry>,
    /// How many entries of it are those of the run that it continued.
    pub earlier: usize,
    /// The tools that it was prepared with.
    pub prepared: Option<ToolsTold>,
}

/// What a run's model is told of tools, as its preparation has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolsTold {
    /// The tools, sorted by name.
    pub definitions: Arc<[ToolDefinition]>,
    /// The name of the definitions in the store of texts, if they are long.
    pub blob: Option<Box<BlobHash>>,
}

/// Changes of a lane's capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneChange {
    /// Add permits, for good or for a while.
    Relieve {
        /// The number of permits to add.
        by: u32,
        /// For how long.
        during: Option<Span>,
    },
    /// Take a relief back.
    Undo(ReliefId),
    /// Set the width.
    Resize(u32),
    /// Stop granting permits; executing tickets keep theirs.
    Pause,
    /// Grant permits again.
    Resume,
}

/// What a job may ask of its lane, or of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// It waits with no time bound; its permit is of no use to it.
    OffLane,
    /// It asks a person, and waits like a job that is off its lane, until it receives [`Effect::Answer`].
    Open(Asked),
    /// It has finished waiting and blocks until it receives [`Effect::Resume`].
    Return,
    /// Nothing: it tells which folder its run's working directory is, in this boot.
    Found(FolderId),
}

/// A job: one call of a run, or one attempt at an inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// The run that the job belongs to.
    pub run: RunId,
    /// The part of the run that the job executes.
    pub work: Work,
}

/// What a job works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// A call of a tool.
    Call(CallId),
    /// An attempt at an inference.
    Inference {
        /// Step, from 1.
        step: u32,
        /// Attempt, from 1.
        attempt: u32,
    },
}

/// How a job ended. Each job ends exactly once.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A call has its result, be it a failure, a time limit or a cancel.
    Call(Arc<CallResult>),
    /// The model answered, or did not.
    Inference(Result<Completion, InferenceError>),
    /// The job's code panicked.
    Panicked(String),
    /// The task that executed it is gone, and its result was not seen.
    Lost,
}

/// What the driver does once the events of a step are in the journal.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Start a job.
    Start(Job),
    /// End a job; it still has its one outcome.
    Cancel {
        /// The job to end.
        job: JobId,
        /// Whether their processes are killed at once.
        force: bool,
    },
    /// A job that was off its lane has its permit again.
    Resume(JobId),
    /// What a job asked a person is settled.
    Answer {
        /// The job that asked.
        job: JobId,
        /// The decision, with its words.
        settlement: Settlement,
    },
    /// Answer a request.
    Reply {
        /// The request that is answered.
        to: ReplyId,
        /// The reply, or a refusal.
        reply: Result<Reply, Refusal>,
        /// The events of this step must be on disk before it is sent.
        synced: bool,
    },
    /// A run ended: nothing of it may be left.
    Release(RunId),
}

/// A job as handed out.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The id under which the outcome is reported.
    pub id: JobId,
    /// What to do.
    pub task: Task,
}

/// What a job does.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    /// Executes a call.
    Call(CallTask),
    /// Asks a model.
    Inference(InferenceTask),
}

/// A call to execute.
#[derive(Debug, Clone, PartialEq)]
pub struct CallTask {
    /// The tool, by name.
    pub tool: Arc<str>,
    /// Arguments, as JSON text.
    pub args: Arc<str>,
    /// What its job asks a person before it does anything else.
    pub ask: Option<Arc<CallAsk>>,
    /// What the run was asked to be: working directory, environment.
    pub spec: Arc<RunSpec>,
}

/// An inference to make.
#[derive(Debug, Clone, PartialEq)]
pub struct InferenceTask {
    /// The provider, by its configured name.
    pub provider: Arc<str>,
    /// The model; `None` means the provider's configured one.
    pub model: Option<Arc<str>>,
    /// The script, for the scripted provider.
    pub script: Option<Arc<Script>>,
    /// The conversation so far.
    pub prompt: Prompt,
    /// The tools that the model may call.
    pub tools: Arc<[ToolSpec]>,
    /// Most tokens of the answer, where the run may not spend more, or the model takes no more.
    pub max_output_tokens: Option<u32>,
    /// Whether these, and the prompt, are all that a budget holds for it.
    pub is_budgeted: bool,
    /// The answer is a summary for the run itself, and not shown as it comes.
    pub is_summary: bool,
}

/// Answers to commands.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To submit, retry and message.
    Submitted(Submitted),
    /// To what changes runs.
    Changed(Changed),
    /// To a piece of a change of many: also the runs right below those that were changed.
    Piece(Changed, Vec<RunId>),
    /// To an answer.
    Answered(Answered),
    /// To a change of a lane.
    Lane(LaneChanged),
    /// Nothing to say.
    Done,
}
