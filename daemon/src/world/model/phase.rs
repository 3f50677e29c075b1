//! Defines the phase of a run, which is its authoritative state. The state that clients see and the accounting of time
//! are derived from it (`world/model/run_state.rs`).

use harness_protocol::id::RunId;
use harness_protocol::run::{RunState, Timing};
use harness_protocol::time::{Span, Timestamp};

use crate::lane::TicketId;

/// Phase of a run.
///
/// ```text
///            step-begun           inference-started
///  Resting ─────────────▶ Wanting ─────────────────▶ Thinking ──▶ Retrying
///   ▲   │                    ▲                        │    │          │
///   │   │                    └────────────────────────┼────┼──────────┘ step-begun
///   │   │ run-finished       no calls                 │    │ calls
///   │   ▼               ┌─────────────────────────────┘    ▼
///   │  Ended            ▼                                Acting
///   └──────────────── Resting ◀─────────────────────────────┘ (step-begun or run-finished follow in the same step)
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Phase {
    /// Nothing is out and nothing is wanted: what comes next is decided in the same step.
    Resting,
    /// It stands in its provider's lane.
    Wanting(TicketId),
    /// Its inference is out.
    Thinking(TicketId),
    /// It asks the provider again at that time.
    Retrying(Timestamp),
    /// What is left of the budget of that run is held for others; it looks again when one of them is back.
    Postponed(RunId),
    /// It has a batch.
    Acting,
    /// Nothing comes after.
    Ended(RunState),
}

/// Where time goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bucket {
    Queued,
    Lane,
    Model,
    Retry,
    Tools,
    Waiting,
    Paused,
    /// The run has ended.
    None,
}

impl Bucket {
    pub(crate) fn of(self, timing: &mut Timing) -> Option<&mut Span> {
        match self {
            Self::Queued => Some(&mut timing.queued),
            Self::Lane => Some(&mut timing.lane),
            Self::Model => Some(&mut timing.model),
            Self::Retry => Some(&mut timing.retry),
            Self::Tools => Some(&mut timing.tools),
            Self::Waiting => Some(&mut timing.waiting),
            Self::Paused => Some(&mut timing.paused),
            Self::None => None,
        }
    }
}
