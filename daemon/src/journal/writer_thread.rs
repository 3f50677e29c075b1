//! Runs the thread that writes the journal, and gives the driver a handle to it ([`Store`]).
//!
//! The thread does one task at a time, a commit or a tidy. The driver must wait for the result before it gives the next
//! task; that wait blocks no thread of the driver. A shutdown waits two seconds for the thread at most, then goes on
//! without it: a disk may not answer.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;
use tracing::error;

use super::history::History;
use super::identity::Mark;
use super::{Commit, CommitClass, CommitError, CommitFault, Journal, Writer};

/// Name of the file in the state directory.
pub const FILE: &str = "harness.db";
/// How long a shutdown waits for the last write of the thread.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// A task for the thread, with the channel for its result.
enum Order {
    Commit(Arc<Commit>, CommitClass, oneshot::Sender<Result<(), CommitError>>),
    Tidy(oneshot::Sender<Result<bool, CommitError>>),
}

/// The journal on disk. Dropping it ends the thread, and waits for that, unless the disk does not answer.
#[derive(Debug)]
pub struct Store {
    orders: Option<SyncSender<Order>>,
    /// Carries no message; its other end is dropped when the thread ends.
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Starts the thread on an open journal that `history` reads. `mark` records the last committed event beside the
    /// journal.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(db: Connection, path: &Path, mark: Option<Mark>, history: &History) -> std::io::Result<Self> {
        let (orders, taken) = sync_channel(1);
        let writer = Writer::new(db, path, history.holds()).marking(mark);
        let (lives, ended) = sync_channel(0);
        let body = move || {
            write(writer, &taken);
            drop(lives);
        };
        let thread = thread::Builder::new().name("journal".to_owned()).spawn(body)?;
        Ok(Self { orders: Some(orders), ended, thread: Some(thread) })
    }

    fn order<T: Send + 'static>(
        &self,
        make: impl FnOnce(oneshot::Sender<Result<T, CommitError>>) -> Order,
    ) -> impl Future<Output = Result<T, CommitError>> + Send + 'static {
        let gone = || CommitError {
            fault: CommitFault::Ours,
            reason: "the thread that writes the journal is gone; see the log".to_owned(),
        };
        let (tell, told) = oneshot::channel();
        // The thread gets one order at a time, so the channel has room.
        let sent = self.orders.as_ref().is_some_and(|orders| orders.try_send(make(tell)).is_ok());
        async move {
            if !sent {
                return Err(gone());
            }
            told.await.map_err(|_| gone())?
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Without orders the thread ends, and closes the file.
        drop(self.orders.take());
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(LAST_WAIT) {
            error!(
                "the disk of the journal does not answer: stopping without it; the next start goes on from what is on \
                 it"
            );
            return;
        }
        if let Some(thread) = self.thread.take() {
            // If it ended by a panic, the panic was logged already.
            let _ = thread.join();
        }
    }
}

fn write(mut writer: Writer, orders: &Receiver<Order>) {
    while let Ok(order) = orders.recv() {
        // The sends fail if the driver has gone, because the daemon is stopping.
        match order {
            Order::Commit(commit, class, tell) => drop(tell.send(writer.commit(&commit, class))),
            Order::Tidy(tell) => drop(tell.send(writer.tidy())),
        }
    }
}

impl Journal for Store {
    fn commit(
        &mut self,
        commit: &Arc<Commit>,
        class: CommitClass,
    ) -> impl Future<Output = Result<(), CommitError>> + Send + 'static {
        let commit = Arc::clone(commit);
        self.order(move |tell| Order::Commit(commit, class, tell))
    }

    fn tidy(&mut self) -> impl Future<Output = Result<bool, CommitError>> + Send + 'static {
        self.order(Order::Tidy)
    }
}
