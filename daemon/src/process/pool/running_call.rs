//! Executes one call in its keeper: starts it, watches it, ends it, and gives the keeper back.
//!
//! If a call is dropped, its keeper is not given back but closed, and ends everything below it.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::id::RunId;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connection::{Link, end_of};
use super::{Keepers, Parked, Swept};
use crate::process::cancel::{Cancel, Stop};
use crate::process::cgroup::Grouped;
use crate::process::spawn::{Launch, SpawnError};
use crate::process::supervisor::protocol::{Failure, Request, Used, What};
use crate::process::timing::{GRACE, KILL_WAIT, RUNS_AFTER};

/// How long a keeper may be silent when it has something to say; then it is woken, because a process has stopped it.
const SILENCE: Duration = Duration::from_millis(150);
/// Number of keepers that may turn out to be dead before a call is given up.
pub(in crate::process) const TRIES: usize = 32;

/// A call with its keeper.
pub(in crate::process) struct Held {
    link: Option<Link>,
    keepers: Arc<Keepers>,
    run: RunId,
    /// How the process of the call ended, once the keeper has said so.
    used: Option<Used>,
    /// The keeper has ended it, because its time limit was over.
    expired: bool,
    /// No process is left below the keeper.
    alone: bool,
    /// The keeper was lost, and its leftovers were ended.
    swept: bool,
    /// Everything was killed, and the kernel does not end what is left.
    stuck: bool,
}

/// The run has too many parked keepers: this is the latest one.
pub(in crate::process) struct TooMany {
    pub(in crate::process) held: Box<Held>,
    pub(in crate::process) drainer: Option<JoinHandle<()>>,
}

/// How waiting for the end of a process ended.
pub(in crate::process) enum Heard {
    /// The process ended, and the keeper has sent its status.
    Ended,
    /// The process did not start.
    Failed(Failure),
    /// The keeper is gone.
    Lost,
    /// The keeper was gone before it read the request.
    Untaken,
    /// The time limit was over, and not even SIGKILL has ended what is left.
    Stuck,
}

impl Held {
    /// Has a keeper start a process for `run`, with its output going to `descriptors`.
    ///
    /// # Errors
    /// If the kernel would refuse the command, or no keeper can be started.
    pub(in crate::process) async fn start(
        keepers: &Arc<Keepers>,
        run: RunId,
        launch: &Launch<'_>,
        terminal: Option<&Path>,
        time_limit: Duration,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Self, SpawnError> {
        let mut tries = TRIES;
        loop {
            let group = keepers.group(run, launch.limits).await;
            let mut link = keepers.take(launch.owner, run).map_err(SpawnError::of_means)?;
            let seq = link.next_seq();
            let frame = launch.frame(seq, terminal, group.as_ref(), time_limit);
            link.group = group.map(Box::new);
            let mut held = Self {
                link: Some(link),
                keepers: Arc::clone(keepers),
                run,
                used: None,
                expired: false,
                alone: false,
                swept: false,
                stuck: false,
            };
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
                // Nothing of it went, and the keeper is as it was.
                Err(error) if error.raw_os_error() == Some(nix::libc::ETOOMANYREFS) => {
                    held.give_back();
                    return Err(SpawnError::of_means(error));
                }
                // It was killed while it was idle. A frame that it did not read whole has started nothing.
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
            What::Ended { used, alone, expired } => {
                self.used = Some(used);
                self.expired = expired;
                self.alone = alone;
            }
            What::Failed(_) | What::Empty => self.alone = true,
            What::Stuck => self.leave_stuck(),
            What::Runs { .. } => {}
        }
    }

    fn wake(&self) {
        if let Some(link) = &self.link {
            link.wake();
        }
    }

    /// Waits for the end of the process. The future can be dropped and made again.
    pub(in crate::process) async fn ended(&mut self) -> Heard {
        let mut patience = RUNS_AFTER + SILENCE;
        loop {
            // A process may have stopped the keeper (`kill -STOP $PPID`). At first the keeper has to say at least that
            // the process runs; later that it ended, soon after it has.
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
                Ok(Ok(What::Stuck)) => return Heard::Stuck,
                // The kernel reports a reset where the keeper has left bytes unread.
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => return Heard::Untaken,
                Ok(Err(_)) => return Heard::Lost,
            };
            let Ok(end) = end_of(pid) else {
                // It has just ended, or there is no descriptor for it: to wake the keeper now and then is enough.
                patience = SILENCE;
                continue;
            };
            loop {
                tokio::select! {
                    biased;
                    heard = self.next() => match heard {
                        Ok(What::Ended { .. }) => return Heard::Ended,
                        Ok(What::Stuck) => return Heard::Stuck,
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
        if self.stuck {
            return;
        }
        let mut force = stop == Stop::AtOnce;
        let ended = timeout(GRACE + KILL_WAIT, async {
            self.ask_to_end(force).await?;
            loop {
                tokio::select! {
                    biased;
                    heard = self.next() => match heard? {
                        What::Empty | What::Failed(_) | What::Stuck => return Ok(()),
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

    /// The keeper no longer works: it is killed, and the daemon does its work.
    async fn sweep(&mut self) {
        if let Some(link) = self.link.take() {
            match self.keepers.lost(link).await {
                Swept::All => self.swept = true,
                Swept::Stuck => self.stuck = true,
                Swept::Part => {}
            }
        }
    }

    /// What is left below the keeper executes nothing any more, and does not end: the keeper stays with it.
    fn leave_stuck(&mut self) {
        self.stuck = true;
        if let Some(link) = self.link.take() {
            self.keepers.leave_stuck(self.run, link);
        }
    }

    /// The keeper is gone. Ends its leftovers.
    pub(in crate::process) async fn lost(&mut self) {
        self.sweep().await;
    }

    /// Whether the keeper was lost, and with it the end of the call, and all of its processes were ended.
    pub(in crate::process) fn is_swept(&self) -> bool {
        self.swept
    }

    /// Whether everything was killed, and the kernel does not end what is left.
    pub(in crate::process) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// How the process ended, if the keeper has said so.
    pub(in crate::process) fn used(&self) -> Option<&Used> {
        self.used.as_ref()
    }

    /// Whether the keeper has ended the process, because its time limit was over and the daemon had not done it.
    pub(in crate::process) fn is_expired(&self) -> bool {
        self.expired
    }

    /// Whether the call has met limits of its whole run so far.
    pub(in crate::process) fn grouped(&self) -> Grouped {
        let group = self.link.as_ref().and_then(|link| link.group.as_ref());
        group.map(|group| group.grouped()).unwrap_or_default()
    }

    /// Whether no process of the call is left. Reads pending messages first.
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

    /// Parks the keeper with the processes that live on. Gives everything back where the run has too many of these.
    pub(in crate::process) fn park(mut self, drainer: Option<JoinHandle<()>>) -> Result<(), TooMany> {
        let Some(link) = self.link.take() else { return Ok(()) };
        self.keepers.park(self.run, Parked { link, drainer }).map_err(|Parked { link, drainer }| {
            self.link = Some(link);
            TooMany { held: Box::new(self), drainer }
        })
    }

    /// Takes over a parked keeper.
    pub(in crate::process) fn again(keepers: &Arc<Keepers>, run: RunId, link: Link) -> Self {
        Self {
            link: Some(link),
            keepers: Arc::clone(keepers),
            run,
            used: None,
            expired: false,
            alone: false,
            swept: false,
            stuck: false,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            self.keepers.retire(link);
        }
    }
}
