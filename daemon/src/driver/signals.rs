//! Orders of the system to the driver (stop, reload), and the driver's sign of life to the watchdog.
//!
//! Owns flags and counts, no queue: a stop never waits behind other orders, and ten unhandled reloads are one.

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
    /// Number of reloads that are over.
    reloads: watch::Sender<u64>,
}

impl Orders {
    /// Gives an order. It is obeyed once, however often it was given before that.
    pub fn give(&self, order: Order) {
        match order {
            Order::Stop => self.inner.stop.store(true, Ordering::Release),
            Order::Reload => self.inner.reload.store(true, Ordering::Release),
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

    /// Number of reloads that are over, well or not.
    pub fn reloads(&self) -> watch::Receiver<u64> {
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

    /// Counts a reload that is over.
    pub(super) fn reloaded(&self) {
        self.inner.reloads.send_modify(|count| *count += 1);
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

    async fn at_once(orders: &Orders) -> Option<Order> {
        tokio::select! {
            biased;
            order = orders.next() => Some(order),
            () = tokio::task::yield_now() => None,
        }
    }
}
