//! Defines the refusals of changes of lanes.

use std::sync::Arc;

use harness_protocol::id::ReliefId;

use super::{listed, shown};

/// Why a lane cannot be changed like this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaneRefusal {
    /// There is no such lane.
    #[error("no lane {}; there are: {}", shown(.lane), listed(.known))]
    NoLane {
        /// The lane that was named.
        lane: Arc<str>,
        /// Those that there are.
        known: Vec<Arc<str>>,
    },
    /// A relief for no time.
    #[error("a relief lasts for more than 0 seconds, or for good")]
    ReliefForNoTime {
        /// The lane that was to get the relief.
        lane: Arc<str>,
    },
    /// A relief for too long a time.
    #[error("a relief lasts for at most {days} days; leave the time out for one that is to stay")]
    ReliefTooLong {
        /// The lane that was to get the relief.
        lane: Arc<str>,
        /// The bound, in days.
        days: u64,
    },
    /// A relief of too many permits.
    #[error("a relief adds at most {most} permits")]
    ReliefTooWide {
        /// The lane that was to get the relief.
        lane: Arc<str>,
        /// Most permits of one relief.
        most: u32,
    },
    /// The lane has as many reliefs as it may have.
    #[error("lane {lane} has {most} reliefs in force; undo some, or resize it")]
    TooManyReliefs {
        /// The lane that has these reliefs.
        lane: Arc<str>,
        /// Most reliefs of a lane at once.
        most: usize,
    },
    /// There is no such relief, or it has ended.
    #[error("no relief {relief} of lane {lane} is in force")]
    NoRelief {
        /// The lane that the relief was looked for in.
        lane: Arc<str>,
        /// The relief that was named.
        relief: ReliefId,
    },
    /// The width is too large.
    #[error("a lane is at most {most} wide")]
    TooWide {
        /// The lane that was to be resized.
        lane: Arc<str>,
        /// The largest width.
        most: u32,
    },
    /// The width is 0.
    #[error("a lane is at least 1 wide; to stop granting: harnessctl lane pause {lane}")]
    TooNarrow {
        /// The lane that was to be resized.
        lane: Arc<str>,
    },
}
