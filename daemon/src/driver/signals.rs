//! Passes the orders of the system (stop, reload) to the driver, and the driver's sign of life to the watchdog.
//!
//! These are flags and counts, not a queue: a stop never waits behind other orders, and ten unhandled reloads are one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Notify, watch};

/// An order to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Read the configuration again.
    Reload,
    /// End what executes, and leave.
    Stop,
}

/// Orders to the driver. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Orders {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    stop: AtomicBool,
    reload: AtomicBool,
    came: Notify,
    /// Counts the moves of the driver; it stands still when the driver hangs.
    beats: AtomicU64,
    /// Reloads so far.
    reloads: watch::Sender<ReloadCounts>,
}

/// Reloads that were begun and ended, by signals and by clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadCounts {
    /// Number of reloads that have begun. One that was ordered has.
    pub begun: u64,
    /// Number of reloads that are over: the new configuration is in force in every part, or all is as it was.
    pub over: u64,
    /// Why the last one that is over changed nothing, if it did not.
    pub failed: Option<String>,
}

impl ReloadCounts {
    /// Whether none is under way.
    pub const fn are_over(&self) -> bool {
        self.begun == self.over
    }
}

/// A reload that is under way. One that is dropped without an end has failed.
#[derive(Debug)]
pub(super) struct Reloading(Option<Orders>);

impl Reloading {
    /// The reload is over, well or not.
    pub(super) fn ends(mut self, outcome: Result<(), String>) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Result<(), String>) {
        if let Some(orders) = self.0.take() {
            orders.inner.reloads.send_modify(|counts| {
                counts.over += 1;
                counts.failed = outcome.err();
            });
        }
    }
}

impl Drop for Reloading {
    fn drop(&mut self) {
        self.end(Err("the reload was not finished; see the log".to_owned()));
    }
}

impl Orders {
    /// Gives an order. It is obeyed once, however often it was given before that.
    pub fn give(&self, order: Order) {
        match order {
            Order::Stop => self.inner.stop.store(true, Ordering::Release),
            Order::Reload => {
                if !self.inner.reload.swap(true, Ordering::AcqRel) {
                    self.begins();
                }
            }
        }
        self.inner.came.notify_one();
    }

    /// Whether the daemon is to stop.
    pub fn is_stop(&self) -> bool {
        self.inner.stop.load(Ordering::Acquire)
    }

    /// Number of the driver's moves. An idle driver moves when its inbox is woken.
    pub fn beats(&self) -> u64 {
        self.inner.beats.load(Ordering::Relaxed)
    }

    /// Reloads so far.
    pub fn reloads(&self) -> watch::Receiver<ReloadCounts> {
        self.inner.reloads.subscribe()
    }

    /// The next order. A stop comes first. The future may be dropped and made again; no order is lost.
    pub(super) async fn next(&self) -> Order {
        loop {
            if self.is_stop() {
                return Order::Stop;
            }
            if self.inner.reload.swap(false, Ordering::AcqRel) {
                return Order::Reload;
            }
            self.inner.came.notified().await;
        }
    }

    /// Waits for a stop; a reload stays pending.
    pub(super) async fn stop(&self) {
        while !self.is_stop() {
            self.inner.came.notified().await;
        }
        // The task that waits for the next order sees it as well.
        self.inner.came.notify_one();
    }

    /// Counts a move of the driver.
    pub(super) fn beat(&self) {
        self.inner.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a reload for a client.
    pub(super) fn reload_begins(&self) -> Reloading {
        self.begins();
        Reloading(Some(self.clone()))
    }

    /// Takes the reload that was given as an order: it has begun already.
    pub(super) fn reload_was_given(&self) -> Reloading {
        Reloading(Some(self.clone()))
    }

    fn begins(&self) {
        self.inner.reloads.send_modify(|counts| counts.begun += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A15. A stop is a flag.
    #[tokio::test]
    async fn a_stop_is_the_next_order_however_many_reloads_came_before_it() {
        for reloads in [0, 1, 2, 9, 10, 11, 1_000] {
            let orders = Orders::default();
            (0..reloads).for_each(|_| orders.give(Order::Reload));
            orders.give(Order::Stop);
            (0..reloads).for_each(|_| orders.give(Order::Reload));
            assert_eq!(orders.next().await, Order::Stop, "{reloads}");
            assert_eq!(orders.next().await, Order::Stop, "it stays so");
        }
    }

    #[tokio::test]
    async fn many_reloads_that_nobody_came_to_are_one_and_none_is_lost() {
        let orders = Orders::default();
        (0..10).for_each(|_| orders.give(Order::Reload));
        assert_eq!(orders.next().await, Order::Reload);
        assert!(at_once(&orders).await.is_none());
        orders.give(Order::Reload);
        assert_eq!(orders.next().await, Order::Reload);
    }

    /// What systemd is told goes by these counts.
    #[tokio::test]
    async fn reloads_are_over_once_each_that_was_begun_has_ended() {
        let orders = Orders::default();
        let counts = orders.reloads();
        assert!(counts.borrow().are_over());
        (0..3).for_each(|_| orders.give(Order::Reload));
        assert_eq!((counts.borrow().begun, counts.borrow().are_over()), (1, false), "from the order on");
        assert_eq!(orders.next().await, Order::Reload);
        let (ordered, asked) = (orders.reload_was_given(), orders.reload_begins());
        ordered.ends(Ok(()));
        assert!(!counts.borrow().are_over(), "one is still under way");
        asked.ends(Err("a mistake".to_owned()));
        assert_eq!((counts.borrow().are_over(), counts.borrow().failed.as_deref()), (true, Some("a mistake")));
        drop(orders.reload_begins());
        assert!(counts.borrow().are_over() && counts.borrow().failed.is_some(), "also one that is never finished");
        orders.reload_begins().ends(Ok(()));
        assert_eq!(counts.borrow().failed, None);
    }

    async fn at_once(orders: &Orders) -> Option<Order> {
        tokio::select! {
            biased;
            order = orders.next() => Some(order),
            () = tokio::task::yield_now() => None,
        }
    }
}
