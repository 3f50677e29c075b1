//! Identifies peers that have just connected, a bounded number at once, before they are served.
//!
//! To identify a peer, its chain of parents is followed; the owner of the chain decides how long that takes. So it is
//! not done where connections are accepted. Peers that have the mark of a run (the limit `RLIMIT_LOCKS`) wait in lanes
//! of their own: one for short chains, one for long ones. No peer with that mark gets the rights of an operator, so no
//! run delays operators here. The mark only selects the lane: each peer is traced in full, within five seconds.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::peer::Peer;
use super::stream::Stream;
use super::tracing::{Reach, Tracing};
use crate::blocking::Blocking;
use crate::control::rights::Origin;
use crate::fair_queue::Party;

/// Peers without a mark that are traced, or wait for that, at once. Further ones wait in the kernel's queue.
const OUTSIDE: usize = 256;
/// Peers with a mark that are traced, or wait for that, at once. Further ones are refused.
const INSIDE: usize = 64;
/// Peers among these that may have a long chain of parents.
const DEEP: usize = 16;
/// Peers that are not identified, at once.
pub const MOST: usize = OUTSIDE + INSIDE;
/// Traces at once in each lane: one that hangs does not block its lane.
const AT_ONCE: usize = 2;
/// Time limit for identifying a peer, with the wait for its turn.
const TRACED_WITHIN: Duration = Duration::from_secs(5);

/// The lanes in which peers wait to be traced, and what tracing needs.
#[derive(Debug)]
pub struct Arrivals {
    tracing: Tracing,
    outside: Lane,
    inside: Lane,
    deep: Lane,
}

#[derive(Debug)]
struct Lane {
    places: Arc<Semaphore>,
    work: Blocking,
}

impl Lane {
    fn new(places: usize, work: Blocking) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), work }
    }

    fn enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }
}

/// A peer that has connected and is not identified yet.
#[derive(Debug)]
pub struct Arrival {
    /// The accepted connection.
    pub stream: Stream,
    /// The peer, as the kernel tells it at once.
    pub peer: Peer,
    process: Option<OwnedFd>,
    is_inside: bool,
    place: OwnedSemaphorePermit,
}

/// Why a peer was not identified. A later attempt may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Untold {
    /// Too many peers wait to be traced.
    #[error("too many processes of runs have connected of which it is not known yet whose they are; try again later")]
    TooMany,
    /// The trace took too long.
    #[error("it could not be told in time who asks: /proc is slow, or the daemon is busy; try again later")]
    TooLate,
}

