//! Defines the refusals of answers to questions that are not asked any more, or never were.

use harness_protocol::id::{InteractionId, RunId};
use harness_protocol::time::Timestamp;

/// Why there is nothing to answer.
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
