//! Limits the memory of all connections together: unfinished frames, unanswered requests, and unread answers.
//!
//! The only place that divides what connections get of `limits.memory_bytes`: a quarter for frames, an eighth for
//! requests and an eighth for answers, which take twice their size while they are made. Another quarter is the feed's
//! (`config/load`). The rest is for the small fixed cost of each connection, and for the overhead of the allocator.
//! Runs and peers that cannot be identified have half of each share at most, so that their requests and unread answers
//! take nothing from operators. Memory is given back when the holder of a part drops it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use harness_protocol::MAX_FRAME_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes for frames that each connection has in any case.
const OF_EACH: u64 = 64 * 1024;

/// Bytes of a request that needs no place among the large ones.
const SMALL_REQUEST: usize = 16 * 1024;

/// Bytes that one permit of the requests' share stands for.
const OF_A_PERMIT: usize = 1024;

/// More permits than are ever waited for.
const MOST_PERMITS: usize = 1 << 24;

/// The memory of all connections. Clones share it.
#[derive(Debug, Clone)]
pub struct Memory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Bytes of all unfinished frames together, at most.
    most: u64,
    /// Places for large unread answers: of operators, and of others.
    answers: [Arc<Semaphore>; 2],
    /// Memory for large unanswered requests: of operators, and of others.
    requests: [Requests; 2],
    held: Mutex<Held>,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Held {
    all: u64,
    inside: u64,
}

/// Memory for the requests of operators, or for those of others.
#[derive(Debug, Clone)]
pub struct Requests {
    permits: Arc<Semaphore>,
    all: usize,
}

impl Requests {
    fn new(bytes: usize) -> Self {
        let all = (bytes / OF_A_PERMIT).clamp(1, MOST_PERMITS);
        Self { permits: Arc::new(Semaphore::new(all)), all }
    }

    /// Waits until there is memory for a request of `bytes` bytes. A small one needs no wait, and one larger than all
    /// of the memory gets all of it. `None` only where the semaphore is closed, which never happens.
    pub async fn room_for(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes.div_ceil(OF_A_PERMIT).min(self.all)).unwrap_or(u32::MAX);
        Arc::clone(&self.permits).acquire_many_owned(permits).await.ok()
    }

    /// Whether the next large request has to wait.
    pub fn is_used_up(&self) -> bool {
        self.permits.available_permits() == 0
    }

    /// Whether a request of this size has to wait for memory.
    pub const fn is_large(bytes: usize) -> bool {
        bytes > SMALL_REQUEST
    }
}

/// There is no memory for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("all connections together hold too much that is not finished (limits.memory_bytes); try again later")]
pub struct NoRoom;

/// The memory that one connection holds for its frames. Dropping it frees that.
#[derive(Debug)]
pub struct Holding {
    memory: Memory,
    inside: bool,
    bytes: u64,
}

impl Memory {
    /// Divides `all` bytes among the shares of connections.
    pub fn new(all: u64) -> Self {
        let most = all / 4;
        let eighth = usize::try_from(all / 8).unwrap_or(usize::MAX);
        let answers = (eighth / MAX_FRAME_BYTES).min(MOST_PERMITS);
        let inside = answers / 2;
        let answers = [answers - inside, inside].map(|count| Arc::new(Semaphore::new(count.max(1))));
        let requests = [Requests::new(eighth / 2), Requests::new(eighth / 2)];
        Self(Arc::new(Shared { most, answers, requests, held: Mutex::default(), refused: AtomicU64::new(0) }))
    }

    /// The memory for requests: of operators or of others.
    pub fn requests(&self, operator: bool) -> Requests {
        let [operators, others] = &self.0.requests;
        if operator { operators } else { others }.clone()
    }

