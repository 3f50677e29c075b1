//! Defines the refusals of new runs whose specification is valid: because of a key, a name, a full daemon, or the run
//! that submits.

use std::sync::Arc;

use harness_protocol::id::RunId;

/// Why there can be no such new run now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NewRunRefusal {
    /// The idempotency key is empty or too long.
    #[error("an idempotency key has 1 to 256 bytes")]
    KeyLength,
    /// Both kinds of keys are given.
    #[error("a submit has an idempotency key or a submit key, not both")]
    TwoKeys,
    /// Another caller has sent the submit key.
    #[error("another caller has sent this submit key")]
    SubmitKeyTaken,
    /// The run that has the idempotency key was submitted with another specification.
    #[error("run {run} was submitted under this idempotency key with another specification")]
    KeyTaken {
        /// The run that has it.
        run: RunId,
    },
    /// The client can send variables of its environment along, and the configuration wants some.
    #[error("the configuration wants variables of the client's environment sent along (tool.shell.pass)")]
    PassVariables {
        /// The names of the variables.
        names: Vec<Arc<str>>,
    },
    /// A live run has the name.
    #[error("the live run {run} has the name {name:?}")]
    NameTaken {
        /// The name that both runs would have.
        name: String,
        /// The run that has it.
        run: RunId,
    },
    /// The daemon drains.
    #[error("the daemon is draining; it takes new runs after `daemon undrain`")]
    Draining,
    /// As many runs are live as there may be.
    #[error("{most} runs are live already (limits.live_runs); try again when some have ended")]
    TooManyLive {
        /// The configured bound.
        most: u32,
    },
    /// The same for runs that other runs submit: a part of the bound is not for them.
    #[error(
        "{live} runs are live already, and the rest of limits.live_runs is kept for operators; try again when some \
         have ended"
    )]
    TooManyLiveForChildren {
        /// Number of live runs.
        live: usize,
    },
    /// The tree keeps more finished runs than its part.
    #[error(
        "{kept} finished runs are kept for what is live of the tree of run {root} (limits.finished_runs); it gets \
         more when that has ended"
    )]
    TooManyKept {
        /// The top of the tree.
        root: RunId,
        /// Number of its finished runs.
        kept: usize,
    },
    /// The run that submits is no longer there.
    #[error("the parent {parent} is gone")]
    ParentGone {
        /// The run that submits.
        parent: RunId,
    },
    /// The run that submits has ended.
    #[error("the parent {parent} has ended")]
    ParentEnded {
        /// The run that submits.
        parent: RunId,
    },
    /// The run that submits is being ended.
    #[error("the parent {parent} is being ended")]
    ParentBeingEnded {
        /// The run that submits.
        parent: RunId,
    },
    /// The tree has as many levels as it may have.
    #[error("a tree of runs has at most {most} levels (limits.depth)")]
    TooManyLevels {
        /// The configured bound.
        most: u32,
    },
    /// The run that submits has as many children as it may have.
    #[error("a run has at most {most} children (limits.children)")]
    TooManyChildren {
        /// The configured bound.
        most: u32,
    },
}
