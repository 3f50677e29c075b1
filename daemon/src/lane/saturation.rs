//! Computes the share of the last 1, 5 and 15 minutes during which a lane was saturated. It must not read a clock: time
//! is an argument.

use harness_protocol::time::{Span, Timestamp};

/// Length of a bucket, in microseconds.
const BUCKET: u64 = 5_000_000;
/// Buckets of fifteen minutes.
const BUCKETS: usize = 180;

/// Saturated time, in buckets of five seconds.
#[derive(Debug, Clone)]
pub(super) struct Saturation {
    since: Option<Timestamp>,
    /// The time up to which the buckets are filled.
    counted: Timestamp,
    /// The end of the last saturated period, and its start.
    lapsed: Option<(Timestamp, Timestamp)>,
    /// Saturated microseconds of each bucket.
    buckets: Box<[u32; BUCKETS]>,
    /// Number of the newest bucket, counted from the epoch.
    newest: u64,
    /// Time at which the lane was made: no window reaches further back.
    began: Option<Timestamp>,
}

impl Default for Saturation {
    fn default() -> Self {
        Self {
            since: None,
            counted: Timestamp::default(),
            lapsed: None,
            buckets: Box::new([0; BUCKETS]),
            newest: 0,
            began: None,
        }
    }
}

impl Saturation {
    /// Notes whether the lane is saturated now.
    pub(super) fn note(&mut self, saturated: bool, now: Timestamp) {
        self.began.get_or_insert(now);
        match (self.since, saturated) {
            (None, true) => {
                // A permit that comes back and is granted again at the same instant was never free.
                let before = self.lapsed.filter(|(at, _)| *at == now).map(|(_, since)| since);
                self.since = Some(before.unwrap_or(now));
                self.counted = now;
            }
            (Some(since), false) => {
                self.add(self.counted, now);
                self.lapsed = Some((now, since));
                self.since = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// Start of the present saturated period, if the lane is saturated.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.since
    }

    fn add(&mut self, from: Timestamp, to: Timestamp) {
        let end = to.as_micros();
        let oldest_kept = (end / BUCKET).saturating_sub(BUCKETS as u64 - 1) * BUCKET;
        let mut at = from.as_micros().max(oldest_kept);
        self.advance(end / BUCKET);
        while at < end {
            let bucket = at / BUCKET;
            let until = ((bucket + 1) * BUCKET).min(end);
            let slot = &mut self.buckets[slot_of(bucket)];
            *slot = slot.saturating_add(u32::try_from(until - at).unwrap_or(u32::MAX));
            at = until;
        }
    }

    fn advance(&mut self, bucket: u64) {
        let first = (self.newest + 1).max(bucket.saturating_sub(BUCKETS as u64 - 1));
        for stale in first..=bucket {
            self.buckets[slot_of(stale)] = 0;
        }
        self.newest = self.newest.max(bucket);
    }

    /// Share of the last 1, 5 and 15 minutes, to the precision of a bucket.
    pub(super) fn shares(&self, now: Timestamp) -> [f64; 3] {
        let mut seen = self.clone();
        if self.since.is_some() {
            seen.add(self.counted, now);
        }
        let newest = now.as_micros() / BUCKET;
        seen.advance(newest);
        let age = self.began.map_or(Span::ZERO, |began| now.since(began));
        [60, 300, 900].map(|secs: u64| {
            let buckets = secs * 1_000_000 / BUCKET;
            let first = newest.saturating_sub(buckets - 1);
            let sum: u64 = (first..=newest).map(|bucket| u64::from(seen.buckets[slot_of(bucket)])).sum();
            let window = Span::from_micros(now.as_micros() - first * BUCKET).as_secs().min(age.as_secs());
            if window > 0.0 { (Span::from_micros(sum).as_secs() / window).min(1.0) } else { 0.0 }
        })
    }
}

/// The slot of the bucket with that number.
fn slot_of(bucket: u64) -> usize {
    usize::try_from(bucket % BUCKETS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_micros((1_000_000 + secs) * 1_000_000)
    }

    #[test]
    fn a_lane_that_was_never_saturated_has_no_share() {
        let mut saturation = Saturation::default();
        saturation.note(false, at(0));
        assert_eq!(saturation.shares(at(1000)), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn saturated_time_counts_in_every_window_that_holds_it_and_then_no_more() {
        let mut saturation = Saturation::default();
        saturation.note(false, at(0));
        saturation.note(true, at(1000));
        saturation.note(false, at(1030));
        let [one, five, fifteen] = saturation.shares(at(1030));
        assert!((one - 0.5).abs() < 0.06 && (five - 0.1).abs() < 0.01 && (fifteen - 1.0 / 30.0).abs() < 0.01);
        let [one, five, fifteen] = saturation.shares(at(1100));
        assert!(one.abs() < f64::EPSILON && five > 0.09 && fifteen > 0.03);
        assert_eq!(saturation.shares(at(9000)), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_permit_that_is_granted_on_at_once_does_not_end_the_saturation() {
        let mut saturation = Saturation::default();
        saturation.note(true, at(0));
        saturation.note(false, at(10));
        saturation.note(true, at(10));
        assert_eq!(saturation.since(), Some(at(0)));
        assert_eq!(saturation.shares(at(20)), [1.0, 1.0, 1.0]);
        saturation.note(false, at(20));
        saturation.note(true, at(21));
        assert_eq!(saturation.since(), Some(at(21)));
    }

    #[test]
    fn present_saturation_counts_up_to_now() {
        let mut saturation = Saturation::default();
        saturation.note(true, at(0));
        assert_eq!(saturation.shares(at(20)), [1.0, 1.0, 1.0]);
        assert_eq!(saturation.shares(at(20_000)), [1.0, 1.0, 1.0]);
    }
}
