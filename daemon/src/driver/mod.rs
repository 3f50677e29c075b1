//! The driver: take what came, step, commit, act. The one task that owns the world.
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
//! While a commit is under way and much has come, the next step is made already; its commit is begun after that one, and what it came
//! to is shown and done after its own. Reads, and whoever waits for a run, are answered when nothing is under way.
//!
//! Owns the order: nothing is done or shown before it is in the journal. Decides nothing about runs, and executes nothing.

mod archive;
mod clock;
mod committing;
mod housekeeping;
mod reads;
#[cfg(test)]
mod tests;
mod waiters;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::event::Event;
use harness_protocol::id::RunId;
use harness_protocol::rpc::{
    Changed, DiskUsage, Empty, ErrorKind, ProcessView, ReloadReply, RpcError, Unchanged, WaitParams,
};
use harness_protocol::time::{Span, Timestamp};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::control::request::{ConnectionId, Request, Responder, Wanted};
use crate::feed::Feed;
use crate::inbox::{Inbox, Report};
use crate::jobs::Executor;
use crate::journal::history::History;
use crate::journal::{Ballast, CommitClass, CommitError, Journal};
use crate::world::Engine;
use crate::world::boundary::{Caller, Command, Damage, Effect, Input, Reply, ReplyId};

use archive::{Archive, is_reached};
pub use clock::Clock;
use committing::UnderWay;
use housekeeping::Housekeeper;
use waiters::Waiters;

/// Requests taken into one step.
const BATCH: usize = 1_024;
/// What has to be there for a step to be made before the commit of the last one has gone through.
const EARLY: usize = 64;
/// What the last event may be ahead of the clock without a word.
const CLOCK_SLACK: Span = Span::from_secs(60);

/// What the daemon tells of itself beside the world.
pub struct Service {
    /// When it began to serve.
    pub started_at: Timestamp,
    /// Its socket.
    pub socket: String,
    /// Its state directory.
    pub state_dir: String,
    /// Whether systemd owns the socket.
    pub socket_activated: bool,
    /// Connections now.
    pub connections: Box<dyn Fn() -> u32 + Send + Sync>,
    /// The processes of a run.
    pub processes: Box<dyn Fn(RunId) -> Vec<ProcessView> + Send + Sync>,
    /// Its user.
    pub uid: u32,
    /// Why the journal cannot commit, while it cannot.
    pub held: Option<String>,
    /// And not even what is under way can be recorded.
    pub stuck: bool,
    /// What the state takes on disk. May take as long as the disk does.
    pub disk: Arc<dyn Fn() -> DiskUsage + Send + Sync>,
}

/// What the configuration came to when it was read again.
pub struct Reloaded {
    /// The file.
    pub file: Option<String>,
    /// The widths of the lanes.
    pub lanes: Vec<(Arc<str>, u32)>,
    /// All of it.
    pub config: Config,
    /// What else is another one than before, in words.
    pub changes: Vec<String>,
}

/// What the system wants of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Read the configuration again.
    Reload,
    /// Stop.
    Stop,
}

/// What the driver works with.
pub struct Parts<J> {
    /// The world.
    pub engine: Engine,
    /// Its journal.
    pub journal: J,
    /// What the journal holds.
    pub history: History,
    /// What is given up when the disk is full.
    pub ballast: Option<Ballast>,
    /// What could not be read.
    pub damage: Damage,
    /// Who executes jobs.
    pub executor: Executor,
    /// Where events are shown.
    pub feed: Feed,
    /// What comes in.
    pub inbox: Inbox<Request>,
    /// The clocks.
    pub clock: Clock,
    /// What the daemon tells of itself.
    pub service: Service,
    /// Reads the configuration again.
    pub reload: Box<dyn FnMut() -> Result<Reloaded, String> + Send>,
    /// Requests that may wait while the journal cannot commit.
    pub most_waiting: usize,
    /// Runs were pruned: what else is on disk of them can go. Must not take long.
    pub erase: Box<dyn Fn(Vec<RunId>) + Send + Sync>,
}

