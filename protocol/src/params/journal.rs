//! Defines the daemon's reports about its journal: its identity, and the problems that a start found in it. The only
//! place with the words for these problems. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::event::EpochReason;
use crate::id::{EpochId, Seq};
use crate::time::Span;

/// The journal that a daemon serves.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JournalReport {
    /// The epoch of its events; a client sends it beside its cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochId>,
    /// Number of the first event of the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Seq>,
    /// Problems of the journal; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
}

/// A problem of a daemon's state, found at a start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Finding {
    /// There was a journal here, and it is gone: a new one was made.
    JournalGone {
        /// Number of the journal's last event.
        had: Seq,
    },
    /// The journal lacks its last events.
    EventsLost {
        /// Number of the last event that it had.
        had: Seq,
        /// Number of the last event that it has.
        has: Seq,
    },
    /// The journal is another one than before.
    Replaced {
        /// What the journal is instead.
        reason: EpochReason,
    },
    /// A write-ahead log belonged to another journal than the one beside it; it was moved aside.
    StrangeLog {
        /// Where it is now.
        moved_to: String,
    },
    /// There are outputs of runs that the journal does not know, and does not list as pruned. None of them was deleted.
    UnknownOutputs {
        /// Number of such runs.
        runs: u64,
        /// Their present place; absent if they were not moved.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        moved_to: Option<String>,
    },
    /// Records of runs cannot be read, or are missing; live runs among them were ended.
    UnreadableRuns {
        /// Number of such runs.
        runs: u64,
    },
    /// The clock was once in the future: some events have a time that is ahead of it.
    ClockAhead {
        /// How far they are ahead.
        seconds: Span,
    },
}

/// Says in words what the problem is, and what to do.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JournalGone { had } => write!(
                f,
                "the journal that was here is gone (it had {had} events), and a new one was begun; to go on from a \
                 backup: harnessctl daemon restore FILE"
            ),
            Self::EventsLost { had, has } => write!(
                f,
                "the journal lacks its last events: it had event {had}, and ends with {has}; what happened after it \
                 is not known"
            ),
            Self::Replaced { reason } => {
                write!(f, "a new epoch of events began with this start: {reason}; what runs were in it goes on")
            }
            Self::StrangeLog { moved_to } => write!(
                f,
                "harness.db-wal belonged to another journal than the harness.db beside it; it was moved to {moved_to}"
            ),
            Self::UnknownOutputs { runs, moved_to: Some(to) } => write!(
                f,
                "there were outputs of runs that the journal does not know ({runs}); they were moved to {to}, and \
                 nothing was deleted"
            ),
            Self::UnknownOutputs { runs, moved_to: None } => {
                write!(f, "there are outputs of runs that the journal does not know ({runs}); they stay where they are")
            }
            Self::UnreadableRuns { runs } => write!(
                f,
                "records of runs cannot be read or are missing ({runs}); those that had not ended were ended, and the \
                 log names them"
            ),
            Self::ClockAhead { seconds } => write!(
                f,
                "events bear a time {} s ahead of the clock, which was once in the future; their time is set back \
                 when the clock has gone on steadily for ten minutes",
                seconds.as_micros() / 1_000_000
            ),
        }
    }
}