    /// The places for large answers and notifications: of operators or of others.
    pub fn answers(&self, operator: bool) -> Arc<Semaphore> {
        let [operators, others] = &self.0.answers;
        Arc::clone(if operator { operators } else { others })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new holder, for a connection of an operator or not. It holds nothing yet.
    pub fn hold(&self, operator: bool) -> Holding {
        Holding { memory: self.clone(), inside: !operator, bytes: 0 }
    }

    /// Number of bytes that are held now.
    pub fn bytes(&self) -> u64 {
        self.held().all
    }

    /// How often there was no memory.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }
}

impl Holding {
    /// Holds `bytes` bytes from now on, in place of the earlier number.
    ///
    /// # Errors
    /// If that is more and there is no memory for it. Then it holds the earlier number.
    pub fn set(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let bytes = bytes as u64;
        let most = self.memory.0.most;
        let mut held = self.memory.held();
        let inside = u64::from(self.inside);
        let all = held.all - self.bytes + bytes;
        let all_inside = held.inside - self.bytes * inside + bytes * inside;
        let is_too_much = all > most || (self.inside && all_inside > most / 2);
        if bytes > self.bytes && bytes > OF_EACH && is_too_much {
            drop(held);
            if self.memory.0.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(most, "connections hold all the memory that they may; some are closed");
            }
            return Err(NoRoom);
        }
        (held.all, held.inside) = (all, all_inside);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut held = self.memory.held();
        held.all = held.all.saturating_sub(self.bytes);
        if self.inside {
            held.inside = held.inside.saturating_sub(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1024 * 1024;

    /// What comes without waiting.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn runs_leave_half_to_operators() {
        let memory = Memory::new(400 * MIB as u64);
        let mut insiders: Vec<Holding> = (0..20).map(|_| memory.hold(false)).collect();
        let taken = insiders.iter_mut().filter_map(|one| one.set(8 * MIB).ok()).count();
        assert_eq!(taken, 6);
        let mut operators: Vec<Holding> = (0..20).map(|_| memory.hold(true)).collect();
        let taken = operators.iter_mut().filter_map(|one| one.set(8 * MIB).ok()).count();
        assert_eq!(taken, 6, "what is left of 100");
        assert_eq!(memory.refused(), 28);
        drop(insiders);
        assert!(operators[10].set(40 * MIB).is_ok());
        drop(operators);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn each_side_has_a_place_for_an_answer_however_small_the_bound_is() {
        for (all, operators, others) in [(0, 1, 1), (64, 1, 1), (128, 1, 1), (192, 2, 1), (1024, 8, 8), (1088, 9, 8)] {
            let memory = Memory::new(all * MIB as u64);
            let places = [true, false].map(|operator| memory.answers(operator).available_permits());
            assert_eq!(places, [operators, others], "{all} MiB");
        }
    }

    #[test]
    fn a_little_is_there_for_each_and_less_is_always_taken() {
        let memory = Memory::new(0);
        let mut one = memory.hold(true);
        for bytes in [0, 1, 1_000, 64 * 1024] {
            one.set(bytes).unwrap();
        }
        assert_eq!(one.set(64 * 1024 + 1), Err(NoRoom));
        one.set(5).unwrap();
        assert_eq!(memory.bytes(), 5);
    }

    /// A7: what is asked for is bounded until it is answered, and one that is larger than all the room has its turn as
    /// well.
    #[tokio::test]
    async fn a_large_request_waits_for_the_room_that_others_hold_and_a_small_one_does_not() {
        let memory = Memory::new(64 * MIB as u64);
        let operators = memory.requests(true);
        let first = operators.room_for(3 * MIB).await.unwrap();
        assert!(now(operators.room_for(2 * MIB)).is_none());
        assert!(now(memory.requests(false).room_for(4 * MIB)).is_some(), "runs take none of it");
        drop(first);
        let alone = operators.room_for(500 * MIB).await.unwrap();
        assert!(now(operators.room_for(MIB)).is_none());
        drop(alone);
        assert!(now(operators.room_for(MIB)).is_some());
        assert!(!Requests::is_large(1_000) && Requests::is_large(MIB));
    }

    proptest! {
        /// A7: whatever is held and let go of in whatever order, the sum is what is held, and never above the bound but
        /// for the little that each has.
        #[test]
        fn what_is_held_is_counted_and_bounded(steps in prop::collection::vec((0usize..12, 0usize..20 * MIB), 0..200)) {
            let most = 64 * MIB as u64;
            let memory = Memory::new(4 * most);
            let mut holdings: Vec<(Holding, u64)> = (0..12).map(|n| (memory.hold(n % 2 == 0), 0)).collect();
            for (index, bytes) in steps {
                let (holding, held) = &mut holdings[index];
                if holding.set(bytes).is_ok() {
                    *held = bytes as u64;
                }
                let sum: u64 = holdings.iter().map(|(_, held)| held).sum();
                prop_assert_eq!(memory.bytes(), sum);
                prop_assert!(sum <= most + 12 * OF_EACH);
                let inside: u64 = holdings.iter().filter(|(one, _)| one.inside).map(|(_, held)| held).sum();
                prop_assert!(inside <= most / 2 + 6 * OF_EACH);
            }
            drop(holdings);
            prop_assert_eq!(memory.bytes(), 0);
        }
    }
}
