//! Adjusts a lane's timestamps when the clock is set. Must never decide anything.

use harness_protocol::time::{Span, Timestamp};

use super::Lane;
use super::report::Waits;
use super::saturation::Saturation;

/// The time was set: it would have gone on from `from`, and goes on from `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSet {
    /// The time that it was.
    pub from: Timestamp,
    /// The time that it is.
    pub to: Timestamp,
}

impl TimeSet {
    /// By so many microseconds.
    pub fn by(self) -> i64 {
        let micros = |span: Span| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        micros(self.to.since(self.from)) - micros(self.from.since(self.to))
    }

    /// A time that something happened at, as it is shown: what would be in the future is moved.
    pub fn shown(self, at: Timestamp) -> Timestamp {
        if self.to < self.from && at > self.to { at.before(self.from.since(self.to)) } else { at }
    }

    /// A time since when something is measured: as much has passed since then as before.
    pub fn measured(self, at: Timestamp) -> Timestamp {
        if at == Timestamp::default() || (self.to > self.from && at > self.from) { at } else { self.future(at) }
    }

    /// A time at which something is due: as much is left until then as before.
    pub fn future(self, at: Timestamp) -> Timestamp {
        (at + self.to.since(self.from)).before(self.from.since(self.to))
    }
}

impl Lane {
    /// Moves the lane's times along with the clock, so that no ticket appears to have waited longer or shorter. The
    /// history of waits and saturation is discarded.
    pub fn set_time(&mut self, set: TimeSet) {
        self.slab.iter_mut().for_each(|ticket| ticket.since = set.measured(ticket.since));
        for relief in self.reliefs.values_mut() {
            (relief.since, relief.until) = (set.shown(relief.since), relief.until.map(|until| set.future(until)));
        }
        let was_saturated = self.saturation.since().is_some();
        (self.waits, self.saturation) = (Waits::default(), Saturation::default());
        self.saturation.note(was_saturated, set.to);
    }
}
