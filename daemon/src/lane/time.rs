//! Moves a lane's timestamps when the clock is set, so that every span stays the same. The statistics of waits and
//! saturation begin anew.

use harness_protocol::time::{Span, Timestamp};

use super::Lane;
use super::report::Waits;
use super::saturation::Saturation;

/// A change of the clock: instead of `from`, it shows `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSet {
    /// The time that the clock would show without the change.
    pub from: Timestamp,
    /// The time that the clock shows now.
    pub to: Timestamp,
}

impl TimeSet {
    /// The change in microseconds; negative if the clock goes back.
    pub fn by(self) -> i64 {
        let micros = |span: Span| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        micros(self.to.since(self.from)) - micros(self.from.since(self.to))
    }

    /// Adjusts a time that is shown, of a past event: only a time that would be in the future is moved.
    pub fn shown(self, at: Timestamp) -> Timestamp {
        if self.to < self.from && at > self.to { at.before(self.from.since(self.to)) } else { at }
    }

    /// Adjusts the start of a measured time: as much time has passed since then as before.
    pub fn measured(self, at: Timestamp) -> Timestamp {
        if at == Timestamp::default() || (self.to > self.from && at > self.from) { at } else { self.future(at) }
    }

    /// Adjusts a deadline: as much time is left until then as before.
    pub fn future(self, at: Timestamp) -> Timestamp {
        (at + self.to.since(self.from)).before(self.from.since(self.to))
    }
}

impl Lane {
    /// Adjusts the lane's times, so that no ticket appears to have waited longer or shorter. The histories of waits and
    /// saturation are discarded.
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
