//! Computes the time of events from the clocks that the driver reads. Time is an argument; no clock is read here.
//!
//! Between two sets, time follows the monotonic clock, so that no duration is negative and no timer depends on jumps of
//! the wall clock. A small difference to the wall clock is corrected at once if the wall clock is ahead, and by running
//! at half speed if it is behind. A large difference is a *set*: an event moves the world's time, and all times by
//! which the world measures spans. A set forward happens at once; a set backward after the wall clock has run steadily
//! for a while. The moment of a set is decided here; `apply` moves the times.

use harness_protocol::time::{Span, Timestamp};

use crate::world::api::Now;

/// Differences that are made up at once.
const SLACK: Span = Span::from_secs(1);
/// Differences that are made up without a set.
pub(in crate::world) const SMALL: Span = Span::from_secs(60);
/// So long the wall clock has to go on steadily before time is set back to it: it may be the one that is wrong, as
/// before the first look at a time server.
const CONFIRMED: Span = Span::from_secs(600);
/// The daemon may have been away for so long that its start is a set: nothing becomes older by more than this because
/// of one look at the clock.
const LONGEST_AWAY: Span = Span::from_secs(7 * 86_400);

/// Wall time, as far as it is believed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    line: Option<Line>,
    /// What the wall clock says instead, and since when.
    behind: Option<(Timestamp, Span)>,
}

/// How time goes on.
#[derive(Debug, Clone, Copy)]
struct Line {
    at: Timestamp,
    mono: Span,
    /// At half speed.
    slow: bool,
}

/// The time of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) time: Timestamp,
    /// Where time is set: it would have gone on from here.
    pub(crate) set_from: Option<Timestamp>,
}

impl Line {
    fn time(&self, mono: Span) -> Timestamp {
        let passed = mono.saturating_sub(self.mono);
        self.at + if self.slow { Span::from_micros(passed.as_micros() / 2) } else { passed }
    }
}

impl Clock {
    /// The time of a step. Before `last` only where it is set.
    pub(crate) fn read(&mut self, now: Now, last: Timestamp) -> Reading {
        let Some(line) = self.line else { return self.begin(now, last) };
        let time = line.time(now.mono).max(last);
        let line = |at, slow| Some(Line { at, mono: now.mono, slow });
        let ahead = time.since(now.wall);
        if now.wall.since(time) > SMALL {
            (self.line, self.behind) = (line(now.wall, false), None);
            return Reading { time: now.wall, set_from: Some(time) };
        }
        if ahead > SMALL {
            if self.is_confirmed(now) {
                (self.line, self.behind) = (line(now.wall, false), None);
                return Reading { time: now.wall, set_from: Some(time) };
            }
            return Reading { time, set_from: None };
        }
        self.behind = None;
        let is_slow = self.line.is_some_and(|line| line.slow);
        let time = match (is_slow, ahead) {
            _ if now.wall.since(time) > SLACK => now.wall,
            (true, Span::ZERO) => now.wall.max(time),
            (false, ahead) if ahead > SLACK => time,
            _ => return Reading { time, set_from: None },
        };
        self.line = line(time, ahead > SLACK);
        Reading { time, set_from: None }
    }

    /// The first step of a daemon.
    fn begin(&mut self, now: Now, last: Timestamp) -> Reading {
        let time = now.wall.max(last);
        let ahead = time.since(now.wall);
        self.line = Some(Line { at: time, mono: now.mono, slow: ahead > Span::ZERO && ahead <= SMALL });
        self.behind = (ahead > SMALL).then_some((now.wall, now.mono));
        let was_away = last > Timestamp::default() && time.since(last) > LONGEST_AWAY;
        Reading { time, set_from: was_away.then_some(last) }
    }

    /// Whether the wall clock, which is behind, has gone on steadily for long enough.
    fn is_confirmed(&mut self, now: Now) -> bool {
        let goes_on = |&(wall, mono): &(Timestamp, Span)| {
            let expected = wall + now.mono.saturating_sub(mono);
            expected.since(now.wall) <= SMALL && now.wall.since(expected) <= SMALL
        };
        let (wall, since) = self.behind.filter(goes_on).unwrap_or((now.wall, now.mono));
        self.behind = Some((wall, since));
        now.mono.saturating_sub(since) >= CONFIRMED
    }

    /// The time of what is only looked at. Nothing is set by looking.
    pub(crate) fn look(&self, now: Now, last: Timestamp) -> Timestamp {
        let mut clock = *self;
        let reading = clock.read(now, last);
        match self.line {
            Some(_) => reading.set_from.unwrap_or(reading.time),
            None => reading.time,
        }
    }

    /// When that time comes, as time since the daemon started.
    pub(crate) fn mono_at(&self, at: Timestamp) -> Span {
        self.line.map_or(Span::ZERO, |line| {
            let passes = at.since(line.at);
            line.mono + if line.slow { passes + passes } else { passes }
        })
    }

