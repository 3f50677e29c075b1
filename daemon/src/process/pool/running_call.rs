//! One call in its keeper: started, watched, ended, given back.
//!
//! Owns the rule for a dropped call: its keeper is not given back but closed, and ends everything below it.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::id::RunId;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connection::{Link, end_of};
use super::{Keepers, Parked};
use crate::process::cancel::{Cancel, Stop};
use crate::process::cgroup::Grouped;
use crate::process::spawn::{Launch, SpawnError};
use crate::process::supervisor::protocol::{Failure, Request, Used, What};
use crate::process::timing::{GRACE, KILL_WAIT, RUNS_AFTER};

/// How long a keeper may say nothing although it has something to say, before it is woken: something has stopped it.
const SILENCE: Duration = Duration::from_millis(150);
/// Keepers that may turn out to be dead before a call is given up.
pub(in crate::process) const TRIES: usize = 32;

/// A keeper that serves a call.
pub(in crate::process) struct Held {
    link: Option<Link>,
    keepers: Arc<Keepers>,
    run: RunId,
    /// How the process of the call ended, once that was heard.
    used: Option<Used>,
    /// Nothing is left below the keeper.
    alone: bool,
    /// The keeper was lost, and what it had left behind was ended.
    swept: bool,
}

/// The run has too many keepers that are left with something: here is the latest.
pub(in crate::process) struct TooMany {
    pub(in crate::process) held: Box<Held>,
    pub(in crate::process) drainer: Option<JoinHandle<()>>,
}

/// How waiting for the end of a process ended.
pub(in crate::process) enum Heard {
    /// The process ended, and the keeper has sent its status.
    Ended,
    /// It did not start.
    Failed(Failure),
    /// The keeper is gone.
    Lost,
    /// The keeper was gone before it heard of the process.
    Untaken,
}

