//! Derives from a run's phase the state that clients see, and the account in which its time counts.

use harness_protocol::run::{RunState, Timing};
use harness_protocol::time::{Span, Timestamp};

use super::components::{BatchState, Life, Stage, Stopwatch};
use super::phase::{Bucket, Phase};
use crate::lane::{Lane, TicketState};

/// State and bucket of a run. `tool_lane` is where its batch's ticket lies.
pub(crate) fn condition(life: &Life, batch: Option<&BatchState>, tool_lane: &Lane) -> (RunState, Bucket) {
    let at_work = match life.phase() {
        Phase::Ended(state) => return (state, Bucket::None),
        Phase::Thinking(_) => (RunState::Thinking, Bucket::Model),
        Phase::Acting if batch.is_some_and(|batch| batch.executing() > 0) => (RunState::Acting, Bucket::Tools),
        Phase::Acting => acting(batch, tool_lane),
        Phase::Retrying(_) => (RunState::Thinking, Bucket::Retry),
        Phase::Resting | Phase::Wanting(_) | Phase::Postponed(_) if life.started_at.is_none() => {
            (RunState::Queued, Bucket::Queued)
        }
        // Until the model answers, the time between two tries is that of a retry, also where the lane is left alone.
        Phase::Wanting(_) if life.trouble.is_some() => (RunState::Thinking, Bucket::Retry),
        Phase::Resting | Phase::Wanting(_) => (RunState::Thinking, Bucket::Lane),
        Phase::Postponed(_) => (RunState::Waiting, Bucket::Waiting),
    };
    match at_work {
        // What executes goes on executing while the run is paused, and its time is spent on that.
        (_, bucket @ (Bucket::Model | Bucket::Tools)) if life.paused => (RunState::Paused, bucket),
        _ if life.paused => (RunState::Paused, Bucket::Paused),
        other => other,
    }
}

fn acting(batch: Option<&BatchState>, tool_lane: &Lane) -> (RunState, Bucket) {
    match batch.and_then(|batch| batch.ticket).and_then(|ticket| tool_lane.state(ticket)) {
        Some(TicketState::Parked) => (RunState::Waiting, Bucket::Waiting),
        Some(TicketState::Queued | TicketState::Deferred | TicketState::Resuming | TicketState::Busy) => {
            (RunState::Acting, Bucket::Lane)
        }
        // A run that is being ended has given up its ticket while a job of it waits off the lane.
        None if batch.is_some_and(|batch| batch.calls.iter().any(|call| call.stage == Stage::OffLane)) => {
            (RunState::Waiting, Bucket::Waiting)
        }
        None => (RunState::Acting, Bucket::Lane),
    }
}

impl Stopwatch {
    /// Lets the time from here on go to `bucket`.
    pub(crate) fn turn_to(&mut self, bucket: Bucket, now: Timestamp) {
        if bucket == self.bucket {
            return;
        }
        self.timing = self.timing_at(now);
        self.bucket = bucket;
        self.since = now;
    }

    /// Where the time up to `now` went.
    pub(crate) fn timing_at(&self, now: Timestamp) -> Timing {
        let mut timing = self.timing;
        if let Some(span) = self.bucket.of(&mut timing) {
            *span = *span + now.since(self.since);
        }
        timing
    }

    /// Time spent in inference and execution up to `now`.
    pub(crate) fn worked(&self, now: Timestamp) -> Span {
        let timing = self.timing_at(now);
        timing.model + timing.tools
    }
}
