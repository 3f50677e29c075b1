//! Defines the requests, replies and error kinds of the control protocol: JSON-RPC 2.0, one object a line.
//!
//! The list of methods is closed: [`Call`] has a variant for each, [`Method`] ties parameters and reply together. Pure:
//! it must not read a socket, and not decide who may call a method.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::event::{Delta, Event, Gap};
use crate::id::SubscriptionId;
use crate::lane::LaneChanged;
pub use crate::params::*;
pub use crate::provider::*;
pub use crate::reason::Reason;
use crate::run::exit;
pub use crate::subject::{Subject, SubjectKind};
use crate::time::Span;

/// Kinds of errors, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// No object has that id or name.
    NotFound,
    /// Several objects fit that name or prefix; the message lists them.
    Ambiguous,
    /// The request contradicts something that exists already.
    Conflict,
    /// It is no longer possible: another client was first, or the object has ended.
    NoLongerApplies,
    /// The request is wrong.
    Invalid,
    /// The caller has no right to do this.
    Forbidden,
    /// A bound is reached; try later.
    Busy,
    /// The journal cannot commit; try later.
    Held,
    /// The peer speaks another version.
    Version,
    /// The provider failed.
    Provider,
    /// Internal error (bug).
    Internal,
}

impl ErrorKind {
    /// Exit code of a command that ends with such an error.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::NotFound | Self::NoLongerApplies => exit::NOT_FOUND,
            Self::Ambiguous | Self::Conflict | Self::Invalid | Self::Forbidden => exit::USAGE,
            Self::Busy | Self::Held => exit::TRY_LATER,
            Self::Version => exit::UNREACHABLE,
            Self::Provider => exit::FAILED,
            Self::Internal => exit::INTERNAL,
        }
    }

    /// The JSON-RPC code of such an error.
    pub const fn code(self) -> i32 {
        match self {
            Self::Invalid => -32602,
            Self::Internal => -32603,
            Self::NotFound => -32001,
            Self::Ambiguous => -32002,
            Self::Conflict => -32003,
            Self::NoLongerApplies => -32004,
            Self::Forbidden => -32005,
            Self::Busy => -32006,
            Self::Held => -32007,
            Self::Version => -32008,
            Self::Provider => -32009,
        }
    }
}

/// JSON-RPC: the line is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// JSON-RPC: the line is JSON, but not a request.
pub const INVALID_REQUEST: i32 = -32600;
/// JSON-RPC: no such method.
pub const METHOD_NOT_FOUND: i32 = -32601;

/// An error reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{message}")]
pub struct RpcError {
    /// Error code of JSON-RPC 2.0.
    pub code: i32,
    /// What went wrong, in words for people. The words may change.
    pub message: String,
    /// What went wrong, in fields for programs.
    pub data: ErrorData,
}

/// The part of an error for programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorData {
    /// Class of the error, by which a program decides what to do.
    pub kind: ErrorKind,
    /// The exact reason. Daemons before protocol 1.3 give it only if the class alone says too little.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The thing that the reason is about, as a text: the id of a run, a name, a field of the request. `subject_kind`
    /// says what the text is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The kind of the subject. Daemons before protocol 1.3 leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_kind: Option<SubjectKind>,
    /// Time until the next try, if a retry may help.
    #[serde(default)]
    pub retry_after_seconds: Option<Span>,
    /// Exit code of a command that ends with this error.
    pub exit_code: u8,
    /// Whether the request was not refused: it is not known yet whether it takes effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
    /// The problems of the daemon's files, if these are the reason: file, line and problem.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<ConfigProblem>,
}

impl RpcError {
    /// An error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            code: kind.code(),
            message: message.into(),
            data: ErrorData {
                kind,
                reason: None,
                subject: None,
                subject_kind: None,
                retry_after_seconds: None,
                exit_code: kind.exit_code(),
                undecided: false,
                problems: Vec::new(),
            },
        }
    }

    /// The refusal of a daemon that is stopping: the request can be sent to the next daemon.
    pub fn stopping() -> Self {
        let error = Self::new(ErrorKind::Busy, "the daemon is stopping; try again");
        error.retry_after(Span::from_secs(1)).because(Reason::Stopping, None)
    }

    /// The same error with another JSON-RPC code.
    #[must_use]
    pub fn with_code(mut self, code: i32) -> Self {
        self.code = code;
        self
    }

    /// The same error with a reason for programs, and the subject of the reason.
    #[must_use]
    pub fn because(mut self, reason: Reason, subject: impl Into<Option<Subject>>) -> Self {
        let subject = subject.into();
        self.data.reason = Some(reason);
        self.data.subject_kind = subject.as_ref().map(Subject::kind);
        self.data.subject = subject.map(|subject| subject.text());
        self
    }

    /// The same error with the time until the next try.
    #[must_use]
    pub fn retry_after(mut self, span: Span) -> Self {
        self.data.retry_after_seconds = Some(span);
        self
    }

    /// The same error with the problems of the daemon's files.
    #[must_use]
    pub fn about(mut self, problems: Vec<ConfigProblem>) -> Self {
        self.data.problems = problems;
        self
    }

    /// The same error for a request that may still take effect.
    #[must_use]
    pub fn undecided(mut self) -> Self {
        self.data.undecided = true;
        self
    }

    /// Class of the error.
    pub const fn kind(&self) -> ErrorKind {
        self.data.kind
    }

    /// Whether the daemon refused for this reason.
    pub fn is_because(&self, reason: Reason) -> bool {
        self.data.reason == Some(reason)
    }

    /// The thing that the reason is about; `None` where there is none, or a daemon of another version says it
    /// otherwise.
    pub fn subject(&self) -> Option<Subject> {
        Subject::read(self.data.subject_kind?, self.data.subject.as_deref()?)
    }
}