impl Held {
    /// Has a keeper start a process for `run`, with its output going to `descriptors`.
    ///
    /// # Errors
    /// Where the kernel would not take it, or no keeper can be had.
    pub(in crate::process) async fn start(
        keepers: &Arc<Keepers>,
        run: RunId,
        launch: &Launch<'_>,
        terminal: Option<&Path>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Self, SpawnError> {
        let mut tries = TRIES;
        loop {
            let group = keepers.group(run, launch.limits).await;
            let mut link = keepers.take(run).map_err(SpawnError::Io)?;
            let seq = link.next_seq();
            let frame = launch.frame(seq, terminal, group.as_ref());
            link.group = group.map(Box::new);
            let mut held =
                Self { link: Some(link), keepers: Arc::clone(keepers), run, used: None, alone: false, swept: false };
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    held.give_back();
                    return Err(error);
                }
            };
            let sent = match &held.link {
                Some(link) => link.send(&frame, descriptors).await,
                None => Ok(()),
            };
            match sent {
                Ok(()) => return Ok(held),
                // It was killed while no call used it. A frame that it did not take whole started nothing.
                Err(error) => {
                    held.lost().await;
                    tries -= 1;
                    if tries == 0 {
                        return Err(SpawnError::Io(error));
                    }
                }
            }
        }
    }

    async fn next(&mut self) -> io::Result<What> {
        let link = self.link.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let what = link.next().await?;
        self.note(what);
        Ok(what)
    }

    fn note(&mut self, what: What) {
        match what {
            What::Ended { used, alone } => {
                self.used = Some(used);
                self.alone = alone;
            }
            What::Failed(_) | What::Empty => self.alone = true,
            What::Runs { .. } => {}
        }
    }

    fn wake(&self) {
        if let Some(link) = &self.link {
            link.wake();
        }
    }

    /// Waits for the end of the process. Can be dropped and called again.
    pub(in crate::process) async fn ended(&mut self) -> Heard {
        let mut patience = RUNS_AFTER + SILENCE;
        loop {
            // Somewhere a process may have stopped the keeper (`kill -STOP $PPID`). At first it has to say at least
            // that the process runs; later it has to say that it ended, soon after it has.
            let pid = match timeout(patience, self.next()).await {
                Err(_) => {
                    self.wake();
                    patience *= 2;
                    continue;
                }
                Ok(Ok(What::Runs { pid })) => pid,
                Ok(Ok(What::Ended { .. })) => return Heard::Ended,
                Ok(Ok(What::Failed(failure))) => return Heard::Failed(failure),
                Ok(Ok(What::Empty)) => continue,
                // What it leaves unread makes the kernel say so.
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => return Heard::Untaken,
                Ok(Err(_)) => return Heard::Lost,
            };
            let Ok(end) = end_of(pid) else {
                // It has just ended, or no descriptor is to be had: waking the keeper now and then does as well.
                patience = SILENCE;
                continue;
            };
            loop {
                tokio::select! {
                    biased;
                    heard = self.next() => match heard {
                        Ok(What::Ended { .. }) => return Heard::Ended,
                        Ok(_) => {}
                        Err(_) => return Heard::Lost,
                    },
                    () = async {
                        let _ = end.readable().await;
                        sleep(SILENCE).await;
                    } => self.wake(),
                }
            }
        }
    }

    /// Ends everything below the keeper and waits until nothing is left, or until even SIGKILL has not helped for a
    /// while.
    pub(in crate::process) async fn end_all(&mut self, cancel: &mut Cancel, stop: Stop) {
        let mut force = stop == Stop::AtOnce;
        let ended = timeout(GRACE + KILL_WAIT, async {
            self.ask_to_end(force).await?;
            loop {
                tokio::select! {
                    biased;
                    heard = self.next() => match heard? {
                        What::Empty | What::Failed(_) => return Ok(()),
                        What::Runs { .. } | What::Ended { .. } => {}
                    },
                    () = cancel.forced(), if !force => {
                        force = true;
                        self.ask_to_end(true).await?;
                    }
                    () = sleep(SILENCE) => self.wake(),
                }
            }
        });
        let ended: Result<io::Result<()>, _> = ended.await;
        match ended {
            Ok(Ok(())) => self.alone = true,
            Ok(Err(_)) => self.sweep().await,
            Err(_) => {
                tracing::error!(run = %self.run, "a keeper has not ended the processes of a call in time");
                self.sweep().await;
            }
        }
    }

    async fn ask_to_end(&mut self, force: bool) -> io::Result<()> {
        let link = self.link.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        link.send(&Request::end(force), &[]).await?;
        link.wake();
        if force && let Some(group) = &link.group {
            // Processes that fork fast are better killed at once. The keeper does the rest, until none is left.
            group.kill();
        }
        Ok(())
    }

    /// The keeper is of no use any more: it is killed, and the daemon does its work.
    async fn sweep(&mut self) {
        if let Some(link) = self.link.take() {
            self.swept = self.keepers.lost(link).await;
        }
    }

    /// The keeper is gone. Ends what it has left behind.
    pub(in crate::process) async fn lost(&mut self) {
        self.sweep().await;
    }

    /// Whether the keeper was lost, and with it the end of the call, and all that it had started was ended.
    pub(in crate::process) fn is_swept(&self) -> bool {
        self.swept
    }

    /// How the process ended, if that was heard.
    pub(in crate::process) fn used(&self) -> Option<&Used> {
        self.used.as_ref()
    }

    /// How the call came off so far with the limits that are of its whole run.
    pub(in crate::process) fn grouped(&self) -> Grouped {
        let group = self.link.as_ref().and_then(|link| link.group.as_ref());
        group.map(|group| group.grouped()).unwrap_or_default()
    }

    /// Whether nothing of the call is left. Hears what was said meanwhile.
    pub(in crate::process) fn is_alone(&mut self) -> bool {
        while !self.alone {
            let said = self.link.as_mut().map(Link::try_next);
            match said {
                Some(Ok(Some(what))) => self.note(what),
                _ => break,
            }
        }
        self.alone || self.link.is_none()
    }

    /// Gives the keeper back: nothing is left below it.
    pub(in crate::process) fn give_back(mut self) {
        if let Some(link) = self.link.take() {
            self.keepers.give_back(link);
        }
    }

    /// Leaves the keeper with what lives on. Where the run has too much of that, everything is given back.
    pub(in crate::process) fn park(mut self, drainer: Option<JoinHandle<()>>) -> Result<(), TooMany> {
        let Some(link) = self.link.take() else { return Ok(()) };
        self.keepers.park(self.run, Parked { link, drainer }).map_err(|Parked { link, drainer }| {
            self.link = Some(link);
            TooMany { held: Box::new(self), drainer }
        })
    }

    /// Takes over a keeper that was parked.
    pub(in crate::process) fn again(keepers: &Arc<Keepers>, run: RunId, link: Link) -> Self {
        Self { link: Some(link), keepers: Arc::clone(keepers), run, used: None, alone: false, swept: false }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            self.keepers.retire(link);
        }
    }
}
