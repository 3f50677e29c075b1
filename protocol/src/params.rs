//! Defines the parameters and replies of the methods about runs, lanes and events; those about the daemon are in
//! submodules. Used through [`crate::rpc`]. Pure: what a method does is decided by the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::blob::BlobHash;
use crate::event::Event;
use crate::id::{CallId, EpochId, InteractionId, ReliefId, RunId, Seq, SubscriptionId};
use crate::interaction::{InteractionView, Resolution, Scope};
use crate::lane::LaneReport;
use crate::run::{Entry, RunLine, RunState, RunView, WaitKind};
use crate::spec::{RunSpec, SpecChanges};
use crate::submit_key::SubmitKey;
use crate::time::Span;

mod changed;
mod configuration;
mod daemon;
mod journal;

pub use changed::*;
pub use configuration::*;
pub use daemon::*;
pub use journal::*;

/// No parameters, or an empty reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// Parameters of `run.submit`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SubmitParams {
    /// The specification of the run.
    pub spec: RunSpec,
    /// The same key and the same specification give the same run; another specification is a `conflict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Arc<str>>,
    /// A key that the client made at random for this one submit, so that the submit can be sent again if its reply is
    /// lost: then the reply names the run that it made, and no second run is made. The key is known as long as its run
    /// is. Since protocol 1.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submit_key: Option<SubmitKey>,
    /// Whether that key is sent for the first time, so that the journal need not be searched for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first: bool,
    /// Whether the working directory comes as a descriptor (`SCM_RIGHTS`): exactly one, with or before the first byte
    /// of this line, and not before the line ahead of it. It replaces the specification's `workdir_id`. Since protocol
    /// 1.2.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passes_workdir: bool,
    /// Whether the client can be asked for variables of its environment. If the configuration names variables
    /// (`[tool.shell] pass`) and the submit would make a run, it is refused with the reason `pass-variables`; the
    /// subject has the names, with commas between them. The client then sends the same submit without this field, with
    /// the values in `spec.env`. Since protocol 1.2.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks_variables: bool,
}

/// Reply to `run.submit`, `run.retry` and `run.message`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Submitted {
    /// Id of the run.
    pub id: RunId,
    /// Number of the event that made it: a subscription from here gets all of its events.
    pub seq: Seq,
    /// Whether the run existed already, under the same key.
    #[serde(default)]
    pub existing: bool,
}

/// A selection of runs. All given criteria must hold; `runs` names them by id, unique prefix of an id, name, or
/// `@last`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Selector {
    /// Runs by id, unique prefix of an id, name or `@last`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<String>,
    /// Every one of these labels, each with this value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Any of these states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<RunState>,
    /// Any of these kinds of wait, as in `waiting_for.kind` of a run. Runs that have ended wait for nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<WaitKind>,
    /// Every run. Without it, an empty selector changes no run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl Selector {
    /// Whether there is a criterion other than names and `all`.
    pub fn has_filter(&self) -> bool {
        !(self.labels.is_empty() && self.states.is_empty() && self.waiting_for.is_empty())
    }

    /// Whether this run meets the criteria. Its name is not compared.
    pub fn fits(&self, run: &RunView) -> bool {
        let waits = run.waiting_for.as_ref().map(|wait| wait.kind);
        self.labels.iter().all(|(key, value)| run.labels.get(key) == Some(value))
            && (self.states.is_empty() || self.states.contains(&run.state))
            && (self.waiting_for.is_empty() || waits.is_some_and(|kind| self.waiting_for.contains(&kind)))
    }
}

/// Parameters of `run.list`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListParams {
    /// The runs to list; an empty selector lists all.
    #[serde(default)]
    pub select: Selector,
    /// Only the tree under this run.
    #[serde(default)]
    pub root: Option<String>,
    /// At most this many; 100 if left out, and 1,000 at most.
    #[serde(default)]
    pub limit: Option<u32>,
    /// Where the previous page ended.
    #[serde(default)]
    pub cursor: Option<u64>,
    /// How much the page has of each run.
    #[serde(default, skip_serializing_if = "ListDetail::is_whole")]
    pub detail: ListDetail,
}

impl ListParams {
    /// Runs on one page.
    pub fn page_size(&self) -> usize {
        self.limit.unwrap_or(100).clamp(1, 1_000) as usize
    }
}

/// How much a page of `run.list` has of each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ListDetail {
    /// All that is shown of a run: the page has `runs`.
    #[default]
    Whole,
    /// What a line of a table needs: the page has `lines`.
    Line,
}

impl ListDetail {
    /// Whether the page has all that is shown of a run. (By reference, for serde.)
    pub const fn is_whole(&self) -> bool {
        matches!(self, Self::Whole)
    }
}

