//! Prunes finished runs, on request and by configuration, and redundant events of the daemon, by configuration. Also
//! makes backups.
//!
//! One pruning at a time. It takes whole trees, in steps of at most 200 runs; the top of a tree goes last, so that
//! after a crash the rest is still found. Housekeeping works in tasks beside the driver, and sends the driver requests
//! as a client does. Must not delete from the journal itself: a step of the world decides and records what is removed.

use std::sync::Arc;
use std::time::Duration;

use harness_protocol::id::{RunId, Seq};
use harness_protocol::rpc::{BackedUp, BackupParams, Changed, PruneParams, Unchanged, UnchangedReason};
use harness_protocol::time::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, oneshot};
use tokio::task::AbortHandle;
use tracing::{info, warn};

use crate::blocking::Blocking;
use crate::config::Retention;
use crate::control::request::{Request, Responder, Wanted};
use crate::fair_queue::Party;
use crate::inbox::Inbox;
use crate::journal::history::{History, Prunable};
use crate::refusal::{Fault, JournalRefusal, Refusal};
use crate::world::api::{Command, Reply};
use crate::world::redundant_events::spent;

/// Runs that one step removes.
const CHUNK: usize = 200;
/// Events that one step removes.
const MOST_EVENTS: usize = 1_000;
/// Runs that one request removes or names.
const MOST: usize = 200_000;

/// Prunes runs and makes backups, in tasks of its own.
#[derive(Clone)]
pub(super) struct Housekeeper {
    history: History,
    inbox: Inbox<Request>,
    blocking: Blocking,
    runtime: Handle,
    uid: u32,
    turn: Arc<Mutex<()>>,
}

/// The selection of runs to prune.
#[derive(Clone)]
struct Order {
    which: Prunable,
    /// Keep this many of the latest.
    keep: Option<u32>,
    dry_run: bool,
}

impl Housekeeper {
    /// A housekeeper that works on the current runtime.
    pub(super) fn new(history: History, inbox: Inbox<Request>, blocking: Blocking, uid: u32) -> Self {
        Self { history, inbox, blocking, runtime: Handle::current(), uid, turn: Arc::default() }
    }

    /// Prunes on a client's request. Names were resolved to ids.
    pub(super) fn prune(&self, params: PruneParams, now: Timestamp, responder: Responder) {
        let keeper = self.clone();
        self.runtime.spawn(async move {
            let before = params.older_than_seconds.map(|age| now.before(age));
            let named: Vec<RunId> = params.select.runs.iter().filter_map(|run| run.parse().ok()).collect();
            let which = Prunable { select: params.select, before, before_or_at: None };
            let pruned = keeper.obey(Order { which, keep: params.keep, dry_run: params.dry_run }).await;
            responder.send(pruned.map(|mut changed| {
                tell_of_the_rest(&mut changed, &named);
                changed
            }));
        });
    }

    /// Keeps the configured limits, as long as the daemon lives.
    pub(super) fn keep_within(
        &self,
        retention: Retention,
        time: impl Fn() -> Timestamp + Send + 'static,
    ) -> AbortHandle {
        self.runtime.spawn(self.clone().keep(retention, time)).abort_handle()
    }

    async fn keep(self, retention: Retention, time: impl Fn() -> Timestamp + Send) {
        let mut left = 0;
        loop {
            let order = Order { which: Prunable::default(), keep: None, dry_run: false };
            let by_count = retention.runs.map(|runs| Order { keep: Some(runs), ..order.clone() });
            let by_age = retention.age.map(|age| {
                let which = Prunable { before: Some(time().before(age)), ..Prunable::default() };
                Order { which, ..order.clone() }
            });
            for order in by_age.into_iter().chain(by_count) {
                match self.obey(order).await {
                    Ok(changed) if changed.runs.is_empty() => {}
                    Ok(changed) => info!(runs = changed.runs.len(), "pruned by configuration"),
                    Err(error) => warn!(%error, "nothing could be pruned by configuration"),
                }
            }
            left = self.prune_events(&retention, left, time()).await.unwrap_or_else(|error| {
                warn!(%error, "old events could not be pruned");
                left
            });
            tokio::time::sleep(Duration::from_micros(retention.every.as_micros())).await;
        }
    }

