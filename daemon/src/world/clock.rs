//! The time that events bear: the wall clock, without its jumps back. Time is an argument; no clock is read here.

use harness_protocol::time::{Span, Timestamp};

use super::boundary::Now;

/// Wall time as steady time: it runs with the monotonic clock, follows the wall clock forward (after a suspend), and
/// stands above it after a jump back, so that no duration is ever negative and no timer waits for the jump to be made up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    base: Option<(Timestamp, Span)>,
}

/// The wall clock may run ahead by this much before it is followed.
const SLACK: Span = Span::from_secs(1);

impl Clock {
    /// The time of a step. Never before `last`.
    pub(crate) fn read(&mut self, now: Now, last: Timestamp) -> Timestamp {
        let steady = self.base.map(|(at, mono)| at + now.mono.saturating_sub(mono));
        let time = match steady {
            Some(steady) if now.wall <= steady + SLACK => steady,
            _ => {
                self.base = Some((now.wall.max(last), now.mono));
                now.wall
            }
        };
        time.max(last)
    }

    /// When that time comes, as time since the daemon started.
    pub(crate) fn mono_at(&self, at: Timestamp) -> Span {
        self.base.map_or(Span::ZERO, |(base, mono)| mono + at.since(base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall: u64, mono: u64) -> Now {
        Now { wall: Timestamp::from_micros(wall * 1_000_000), mono: Span::from_secs(mono) }
    }

    fn read(clock: &mut Clock, wall: u64, mono: u64, last: u64) -> u64 {
        clock.read(at(wall, mono), Timestamp::from_micros(last * 1_000_000)).as_micros() / 1_000_000
    }

    #[test]
    fn time_goes_on_through_a_jump_back_of_the_wall_clock() {
        let mut clock = Clock::default();
        assert_eq!(read(&mut clock, 1000, 0, 0), 1000);
        assert_eq!(read(&mut clock, 400, 10, 1000), 1010);
        assert_eq!(clock.mono_at(Timestamp::from_micros(1_020_000_000)), Span::from_secs(20));
    }

    #[test]
    fn time_follows_a_jump_forward() {
        let mut clock = Clock::default();
        read(&mut clock, 1000, 0, 0);
        assert_eq!(read(&mut clock, 5000, 10, 1000), 5000);
        assert_eq!(clock.mono_at(Timestamp::from_micros(5_001_000_000)), Span::from_secs(11));
    }

    #[test]
    fn a_restart_with_a_clock_set_back_does_not_go_before_the_last_event() {
        let mut clock = Clock::default();
        assert_eq!(read(&mut clock, 400, 0, 1000), 1000);
        assert_eq!(read(&mut clock, 405, 5, 1000), 1005);
    }
}
