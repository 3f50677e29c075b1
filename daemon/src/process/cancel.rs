//! Carries the order to end a piece of work, as a level that only rises. It must not end a process: the code that waits
//! for the order does.

use std::future::pending;

use tokio::sync::watch;

/// How urgently work is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stop {
    /// It goes on.
    #[default]
    No,
    /// It ends within the grace period of its processes.
    Gently,
    /// Killed at once, without a grace period.
    AtOnce,
}

/// The asking end.
#[derive(Debug)]
pub struct Canceller(watch::Sender<Stop>);

/// The end that is asked.
#[derive(Debug, Clone)]
pub struct Cancel(watch::Receiver<Stop>);

/// A connected pair: the end that asks, and the end that is asked.
pub fn canceller() -> (Canceller, Cancel) {
    let (sender, receiver) = watch::channel(Stop::No);
    (Canceller(sender), Cancel(receiver))
}

impl Canceller {
    /// Asks the work to end. A weaker request after a stronger one has no effect.
    pub fn stop(&self, force: bool) {
        let wish = if force { Stop::AtOnce } else { Stop::Gently };
        self.0.send_if_modified(|level| {
            let rises = wish > *level;
            *level = wish.max(*level);
            rises
        });
    }
}

impl Cancel {
    /// The present level.
    pub fn level(&self) -> Stop {
        *self.0.borrow()
    }

    /// Whether the work is to end.
    pub fn is_wanted(&self) -> bool {
        self.level() > Stop::No
    }

    /// Waits until the work is to end. For ever, if every [`Canceller`] is gone without asking.
    pub async fn wanted(&mut self) -> Stop {
        self.at_least(Stop::Gently).await
    }

    /// Waits until the work is to end without a grace period.
    pub async fn forced(&mut self) {
        self.at_least(Stop::AtOnce).await;
    }

    async fn at_least(&mut self, level: Stop) -> Stop {
        let reached = self.0.wait_for(|now| *now >= level).await.map(|now| *now).ok();
        match reached {
            Some(level) => level,
            None => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_level_only_rises() {
        let (canceller, mut cancel) = canceller();
        assert!(!cancel.is_wanted());
        canceller.stop(true);
        canceller.stop(false);
        assert_eq!(cancel.wanted().await, Stop::AtOnce);
        cancel.forced().await;
    }
}
