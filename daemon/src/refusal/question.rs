//! Defines the refusals of answers to what is not asked any more, never was, or is not settled like that.

use harness_protocol::id::{InteractionId, RunId};
use harness_protocol::interaction::{InteractionKind, Resolution};
use harness_protocol::time::Timestamp;

/// Why an interaction is not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuestionRefusal {
    /// The run asks nothing.
    #[error("run {run} asks nothing")]
    AsksNothing {
        /// The run that was to be answered.
        run: RunId,
    },
    /// Another client was first.
    #[error("{} answered {interaction} first, at {at}", user(*.by))]
    Answered {
        /// The interaction that is settled.
        interaction: InteractionId,
        /// The user of that client, where it is known.
        by: Option<u32>,
        /// When that was.
        at: Timestamp,
    },
    /// Its run has ended.
    #[error("{interaction} is no longer asked: run {run} has ended")]
    NoLongerAsked {
        /// The interaction that was closed.
        interaction: InteractionId,
        /// The run that had asked.
        run: RunId,
    },
    /// Its time was up.
    #[error("{interaction} is no longer asked: its time was up at {at}")]
    Expired {
        /// The interaction that is settled as expired.
        interaction: InteractionId,
        /// When that was.
        at: Timestamp,
    },
    /// No interaction of this kind is settled like this.
    #[error(
        "{interaction} is of the kind {kind}, which is not settled as {resolution}: {}",
        kind.how_to_settle(interaction)
    )]
    Unfit {
        /// The interaction, which stays open.
        interaction: InteractionId,
        /// The kind that it was opened with.
        kind: InteractionKind,
        /// The resolution that does not fit.
        resolution: Resolution,
    },
    /// An answer with a scope.
    #[error("an answer to {interaction} has no scope: only what is allowed or denied has one")]
    NoScope {
        /// The interaction, which stays open.
        interaction: InteractionId,
    },
    /// It was there when it was found, and is gone.
    #[error("no interaction {interaction}")]
    Gone {
        /// The interaction that was named.
        interaction: InteractionId,
    },
}

fn user(uid: Option<u32>) -> String {
    uid.map_or_else(|| "somebody".to_owned(), |uid| format!("user {uid}"))
}
