//! Collects the facts of `daemon.status` that are outside of the world: counts of the journal, bytes on disk, processes
//! that an earlier daemon has left, memory and descriptors.
//!
//! A look at these facts waits behind no other read of the journal. A status waits half a second for its look at most:
//! then it gives the last known facts. One look answers all statuses that came before it began.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::rpc::{DaemonStatusReply, DiskUsage, LeftProcess};
use harness_protocol::run::RunState;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::control::request::Responder;
use crate::journal::history::History;
use crate::observe::usage;

/// How long a status waits for the disk.
const PATIENCE: Duration = Duration::from_millis(500);

/// Bytes that the state takes on disk. May block as long as the disk does.
pub type Disk = Arc<dyn Fn() -> DiskUsage + Send + Sync>;
/// Processes that an earlier daemon's runs have left, that live, and that this daemon may not end.
pub type LeftProcesses = Arc<dyn Fn() -> Vec<LeftProcess> + Send + Sync>;

/// The results of the last look.
#[derive(Debug, Clone, Default)]
struct Found {
    /// Number of looks that were begun before this one.
    look: u64,
    /// Archived runs by state.
    left: BTreeMap<RunState, u32>,
    left_processes: Vec<LeftProcess>,
    disk: DiskUsage,
    rss_bytes: Option<u64>,
    open_files: Option<u32>,
}

/// Gathers the facts, and completes statuses with them.
#[derive(Clone)]
pub(super) struct Facts {
    runtime: Handle,
    found: watch::Receiver<Found>,
    /// Number of the look that is wanted.
    wanted: Arc<watch::Sender<u64>>,
}

impl Facts {
    /// Facts that are gathered on request, for as long as a client may ask. Within a runtime.
    pub(super) fn new(history: History, disk: Disk, left_processes: LeftProcesses) -> Self {
        let runtime = Handle::current();
        let (tell, found) = watch::channel(Found::default());
        let wanted = Arc::new(watch::Sender::new(0));
        let mut wants = wanted.subscribe();
        runtime.spawn(async move {
            while wants.changed().await.is_ok() {
                let look = *wants.borrow_and_update();
                let (history, disk, before) = (history.clone(), Arc::clone(&disk), tell.borrow().clone());
                let left_processes = Arc::clone(&left_processes);
                let found = tokio::task::spawn_blocking(move || Found {
                    look,
                    left: history.counts().unwrap_or(before.left),
                    left_processes: left_processes(),
                    disk: disk(),
                    rss_bytes: usage::resident_bytes(),
                    open_files: usage::open_files(),
                });
                if let Ok(found) = found.await {
                    tell.send_replace(found);
                }
            }
        });
        Self { runtime, found, wanted }
    }

    /// Completes a status and sends it.
    pub(super) fn complete(&self, mut status: DaemonStatusReply, responder: Responder) {
        let mut look = 0;
        // A look that is under way may have begun before the commit that this status is to include.
        self.wanted.send_modify(|wanted| {
            *wanted += 1;
            look = *wanted;
        });
        let mut found = self.found.clone();
        self.runtime.spawn(async move {
            let new = timeout(PATIENCE, found.wait_for(|found| found.look >= look)).await;
            drop(new);
            let Found { left, left_processes, disk, rss_bytes, open_files, .. } = found.borrow().clone();
            for (state, count) in left {
                *status.runs.entry(state).or_default() += count;
            }
            status.left_processes = left_processes;
            (status.disk, status.rss_bytes, status.open_files) = (disk, rss_bytes, open_files);
            responder.send(Ok(status));
        });
    }
}
