//! Drives the daemon in one loop: takes what came, steps the world, commits, shows, and starts work. The only task that
//! owns the world.
//!
//! ```text
//!        ┌──────────────────────────────────────────────────────────┐
//!        ▼                                                          │
//!   wait for the inbox ─▶ step ─▶ commit ─▶ show ─▶ act ─▶ answer reads
//!   or for a deadline               │ fails
//!                                   ▼
//!                                 held: reads are answered, new work is refused, the same commit is tried again
//! ```
//!
//! While a commit is under way and much has come, the next steps are made already. Their events are committed together
//! after that one, and shown and done after their own commit. Reads and waits for runs are answered when no commit is
//! under way, or when the daemon is held.
//!
//! The only place with this order: no event is shown and no effect is done before it is in the journal (`commit` has
//! the two exceptions while held). Must not decide about runs or execute work, and must not block its thread on a disk.
//! It may wait for a commit for up to three seconds; then the daemon is held, and the driver answers what can be
//! answered.

mod archive;
mod bulk_changes;
mod clock;
mod commit;
mod housekeeping;
mod journal_lookups;
mod reads;
mod reload;
mod replies;
mod signals;
mod status;
#[cfg(test)]
mod tests;
mod turn;
mod waiters;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness_protocol::id::RunId;
use harness_protocol::rpc::{ConfigReport, Empty, JournalReport, ProcessView};
use harness_protocol::time::{Span, Timestamp};
use tracing::warn;

use crate::blocking::Blocking;
use crate::control::request::{ConnectionId, Request, Responder};
use crate::feed::Feed;
use crate::inbox::{Inbox, TURN};
use crate::jobs::Executor;
use crate::journal::epochs::Epoch;
use crate::journal::history::History;
use crate::journal::{Ballast, CommitError, Journal};
use crate::world::Engine;
use crate::world::api::{Caller, Command, Damage, Input, Now};

use archive::Archive;
use bulk_changes::Sweeps;
pub use clock::Clock;
use commit::{Gathered, UnderWay};
use housekeeping::Housekeeper;
use journal_lookups::Lookups;
use reload::Reloads;
pub use reload::{Prepare, Prepared, Reload, report as report_configuration};
use replies::{Pending, Replies};
pub use signals::{Order, Orders, ReloadCounts};
use status::Facts;
pub use status::{Disk, LeftProcesses};
use waiters::Waiters;

/// Requests that must wait in the inbox for a step to be made while the last commit is under way.
const EARLY: usize = TURN;
/// Look-ups of names and keys at once; reads of `/proc` have as many.
const LOOKUPS: usize = 2;

/// Lists the processes of a run. Reads `/proc`.
pub type ProcessesOf = Arc<dyn Fn(RunId) -> Vec<ProcessView> + Send + Sync>;

/// Facts about the daemon that the world does not know.
pub struct Service {
    /// When it began to serve.
    pub started_at: Timestamp,
    /// Path of the socket.
    pub socket: String,
    /// Path of the state directory.
    pub state_dir: String,
    /// Whether systemd owns the socket.
    pub socket_activated: bool,
    /// Counts the connections that are open now.
    pub connections: Box<dyn Fn() -> u32 + Send + Sync>,
    /// Lists the processes of a run.
    pub processes: ProcessesOf,
    /// User id of the daemon.
    pub uid: u32,
    /// Why the journal cannot commit, while it cannot.
    pub held: Option<String>,
    /// It cannot even record the work in progress.
    pub stuck: bool,
    /// It is held because the disk does not answer: nothing is read from it either.
    pub silent: bool,
    /// Bytes that the state takes on disk.
    pub disk: Disk,
    /// Processes that an earlier daemon's runs have left, and that this daemon may not end.
    pub left_processes: LeftProcesses,
    /// Its journal, and the problems that a start found there.
    pub journal: Arc<Mutex<JournalReport>>,
    /// The epochs of its event numbers, the oldest first.
    pub epochs: Arc<[Epoch]>,
    /// Its configuration, as clients are told of it.
    pub config: ConfigReport,
}

