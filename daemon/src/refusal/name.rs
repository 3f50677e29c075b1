//! Defines the refusals of names and ids that mean no run, question or call, or more than one.

use std::sync::Arc;

use harness_protocol::blob::BlobHash;
use harness_protocol::id::{CallId, InteractionId, RunId};

use super::{listed, shown};

/// Why it is not known which thing a request means.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameRefusal {
    /// No run has this id or name.
    #[error("no run {}", shown(.name))]
    NoRun {
        /// The text that names it.
        name: String,
    },
    /// The caller is a run, and no run of its tree has this id or name. It is the same whatever runs
    /// there are elsewhere.
    #[error("no run {} in the caller's own tree, and a run sees no other", shown(.name))]
    NoRunInTree {
        /// The text that names it.
        name: String,
    },
    /// An operator names a child: a name means only runs that operators submitted.
    #[error(
        "a child run has the name {}, and a name means only runs that operators submitted: use its id, {}",
        shown(.name),
        listed(.runs)
    )]
    ChildName {
        /// The name that the caller gave.
        name: String,
        /// The children of that name, or the first of them.
        runs: Vec<RunId>,
    },
    /// The last run of a user is wanted who has submitted none.
    #[error("you have submitted no run")]
    NoRunYet,
    /// Several runs have ids that begin so, or names.
    #[error("{} may be any of {}", shown(.name), listed(.runs))]
    SeveralRuns {
        /// The text that names them.
        name: String,
        /// The runs, or the first of them.
        runs: Vec<RunId>,
    },
    /// The text is the name of one run, and the beginning of the id of another one.
    #[error(
        "{} is the name of run {named} and the beginning of the id of run {other}; give the whole id",
        shown(.name)
    )]
    NameAndId {
        /// The text that the client gave.
        name: String,
        /// The run of that name.
        named: RunId,
        /// The run whose id begins so.
        other: RunId,
    },
    /// The text is the name of a run, and the beginning of the id of an interaction.
    #[error(
        "{} is the name of a run and the beginning of the id of the interaction {interaction}; give the whole id",
        shown(.name)
    )]
    NameAndInteraction {
        /// The text that the client gave.
        name: String,
        /// The interaction whose id begins so.
        interaction: InteractionId,
    },
    /// Several open interactions have ids that begin so, or are of the run that is meant.
    #[error("{} may be any of {}", shown(.name), listed(.interactions))]
    SeveralInteractions {
        /// The text that names them.
        name: String,
        /// The interactions, or the first of them.
        interactions: Vec<InteractionId>,
    },
    /// There is no such interaction, and no run that could ask one.
    #[error("no interaction {}", shown(.name))]
    NoInteraction {
        /// The text that names it.
        name: String,
    },
    /// The run has no such call.
    #[error("run {run} has no call {call}")]
    NoCall {
        /// The run that was to have the call.
        run: RunId,
        /// The id of the call.
        call: CallId,
    },
    /// No event that the caller may see names such a text.
    #[error("there is no text {hash}")]
    NoText {
        /// The hash that was to be that of a text.
        hash: BlobHash,
    },
    /// No provider of this name is configured, and one is to be checked.
    #[error("no provider {} is configured; there are: {}", shown(.provider), listed(.known))]
    NoProvider {
        /// The provider that was named.
        provider: String,
        /// Those that are configured.
        known: Vec<Arc<str>>,
    },
    /// No run is named, and no criterion is given: that would be every run.
    #[error("name the runs, or select them by label, by state, by what they wait for, or all")]
    NothingSelected,
    /// The same for a removal.
    #[error("name the runs, or select them by label, state or age, or all")]
    NothingToPrune,
}

impl NameRefusal {
    /// Whether no run of the world has the id or name. The journal may know it.
    pub const fn is_unknown_run(&self) -> bool {
        matches!(self, Self::NoRun { .. } | Self::NoRunInTree { .. } | Self::ChildName { .. } | Self::NoRunYet)
    }

    /// Whether several things fit.
    pub const fn is_ambiguous(&self) -> bool {
        match self {
            Self::SeveralRuns { .. }
            | Self::NameAndId { .. }
            | Self::NameAndInteraction { .. }
            | Self::SeveralInteractions { .. } => true,
            Self::NoRun { .. }
            | Self::NoRunInTree { .. }
            | Self::ChildName { .. }
            | Self::NoRunYet
            | Self::NoInteraction { .. }
            | Self::NoCall { .. }
            | Self::NoText { .. }
            | Self::NoProvider { .. }
            | Self::NothingSelected
            | Self::NothingToPrune => false,
        }
    }
}