/// Number or text by which a reply is matched with its request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum RequestId {
    /// A number, such as a counter of the client.
    Number(i64),
    /// A text, such as a UUID.
    Text(String),
    /// Null: it still is a request, and its reply has the id null, too.
    Null,
}

/// A request as it stands on the wire, its parameters unread.
#[derive(Debug, Deserialize)]
pub struct RawRequest<'a> {
    /// Must be `"2.0"`.
    #[serde(default, borrow)]
    pub jsonrpc: Option<std::borrow::Cow<'a, str>>,
    /// Absent in a notification.
    #[serde(default, deserialize_with = "present")]
    pub id: Option<RequestId>,
    /// Name of the method; absent if this is not a request.
    #[serde(default, borrow)]
    pub method: Option<&'a RawValue>,
    /// Parameters; an object if present.
    #[serde(default, borrow)]
    pub params: Option<&'a RawValue>,
}

/// A field that is null counts as present.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<RequestId>, D::Error> {
    RequestId::deserialize(deserializer).map(Some)
}

/// A request, ready to be written.
#[derive(Debug, Serialize)]
pub struct Request<'a, P> {
    /// Version of JSON-RPC: always `"2.0"`.
    pub jsonrpc: &'static str,
    /// Id by which the reply is matched.
    pub id: u64,
    /// Name of the method.
    pub method: &'a str,
    /// Parameters of the method.
    pub params: &'a P,
}

/// A reply. Exactly one of `result` and `error` is present.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response<R> {
    /// Version of JSON-RPC: always `"2.0"`.
    pub jsonrpc: String,
    /// Id of the request; null if it could not be read.
    pub id: Option<RequestId>,
    /// The result, if the request succeeded.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub result: Option<R>,
    /// The error, if the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

impl<R> Response<R> {
    /// A reply from a result.
    pub fn new(id: Option<RequestId>, result: Result<R, RpcError>) -> Self {
        let (result, error) = match result {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        Self { jsonrpc: "2.0".to_owned(), id, result, error }
    }
}

/// A message of the daemon to a subscriber, without a request.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "method", content = "params", rename_all = "kebab-case")]
pub enum Notification {
    /// An event of the subscription, in order.
    Event {
        /// Id of the subscription.
        subscription: SubscriptionId,
        /// The event, whole.
        event: Arc<Event>,
    },
    /// A piece of live output.
    Delta {
        /// Id of the subscription.
        subscription: SubscriptionId,
        /// The piece of live output.
        delta: Arc<Delta>,
    },
    /// Events that this subscriber does not get.
    Gap {
        /// Id of the subscription.
        subscription: SubscriptionId,
        /// Numbers of the missing events, and why they are missing.
        gap: Gap,
    },
}

/// A method: its name, its parameters, its reply.
pub trait Method {
    /// Name on the wire.
    const NAME: &'static str;
    /// Type of the parameters.
    type Params: Serialize + DeserializeOwned;
    /// Type of the reply.
    type Reply: Serialize + DeserializeOwned;
}

/// Why a request is not a valid call of a method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no such method.
    #[error("no method {0:?}")]
    UnknownMethod(String),
    /// The parameters do not fit the method.
    #[error("bad parameters of {method}: {why}")]
    BadParams {
        /// Name of the method.
        method: &'static str,
        /// The problem, with its place in the parameters.
        why: String,
    },
}

impl From<CallError> for RpcError {
    fn from(error: CallError) -> Self {
        let (code, reason, method) = match &error {
            CallError::UnknownMethod(method) => (METHOD_NOT_FOUND, Reason::UnknownMethod, method.clone()),
            CallError::BadParams { method, .. } => (ErrorKind::Invalid.code(), Reason::BadParams, (*method).to_owned()),
        };
        Self::new(ErrorKind::Invalid, error.to_string()).with_code(code).because(reason, Subject::Method(method))
    }
}

