//! Decides how long to wait before a submit that was refused for now is repeated: as long as the daemon asked for, but
//! not beyond the user's limit.

use std::time::{Duration, Instant};

use harness_protocol::rpc::RpcError;
use harness_protocol::time::Span;

/// Time between two attempts, where the daemon does not say when to retry.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The wait before the next attempt; `None` when there is no more time.
pub(crate) fn pause_before_retry(error: &RpcError, until: Option<Instant>) -> Option<Duration> {
    let left = until?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
    Some(error.data.retry_after_seconds.map_or(TRY_AGAIN, Span::to_std).min(left))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use harness_protocol::rpc::ErrorKind;

    #[test]
    fn the_daemon_says_when_to_come_back_and_the_caller_how_long_to_try() {
        let error = RpcError::new(ErrorKind::Busy, "full").retry_after(Span::from_secs(3));
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(pause_before_retry(&error, Some(soon)), Some(Duration::from_secs(3)));
        let sooner = Instant::now() + Duration::from_millis(500);
        assert!(pause_before_retry(&error, Some(sooner)).unwrap() <= Duration::from_millis(500));
        assert_eq!(pause_before_retry(&error, Some(Instant::now())), None);
        assert_eq!(pause_before_retry(&error, None), None);
    }
}