    /// Removes old or surplus events of the daemon, its lanes and providers that have no meaning any more. Looks only
    /// when there are some more than the `left` of last time. Gives how many are left.
    async fn prune_events(&self, retention: &Retention, left: usize, now: Timestamp) -> Result<usize, Refusal> {
        let _turn = self.turn.lock().await;
        let history = self.history.clone();
        let count = self
            .blocking
            .get(Party::Daemon, move || history.count_of_daemon())
            .await
            .ok_or(JournalRefusal::NotRead)??;
        let keep = retention.events as usize;
        // The record of a pruning is an event itself, and no reason for the next one.
        if left > 0 && count < left + (keep / 10).max(2) {
            return Ok(left);
        }
        let (history, before) = (self.history.clone(), retention.age.map(|age| now.before(age)));
        let found = self.blocking.get(Party::Daemon, move || {
            let (events, needed_from) = history.of_daemon()?;
            let old = before.map_or(0, |before| events.iter().take_while(|event| event.at < before).count());
            Ok::<_, JournalRefusal>(spent(&events, old.max(events.len().saturating_sub(keep)), needed_from))
        });
        let spent: Vec<Seq> = found.await.ok_or(JournalRefusal::NotRead)??;
        for events in spent.chunks(MOST_EVENTS) {
            self.tell(|tell| Wanted::Own(Command::PruneEvents(events.to_vec()), tell)).await??;
        }
        if !spent.is_empty() {
            self.tidy().await;
        }
        Ok((count - spent.len().min(count)).max(1))
    }

    async fn obey(&self, order: Order) -> Result<Changed, Refusal> {
        let _turn = self.turn.lock().await;
        let mut all = Changed::default();
        let mut after = 0;
        let chunk = if order.dry_run { MOST } else { CHUNK };
        // Which runs are surplus is determined before the first removal, and stays the same.
        let mut which = order.which;
        if let Some(keep) = order.keep {
            which.before_or_at = self.boundary(&which, keep).await?;
            if which.before_or_at.is_none() {
                return Ok(all);
            }
        }
        while all.runs.len() < MOST {
            let (history, asked) = (self.history.clone(), which.clone());
            let found = self.blocking.get(Party::Daemon, move || history.prunable(&asked, after, chunk));
            let found = found.await.ok_or(JournalRefusal::NotRead)??;
            let Some(&(last, _)) = found.last() else { break };
            after = last;
            let runs = self.trees(found.into_iter().map(|(_, run)| run).collect()).await?;
            if order.dry_run {
                all.runs.extend(runs);
                break;
            }
            for runs in runs.chunks(CHUNK) {
                let changed = self.ask(Command::Prune(runs.to_vec())).await?;
                all.runs.extend(changed.runs);
                all.unchanged.extend(changed.unchanged);
            }
        }
        if !all.runs.is_empty() && !order.dry_run {
            self.tidy().await;
        }
        Ok(all)
    }

    /// The runs of these trees; the root of each comes last, so that after a crash the rest is still found by it.
    async fn trees(&self, tops: Vec<RunId>) -> Result<Vec<RunId>, Refusal> {
        let history = self.history.clone();
        let found = self.blocking.get(Party::Daemon, move || {
            let mut runs = Vec::new();
            for top in tops {
                runs.extend(history.tree_below(top, u32::MAX)?.into_iter().rev());
                runs.push(top);
            }
            Ok::<_, JournalRefusal>(runs)
        });
        Ok(found.await.ok_or(JournalRefusal::NotRead)??)
    }

    async fn boundary(&self, which: &Prunable, keep: u32) -> Result<Option<(Timestamp, u64)>, Refusal> {
        let (history, which) = (self.history.clone(), which.clone());
        let last = self.blocking.get(Party::Daemon, move || history.last_beyond(&which, keep)).await;
        Ok(last.ok_or(JournalRefusal::NotRead)??)
    }

    async fn ask(&self, command: Command) -> Result<Changed, Refusal> {
        match self.tell(|tell| Wanted::Own(command, tell)).await? {
            Ok(Reply::Changed(changed)) => Ok(changed),
            Ok(_) => Err(Fault::OtherReply.into()),
            Err(error) => Err(error),
        }
    }

    /// Gives free space back to the file system, a little at a time: commits go on in between.
    async fn tidy(&self) {
        while let Ok(true) = self.tell(Wanted::Tidy).await {}
    }

    async fn tell<T>(&self, wanted: impl FnOnce(oneshot::Sender<T>) -> Wanted) -> Result<T, Refusal> {
        let (tell, told) = oneshot::channel();
        self.inbox.put(Request::own(self.uid, wanted(tell))).await;
        told.await.map_err(|_| Refusal::Stopping { undecided: false })
    }
}

/// A client that names a run is told why it stays.
fn tell_of_the_rest(changed: &mut Changed, named: &[RunId]) {
    for &run in named {
        if !changed.runs.contains(&run) && !changed.unchanged.iter().any(|one| one.run == run) {
            changed.unchanged.push(Unchanged::new(run, UnchangedReason::Kept));
        }
    }
}

/// Copies the journal to a new file, and the outputs of calls where that is wanted.
pub(super) fn back_up(history: &History, params: &BackupParams) -> Result<BackedUp, Refusal> {
    let to = std::path::Path::new(&params.to);
    if !to.is_absolute() {
        return Err(JournalRefusal::BackupNotAbsolute { path: params.to.clone() }.into());
    }
    let (bytes, output_bytes) = history.back_up(to, params.outputs)?;
    Ok(BackedUp { bytes, output_bytes })
}
