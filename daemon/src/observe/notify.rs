//! Notifies systemd that the daemon is ready, reloads, stops, or is alive.
//!
//! The only place that talks to the service manager. Does nothing if systemd did not start the daemon. A message that
//! cannot be sent is logged; it must not fail the daemon.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::debug;

/// The connection to the service manager.
#[derive(Debug, Clone, Copy)]
pub struct Notifier {
    watchdog: Option<Duration>,
}

impl Notifier {
    /// The connection that the environment names, if there is one.
    pub fn from_env() -> Self {
        Self { watchdog: sd_notify::watchdog_enabled().map(half).filter(|every| !every.is_zero()) }
    }

    /// The daemon serves. Also ends a reload.
    pub fn ready(&self, status: &str) {
        send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
    }

    /// A short text for `systemctl status`.
    pub fn status(&self, status: &str) {
        send(&[NotifyState::Status(&one_line(status))]);
    }

    /// The daemon reads its configuration again; [`Self::ready`] ends this.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => send(&[NotifyState::Reloading, now]),
            Err(_) => send(&[NotifyState::Reloading]),
        }
    }

    /// The daemon stops; `status` says why, in a line for `systemctl status`.
    pub fn stopping(&self, status: &str) {
        send(&[NotifyState::Stopping, NotifyState::Status(&one_line(status))]);
    }

    /// The daemon needs this much more time to stop.
    pub fn needs_more_time(&self, time: Duration) {
        send(&[NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))]);
    }

    /// How often [`Self::alive`] must be called, with a margin; `None` if systemd watches no keep-alive.
    pub const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// The daemon is alive. Must be called by the task whose failure the watchdog has to notice.
    pub fn alive(&self) {
        send(&[NotifyState::Watchdog]);
    }
}

fn half(timeout: Duration) -> Duration {
    timeout / 2
}

/// Removes line breaks: a line break would begin another assignment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!(%error, "the service manager was not told");
    }
}
