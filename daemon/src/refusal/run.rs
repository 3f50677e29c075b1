//! Defines the refusals of changes that the state of a run does not allow.

use harness_protocol::id::RunId;

/// Why a request about a run cannot be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RunRefusal {
    /// It was there when it was found, and is gone: nothing can be changed.
    #[error("run {run} is gone")]
    Gone {
        /// The run that was to be changed.
        run: RunId,
    },
    /// The same for a read.
    #[error("run {run} is gone")]
    NotHere {
        /// The run that was to be read.
        run: RunId,
    },
    /// It was removed.
    #[error("run {run} was pruned")]
    Pruned {
        /// The run that was removed.
        run: RunId,
    },
    /// A retry is of a finished run.
    #[error("run {run} has not ended; a retry is of a finished one")]
    NotEnded {
        /// The run that was to be retried.
        run: RunId,
    },
    /// Another run has submitted it, and a retry of it is a run of the caller, which has to be said.
    #[error(
        "run {run} was submitted by the run {parent}, and a retry of it is a run of yours: where that is meant, name \
         it by its whole id, or say --children where it is to get variables of your environment"
    )]
    OfAnotherRun {
        /// The run that was to be retried.
        run: RunId,
        /// The run that submitted it.
        parent: RunId,
    },
    /// Its model has not read its messages yet.
    #[error("run {run} has too many messages that its model has not read yet")]
    TooManyMessages {
        /// The run that has the messages.
        run: RunId,
    },
    /// It is being ended.
    #[error("run {run} is being ended")]
    BeingEnded {
        /// The run that was to be changed.
        run: RunId,
    },
    /// A run that goes on from it would begin with nothing.
    #[error("run {run} has no transcript to go on from")]
    NoTranscript {
        /// The run that was to be continued.
        run: RunId,
    },
    /// Only finished runs are removed.
    #[error("run {run} is live; cancel it first")]
    Live {
        /// The run that was to be removed.
        run: RunId,
    },
    /// A run of its tree is live.
    #[error("run {run} stays: something of its tree is live and may ask for its answer")]
    TreeLive {
        /// The run that was to be removed.
        run: RunId,
    },
    /// Trees are removed as a whole.
    #[error("run {run} belongs to the tree of {root}, which goes as a whole: prune that")]
    PartOfTree {
        /// The run that was to be removed.
        run: RunId,
        /// The top of its tree.
        root: RunId,
    },
}
