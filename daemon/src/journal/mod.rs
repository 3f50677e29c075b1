//! The journal: where events are before anything that they announce is done or shown.
//!
//! Owns what a commit promises. Never decides what is committed, and never shows anything.

pub mod key;
pub mod memory;

use std::future::Future;
use std::sync::Arc;

use harness_protocol::event::Event;

/// What a commit promises once it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommitClass {
    /// The events survive the end of the process, however it comes.
    Written,
    /// They survive power loss.
    Synced,
}

/// Why a commit did not go through. Nothing of it is in the journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal cannot commit: {reason}")]
pub struct CommitError {
    /// For the operator.
    pub reason: String,
}

/// A journal. One writer; a commit is whole or not at all.
pub trait Journal: Send + 'static {
    /// Appends the events of one step.
    ///
    /// # Errors
    /// Where nothing was written. The same events may be offered again.
    fn commit(
        &mut self,
        events: &[Arc<Event>],
        class: CommitClass,
    ) -> impl Future<Output = Result<(), CommitError>> + Send;
}
