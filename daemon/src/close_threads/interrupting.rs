//! Interrupts threads that wait in the kernel while they close something.
//!
//! A TCP socket with SO_LINGER makes its last close wait for up to an hour. That wait ends when a signal is pending for
//! the thread; so do those of the other kinds of sockets that linger. A thread therefore says when it closes something.
//! If that takes longer than a moment, the thread gets SIGURG again and again until it is through. The signal has a
//! handler that does nothing: without a handler it would be ignored and would end no wait. Nothing else uses SIGURG,
//! and a daemon without the handler would survive it.
//!
//! It must not signal a thread that closes nothing: SIGURG would end another wait of that thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SigSet, Signal};

/// Ends the waits. Its default is to be ignored, also in programs that the daemon starts.
const SIGNAL: Signal = Signal::SIGURG;
/// How long a close may take before its thread is interrupted, and from there to the next time.
const MOMENT: Duration = Duration::from_millis(1);
/// Interrupts after a moment each. Further ones come after twice the time of the one before.
const AT_ONCE: u32 = 16;
/// Longest time between two interrupts of one close: a thread that no signal helps is not worth more.
const LONGEST: Duration = Duration::from_millis(256);
/// Bytes of the stack of the thread that sends the signals.
const STACK: usize = 128 * 1024;

/// The threads of this process that close something: signals and threads are those of the process.
static WATCH: Watch = Watch { state: Mutex::new(State::new()), came: Condvar::new() };

struct Watch {
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    is_watched: bool,
    last: u64,
    closing: BTreeMap<u64, Closing>,
    /// When the thread that sends signals looks next; `None` while it waits for a thread that closes something.
    looks_at: Option<Instant>,
}

/// A thread that closes something.
struct Closing {
    thread: Pthread,
    interrupts: u32,
    pause: Duration,
    due: Instant,
}

impl State {
    const fn new() -> Self {
        Self { is_watched: false, last: 0, closing: BTreeMap::new(), looks_at: None }
    }
}

/// Prepares the handler and the thread that sends signals. [`interruptibly`] tries it again where it failed.
///
/// # Errors
/// If the system gives no thread or no handler.
pub fn start() -> io::Result<()> {
    WATCH.start(&mut WATCH.state())
}

/// Does `close` on this thread, which is interrupted while that waits in the kernel. May be called anywhere; what no
/// signal interrupts still hangs.
pub fn interruptibly<T>(close: impl FnOnce() -> T) -> T {
    let _closing = WATCH.enter();
    close()
}

/// Keeps a thread among those that close something.
struct Entered {
    number: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // From here on the thread gets no signal: those are sent under this lock.
        WATCH.state().closing.remove(&self.number);
    }
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&'static self, state: &mut State) -> io::Result<()> {
        if state.is_watched {
            return Ok(());
        }
        signal_hook::flag::register(SIGNAL as i32, Arc::new(AtomicBool::new(false)))?;
        thread::Builder::new().name("interrupts".to_owned()).stack_size(STACK).spawn(|| self.watch())?;
        state.is_watched = true;
        Ok(())
    }

    fn enter(&'static self) -> Entered {
        // A thread inherits what is blocked from the thread that has started it.
        _ = SigSet::from(SIGNAL).thread_unblock();
        let mut state = self.state();
        // Where it fails, the close is as slow as it is.
        _ = self.start(&mut state);
        state.last += 1;
        let number = state.last;
        let due = super::now() + MOMENT;
        state.closing.insert(number, Closing { thread: pthread_self(), interrupts: 0, pause: MOMENT, due });
        if state.looks_at.is_none_or(|at| at > due) {
            self.came.notify_one();
        }
        Entered { number }
    }

    /// Sends the signals that are due, for ever.
    fn watch(&self) {
        let mut state = self.state();
        loop {
            let now = super::now();
            for closing in state.closing.values_mut().filter(|closing| closing.due <= now) {
                closing.interrupt(now);
            }
            state.looks_at = state.closing.values().map(|closing| closing.due).min();
            state = match state.looks_at {
                // At most a moment late: a thread that has just begun is among those of the next look.
                Some(at) => {
                    let pause = at.saturating_duration_since(now).max(MOMENT / 4);
                    self.came.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.came.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Closing {
    fn interrupt(&mut self, now: Instant) {
        // The thread exists: it leaves the map before it ends.
        _ = pthread_kill(self.thread, SIGNAL);
        self.interrupts += 1;
        if self.interrupts > AT_ONCE {
            self.pause = (self.pause * 2).min(LONGEST);
        }
        self.due = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::close_threads::testing::{Lingering, in_flight};

    #[test]
    fn whatever_lingers_is_closed_at_once_however_it_is_let_go_of() {
        let ways: [fn(); 3] = [
            || interruptibly(|| drop(Lingering::new())),
            || {
                let stream = in_flight((0..4).map(|_| Lingering::new()).collect());
                interruptibly(|| drop(stream));
            },
            // A read without room for what comes beside the bytes.
            || {
                let stream = in_flight(vec![Lingering::new()]);
                interruptibly(|| io::Read::read(&mut &stream, &mut [0; 16]).unwrap());
            },
        ];
        for way in ways {
            let begun = crate::close_threads::now();
            way();
            assert!(begun.elapsed() < Lingering::FOR / 2);
        }
    }

    #[test]
    fn a_thread_that_closes_nothing_gets_no_signal() {
        interruptibly(|| ());
        let state = WATCH.state();
        assert!(!state.closing.values().any(|closing| closing.thread == pthread_self()));
    }
}
