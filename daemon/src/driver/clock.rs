//! The one place where the daemon reads its clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use harness_protocol::time::{Span, Timestamp};

use crate::world::boundary::Now;

/// The clocks of a daemon.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// Clocks that begin now.
    #[expect(clippy::disallowed_methods, reason = "the driver reads the clocks, once for each step")]
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The time.
    #[expect(clippy::disallowed_methods, reason = "the driver reads the clocks, once for each step")]
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { wall: Timestamp::from_micros(Span::from(wall).as_micros()), mono: self.started.elapsed().into() }
    }

    /// When that much time has passed since the start.
    pub fn at(&self, mono: Span) -> tokio::time::Instant {
        (self.started + mono.to_std()).into()
    }
}
