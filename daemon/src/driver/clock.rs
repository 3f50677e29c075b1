//! Reads the clocks for the driver, the world and the parts that ask the driver's [`Clock`]: every time in an event
//! comes from here.
//!
//! The monotonic clock is `CLOCK_BOOTTIME`, because the time while the machine is suspended counts. Other code reads a
//! clock only to measure a duration (a keeper, which is another process, and the threads that close connections), or
//! for the log and for systemd.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use harness_protocol::time::{Span, Timestamp};
use rustix::time::{ClockId, clock_gettime};

use crate::world::api::Now;

/// The wall clock and the monotonic clock of a daemon.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Span,
}

/// Time since the boot of the machine.
fn since_boot() -> Span {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    Span::from_micros(seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000))
}

impl Clock {
    /// Clocks with the present moment as their start.
    pub fn start() -> Self {
        Self { started: since_boot() }
    }

    /// The present time: of the wall clock, and since the start.
    #[expect(clippy::disallowed_methods, reason = "the driver reads the clocks, once for each step")]
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { wall: Timestamp::from_micros(Span::from(wall).as_micros()), mono: since_boot() - self.started }
    }

    /// The instant at which this time has passed since the start.
    #[expect(clippy::disallowed_methods, reason = "the driver reads the clocks")]
    pub fn at(&self, mono: Span) -> tokio::time::Instant {
        let left = (self.started + mono) - since_boot();
        (Instant::now() + left.to_std()).into()
    }
}