impl Arrivals {
    /// Empty lanes. That of operators runs on threads of the current runtime, the others on threads of `background`.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(tracing: Tracing, background: Handle) -> Self {
        let background = Blocking::on(background, AT_ONCE);
        Self {
            tracing,
            outside: Lane::new(OUTSIDE, Blocking::new(AT_ONCE)),
            inside: Lane::new(INSIDE, background.beside(AT_ONCE)),
            deep: Lane::new(DEEP, background),
        }
    }

    /// Waits for a place for a peer that may be an operator. `None` only where the lane is closed, which never happens.
    pub async fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.outside.places).acquire_owned().await.ok()
    }

    /// Takes in a peer that came while `room` was held. Looks once, and briefly, at the mark of its process; waits for
    /// nothing.
    ///
    /// # Errors
    /// If too many processes of runs wait here already; with the connection, for the refusal.
    pub fn enter(
        &self,
        (stream, peer, process): (Stream, Peer, Option<OwnedFd>),
        room: OwnedSemaphorePermit,
    ) -> Result<Arrival, (Stream, Untold)> {
        // A process without a pid cannot be traced, and has no rights.
        let is_inside = peer.pid.is_none_or(|pid| (self.tracing.is_marked)(pid));
        let place = if is_inside { self.inside.enter() } else { Some(room) };
        match place {
            Some(place) => Ok(Arrival { stream, peer, process, is_inside, place }),
            None => Err((stream, Untold::TooMany)),
        }
    }

    /// Traces the process at the other end of an arrival; gives its origin, with the connection.
    ///
    /// # Errors
    /// If it cannot be identified now; with the connection as well.
    pub async fn trace(&self, arrival: Arrival) -> Result<(Stream, Peer, Origin), (Stream, Untold)> {
        let Arrival { stream, peer, process, is_inside, place } = arrival;
        let traced = timeout(TRACED_WITHIN, self.trace_process(process.map(Arc::new), peer.pid, is_inside)).await;
        drop(place);
        match traced {
            Ok(Ok(origin)) => Ok((stream, peer, origin)),
            Ok(Err(untold)) => Err((stream, untold)),
            Err(_) => Err((stream, Untold::TooLate)),
        }
    }

    async fn trace_process(
        &self,
        process: Option<Arc<OwnedFd>>,
        pid: Option<u32>,
        is_inside: bool,
    ) -> Result<Origin, Untold> {
        let party = pid.map_or(Party::Daemon, Party::Process);
        let look = |lane: &Lane, reach: Reach| {
            let (trace, process) = (Arc::clone(&self.tracing.trace), process.clone());
            let work = lane.work.clone();
            async move {
                let traced = work.get(party, move || trace(process.as_ref().map(|process| process.as_fd()), reach));
                traced.await.ok_or(Untold::TooLate)
            }
        };
        if !is_inside {
            let traced = look(&self.outside, Reach::Whole).await?;
            return traced.ok_or(Untold::TooLate);
        }
        if let Some(origin) = look(&self.inside, Reach::Short).await? {
            return Ok(origin);
        }
        let _deep = self.deep.enter().ok_or(Untold::TooMany)?;
        look(&self.deep, Reach::Whole).await?.ok_or(Untold::TooLate)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, PoisonError, mpsc};

    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    use tokio::task::JoinSet;

    use super::*;

    /// Peers that come marked or not; traces of the marked ones end when they may.
    struct Bench {
        arrivals: Arc<Arrivals>,
        marked: Arc<AtomicBool>,
        go_on: mpsc::Sender<()>,
        clients: Vec<UnixStream>,
    }

    impl Bench {
        /// `is_deep` says whether the marked ones have long chains.
        fn new(is_deep: bool) -> Self {
            let marked = Arc::new(AtomicBool::new(false));
            let (go_on, stopped) = mpsc::channel::<()>();
            let stopped = Mutex::new(stopped);
            let trace = move |process: Option<BorrowedFd<'_>>, reach| {
                if process.is_some() {
                    return Some(Origin::Outside);
                }
                if is_deep && reach == Reach::Short {
                    return None;
                }
                // It ends as well when the bench does.
                _ = stopped.lock().unwrap_or_else(PoisonError::into_inner).recv();
                Some(Origin::Unknown("of a run".to_owned()))
            };
            let is_marked = Arc::clone(&marked);
            let tracing =
                Tracing { is_marked: Box::new(move |_| is_marked.load(Ordering::SeqCst)), trace: Arc::new(trace) };
            let arrivals = Arc::new(Arrivals::new(tracing, Handle::current()));
            Self { arrivals, marked, go_on, clients: Vec::new() }
        }

        async fn come(&mut self, marked: bool) -> Result<Arrival, Untold> {
            self.marked.store(marked, Ordering::SeqCst);
            let (ours, theirs) = UnixStream::pair().unwrap();
            self.clients.push(theirs);
            let place = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
            let ours = Stream::accepted(ours.into(), place).unwrap();
            let peer = Peer::of(&ours).unwrap();
            let process = (!marked).then(|| pidfd_open(getpid(), PidfdFlags::empty()).unwrap());
            let room = self.arrivals.room().await.unwrap();
            self.arrivals.enter((ours, peer, process), room).map_err(|(_, untold)| untold)
        }

        async fn trace(arrivals: Arc<Arrivals>, arrival: Arrival) -> Result<Origin, Untold> {
            arrivals.trace(arrival).await.map(|(_, _, origin)| origin).map_err(|(_, untold)| untold)
        }

        /// As many marked ones as there may be, being traced.
        async fn crowd(&mut self) -> JoinSet<Result<Origin, Untold>> {
            let mut traces = JoinSet::new();
            for _ in 0..INSIDE {
                let arrival = self.come(true).await.unwrap();
                traces.spawn(Self::trace(Arc::clone(&self.arrivals), arrival));
            }
            traces
        }

        async fn operators_come_in(&mut self) {
            for _ in 0..2 * OUTSIDE {
                let arrival = self.come(false).await.unwrap();
                assert_eq!(Self::trace(Arc::clone(&self.arrivals), arrival).await, Ok(Origin::Outside));
            }
        }
    }

    /// Whatever it costs to tell whose the processes of runs are, operators wait for none of it.
    #[tokio::test]
    async fn peers_of_runs_wait_for_each_other_and_hold_no_operator_up() {
        let mut bench = Bench::new(false);
        let mut traces = bench.crowd().await;
        assert_eq!(bench.come(true).await.unwrap_err(), Untold::TooMany);
        bench.operators_come_in().await;
        bench.go_on.send(()).unwrap();
        assert_eq!(traces.join_next().await.unwrap().unwrap(), Ok(Origin::Unknown("of a run".to_owned())));
        bench.come(true).await.unwrap();
    }

    #[tokio::test]
    async fn long_chains_take_few_places_from_short_ones() {
        let mut bench = Bench::new(true);
        let mut traces = bench.crowd().await;
        for _ in 0..INSIDE - DEEP {
            assert_eq!(traces.join_next().await.unwrap().unwrap(), Err(Untold::TooMany));
        }
        assert_eq!(bench.arrivals.inside.places.available_permits(), INSIDE - DEEP);
        bench.operators_come_in().await;
    }

    #[tokio::test]
    async fn a_trace_that_hangs_is_given_up_and_gives_no_rights() {
        let mut bench = Bench::new(false);
        let arrival = bench.come(true).await.unwrap();
        assert_eq!(Bench::trace(Arc::clone(&bench.arrivals), arrival).await, Err(Untold::TooLate));
        assert_eq!(bench.arrivals.inside.places.available_permits(), INSIDE);
    }
}
