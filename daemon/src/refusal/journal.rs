//! Defines the refusals that the journal and its disk cause.

use harness_protocol::blob::BlobHash;
use harness_protocol::id::RunId;
use harness_protocol::json_size::quoted;
use harness_protocol::time::Span;

/// Why the journal does not do what a request wants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalRefusal {
    /// It cannot be read.
    #[error("{why}")]
    Unreadable {
        /// What is wrong, as SQLite or the system says, with the path.
        why: String,
    },
    /// The read was not carried out.
    #[error("the journal could not be read")]
    NotRead,
    /// The records of a run do not give the run.
    #[error("the records of run {run} cannot be read")]
    Records {
        /// The run whose records they are.
        run: RunId,
    },
    /// The output of a call cannot be read.
    #[error("the output cannot be read: {why}")]
    Output {
        /// What is wrong, as the system says.
        why: String,
    },
    /// A text that an event names is missing or damaged.
    #[error("{why}")]
    Text {
        /// The name of the text.
        hash: BlobHash,
        /// What is wrong with it.
        why: String,
    },
    /// The read of an output was not carried out.
    #[error("the output could not be read")]
    OutputNotRead,
    /// It cannot commit, or its disk does not answer.
    #[error("held: {}{request}", .why.as_deref().unwrap_or("the journal cannot commit"))]
    Held {
        /// Why, as the operator is told it, where that is known.
        why: Option<String>,
        /// When it is tried again, at the latest.
        retry: Span,
        /// What that means for the request.
        request: HeldRequest,
    },
    /// The path of a backup is not absolute.
    #[error("{} is not absolute", quoted(.path))]
    BackupNotAbsolute {
        /// The path, as the client gave it.
        path: String,
    },
    /// A backup cannot be written.
    #[error("{path}: {why}")]
    Backup {
        /// The file that was to be written.
        path: String,
        /// What is wrong, as the system says.
        why: String,
    },
}

/// What it means for a request that the journal is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldRequest {
    /// It is refused.
    Refused,
    /// It is refused, because it would read from the disk.
    NotRead,
    /// It was taken, and may still take effect.
    Undecided,
}

impl std::fmt::Display for HeldRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Refused => "",
            Self::NotRead => "; what is not in memory is not read",
            Self::Undecided => "; what was asked may still take effect once it commits",
        })
    }
}