/// The parts that the driver works with.
pub struct Parts<J> {
    /// The world, with its steps.
    pub engine: Engine,
    /// The journal to which steps are committed.
    pub journal: J,
    /// Reads of the journal.
    pub history: History,
    /// The reserve file, which is given up when the disk is full.
    pub ballast: Option<Ballast>,
    /// The damage that a start found in the journal.
    pub damage: Damage,
    /// Executes the jobs that effects start.
    pub executor: Executor,
    /// Publishes committed events.
    pub feed: Feed,
    /// The queue of requests.
    pub inbox: Inbox<Request>,
    /// The clocks, read once for each step.
    pub clock: Clock,
    /// Facts about the daemon that the world does not know.
    pub service: Service,
    /// Executes reads that block.
    pub blocking: Blocking,
    /// Requests that may wait while the journal cannot commit.
    pub most_waiting: usize,
    /// Removes the other files of pruned runs. Must not block for long.
    pub erase: Box<dyn Fn(Vec<RunId>) + Send + Sync>,
}

/// The task that owns the world, and all its state between turns.
pub struct Driver<J> {
    parts: Parts<J>,
    waiters: Waiters,
    /// Requests that were taken and not handled yet, in order.
    backlog: VecDeque<Request>,
    /// Reads of the present turn: they see its step, once that is committed.
    reads: VecDeque<Request>,
    replies: Replies,
    stopping: bool,
    stop_answers: Vec<Responder>,
    /// The commit that is under way.
    under_way: Option<UnderWay>,
    /// The steps since that commit began: the next commit.
    gathered: Option<Gathered>,
    /// Runs that changed, and whose waiting clients were not told yet.
    touched: BTreeSet<RunId>,
    orders: Orders,
    archive: Archive,
    /// Executes reads of `/proc`.
    near: Blocking,
    lookups: Lookups,
    sweeps: Sweeps,
    facts: Facts,
    housekeeper: Housekeeper,
    /// The ballast was given up, and there is no room for it yet.
    on_ballast: bool,
    /// When room is looked for next, while on ballast.
    next_try: Option<Span>,
    retry_wait: Duration,
    /// A commit failed for good: the driver ends.
    broken: Option<CommitError>,
    /// A step is due although no input came.
    wants_step: bool,
    /// Runs whose waiting clients could not be told while no commit succeeded.
    waits_of_hold: Vec<RunId>,
    /// Microseconds by which the time of events is ahead of the monotonic clock. Ages are measured by that time, not by
    /// the wall clock.
    line: Arc<AtomicU64>,
    reloads: Reloads,
}

impl<J: Journal> Driver<J> {
    /// A driver that does not drive yet. Call it within the runtime for its helper tasks, which is not the one that it
    /// drives in.
    pub fn new(parts: Parts<J>, reload: Reload, orders: Orders) -> Self {
        let reloads = Reloads::new(reload, &parts.blocking);
        let archive = Archive::new(parts.history.clone(), &parts.engine, parts.blocking.clone());
        let housekeeper =
            Housekeeper::new(parts.history.clone(), parts.inbox.clone(), parts.blocking.clone(), parts.service.uid);
        let lookups = Lookups::new(&parts.blocking, parts.inbox.clone(), archive.clone());
        let sweeps = Sweeps::new(parts.inbox.clone(), archive.clone(), parts.blocking.clone());
        let facts = Facts::new(
            parts.history.clone(),
            Arc::clone(&parts.service.disk),
            Arc::clone(&parts.service.left_processes),
        );
        Self {
            archive,
            near: parts.blocking.beside(LOOKUPS),
            lookups,
            sweeps,
            facts,
            housekeeper,
            on_ballast: false,
            next_try: None,
            retry_wait: Duration::ZERO,
            broken: None,
            wants_step: false,
            waits_of_hold: Vec::new(),
            parts,
            waiters: Waiters::default(),
            backlog: VecDeque::new(),
            reads: VecDeque::new(),
            replies: Replies::default(),
            stopping: false,
            stop_answers: Vec::new(),
            under_way: None,
            gathered: None,
            touched: BTreeSet::new(),
            orders,
            line: Arc::default(),
            reloads,
        }
    }

