//! Computes the delay before a failed inference is tried again. Pure: a function of the run, the step, the attempt and
//! the kind of error, so that a replay has the same delays. Whether a provider is held is decided in `provider_health`.

use harness_protocol::id::RunId;
use harness_protocol::splitmix64::SplitMix64;
use harness_protocol::time::Span;

use super::provider_health::LONGEST_LIMIT;
use crate::prompt::ErrorClass;

/// The first retry waits up to this long, each further one up to twice as long as the one before.
const FIRST_WAIT: u64 = 1_000_000;
const LONGEST_WAIT: u64 = 60_000_000;
/// No retry comes sooner than this.
const SHORTEST_WAIT: u64 = 20_000;

/// The delay before the next attempt at a failed inference, `None` where there is no next attempt. It is drawn evenly
/// from zero to a bound that doubles ("full jitter", Brooker, "Exponential Backoff And Jitter", 2015). The number is a
/// hash of the run, the step and the attempt: runs that failed together are spread, and a replay draws the same.
pub(crate) fn retry_delay(run: RunId, step: u32, attempt: u32, class: ErrorClass) -> Option<Span> {
    let bound = (FIRST_WAIT << attempt.saturating_sub(1).min(6)).min(LONGEST_WAIT);
    let drawn = mix(run.as_u64() ^ mix((u64::from(step) << 32) | u64::from(attempt))) >> 11;
    // Of 53 bits; so the product fits 128.
    let wait = u64::try_from((u128::from(bound) * u128::from(drawn)) >> 53).unwrap_or(bound);
    match class {
        ErrorClass::Retry | ErrorClass::Unusable => Some(Span::from_micros(wait.max(SHORTEST_WAIT))),
        // Not before it was told to, and a little after that, each run at another time.
        ErrorClass::RetryAfter(least) | ErrorClass::RateLimit(Some(least)) => {
            Some(least.min(LONGEST_LIMIT) + Span::from_micros(wait))
        }
        // It waits in the lane, which is held.
        ErrorClass::RateLimit(None) | ErrorClass::Quota(_) | ErrorClass::NoKey => Some(Span::ZERO),
        ErrorClass::Never | ErrorClass::AnswerTooLarge | ErrorClass::Credentials | ErrorClass::ContextTooLong => None,
    }
}

/// Spreads the bits of a number over all of them.
fn mix(value: u64) -> u64 {
    SplitMix64::new(value).draw()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
    use super::*;

    fn waits(class: ErrorClass, attempt: u32) -> Vec<u64> {
        (0..50u64).map(|run| retry_delay(RunId::from_u64(run), 1, attempt, class).unwrap().as_micros()).collect()
    }

    #[test]
    fn retries_of_many_runs_are_spread_over_all_of_a_bound_that_doubles() {
        for attempt in 1..=9 {
            let bound = (FIRST_WAIT << (attempt - 1).min(6)).min(LONGEST_WAIT);
            let mut waits = waits(ErrorClass::Retry, attempt);
            waits.sort_unstable();
            assert!(waits.iter().all(|&wait| (SHORTEST_WAIT..=bound).contains(&wait)));
            // None of ten equal parts of the bound has more than a third of them, and the ends are used.
            let part = |wait: u64| (wait * 10 / (bound + 1)) as usize;
            let mut parts = [0; 10];
            waits.iter().for_each(|&wait| parts[part(wait)] += 1);
            assert!(parts.iter().all(|&count| count <= 17), "{parts:?}");
            assert!(waits[0] < bound / 4 && waits[49] > bound * 3 / 4, "{waits:?}");
        }
    }

    #[test]
    fn nobody_comes_back_before_the_time_that_was_asked_for_and_all_at_other_times() {
        let waits = waits(ErrorClass::RetryAfter(Span::from_secs(7)), 1);
        assert!(waits.iter().all(|&wait| (7_000_000..=8_000_000).contains(&wait)));
        let distinct: std::collections::BTreeSet<u64> = waits.iter().copied().collect();
        assert_eq!(distinct.len(), 50);
    }

    #[test]
    fn what_is_of_no_use_is_not_tried_again() {
        for class in [ErrorClass::Never, ErrorClass::Credentials, ErrorClass::ContextTooLong] {
            assert_eq!(retry_delay(RunId::from_u64(1), 1, 1, class), None);
        }
    }

    #[test]
    fn no_run_sleeps_for_longer_than_its_lane_does() {
        for hours in [1, 24, 2_000] {
            let class = ErrorClass::RetryAfter(Span::from_secs(hours * 3_600));
            let longest = waits(class, 1).into_iter().max().unwrap();
            assert!(longest <= 301_000_000, "{longest}");
        }
    }
}
