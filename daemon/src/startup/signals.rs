//! Receives the signals of the system. A signal to stop or to reload is passed on as a request; signals without a
//! meaning that would end the daemon, such as SIGUSR1, are caught and ignored. It must not stop or reload anything
//! itself.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Stop: SIGTERM, SIGINT, SIGQUIT, and SIGPWR, by which a machine says that its power fails.
    Stop,
    /// Read the configuration again: SIGHUP.
    Reload,
}

/// The signals that the daemon handles.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    quit: Signal,
    power: Signal,
}

/// Signals without a meaning for the daemon, which would end it: SIGUSR1, SIGUSR2, SIGALRM, SIGIO, SIGVTALRM, SIGPROF.
/// They are caught rather than ignored, because every started process would inherit that.
const MEANINGLESS: [SignalKind; 6] = [
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
    SignalKind::alarm(),
    SignalKind::io(),
    SignalKind::from_raw(nix::libc::SIGVTALRM),
    SignalKind::from_raw(nix::libc::SIGPROF),
];

impl Signals {
    /// Handles the signals from now on. Within a runtime.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn listen() -> io::Result<Self> {
        for kind in MEANINGLESS {
            // One registration is enough: it stays in force after this value is dropped.
            let _heard = signal(kind)?;
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            power: signal(SignalKind::from_raw(nix::libc::SIGPWR))?,
        })
    }

    /// The next signal. The future may be dropped and made again; no signal is lost.
    pub async fn next(&mut self) -> Asked {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.quit.recv() => Asked::Stop,
            _ = self.power.recv() => Asked::Stop,
            _ = self.hangup.recv() => Asked::Reload,
        }
    }
}