macro_rules! methods {
    ($($name:literal $variant:ident($params:ty) -> $reply:ty, $doc:literal;)*) => {
        /// Every request that there is.
        #[derive(Debug, Clone, PartialEq)]
        #[expect(clippy::large_enum_variant, reason = "calls are few at a time, and most of them are submits")]
        pub enum Call {
            $(#[doc = $doc] $variant($params),)*
        }

        /// Types that stand for the methods, for [`Method`].
        pub mod method {
            use super::*;
            $(
                #[doc = $doc]
                #[derive(Debug)]
                pub struct $variant;
                impl Method for $variant {
                    const NAME: &'static str = $name;
                    type Params = $params;
                    type Reply = $reply;
                }
            )*
        }

        /// The names of all methods.
        pub const METHODS: &[&str] = &[$($name),*];

        /// Describes a method, with the schemas of its parameters and its result.
        #[cfg(feature = "schema")]
        pub(crate) fn described(
            method: &str,
            params: &mut schemars::SchemaGenerator,
            result: &mut schemars::SchemaGenerator,
        ) -> Option<(&'static str, schemars::Schema, schemars::Schema)> {
            match method {
                $($name => Some(($doc, params.subschema_for::<$params>(), result.subschema_for::<$reply>())),)*
                _ => None,
            }
        }

        impl Call {
            /// The name of its method.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }

            /// Reads the parameters of `method`.
            ///
            /// # Errors
            /// If there is no such method, or the parameters do not fit it.
            pub fn parse(method: &str, params: Option<&RawValue>) -> Result<Self, CallError> {
                let params = params.map_or("{}", RawValue::get);
                match method {
                    $($name => serde_json::from_str::<$params>(params)
                        .map(Self::$variant)
                        .map_err(|e| CallError::BadParams { method: $name, why: e.to_string() }),)*
                    other => Err(CallError::UnknownMethod(other.chars().take(100).collect())),
                }
            }
        }
    };
}

methods! {
    "daemon.hello" DaemonHello(HelloParams) -> Hello, "Names versions.";
    "daemon.status" DaemonStatus(Empty) -> DaemonStatusReply, "Health and counts.";
    "daemon.drain" DaemonDrain(DrainParams) -> DrainReply, "Starts nothing new; replies when nothing executes.";
    "daemon.undrain" DaemonUndrain(Empty) -> Empty, "Undoes a drain.";
    "daemon.stop" DaemonStop(Empty) -> Empty, "Stops the daemon.";
    "daemon.reload" DaemonReload(Empty) -> ReloadReply, "Reads the configuration again.";
    "daemon.backup" DaemonBackup(BackupParams) -> BackedUp, "Copies the journal while it is used.";
    "run.submit" RunSubmit(SubmitParams) -> Submitted, "Queues a run; replies once that is durable.";
    "run.list" RunList(ListParams) -> RunPage, "Runs by selector, newest first.";
    "run.show" RunShow(ShowParams) -> Shown, "One run, with a page of its transcript.";
    "run.wait" RunWait(WaitParams) -> WaitReply, "Replies when a run has reached a state.";
    "run.output" RunOutput(OutputParams) -> OutputReply, "Bytes of a stream of a call, by range.";
    "run.cancel" RunCancel(CancelParams) -> Changed, "Ends runs and what is below them.";
    "run.pause" RunPause(SelectParams) -> Changed, "Pauses runs.";
    "run.resume" RunResume(SelectParams) -> Changed, "Lets paused runs go on.";
    "run.retry" RunRetry(RetryParams) -> Submitted, "Makes a new run with the specification of a finished one.";
    "run.message" RunMessage(MessageParams) -> Submitted, "Tells a run something; a finished one goes on as a new run.";
    "run.export" RunExport(ExportParams) -> Exported, "Everything that happened to a run.";
    "run.prune" RunPrune(PruneParams) -> Changed, "Removes finished runs for good.";
    "blob.get" BlobGet(BlobParams) -> Blob, "A long text that events name by its hash, by range.";
    "interaction.list" InteractionList(InteractionListParams) -> Interactions, "Open interactions, oldest first.";
    "interaction.answer" InteractionAnswer(AnswerParams) -> Answered, "Settles one; the first answer wins.";
    "lane.list" LaneList(Empty) -> Lanes, "Every lane's report.";
    "lane.relieve" LaneRelieve(RelieveParams) -> LaneChanged, "Widens a lane, or undoes that.";
    "lane.resize" LaneResize(ResizeParams) -> LaneChanged, "Sets the width of a lane.";
    "lane.pause" LanePause(LaneParams) -> LaneChanged, "Stops granting.";
    "lane.resume" LaneResume(LaneParams) -> LaneChanged, "Grants again.";
    "provider.list" ProviderList(Empty) -> ProviderViews, "Providers as they are configured.";
    "provider.check" ProviderCheck(ProviderCheckParams) -> ProviderChecks, "Asks providers for a word; a good answer \
     lets a held lane go on.";
    "event.subscribe" EventSubscribe(SubscribeParams) -> Subscribed, "Events from a number on, then live.";
    "event.unsubscribe" EventUnsubscribe(UnsubscribeParams) -> Empty, "Ends a subscription.";
}