    /// Drives until it is told to stop. Then all jobs are ended, and running calls count as interrupted.
    ///
    /// # Errors
    /// If something can never be committed, because of an internal error. Shown and acknowledged changes are in the
    /// journal.
    pub async fn run(mut self) -> Result<(), CommitError> {
        let damage = std::mem::take(&mut self.parts.damage);
        let now = self.parts.clock.now();
        if let Some(ahead) = self.parts.engine.ahead(now) {
            warn!(
                seconds = ahead.as_secs(),
                "events bear a time ahead of the clock, which was once in the future; it is set when the clock has \
                 gone on steadily for ten minutes"
            );
        }
        let step = self.parts.engine.recover(now, damage);
        self.hand_over(step).await;
        self.catch_up().await;
        let now = self.parts.clock.now();
        self.note_time(self.parts.engine.time(now), now);
        let (clock, line) = (self.parts.clock, Arc::clone(&self.line));
        let retention = self.parts.engine.setup().0.retention;
        let time =
            move || Timestamp::from_micros(clock.now().mono.as_micros().saturating_add(line.load(Ordering::Relaxed)));
        let house = self.housekeeper.keep_within(retention, time);
        while !self.stopping {
            self.orders.beat();
            self.wait().await;
            if !self.stopping {
                self.turn().await;
            }
        }
        self.last_commit().await;
        // Reports of jobs are ignored from here on: after the next start their calls count as interrupted.
        self.parts.executor.shut_down().await;
        house.abort();
        for responder in self.stop_answers.drain(..) {
            responder.send(Ok(Empty {}));
        }
        self.broken.map_or(Ok(()), Err)
    }

    /// Waits for the next input, deadline or end of a commit.
    async fn wait(&mut self) {
        if self.orders.is_stop() {
            self.stopping = true;
            return;
        }
        if !self.backlog.is_empty() {
            return;
        }
        let due =
            self.parts.engine.next_deadline().into_iter().chain(self.waiters.first_due()).chain(self.next_try).min();
        let clock = self.parts.clock;
        let deadline = async {
            match due {
                Some(due) => tokio::time::sleep_until(clock.at(due)).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        let patient_until = self.under_way.as_ref().map(|under_way| under_way.patient_until);
        let silence = async {
            match patient_until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(silence);
        let enough = if self.under_way.is_some() { EARLY } else { 1 };
        loop {
            self.orders.beat();
            tokio::select! {
                biased;
                order = self.orders.next() => return self.obey(order),
                outcome = commit::end_of(&mut self.under_way) => return self.has_ended(outcome).await,
                // Whatever the disk does, answerable requests are answered meanwhile.
                () = &mut silence => return self.catch_up().await,
                () = &mut deadline => return,
                // A step during a commit waits for that commit: it is not worth making for fewer requests than this.
                () = self.parts.inbox.came(enough) => {
                    if self.under_way.is_none() || self.parts.inbox.pending() >= EARLY {
                        return;
                    }
                }
            }
        }
    }

    /// Records the offset of the time of events. The times in the journal have the same offset.
    fn note_time(&self, time: Timestamp, now: Now) {
        self.line.store(time.as_micros().saturating_sub(now.mono.as_micros()), Ordering::Relaxed);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Reload => self.reload_on_signal(),
            Order::Stop => self.stopping = true,
        }
    }

    fn input(&mut self, connection: ConnectionId, caller: Caller, command: Command, pending: Pending) -> Input {
        Input::Command { reply: self.replies.expect(connection, pending), caller, command }
    }
}
