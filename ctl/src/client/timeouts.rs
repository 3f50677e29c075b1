//! Has the time limits of a connection, and converts a time limit to the argument of `poll`. Reads no clock.

use std::time::Duration;

use nix::poll::PollTimeout;

/// Time limit for a simple request, and for a daemon to come back.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A limit for `poll`, rounded up: it never wakes too early.
pub(crate) fn poll_timeout(limit: Duration) -> PollTimeout {
    let millis = limit.as_micros().div_ceil(1000).min(3_600_000);
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}