/// The driver.
pub struct Driver<J> {
    parts: Parts<J>,
    waiters: Waiters,
    /// Requests that were taken and not yet dealt with, in order.
    backlog: VecDeque<Request>,
    /// Reads of the turn at hand: they see what its step comes to, once that is committed.
    reads: VecDeque<Request>,
    replies: BTreeMap<ReplyId, (ConnectionId, Pending)>,
    next_reply: u64,
    stopping: bool,
    stop_answers: Vec<Responder>,
    /// A commit that has not gone through yet.
    under_way: Option<UnderWay>,
    /// Runs that changed, and of which nobody was told yet.
    touched: BTreeSet<RunId>,
    orders: mpsc::Receiver<Order>,
    archive: Archive,
    housekeeper: Housekeeper,
    /// The ballast was given up, and there is no room for it yet.
    on_ballast: bool,
    /// When, while on ballast, room is looked for, and how long after that again.
    next_try: Option<Span>,
    retry_wait: Duration,
    /// A commit that can never go through: the driver ends.
    broken: Option<CommitError>,
    /// A step is due though nothing came.
    wants_step: bool,
    /// Runs that were waited for while nothing could be committed.
    waits_of_hold: Vec<RunId>,
}

/// What is done with the answer to a command.
enum Pending {
    Answer(Responder),
    /// Some that were named have left the world, and have ended.
    Changed(Vec<Unchanged>, Responder),
    AfterDrain(Option<Span>, Responder),
    AfterReload(Option<String>, Vec<String>, Responder),
    Own(oneshot::Sender<Result<Reply, RpcError>>),
    Nobody,
}

impl<J: Journal> Driver<J> {
    /// A driver, not yet driving.
    pub fn new(parts: Parts<J>, orders: mpsc::Receiver<Order>) -> Self {
        let archive = Archive::new(parts.history.clone(), &parts.engine);
        let housekeeper = Housekeeper::new(parts.history.clone(), parts.inbox.clone(), parts.service.uid);
        Self {
            archive,
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
            replies: BTreeMap::new(),
            next_reply: 0,
            stopping: false,
            stop_answers: Vec::new(),
            under_way: None,
            touched: BTreeSet::new(),
            orders,
        }
    }

    /// Drives until it is told to stop. Then the jobs are ended, and what executed counts as interrupted.
    ///
    /// # Errors
    /// Where something can never be committed, for a fault of ours. What was shown and acknowledged is in the journal.
    pub async fn run(mut self) -> Result<(), CommitError> {
        let damage = std::mem::take(&mut self.parts.damage);
        let now = self.parts.clock.now();
        let ahead = self.parts.engine.time(now).since(now.wall);
        if ahead > CLOCK_SLACK {
            warn!(
                seconds = ahead.as_secs(),
                "the clock was set back: events bear the time of the last one until it has caught up"
            );
        }
        let step = self.parts.engine.recover(now, damage);
        self.hand_over(step).await;
        let clock = self.parts.clock;
        let retention = self.parts.engine.setup().0.retention;
        let house = tokio::spawn(self.housekeeper.clone().keep_within(retention, move || clock.now().wall));
        while !self.stopping {
            self.wait().await;
            if !self.stopping {
                self.turn().await;
            }
        }
        self.last_commit().await;
        // What jobs report from here on is not taken: after the next start their calls count as interrupted.
        self.parts.executor.shut_down().await;
        house.abort();
        for responder in self.stop_answers.drain(..) {
            responder.send(Ok(Empty {}));
        }
        self.broken.map_or(Ok(()), Err)
    }