/// Reply to `run.list`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunPage {
    /// The runs of this page, if the whole of each was asked for.
    pub runs: Vec<RunView>,
    /// The runs of this page, if lines were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<RunLine>,
    /// Where the next page begins; `None` at the end.
    pub cursor: Option<u64>,
    /// Why the journal cannot commit, while it cannot: the latest of these data may not be durable yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
}

/// Parameters of `run.show`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ShowParams {
    /// By id, unique prefix, name or `@last`.
    pub run: String,
    /// Also give the transcript.
    #[serde(default)]
    pub transcript: bool,
    /// At most this many entries; 1,000 if left out. A page also ends at 2 MiB.
    #[serde(default)]
    pub limit: Option<u32>,
    /// Where the previous page ended.
    #[serde(default)]
    pub cursor: Option<u64>,
}

/// Reply to `run.show`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shown {
    /// The run, without its transcript.
    pub run: RunView,
    /// A page of its transcript.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transcript: Vec<Entry>,
    /// Where the next page begins; `None` at the end.
    #[serde(default)]
    pub cursor: Option<u64>,
    /// Its processes: those of executing calls, and those that earlier calls have left running. At most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessView>,
    /// Why the journal cannot commit, while it cannot: the latest of these data may not be durable yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
}

/// A process of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessView {
    /// Process id in the daemon's view.
    pub pid: i32,
    /// Its command line, shortened to 200 characters.
    pub command: String,
}

/// Parameters of `run.wait`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WaitParams {
    /// By id, unique prefix, name or `@last`.
    pub run: String,
    /// Any of these states; any terminal state if left out.
    #[serde(default, rename = "for")]
    pub states: Vec<RunState>,
    /// Time limit of the reply.
    #[serde(default)]
    pub timeout_seconds: Option<Span>,
}

/// Reply to `run.wait`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitReply {
    /// The run, as it is now.
    pub run: RunView,
    /// Whether the state was reached. Otherwise the time was up, or the run ended without reaching it.
    pub reached: bool,
}

/// Parameters of `run.output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OutputParams {
    /// By id, unique prefix, name or `@last`.
    pub run: String,
    /// Id of the call.
    pub call: CallId,
    /// `stdout` or `stderr`.
    pub stream: OutputStream,
    /// First byte. A negative number counts from the end.
    #[serde(default)]
    pub offset: i64,
    /// At most this many bytes; 1 MiB if left out, 4 MiB at most.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// Output streams of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OutputStream {
    /// Standard output of the call.
    Stdout,
    /// Standard error of the call.
    Stderr,
}

/// Reply to `run.output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputReply {
    /// Where the bytes begin.
    pub offset: u64,
    /// The bytes, in base64.
    #[serde(with = "base64_bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "String", extend("contentEncoding" = "base64")))]
    pub bytes: Vec<u8>,
    /// Bytes of the stream in all, so far.
    pub total: u64,
    /// Whether more can come.
    pub live: bool,
}

/// Parameters of `blob.get`. Since protocol 1.4.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BlobParams {
    /// The SHA-256 of the text, by which events name it.
    pub hash: BlobHash,
    /// First byte of the part that is wanted.
    #[serde(default)]
    pub offset: u64,
}

/// Reply to `blob.get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blob {
    /// Where the part begins: at the wanted byte, or at the first one of the character that this byte is in.
    pub offset: u64,
    /// A part of the text: the rest of it, or as much as fits into a reply.
    pub text: String,
    /// Bytes of the whole text.
    pub total: u64,
}

mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Parameters of `run.cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelParams {
    /// The runs to cancel, with the runs below them.
    pub select: Selector,
    /// Kill processes at once, without SIGTERM and a grace period.
    #[serde(default)]
    pub force: bool,
}

/// Parameters of `run.pause` and `run.resume`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SelectParams {
    /// The runs to pause or to resume.
    pub select: Selector,
}

/// Parameters of `run.retry`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryParams {
    /// The finished run.
    pub run: String,
    /// The differences between the new specification and the finished run's.
    #[serde(default, skip_serializing_if = "SpecChanges::is_empty")]
    pub changes: Box<SpecChanges>,
    /// A key that the client made at random for this one request, like that of a submit. Since protocol 1.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submit_key: Option<SubmitKey>,
    /// Whether that key is sent for the first time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first: bool,
    /// Whether the run may be a child of another run. Without this, such a run is accepted only by its
    /// whole id, and gets no variables of an environment. Since protocol 1.2.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub children: bool,
}

/// Parameters of `run.message`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MessageParams {
    /// The run: by id, unique prefix, name or `@last`.
    pub run: String,
    /// Text of the message.
    pub text: Arc<str>,
    /// A key that the client made at random for this one request, like that of a submit. Since protocol 1.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submit_key: Option<SubmitKey>,
    /// Whether that key is sent for the first time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first: bool,
}

/// Parameters of `run.prune`. All given criteria must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PruneParams {
    /// The finished runs to remove.
    pub select: Selector,
    /// Only those that ended at least this long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_seconds: Option<Span>,
    /// Keep this many of the latest runs that meet the other criteria.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<u32>,
    /// Only list the runs, and remove none.
    #[serde(default)]
    pub dry_run: bool,
}

/// Parameters of `run.export`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExportParams {
    /// By id, unique prefix, name or `@last`.
    pub run: String,
    /// At most this many events; 2,000 if left out, and at most. A page also ends at about 2 MiB.
    #[serde(default)]
    pub limit: Option<u32>,
    /// Where the previous page ended.
    #[serde(default)]
    pub cursor: Option<Seq>,
}

/// Reply to `run.export`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Exported {
    /// The run, as it is now.
    pub run: RunView,
    /// A page of its events. For variables of its environment, they have the names and no values.
    pub events: Vec<Arc<Event>>,
    /// Where the next page begins; `None` if there are no later events.
    pub cursor: Option<Seq>,
    /// Numbers of events of this page that are left out: unreadable, or of a kind that only a later daemon knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Seq>,
}

/// Parameters of `interaction.list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InteractionListParams {
    /// At most this many; 1,000 if left out, and at most. A page also ends at 2 MiB.
    #[serde(default)]
    pub limit: Option<u32>,
    /// Where the previous page ended.
    #[serde(default)]
    pub cursor: Option<u64>,
}

