//! Executes work that blocks, such as reads of the journal and of `/proc`: a bounded number of pieces at once, shared
//! fairly among the callers.
//!
//! Has the bound on concurrent work, and makes the runtime for slow work ([`background`]), whose threads have a lower
//! priority than the driver, the journal and the connections: so slow work for one client takes little processor time
//! from the others. The callers must bound the queue: each request keeps its place in the inbox until it is answered.
//! Must not know what the work does.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tracing::error;

use crate::fair_queue::{Party, Round};

type Work = Box<dyn FnOnce() + Send>;

/// Difference in niceness between the threads of the background and the others. At 5 each has about a third of the
/// weight. At 10 it would hardly get to run beside commands that take all processors.
const NICER: i32 = 5;

/// A runtime for work that may take long. Its threads have a lower priority, if the kernel has priorities for single
/// threads. No process may be started here: it would inherit the priority.
///
/// # Errors
/// If the system cannot start a thread.
pub fn background() -> io::Result<Runtime> {
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get() - 1).max(1);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).thread_name("background").enable_all().on_thread_start(be_nice);
    builder.build()
}

/// Lowers the priority of this thread. This is always allowed; if it fails, the thread is as fast as the others.
fn be_nice() {
    if let Ok(nice) = getpriority_process(None) {
        _ = setpriority_process(None, nice + NICER);
    }
}

/// A pool for blocking work. Clones share it.
#[derive(Clone)]
pub struct Blocking {
    shared: Arc<Shared>,
}

struct Shared {
    runtime: Handle,
    at_once: usize,
    /// Most pieces of work of one party at once.
    of_party: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<Party, VecDeque<Work>>,
    round: Round<Party>,
    running: usize,
    /// Running pieces of work by party, without zeros.
    running_of: BTreeMap<Party, usize>,
}

impl fmt::Debug for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").field("at_once", &self.shared.at_once).finish_non_exhaustive()
    }
}