    /// Waits until there is something to do.
    async fn wait(&mut self) {
        if !self.backlog.is_empty() {
            // Let the others have a turn; there is work, so this is not a wait.
            tokio::task::yield_now().await;
            if let Ok(order) = self.orders.try_recv() {
                self.obey(Some(order)).await;
            }
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
        loop {
            tokio::select! {
                // A step that is made while a commit is under way waits for it: for less than this it is not made yet.
                () = self.parts.inbox.came() => {
                    if self.under_way.is_none() || self.parts.inbox.pending() >= EARLY {
                        return;
                    }
                }
                outcome = committing::end_of(&mut self.under_way) => return self.has_ended(outcome).await,
                () = &mut deadline => return,
                order = self.orders.recv() => return self.obey(order).await,
            }
        }
    }

    async fn obey(&mut self, order: Option<Order>) {
        match order {
            Some(Order::Reload) => self.reload_by_order().await,
            Some(Order::Stop) | None => self.stopping = true,
        }
    }

    async fn reload_by_order(&mut self) {
        match (self.parts.reload)() {
            Ok(Reloaded { lanes, config, changes, .. }) => {
                info!(?changes, "the configuration was read again");
                self.parts.engine.configure(&config);
                let owner = Caller { uid: self.parts.service.uid, run: None };
                let input = self.input(ConnectionId(0), owner, Command::Reconfigure(lanes), Pending::Nobody);
                let step = self.parts.engine.step(self.parts.clock.now(), vec![input]);
                self.hand_over(step).await;
            }
            Err(why) => error!(%why, "the configuration stays as it was"),
        }
    }

    fn input(&mut self, connection: ConnectionId, caller: Caller, command: Command, pending: Pending) -> Input {
        self.next_reply += 1;
        let reply = ReplyId(self.next_reply);
        self.replies.insert(reply, (connection, pending));
        Input::Command { reply, caller, command }
    }

    /// One turn: everything that came goes into one step, then what was to be read is read.
    async fn turn(&mut self) {
        self.look_for_room().await;
        let (reports, requests) = self.parts.inbox.take(BATCH.saturating_sub(self.backlog.len()));
        self.backlog.extend(requests);
        let mut inputs: Vec<Input> = reports
            .into_iter()
            .map(|report| match report {
                Report::Outcome(job, outcome) => Input::Outcome { job, outcome },
                Report::Ask(job, ask) => Input::Ask { job, ask },
            })
            .collect();
        self.sort_requests(&mut inputs).await;
        let now = self.parts.clock.now();
        let due = self.parts.engine.next_deadline().is_some_and(|due| due <= now.mono);
        if !inputs.is_empty() || due || std::mem::take(&mut self.wants_step) {
            let step = self.parts.engine.step(now, inputs);
            self.hand_over(step).await;
        }
        if !self.reads.is_empty() || self.waiters.is_due(self.parts.clock.now()) {
            // What is shown is in the journal.
            self.catch_up().await;
        }
        if self.stopping {
            // The step may not be in the journal: nobody is shown what it came to.
            return;
        }
        while let Some(request) = self.reads.pop_front() {
            self.read(request);
        }
        if self.under_way.is_none() {
            self.waiters.look(&self.parts.engine, &self.archive, self.parts.clock.now());
        }
    }

    /// Sorts the backlog into commands and reads. A command behind a read of the same connection stays for the next turn,
    /// so that what one connection asks takes effect in order.
    async fn sort_requests(&mut self, inputs: &mut Vec<Input>) {
        let mut has_read: BTreeSet<ConnectionId> = BTreeSet::new();
        let reports = inputs.len();
        for _ in 0..BATCH {
            let Some(next) = self.backlog.front() else { break };
            let changes = matches!(next.wanted, Wanted::Command(..) | Wanted::Drain(..) | Wanted::Reload(_));
            if changes && has_read.contains(&next.connection) {
                break;
            }
            let Some(Request { connection, caller, wanted }) = self.backlog.pop_front() else { break };
            match wanted {
                Wanted::Command(mut command, responder) => match self.without_archived(&mut command, caller) {
                    Ok(Some((ended, true))) => responder.send(Ok(Changed { runs: Vec::new(), unchanged: ended })),
                    Ok(Some((ended, false))) => {
                        inputs.push(self.input(connection, caller, command, Pending::Changed(ended, responder)));
                    }
                    Ok(None) => match self.with_history(command, caller) {
                        Ok(command) if self.is_refused(&command) => responder.send::<()>(Err(self.held_error())),
                        Ok(command) => inputs.push(self.input(connection, caller, command, Pending::Answer(responder))),
                        Err(error) => responder.send::<()>(Err(error)),
                    },
                    Err(error) => responder.send::<()>(Err(error)),
                },
                // A pruning lets runs leave the world: what was looked up for others in the same step would no longer hold.
                wanted @ Wanted::Own(Command::Prune(_), _) if inputs.len() > reports => {
                    self.backlog.push_front(Request { connection, caller, wanted });
                    break;
                }
                Wanted::Own(command, tell) => {
                    let is_pruning = matches!(command, Command::Prune(_));
                    inputs.push(self.input(connection, caller, command, Pending::Own(tell)));
                    if is_pruning {
                        break;
                    }
                }
                Wanted::Tidy(tell) => {
                    self.catch_up().await;
                    let more = self.parts.journal.tidy().await;
                    // Whoever asked may be gone.
                    let _ = tell.send(more.unwrap_or_else(|error| {
                        warn!(%error, "space stays with the journal for now");
                        false
                    }));
                }
                Wanted::Drain(params, responder) => {
                    let due = params.timeout_seconds.map(|span| self.parts.clock.now().mono + span);
                    let pending = Pending::AfterDrain(due, responder);
                    inputs.push(self.input(connection, caller, Command::Drain(true), pending));
                }
                Wanted::Reload(responder) => self.reload(connection, caller, responder, inputs),
                wanted => {
                    has_read.insert(connection);
                    self.reads.push_back(Request { connection, caller, wanted });
                }
            }
        }
    }

    fn reload(&mut self, connection: ConnectionId, caller: Caller, responder: Responder, inputs: &mut Vec<Input>) {
        match (self.parts.reload)() {
            Ok(Reloaded { file, lanes, config, mut changes }) => {
                self.parts.engine.configure(&config);
                let is_new =
                    |(lane, width): &&(Arc<str>, u32)| self.parts.engine.configured_width(lane) != Some(*width);
                let told = |(lane, width): &(Arc<str>, u32)| format!("lane {lane}: width {width}");
                changes.extend(lanes.iter().filter(is_new).map(told));
                let pending = Pending::AfterReload(file, changes, responder);
                inputs.push(self.input(connection, caller, Command::Reconfigure(lanes), pending));
            }
            Err(why) => {
                let message = format!("the configuration stays as it was: {why}");
                responder.send::<()>(Err(RpcError::new(ErrorKind::Invalid, message)));
            }
        }
    }

    /// Takes the runs that have left the world out of a change of runs: they have ended. Tells which, and whether nothing is left
    /// to be done.
    fn without_archived(
        &self,
        command: &mut Command,
        caller: Caller,
    ) -> Result<Option<(Vec<Unchanged>, bool)>, RpcError> {
        let (Command::Cancel { select, .. } | Command::Pause(select) | Command::Resume(select)) = command else {
            return Ok(None);
        };
        let is_gone = |name: &String| matches!(self.parts.engine.find(name, caller.uid), Err(error) if error.kind() == ErrorKind::NotFound);
        if caller.run.is_some() || !select.runs.iter().any(is_gone) {
            return Ok(None);
        }
        let (gone, here): (Vec<String>, Vec<String>) = std::mem::take(&mut select.runs).into_iter().partition(is_gone);
        select.runs = here;
        let ended = self.archive.ended(select, &gone, caller.uid)?;
        Ok(Some((ended, select.runs.is_empty())))
    }

    /// A command, with what only the journal knows of a run that it is about.
    fn with_history(&self, command: Command, caller: Caller) -> Result<Command, RpcError> {
        let engine = &self.parts.engine;
        let left = |name: &str| match engine.find(name, caller.uid) {
            Err(error) if error.kind() == ErrorKind::NotFound && caller.run.is_none() => {
                self.archive.finished_by_name(name, caller.uid).map(Some)
            }
            Ok(found) if caller.run.is_none() => self.archive.only(name, found, caller.uid).map(|_| None),
            // Whatever else is wrong with the name, the world tells.
            _ => Ok(None),
        };
        Ok(match command {
            Command::Submit { spec, idempotency_key: Some(key), known: None }
                if !engine.knows_key(engine.key_space(caller), &key) =>
            {
                let known = self.archive.by_key(engine.key_space(caller), &key)?;
                Command::Submit { spec, idempotency_key: Some(key), known }
            }
            Command::Retry { run, left: None } => {
                let left = left(&run)?;
                Command::Retry { run, left }
            }
            Command::Message { run, text, left: None } => {
                let left = left(&run)?;
                Command::Message { run, text, left }
            }
            other => other,
        })
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Start(job) => self.parts.executor.start(job),
            Effect::Cancel { job, force } => self.parts.executor.cancel(job, force),
            Effect::GoOn(job) => self.parts.executor.go_on(job),
            Effect::Release(run) => self.parts.executor.release(run),
            Effect::Reply { to, reply, .. } => self.reply(to, reply),
        }
    }