/// Reply to `interaction.list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interactions {
    /// The open interactions of this page, oldest first.
    pub interactions: Vec<InteractionView>,
    /// Where the next page begins; `None` at the end.
    #[serde(default)]
    pub cursor: Option<u64>,
    /// Number of open interactions in all.
    pub total: u32,
}

/// Parameters of `interaction.answer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AnswerParams {
    /// The interaction, by id or unique prefix; or the run that waits, if it waits for only one.
    pub interaction: String,
    /// Text of the answer. With `allowed` a note, and with `denied` the reason, which the model reads; both may be
    /// empty.
    pub answer: Arc<str>,
    /// How it is settled; `answered` if left out. Which resolutions are taken depends on the kind of the interaction.
    /// Since protocol 1.4.
    #[serde(default, skip_serializing_if = "Resolution::is_answered")]
    pub resolution: Resolution,
    /// What is meant to be allowed or denied; only this call if left out. It is recorded, and not yet applied to other
    /// calls. Since protocol 1.4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// Reply to `interaction.answer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Answered {
    /// Id of the interaction.
    pub interaction: InteractionId,
    /// The run that asked, and continues now.
    pub run: RunId,
}

/// Reply to `lane.list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lanes {
    /// The tool lane first, then the providers' by name.
    pub lanes: Vec<LaneReport>,
}

/// Parameters of `lane.pause` and `lane.resume`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LaneParams {
    /// The lane; `tool` if left out.
    #[serde(default)]
    pub lane: Option<Arc<str>>,
}

/// Parameters of `lane.relieve`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RelieveParams {
    /// The lane; `tool` if left out.
    #[serde(default)]
    pub lane: Option<Arc<str>>,
    /// Permits to add.
    #[serde(default)]
    pub by: u32,
    /// Duration of the relief; without an end if left out.
    #[serde(default)]
    pub for_seconds: Option<Span>,
    /// Undo this relief instead.
    #[serde(default)]
    pub undo: Option<ReliefId>,
}

/// Parameters of `lane.resize`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResizeParams {
    /// The lane; `tool` if left out.
    #[serde(default)]
    pub lane: Option<Arc<str>>,
    /// The width, without the reliefs; 0 is taken as 1.
    pub width: u32,
}

/// Parameters of `event.subscribe`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SubscribeParams {
    /// Only events after this number. 0 means all; left out, from now on.
    #[serde(default)]
    pub after: Option<Seq>,
    /// Only events of this run: id, unique prefix, name or `@last`.
    #[serde(default)]
    pub run: Option<String>,
    /// Only events of these runs, by whole ids, instead of `run`. A run that does not exist has no events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunId>,
    /// Also events of the runs below that run.
    #[serde(default)]
    pub tree: bool,
    /// Only these kinds of events; all kinds if left out.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// Also send deltas, the live output. They may be dropped.
    #[serde(default)]
    pub deltas: bool,
    /// The epoch that `after` belongs to, from the reply to an earlier subscription. If the present epoch is another
    /// one, a gap with its reason comes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochId>,
}

/// Reply to `event.subscribe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Subscribed {
    /// Id of the subscription. Notifications carry it.
    pub subscription: SubscriptionId,
    /// Number of the last event so far.
    pub last_seq: Seq,
    /// The epoch of these numbers. A client sends it back beside a cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochId>,
}

/// Parameters of `event.unsubscribe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UnsubscribeParams {
    /// Id of the subscription to end.
    pub subscription: SubscriptionId,
}