impl Blocking {
    /// A pool for `at_once` pieces of work at a time, on threads of the current runtime.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(at_once: usize) -> Self {
        Self::shared_out(at_once, at_once)
    }

    /// A pool for `at_once` pieces of work at a time, and at most `of_party` of one party: for work that may hang.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn shared_out(at_once: usize, of_party: usize) -> Self {
        Self::with(Handle::current(), at_once, of_party)
    }

    /// A pool for `at_once` pieces of work at a time, on threads of `runtime`.
    pub fn on(runtime: Handle, at_once: usize) -> Self {
        Self::with(runtime, at_once, at_once)
    }

    /// Another pool for `at_once` pieces of work at a time, on threads of the same runtime.
    #[must_use]
    pub fn beside(&self, at_once: usize) -> Self {
        Self::on(self.shared.runtime.clone(), at_once)
    }

    fn with(runtime: Handle, at_once: usize, of_party: usize) -> Self {
        let (at_once, of_party) = (at_once.max(1), of_party.max(1));
        Self { shared: Arc::new(Shared { runtime, at_once, of_party, state: Mutex::default() }) }
    }

    /// Queues `work` for `party`. Returns at once.
    pub fn run(&self, party: Party, work: impl FnOnce() + Send + 'static) {
        let starts = {
            let mut state = self.shared.state();
            state.waiting.entry(party).or_default().push_back(Box::new(work));
            state.round.enter(party);
            let of_party = state.running_of.get(&party).copied().unwrap_or(0);
            let starts = state.running < self.shared.at_once && of_party < self.shared.of_party;
            state.running += usize::from(starts);
            starts
        };
        if starts {
            let shared = Arc::clone(&self.shared);
            // The work itself sends the answer to the caller; the thread is not joined.
            drop(self.shared.runtime.spawn_blocking(move || shared.work_off()));
        }
    }

    /// Does `work` for `party` and returns its result; `None` if the work panicked or the daemon ends.
    pub async fn get<T: Send + 'static>(&self, party: Party, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.begin(party, work).await.ok()
    }

    /// Begins a piece of work, whose outcome is waited for later, or not at all.
    pub fn begin<T: Send + 'static>(
        &self,
        party: Party,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (tell, told) = oneshot::channel();
        // The send fails if the caller has gone.
        self.run(party, move || drop(tell.send(work())));
        told
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the waiting work, until none is left.
    fn work_off(&self) {
        let mut before = None;
        while let Some((party, work)) = self.next(before) {
            before = Some(party);
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                error!("a piece of blocking work panicked; whoever asked for it is told that it failed");
            }
        }
    }

    /// The next piece of work, of a party that has room. A piece of work of `before` has just ended.
    fn next(&self, before: Option<Party>) -> Option<(Party, Work)> {
        let mut state = self.state();
        let State { waiting, round, running, running_of } = &mut *state;
        if let Some(count) = before.and_then(|party| running_of.get_mut(&party)) {
            *count -= 1;
        }
        running_of.retain(|_, count| *count > 0);
        // A party without room leaves the round, and comes back when a piece of its work has ended.
        if let Some(before) = before.filter(|before| waiting.contains_key(before)) {
            round.enter(before);
        }
        let has_room = |party: Party| running_of.get(&party).copied().unwrap_or(0) < self.of_party;
        let party = round.next(|party| waiting.contains_key(&party) && has_room(party));
        let work = party.and_then(|party| {
            let of_party = waiting.get_mut(&party)?;
            let work = of_party.pop_front();
            if of_party.is_empty() {
                waiting.remove(&party);
            }
            *running_of.entry(party).or_default() += 1;
            work.map(|work| (party, work))
        });
        if work.is_none() {
            *running -= 1;
        }
        work
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// Rule 4: however busy its threads are, the driver, the journal and the connections go first.
    #[test]
    fn background_work_has_a_lower_priority_than_all_else() {
        let nice = || getpriority_process(None).unwrap();
        // The largest niceness is 19.
        let (own, nicer) = (nice(), (nice() + NICER).min(19));
        let background = background().unwrap();
        let place = Blocking::on(background.handle().clone(), 2);
        for place in [place.beside(1), place.beside(3), place] {
            assert_eq!(background.block_on(place.get(Party::Daemon, nice)), Some(nicer));
        }
        let task = background.spawn(async move { nice() });
        assert_eq!(background.block_on(task).unwrap(), nicer);
        assert_eq!(nice(), own, "theirs alone is lower");
    }

    #[tokio::test]
    async fn no_more_is_done_at_once_than_there_is_room_for() {
        for at_once in [1, 2, 3, 5, 8] {
            let blocking = Blocking::new(at_once);
            let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let mut told = Vec::new();
            for number in 0..64 {
                let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                told.push(blocking.get(Party::Connection(number % 7), move || {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                }));
            }
            for one in told {
                one.await.unwrap();
            }
            assert!(most.load(Ordering::SeqCst) <= at_once);
        }
    }

    #[tokio::test]
    async fn a_party_that_asks_much_delays_itself_alone() {
        let blocking = Blocking::new(1);
        let (go_on, stopped) = mpsc::channel::<()>();
        blocking.run(Party::Connection(1), move || stopped.recv().unwrap());
        let order = Arc::new(Mutex::new(Vec::new()));
        for connection in [1, 1, 1, 1, 1, 1, 2, 3] {
            let order = Arc::clone(&order);
            blocking.run(Party::Connection(connection), move || order.lock().unwrap().push(connection));
        }
        go_on.send(()).unwrap();
        blocking.get(Party::Daemon, || ()).await.unwrap();
        blocking.get(Party::Connection(1), || ()).await.unwrap();
        let order = order.lock().unwrap();
        let last = |connection| order.iter().position(|one| *one == connection).unwrap();
        assert!(last(2) < 3 && last(3) < 4 && order.len() == 8, "{order:?}");
    }

    #[tokio::test]
    async fn work_that_hangs_takes_no_more_than_the_part_of_its_party() {
        for (at_once, of_party) in [(2, 1), (3, 2), (4, 1), (8, 3), (5, 4)] {
            let blocking = Blocking::shared_out(at_once, of_party);
            let mut hung = Vec::new();
            for _ in 0..20 {
                let (go_on, stopped) = mpsc::channel::<()>();
                hung.push(go_on);
                // This work ends when its sender is dropped.
                blocking.run(Party::Process(1), move || _ = stopped.recv());
            }
            for process in 2..30 {
                assert_eq!(blocking.get(Party::Process(process), || 7).await, Some(7), "{at_once} {of_party}");
            }
            drop(hung);
            assert_eq!(blocking.get(Party::Process(1), || 8).await, Some(8), "{at_once} {of_party}");
        }
    }

    #[tokio::test]
    async fn work_that_panics_stops_no_other_work() {
        let blocking = Blocking::new(1);
        for _ in 0..5 {
            assert_eq!(blocking.get(Party::Daemon, || panic!("as the test wants it")).await, None::<()>);
        }
        assert_eq!(blocking.get(Party::Daemon, || 7).await, Some(7));
    }
}
