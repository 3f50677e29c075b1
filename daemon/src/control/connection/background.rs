//! Chooses the threads that serve a connection: the normal ones for clients that ask now and then, the background ones
//! for clients that ask much.
//!
//! The workers of a runtime serve tasks in the order in which they woke up. So a client that asks now and then would
//! wait behind a piece of work of each client that floods. A connection that causes much work without a pause is moved
//! to the background, where threads have a lower priority, and comes back when it asks little. This is decided by the
//! work between two waits, and not by a clock.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use tokio::runtime::Handle;

/// Units of work without a wait that count as much: about a quarter of a millisecond.
const MUCH: u32 = 48;
/// Units of work up to which it counts as little.
const LITTLE: u32 = 8;
/// Number of little pieces of work in a row after which a connection comes back.
const CALM: u32 = 16;
/// Bytes that count as one unit, like a request or an answer.
const UNIT_BYTES: usize = 1024;

/// Units of work for a connection since its last wait.
#[derive(Debug, Default)]
pub(in crate::control) struct Effort(AtomicU32);

impl Effort {
    /// Counts this number of requests or answers, of this number of bytes together.
    pub(in crate::control) fn spend(&self, count: usize, bytes: usize) {
        let units = u32::try_from(count + bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        // Only one task counts, so no unit is lost between the two operations.
        self.0.store(self.0.load(Ordering::Relaxed).saturating_add(units), Ordering::Relaxed);
    }

    /// Whether there was so much work that other connections are to have a turn.
    pub(in crate::control) fn is_much(&self) -> bool {
        self.0.load(Ordering::Relaxed) > MUCH
    }

    fn take(&self) -> u32 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves to the end: on the current runtime, or in the background, depending on the work.
pub(in crate::control) async fn by_effort(
    serving: impl Future<Output = ()> + Send + 'static,
    effort: &Arc<Effort>,
    back: &Handle,
) {
    let mut serving: Serving = Box::pin(serving);
    while !until(&mut serving, effort, |units| units > MUCH).await {
        let effort = Arc::clone(effort);
        let behind = back.spawn(async move {
            let mut calm = 0;
            let is_calm = |units| {
                calm = if units <= LITTLE { calm + 1 } else { 0 };
                calm >= CALM
            };
            let has_ended = until(&mut serving, &effort, is_calm).await;
            (serving, has_ended)
        });
        match behind.await {
            Ok((still, false)) => serving = still,
            // A panic was reported by its hook.
            Ok((_, true)) | Err(_) => return,
        }
    }
}

/// Serves until the end, or until another runtime is to serve. Gives whether it was the end.
async fn until(serving: &mut Serving, effort: &Effort, mut moves: impl FnMut(u32) -> bool) -> bool {
    poll_fn(|context| match serving.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(true),
        // The next runtime that serves it polls it anew, and so registers its wakers again.
        Poll::Pending if moves(effort.take()) => Poll::Ready(false),
        Poll::Pending => Poll::Pending,
    })
    .await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    fn runtime(name: &str) -> Runtime {
        Builder::new_multi_thread().worker_threads(1).thread_name(name).build().unwrap()
    }

    fn here() -> String {
        std::thread::current().name().unwrap().to_owned()
    }

    /// Where it was served after each of these efforts.
    fn places(efforts: Vec<(usize, usize)>) -> Vec<String> {
        let (front, back) = (runtime("front"), runtime("back"));
        let (effort, handle) = (Arc::new(Effort::default()), back.handle().clone());
        let (tell, told) = oneshot::channel();
        let own = Arc::clone(&effort);
        let serving = async move {
            let mut places = Vec::new();
            for (count, bytes) in efforts {
                own.spend(count, bytes);
                yield_now().await;
                places.push(here());
            }
            tell.send(places).unwrap();
        };
        front.spawn(async move { by_effort(serving, &effort, &handle).await });
        front.block_on(told).unwrap()
    }

    #[test]
    fn one_that_asks_little_at_a_time_is_never_in_the_background() {
        for effort in [(0, 0), (1, 60), (16, 5_000), (MUCH as usize, 0), (0, 40_000)] {
            assert_eq!(places(vec![effort; 1_000]), vec!["front"; 1_000], "{effort:?}");
        }
    }

    #[test]
    fn one_that_asks_much_is_served_in_the_background_until_it_asks_little_for_a_while() {
        for much in [(MUCH as usize + 1, 0), (1, 100_000), (0, usize::MAX)] {
            let calm = CALM as usize;
            let mut efforts = vec![(1, 100), much, (1, 100), much];
            efforts.extend(vec![(1, 100); calm + 2]);
            let places = places(efforts);
            let expected = |at: usize| if at == 0 || at >= 4 + calm - 1 { "front" } else { "back" };
            let expected: Vec<&str> = (0..places.len()).map(expected).collect();
            assert_eq!(places, expected, "{much:?}");
        }
    }
}
