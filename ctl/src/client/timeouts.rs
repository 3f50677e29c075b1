//! The time limit for requests that should be answered at once, and time limits as `poll` takes them.

use std::time::Duration;

use nix::poll::PollTimeout;

/// How long a simple request may take, and how long a daemon may take to come back.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A poll limit that never wakes before its time.
pub(crate) fn poll_timeout(limit: Duration) -> PollTimeout {
    let millis = limit.as_micros().div_ceil(1000).min(3_600_000);
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}