    fn reply(&mut self, to: ReplyId, reply: Result<Reply, RpcError>) {
        let Some((connection, pending)) = self.replies.remove(&to) else { return };
        match (pending, reply) {
            (Pending::Nobody, _) => {}
            // The housekeeper may be gone.
            (Pending::Own(tell), reply) => drop(tell.send(reply)),
            (Pending::AfterDrain(due, responder), Ok(_)) => self.waiters.wait_for_drain(due, connection, responder),
            (Pending::AfterReload(config, changes, responder), Ok(_)) => {
                responder.send(Ok(ReloadReply { config, changes }));
            }
            (
                Pending::Answer(responder)
                | Pending::Changed(_, responder)
                | Pending::AfterDrain(_, responder)
                | Pending::AfterReload(_, _, responder),
                Err(error),
            ) => responder.send::<()>(Err(error)),
            (Pending::Changed(mut ended, responder), Ok(Reply::Changed(mut changed))) => {
                changed.unchanged.append(&mut ended);
                responder.send(Ok(changed));
            }
            (Pending::Answer(responder) | Pending::Changed(_, responder), Ok(reply)) => match reply {
                Reply::Submitted(submitted) => responder.send(Ok(submitted)),
                Reply::Changed(changed) => responder.send(Ok(changed)),
                Reply::Answered(answered) => responder.send(Ok(answered)),
                Reply::Lane(changed) => responder.send(Ok(changed)),
                Reply::Done => responder.send(Ok(Empty {})),
            },
        }
    }