    /// When a step is due that may set time back.
    pub(crate) fn due(&self) -> Option<Span> {
        self.behind.map(|(_, since)| since + CONFIRMED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: i64 = 365 * 86_400;
    /// Some day, in seconds.
    const DAY: u64 = 1_800_000_000;

    fn at(wall: u64, mono: u64) -> Now {
        Now { wall: Timestamp::from_micros(wall * 1_000_000), mono: Span::from_secs(mono) }
    }

    /// A clock that is looked at each ten seconds, and its last reading.
    struct Watch {
        clock: Clock,
        mono: u64,
        /// What the wall clock is off.
        off: i64,
        last: Timestamp,
        sets: Vec<i64>,
    }

    impl Watch {
        fn start(last: i64) -> Self {
            let last = Timestamp::from_micros(DAY.saturating_add_signed(last) * 1_000_000);
            Self { clock: Clock::default(), mono: 0, off: 0, last, sets: Vec::new() }
        }

        fn now(&self) -> Now {
            at((DAY + self.mono).saturating_add_signed(self.off), self.mono)
        }

        /// Looks, and notes by how much time is set.
        fn look(&mut self) {
            let reading = self.clock.read(self.now(), self.last);
            if let Some(from) = reading.set_from {
                let by = |a: Timestamp, b: Timestamp| i64::try_from(a.since(b).as_micros() / 1_000_000).unwrap_or(0);
                self.sets.push(by(reading.time, from) - by(from, reading.time));
            } else {
                assert!(reading.time >= self.last, "time goes back by a set alone");
            }
            self.last = reading.time;
        }

        fn pass(&mut self, seconds: u64) {
            for _ in 0..seconds / 10 {
                self.mono += 10;
                self.look();
            }
        }

        /// By how much time is ahead of the true one.
        fn is_off(&self) -> i64 {
            let truth = i64::try_from(DAY + self.mono).unwrap_or(0);
            i64::try_from(self.last.as_micros() / 1_000_000).unwrap_or(0) - truth
        }
    }

    /// B10: what the wall clock does while the daemon runs, how often and by how much time is set, and how far it is
    /// off at the end.
    #[test]
    fn time_follows_the_wall_clock_forward_at_once_and_back_when_that_has_gone_on_steadily() {
        /// What it does, by how much it is ahead and for how many seconds, by how much time is set, how far that is
        /// off.
        type Row = (&'static str, &'static [(i64, u64)], &'static [i64], i64);
        let table: [Row; 11] = [
            ("right all the time", &[(0, 4_000)], &[], 0),
            ("a second ahead and back", &[(1, 100), (0, 100)], &[], 0),
            ("half a minute ahead and back", &[(30, 100), (0, 100)], &[], 0),
            ("half a minute back", &[(-30, 100)], &[], -30),
            ("a year ahead", &[(YEAR, 100)], &[YEAR], YEAR),
            ("a year ahead and back for a moment", &[(YEAR, 100), (0, 300)], &[YEAR], YEAR),
            ("a year ahead and back", &[(YEAR, 100), (0, 700)], &[YEAR, -YEAR], 0),
            ("back for a moment", &[(-YEAR, 590), (0, 100)], &[], 0),
            ("back for long, and right again", &[(-7_200, 3_000), (0, 20)], &[-7_200, 7_200], 0),
            ("two minutes ahead", &[(120, 10)], &[120], 120),
            ("to and fro", &[(YEAR, 50), (-YEAR, 500), (YEAR, 50), (0, 590), (0, 50)], &[YEAR, -YEAR], 0),
        ];
        for (what, course, sets, off) in table {
            let mut watch = Watch::start(-10);
            watch.look();
            for &(off, seconds) in course {
                watch.off = off;
                watch.pass(seconds);
            }
            assert_eq!((watch.sets.as_slice(), watch.is_off()), (sets, off), "{what}");
        }
    }

    /// B10: what the last event of an earlier daemon says, and what the wall clock says at the start.
    #[test]
    fn a_start_goes_on_from_the_last_event_and_mends_a_time_that_was_in_the_future() {
        let days = |days: i64| days * 86_400;
        let table: [(&str, i64, u64, &[i64], i64); 8] = [
            ("a moment ago", -5, 1_000, &[], 0),
            ("a day ago", days(-1), 1_000, &[], 0),
            ("six days ago", days(-6), 1_000, &[], 0),
            ("a month ago", days(-30), 1_000, &[days(30)], 0),
            ("a year ahead, and for a moment", YEAR, 500, &[], YEAR),
            ("a year ahead", YEAR, 700, &[-YEAR], 0),
            ("half a minute ahead", 30, 1_000, &[], 0),
            ("two minutes ahead", 120, 700, &[-120], 0),
        ];
        for (what, last, passes, sets, off) in table {
            let mut watch = Watch::start(last);
            watch.look();
            watch.pass(passes);
            assert_eq!((watch.sets.as_slice(), watch.is_off()), (sets, off), "{what}");
        }
    }

    #[test]
    fn a_timer_is_due_when_the_time_that_it_waits_for_has_come_however_fast_time_goes() {
        for off in [0, -20, -59, 40] {
            let mut watch = Watch::start(0);
            watch.look();
            watch.off = off;
            watch.pass(10);
            let target = watch.last + Span::from_secs(100);
            let due = watch.clock.mono_at(target);
            let time = watch.clock.line.map(|line| line.time(due));
            assert_eq!(time, Some(target), "{off}");
        }
        let first = Clock::default();
        assert_eq!((first.mono_at(Timestamp::MAX), first.due()), (Span::ZERO, None));
    }

    #[test]
    fn nothing_is_set_by_looking() {
        let mut watch = Watch::start(0);
        watch.look();
        for off in [YEAR, 3_600, 61, -61, -YEAR] {
            watch.off = off;
            watch.mono += 1_000;
            let looked = watch.clock.look(watch.now(), watch.last);
            assert_eq!(looked.since(watch.last), Span::from_secs(watch.mono), "{off}");
        }
        assert_eq!(watch.sets, Vec::<i64>::new());
    }
}
