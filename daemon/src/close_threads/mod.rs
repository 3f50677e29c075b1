//! Closes connections, with the descriptors in flight in them, on threads of its own that may wait.
//!
//! A peer may send any descriptor over a Unix socket. The kernel releases a descriptor that is not received when the
//! socket is closed, or when the bytes beside it are read without a control buffer. It does so in the thread that
//! closes or reads. The release of the last reference may block that thread: a TCP socket with SO_LINGER does for up to
//! an hour. So no worker of a runtime may drop a socket that another process can send descriptors over. The last drop
//! of such a socket is handed to these threads. A descriptor in flight is released in flight, and never received for
//! that: the close of a received descriptor may block where no signal helps (a FUSE file is flushed by close, and not
//! by a release in flight).
//!
//! A blocked thread is interrupted ([`interrupting`]). More threads are started while all are busy, up to a bound. The
//! callers bound the queue: each piece of work holds a place until it is done, that of its connection, or one of the
//! places for refused connections. SO_PASSRIGHTS (Linux 6.16) is not used: a client sends the descriptor of its working
//! directory beside its first bytes, before the daemon knows the rights of the client.
//!
//! It must not drop anything on the thread of the caller, and must not know a connection or a run: it gets work to
//! execute.

pub mod interrupting;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use interrupting::interruptibly;

/// Most threads at once.
const MOST: usize = 32;
/// How long a thread without work stays; one of them stays for ever.
const IDLE: Duration = Duration::from_secs(5);
/// Bytes of the stack of a thread.
const STACK: usize = 256 * 1024;
/// What takes longer than this is told in the log.
const LONG: Duration = Duration::from_secs(1);

/// The threads of this process.
static CLOSERS: Closers = Closers::new(MOST);

type Work = Box<dyn FnOnce() + Send>;

struct Closers {
    most: usize,
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    queue: VecDeque<Work>,
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
}

/// Prepares what closes, so that later it needs nothing of the system.
///
/// # Errors
/// If the system gives no thread.
pub fn start() -> io::Result<()> {
    interrupting::start()?;
    let mut state = CLOSERS.state();
    if state.threads == 0 { CLOSERS.begin(&mut state) } else { Ok(()) }
}

/// Does `work`, which closes something, on a thread for that, and returns at once. `work` has to hold the place of
/// its caller, so that what waits is bounded.
pub fn apart(work: impl FnOnce() + Send + 'static) {
    CLOSERS.put(Box::new(work));
}

/// Closes descriptors that were received and are of no use. Waits for files that hang, and for no socket.
pub fn close_received(received: Vec<OwnedFd>) {
    for descriptor in received {
        // It was told not to linger when it came. Another holder may have told it to again.
        interruptibly(|| drop(descriptor));
    }
}

/// A socket that is closed apart, on whatever thread this is dropped.
pub struct Apart<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Apart<T> {
    /// Has `socket` closed apart.
    pub const fn new(socket: T) -> Self {
        Self(Some(socket))
    }
}

impl<T: Send + 'static> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(socket) => socket,
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl<T: Send + AsFd + 'static> AsFd for Apart<T> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: Send + fmt::Debug + 'static> fmt::Debug for Apart<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Send + 'static> Drop for Apart<T> {
    fn drop(&mut self) {
        if let Some(socket) = self.0.take() {
            apart(move || drop(socket));
        }
    }
}

impl Closers {
    const fn new(most: usize) -> Self {
        Self { most, state: Mutex::new(State { queue: VecDeque::new(), threads: 0, idle: 0 }), came: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&'static self, work: Work) {
        let mut state = self.state();
        state.queue.push_back(work);
        if state.idle >= state.queue.len() {
            self.came.notify_one();
        } else if state.threads < self.most
            && let Err(error) = self.begin(&mut state)
            && state.threads == 0
        {
            error!(%error, "there is no thread that could close connections; the next one that is closed tries again");
        }
    }

    fn begin(&'static self, state: &mut State) -> io::Result<()> {
        let stays = state.threads == 0;
        thread::Builder::new().name("closing".to_owned()).stack_size(STACK).spawn(move || self.work_off(stays))?;
        state.threads += 1;
        Ok(())
    }

    fn work_off(&self, stays: bool) {
        let mut state = self.state();
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                work_on(work);
                state = self.state();
                continue;
            }
            state.idle += 1;
            let waited = self.came.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            state.idle -= 1;
            if waited.1.timed_out() && state.queue.is_empty() && !stays {
                state.threads -= 1;
                return;
            }
        }
    }
}

fn work_on(work: Work) {
    let begun = now();
    if catch_unwind(AssertUnwindSafe(|| interruptibly(work))).is_err() {
        error!("the close of a connection panicked");
    }
    let took = begun.elapsed();
    if took > LONG {
        warn!(?took, "the kernel took long to close a connection of a client, and what that had sent");
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a close takes concerns no run, and no driver is asked")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::sync::mpsc;

    use super::testing::{Lingering, in_flight};
    use super::*;

    #[test]
    fn what_is_in_flight_in_a_dropped_socket_keeps_no_thread_and_no_further_close_waiting() {
        let (tell, told) = mpsc::channel();
        for _ in 0..3 * MOST {
            let (stream, tell) = (in_flight(vec![Lingering::new()]), tell.clone());
            apart(move || {
                drop(stream);
                tell.send(()).unwrap();
            });
        }
        for _ in 0..3 * MOST {
            told.recv_timeout(Lingering::FOR / 2).unwrap();
        }
    }

    #[test]
    fn what_hangs_takes_threads_up_to_the_bound_and_the_rest_waits_for_them() {
        for most in [1, 2, 5] {
            let closers: &'static Closers = Box::leak(Box::new(Closers::new(most)));
            let (begins, begun) = mpsc::channel();
            let mut hung = Vec::new();
            for number in 0..most + 3 {
                let (go_on, stopped) = mpsc::channel::<()>();
                hung.push(go_on);
                let begins = begins.clone();
                closers.put(Box::new(move || {
                    begins.send(number).unwrap();
                    _ = stopped.recv();
                }));
            }
            let first: BTreeSet<usize> = (0..most).map(|_| begun.recv().unwrap()).collect();
            assert_eq!(first, (0..most).collect());
            let (threads, waiting) = {
                let state = closers.state();
                (state.threads, state.queue.len())
            };
            assert_eq!((threads, waiting), (most, 3));
            drop(hung);
            (0..3).for_each(|_| _ = begun.recv().unwrap());
        }
    }

    #[test]
    fn what_panics_takes_nothing_along() {
        let closers: &'static Closers = Box::leak(Box::new(Closers::new(1)));
        let (tell, told) = mpsc::channel();
        closers.put(Box::new(|| std::panic::resume_unwind(Box::new(()))));
        closers.put(Box::new(move || tell.send(()).unwrap()));
        told.recv().unwrap();
    }

    #[test]
    fn received_sockets_that_linger_are_interrupted() {
        let begun = now();
        close_received((0..8).map(|_| Lingering::new().into()).collect());
        assert!(begun.elapsed() < Lingering::FOR / 2);
    }
}
