//! Stores the events of steps: a commit is in the file as a whole, or not at all.
//!
//! ```text
//!   driver ──Commit──▶ store ──▶ writer (a thread) ──▶ harness.db ◀── history: all readers
//!                                                          │
//!                                start: replay ◀───────────┘
//! ```
//!
//! The only place with the guarantees of a commit and the format of records. The driver must execute effects and show
//! events only after their commit, and must begin a commit only after the one before has ended. Must not decide what is
//! committed (the driver does), and must not show anything.

pub mod backup;
pub mod content;
pub mod damage;
pub mod disk;
pub mod epochs;
pub mod failpoints;
pub mod history;
pub mod identity;
pub mod made_inside_run;
#[cfg(test)]
pub(crate) mod memory;
mod record;
pub mod replay;
mod reserve_file;
pub mod salvage;
pub mod schema;
mod writer;
mod writer_thread;

use std::future::Future;
use std::io::{self, Read};
use std::sync::Arc;

use harness_protocol::event::Event;
use harness_protocol::run::RunView;

pub use record::Record;
pub use reserve_file::Ballast;
pub use writer::Writer;
pub use writer_thread::{FILE, Store};

/// The guarantee of a commit, once it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommitClass {
    /// The events survive the end of the process, however it comes.
    Written,
    /// They survive power loss.
    Synced,
}

/// The result of a step, as far as it has to be stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Commit {
    /// The events of the step, in order.
    pub events: Vec<Arc<Event>>,
    /// Runs that left the world in the step, as lists show them from now on.
    pub archived: Vec<RunView>,
}

/// Why a commit failed. Nothing of it is in the journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal cannot commit: {reason}")]
pub struct CommitError {
    /// The kind of the fault, which tells what can be done.
    pub fault: CommitFault,
    /// The reason, for the operator.
    pub reason: String,
}

/// The kinds of faults of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    /// The disk is full.
    Full,
    /// The file system is read-only.
    ReadOnly,
    /// Another program holds a write lock on the file.
    Locked,
    /// The file is damaged.
    Damaged,
    /// The daemon's own limit of file size is reached. Another process of the user has lowered it.
    Limited,
    /// The disk reports errors.
    Failing,
    /// Internal error (bug): the same commit can never succeed.
    Ours,
}

impl CommitFault {
    /// Advice for the operator.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Full => "make room there (`harnessctl prune`), then it goes on by itself",
            Self::ReadOnly => "make it writable, then it goes on by itself",
            Self::Locked => "end that program's transaction, then it goes on by itself",
            Self::Damaged => {
                "stop the daemon, and put a backup in its place (harnessd restore FILE) or save what can be read \
                 (harnessd salvage)"
            }
            Self::Limited => {
                "a process of this user has lowered the daemon's limit of file size: raise it as root (prlimit --pid \
                 PID --fsize=unlimited), and it goes on by itself, or start the daemon anew"
            }
            Self::Failing => "see the kernel's log; it goes on by itself once the disk works",
            Self::Ours => "the daemon ends, and goes on from what was committed with its next start",
        }
    }
}

/// A journal. One writer; a commit is whole or not at all.
pub trait Journal: Send + 'static {
    /// Begins to append the result of a step. The future ends when that is done. Call it again only after that.
    ///
    /// # Errors
    /// The future ends with an error if nothing was written. The same commit may be tried again.
    fn commit(
        &mut self,
        commit: &Arc<Commit>,
        class: CommitClass,
    ) -> impl Future<Output = Result<(), CommitError>> + Send + 'static;

    /// Gives space of pruned runs back to the file system. Returns whether there is more to give back.
    ///
    /// # Errors
    /// If that fails; nothing is lost.
    fn tidy(&mut self) -> impl Future<Output = Result<bool, CommitError>> + Send + 'static;
}

/// A random key, for the ids of a new journal.
///
/// # Errors
/// If `/dev/urandom` cannot be read.
pub fn fresh_key() -> io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