    fn read(&mut self, request: Request) {
        let Request { connection, caller, wanted } = request;
        let now = self.parts.clock.now();
        let engine = &self.parts.engine;
        let view = reads::View { engine, service: &self.parts.service, archive: &self.archive, caller, now };
        match wanted {
            Wanted::Read(read, responder) => view.answer(read, responder),
            Wanted::Wait(params, responder) => {
                if let Some((run, true)) = self.wait_for(connection, caller, params, responder) {
                    self.waiters.told([run], &self.parts.engine, &self.archive, now);
                }
            }
            Wanted::Subscribe(params, tell) => view.follow(self.parts.feed.last(), params, tell),
            Wanted::Output(params, tell) => view.output(params, tell),
            Wanted::Prune(params, responder) => match view.resolved(params) {
                Ok(params) => self.housekeeper.prune(params, engine.time(now), responder),
                Err(error) => responder.send::<()>(Err(error)),
            },
            Wanted::Backup(params, responder) => {
                self.archive.off_to(move |archive| responder.send(housekeeping::back_up(&archive.history, &params)));
            }
            Wanted::Stop(responder) => self.stop(responder),
            Wanted::Left => self.waiters.left(connection),
            // Sorted out before.
            Wanted::Command(..) | Wanted::Own(..) | Wanted::Tidy(_) | Wanted::Drain(..) | Wanted::Reload(_) => {
                warn!("a change was taken for a read");
            }
        }
    }

    /// Lets somebody wait for a run of the world. Gives that run, and whether the wait may be over already.
    fn wait_for(
        &mut self,
        connection: ConnectionId,
        caller: Caller,
        params: WaitParams,
        responder: Responder,
    ) -> Option<(RunId, bool)> {
        let now = self.parts.clock.now();
        let (engine, service) = (&self.parts.engine, &self.parts.service);
        let view = reads::View { engine, service, archive: &self.archive, caller, now };
        match view.find(&params.run) {
            Ok(run) => {
                let due = params.timeout_seconds.map(|span| now.mono + span);
                let there = engine.state_of(run).is_none_or(|s| is_reached(&params.states, s) || s.is_terminal());
                self.waiters.wait_for(run, params.states, due, connection, responder);
                Some((run, there || due.is_some_and(|due| due <= now.mono)))
            }
            Err(error) => {
                view.wait_in_archive(error, params, responder);
                None
            }
        }
    }

    fn stop(&mut self, responder: Responder) {
        self.stopping = true;
        self.stop_answers.push(responder);
    }
}

/// Synced where an answer promises to survive power loss.
fn class_of(effects: &[Effect]) -> CommitClass {
    let promises = effects.iter().any(|effect| matches!(effect, Effect::Reply { reply: Ok(_), synced: true, .. }));
    if promises { CommitClass::Synced } else { CommitClass::Written }
}

/// The runs that these events are about.
fn touched(events: &[Arc<Event>]) -> BTreeSet<RunId> {
    events.iter().filter_map(|event| event.run).collect()
}
