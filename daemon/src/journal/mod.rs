//! The journal stores every event before its effects are executed or shown.
//!
//! ```text
//!   driver ──Commit──▶ store ──▶ writer (a thread) ──▶ harness.db ◀── history: all readers
//!                                                          │
//!                                start: replay ◀───────────┘
//! ```
//!
//! Owns the guarantees of a commit and the format of records. Must never decide what is committed, and never show
//! anything.

pub mod backup;
pub mod damage;
pub mod disk;
pub mod epochs;
pub mod failpoints;
mod handle;
pub mod history;
pub mod identity;
pub mod made;
pub mod memory;
mod record;
pub mod replay;
mod reserve_file;
pub mod salvage;
pub mod schema;
mod writer;

use std::future::Future;
use std::io::{self, Read};
use std::sync::Arc;

use harness_protocol::event::Event;
use harness_protocol::run::RunView;

pub use handle::{FILE, Store};
pub use record::Record;
pub use reserve_file::Ballast;
pub use writer::Writer;

/// What a commit promises once it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommitClass {
    /// The events survive the end of the process, however it comes.
    Written,
    /// They survive power loss.
    Synced,
}

/// What a step came to, as far as it has to last.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Commit {
    /// What happened, in order.
    pub events: Vec<Arc<Event>>,
    /// Runs that left the world with it, as they are listed from here on.
    pub archived: Vec<RunView>,
}

/// Why a commit did not go through. Nothing of it is in the journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal cannot commit: {reason}")]
pub struct CommitError {
    /// What can be done about it.
    pub fault: CommitFault,
    /// For the operator.
    pub reason: String,
}

/// What stands in the way of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    /// There is no room.
    Full,
    /// Nothing may be written there.
    ReadOnly,
    /// Another program writes.
    Locked,
    /// The file is damaged.
    Damaged,
    /// The daemon's own limit of file size is met. Another process of the user has set it.
    Limited,
    /// The disk fails.
    Failing,
    /// Internal error (bug): the same commit can never succeed.
    Ours,
}

impl CommitFault {
    /// What the operator is to do.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Full => "make room there (`harnessctl prune`), then it goes on by itself",
            Self::ReadOnly => "make it writable, then it goes on by itself",
            Self::Locked => "end that program's transaction, then it goes on by itself",
            Self::Damaged => {
                "stop the daemon, and put a backup in its place (harnessd restore FILE) or save what can be read (harnessd salvage)"
            }
            Self::Limited => {
                "a process of this user has lowered the daemon's limit of file size: raise it as root (prlimit --pid PID \
                 --fsize=unlimited), and it goes on by itself, or start the daemon anew"
            }
            Self::Failing => "see the kernel's log; it goes on by itself once the disk works",
            Self::Ours => "the daemon ends, and goes on from what was committed with its next start",
        }
    }
}

/// A journal. One writer; a commit is whole or not at all.
pub trait Journal: Send + 'static {
    /// Begins to append what a step came to; the answer tells when that is done. The next one is begun after it.
    ///
    /// # Errors
    /// The answer is one where nothing was written. The same may be offered again.
    fn commit(
        &mut self,
        commit: &Arc<Commit>,
        class: CommitClass,
    ) -> impl Future<Output = Result<(), CommitError>> + Send + 'static;

    /// Gives space that pruned runs have left back to the file system. Says whether there is more.
    ///
    /// # Errors
    /// Where that fails; nothing is lost.
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
