//! Defines the reasons of refusals, for programs. The set is closed.
//!
//! The message beside a reason is for people and may change; the reason stays. If a reason is about one thing, the
//! refusal has it beside the reason as a [`Subject`](crate::rpc::Subject).

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Why a request is refused. Every error of this version has one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        pub enum Reason {
            $($(#[$doc])+ $name,)+
            /// A reason of a daemon of another version, which this program does not know.
            #[serde(other)]
            Other,
        }

        impl Reason {
            /// Every reason that this version gives.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

reasons! {
    // The line, the peer and the connection.
    /// The line is not JSON, is not a request, or is too long or too slow to come.
    BadRequest,
    /// There is no method of this name.
    UnknownMethod,
    /// The parameters do not fit the method.
    BadParams,
    /// The client speaks another major version of the protocol.
    OtherVersion,
    /// The user may not use this daemon.
    UserNotAllowed,
    /// A process of a run may only submit children of its run and look at its own tree.
    OwnTreeOnly,
    /// The process of the caller cannot be identified, so it has no rights.
    CallerUnknown,
    /// There are too many connections, or the system has no room for another one.
    TooManyConnections,
    /// Requests that are not finished take all the memory for requests.
    NoMemory,
    /// Too many requests of this connection wait already.
    TooManyWaits,
    /// The connection has as many subscriptions as it may have.
    TooManySubscriptions,
    /// The connection has no such subscription.
    UnknownSubscription,
    /// There is no kind of event of this name.
    UnknownEventKind,
    /// The answer does not fit into a frame.
    AnswerTooLarge,

    // Which thing is meant.
    /// No run has this id or name.
    UnknownRun,
    /// Several runs or interactions fit the text that names one.
    AmbiguousName,
    /// The request selects nothing: no run is named, and no criterion is given.
    NothingSelected,
    /// There is no such interaction.
    UnknownInteraction,
    /// The run has no such call.
    UnknownCall,
    /// There is no text with this hash, or no event that the caller may see names it.
    UnknownText,
    /// There is no such lane.
    UnknownLane,
    /// There is no such relief, or it has ended.
    UnknownRelief,
    /// No share of this name is configured.
    UnknownShare,
    /// No provider of this name is configured.
    UnknownProvider,
    /// The request names a tool that does not exist.
    UnknownTool,

    // What is wrong with a specification, or a text.
    /// A text, or the specification as a whole, has more bytes than allowed. Bytes are counted as JSON.
    TooLarge,
    /// A text has control characters, characters that change the direction or the order of the text, or characters that
    /// cannot be seen.
    ControlCharacters,
    /// A text that is needed is missing or empty.
    TextMissing,
    /// The text cannot be the name of a run.
    BadName,
    /// A label cannot be taken, or there are too many.
    BadLabel,
    /// A limit is out of its bounds.
    BadLimit,
    /// The deadline of the new run has passed already.
    DeadlinePassed,
    /// The idempotency key cannot be taken.
    BadKey,
    /// The path of the working directory is not absolute.
    BadWorkdir,
    /// The provider plays scripts, and the run has none.
    ScriptMissing,
    /// No model is named for the run, and its provider has none.
    ModelMissing,
    /// The run has a limit on cost, and the price of a provider is not configured.
    PriceMissing,
    /// A pattern of a script cannot be read.
    BadPattern,
    /// A pattern of a script, or all of its patterns together, would take too much memory.
    PatternTooLarge,
    /// A script cannot be played for another reason.
    BadScript,
    /// A variable for the calls has an invalid name, or a name that the harness sets itself.
    BadVariable,
    /// The client offered variables of its environment, and the daemon wants these: the submit can be repeated with
    /// them.
    PassVariables,
    /// A run inside another run asks for another share than that run has.
    OtherShare,

    // The working directory.
    /// The path of the working directory means another folder to the daemon than to the client: the two are in
    /// different mount namespaces, or the folder was replaced in between.
    OtherFolder,
    /// The daemon cannot open the working directory: it is missing, not a directory, or may not be entered.
    NoWorkdir,
    /// The working directory did not answer in time, for example a network mount whose server is gone.
    WorkdirSilent,
    /// A request says that a descriptor comes with it, and none came.
    NoDescriptor,

    // Whether there can be a new run now.
    /// The run that was submitted under this idempotency key has another specification.
    KeyTaken,
    /// Another caller has sent this submit key.
    SubmitKeyTaken,
    /// A live run has this name.
    NameTaken,
    /// As many runs are live as there may be.
    TooManyRuns,
    /// The tree keeps too many finished runs to get another one.
    TooManyKept,
    /// The tree has as many levels as it may have.
    TooManyLevels,
    /// The run has as many children as it may have.
    TooManyChildren,
    /// The run that submits has ended, or is being ended.
    ParentEnded,
    /// The daemon is draining: it takes no new runs.
    Draining,

    // The state of a run, or of an interaction.
    /// The run is no longer there.
    RunGone,
    /// The run has not ended.
    NotEnded,
    /// The run is being ended.
    BeingEnded,
    /// The run was submitted by another run, and a retry of it is a run of the caller.
    ChildRun,
    /// The run has too many messages that its model has not read yet.
    TooManyMessages,
    /// The run has no transcript to go on from.
    NoTranscript,
    /// A run of the tree is live.
    TreeLive,
    /// The run is a part of a tree, which is removed as a whole.
    PartOfTree,
    /// The run asks nothing.
    AsksNothing,
    /// Another client answered first.
    AlreadyAnswered,
    /// The interaction is no longer asked: its run has ended, or its time was up.
    NoLongerAsked,
    /// An interaction of this kind is not settled like this.
    ResolutionUnfit,

    // Lanes.
    /// The width is out of its bounds.
    BadWidth,
    /// The relief is too wide, too long, or has no time.
    BadRelief,
    /// The lane has as many reliefs as it may have.
    TooManyReliefs,

    // Subscriptions.
    /// A subscription is of one run, or of several.
    BadSubscription,
    /// The tree has more runs than one subscription can follow.
    TreeTooLarge,
    /// The event has not happened.
    EventNotHappened,

    // The daemon and its disk.
    /// The daemon is stopping. The request can be sent to the next daemon.
    Stopping,
    /// The journal cannot commit, or its disk does not answer.
    JournalHeld,
    /// The journal cannot be read.
    JournalUnreadable,
    /// The output of a call cannot be read.
    OutputUnreadable,
    /// The backup cannot be written.
    BackupFailed,
    /// The configuration cannot be used; the old one stays.
    BadConfiguration,
    /// A file, or a database, that the configuration needs did not answer in time; the old configuration stays.
    ConfigurationSilent,
    /// Internal error (bug).
    Fault,
}
