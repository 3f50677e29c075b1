//! Commits the events of steps, and decides how the daemon behaves while commits fail.
//!
//! ```text
//!             fails                        there is no ballast, or it is used up
//!  serving ──────────▶ on ballast ─────────────────────────────────────────▶ stuck
//!     ▲                 │   what is under way is recorded, cancels, answers    │ the same commit again and again;
//!     │                 │   and prunes go through, nothing new is taken        │ reads are answered, the rest refused
//!     └─────────────────┴──────────────────────────────────────────────────────┘
//!        there is room for the ballast again          it goes through
//! ```
//!
//! The only place that decides when the daemon is held. No event is published and no effect is performed before its
//! commit has succeeded. Two things happen earlier while the daemon is held: reads show the world, which is ahead of
//! the journal, and say so; and a cancel ends the calls of its runs, though it is refused. A disk that does not answer
//! for three seconds holds the daemon too. After a failure that is a bug of the daemon, the driver ends.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::RunId;
use tokio::time::Instant;
use tracing::{error, info};

use super::Driver;
use super::bulk_changes::LOOKED_AT;
use crate::control::request::{Request, Wanted};
use crate::fair_queue::Party;
use crate::journal::failpoints::{self, Point};
use crate::journal::{Commit, CommitClass, CommitError, CommitFault, Journal};
use crate::observe::log_events;
use crate::refusal::{HeldRequest, JournalRefusal, Refusal};
use crate::world::Step;
use crate::world::api::{Caller, Command, Effect, Job, Task};

/// First wait before a failed commit is tried again; it doubles from there.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// The longest of these waits.
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// How long a request waits whose step cannot be committed.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the disk may be silent before the daemon is held, and answers what can be answered.
const SILENCE: Duration = Duration::from_secs(3);
/// Most events of steps that wait for a commit together.
const MOST_GATHERED: usize = 4_096;

/// A commit that is under way, and the effects that follow it.
pub(super) struct UnderWay {
    commit: Arc<Commit>,
    class: CommitClass,
    effects: Vec<Effect>,
    end: End<Result<(), CommitError>>,
    /// The instant at which the daemon is held because the commit has taken too long.
    pub(super) patient_until: Instant,
}

/// A pending operation of the disk.
type End<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The events and effects of steps that were made while a commit was under way.
pub(super) struct Gathered {
    commit: Commit,
    class: CommitClass,
    effects: Vec<Effect>,
}

/// Waits for the end of the commit that is under way; for ever, where none is.
pub(super) async fn end_of(under_way: &mut Option<UnderWay>) -> Result<(), CommitError> {
    match under_way {
        Some(under_way) => under_way.end.as_mut().await,
        None => std::future::pending().await,
    }
}

impl<J: Journal> Driver<J> {
    /// Begins the commit of a step. While another commit is under way, the step is gathered with others until that one
    /// has succeeded.
    pub(super) async fn hand_over(&mut self, step: Step) {
        let Step { events, effects, archived } = step;
        self.lookups.note(&events);
        let class = class_of(&effects, self.parts.engine.setup().0.journal.sync_calls);
        if self.under_way.is_none() && events.is_empty() {
            self.act(effects);
        } else if self.under_way.is_none() {
            self.begin(Gathered { commit: Commit { events, archived }, class, effects });
        } else {
            let Gathered { commit, class: all, effects: so_far } = self.gathered.get_or_insert_with(|| Gathered {
                commit: Commit::default(),
                class: CommitClass::Written,
                effects: Vec::new(),
            });
            commit.events.extend(events);
            commit.archived.extend(archived);
            so_far.extend(effects);
            *all = (*all).max(class);
            if commit.events.len() >= MOST_GATHERED {
                self.finish_one().await;
            }
        }
        if !self.touched.is_empty() {
            self.catch_up().await;
        }
    }

    fn begin(&mut self, gathered: Gathered) {
        let Gathered { commit, class, effects } = gathered;
        let commit = Arc::new(commit);
        let end = Box::pin(self.parts.journal.commit(&commit, class));
        let patient_until = self.patient_until();
        self.under_way = Some(UnderWay { commit, class, effects, end, patient_until });
    }

    /// Waits for the commit that is under way, shows its events, and begins the next one.
    async fn finish_one(&mut self) {
        let Some(under_way) = self.under_way.take() else { return };
        let Some((commit, effects)) = self.insist(under_way).await else {
            // A stop came while no commit succeeded: no client was told of any step since.
            self.gathered = None;
            return;
        };
        match self.gathered.take() {
            Some(next) if next.commit.events.is_empty() => {
                self.show(&commit, effects);
                self.act(next.effects);
            }
            Some(next) => {
                self.begin(next);
                self.show(&commit, effects);
            }
            None => self.show(&commit, effects),
        }
    }

    /// Waits until no commit is under way: then the world is as in the journal.
    pub(super) async fn catch_up(&mut self) {
        while self.under_way.is_some() {
            self.finish_one().await;
        }
        self.tell_waiters();
    }

    /// Handles the end of the commit that was under way.
    pub(super) async fn has_ended(&mut self, outcome: Result<(), CommitError>) {
        let Some(under_way) = self.under_way.take() else { return };
        let end = Box::pin(std::future::ready(outcome));
        self.under_way = Some(UnderWay { end, ..under_way });
        self.finish_one().await;
        if !self.touched.is_empty() || self.under_way.is_none() {
            self.catch_up().await;
        }
    }

    /// The daemon stops: a commit under way may still succeed, and then it is shown; it is not tried again. A disk that
    /// does not answer is not waited for: changes that no client was told of may still be there after the next start.
    pub(super) async fn last_commit(&mut self) {
        let Some(UnderWay { commit, effects, end, patient_until, .. }) = self.under_way.take() else { return };
        match tokio::time::timeout_at(patient_until, end).await {
            Ok(Ok(())) => self.show(&commit, effects),
            Ok(Err(failure)) => error!(%failure, "stopping without the last commit"),
            Err(_) => error!("the disk of the journal does not answer: stopping without the last commit"),
        }
    }

    /// Shows committed events, and performs their effects.
    fn show(&mut self, commit: &Commit, effects: Vec<Effect>) {
        self.parts.feed.publish(&commit.events);
        log_events::log(&commit.events);
        if let Some(set) = commit.events.iter().rfind(|event| matches!(event.body, EventBody::ClockSet { .. })) {
            self.note_time(set.at, self.parts.clock.now());
        }
        failpoints::here(Point::BeforeEffect);
        self.act(effects);
        let waiters = &self.waiters;
        self.touched.extend(touched(&commit.events).into_iter().filter(|run| waiters.has_some_for(*run)));
        let pruned = commit.events.iter().filter_map(|event| match &event.body {
            EventBody::RunsPruned { runs } => Some(runs.iter().copied()),
            _ => None,
        });
        let pruned: Vec<RunId> = pruned.flatten().collect();
        if !pruned.is_empty() {
            (self.parts.erase)(pruned);
        }
    }

    fn tell_waiters(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.extend(std::mem::take(&mut self.waits_of_hold));
        let now = self.parts.clock.now();
        self.waiters.told(touched, &self.parts.engine, &self.archive, now);
    }

    fn act(&mut self, effects: Vec<Effect>) {
        let mut starts = Vec::new();
        for effect in effects {
            match effect {
                Effect::Start(job) => starts.push(job),
                // An answer concerns no job; any other effect may be about a job that has to start before.
                other => {
                    if !matches!(other, Effect::Reply { .. }) {
                        self.start(&mut starts);
                    }
                    self.perform(other);
                    failpoints::here(Point::AfterEffect);
                }
            }
        }
        self.start(&mut starts);
    }

    /// Starts jobs together: each single start would wake the executor.
    fn start(&self, jobs: &mut Vec<Job>) {
        let jobs = std::mem::take(jobs);
        let count = jobs.len();
        self.parts.executor.start(jobs);
        (0..count).for_each(|_| failpoints::here(Point::AfterEffect));
    }

    /// Waits for a commit, and repeats it until it succeeds. Gives its events and effects; `None` where the daemon is
    /// told to stop before.
    async fn insist(&mut self, under_way: UnderWay) -> Option<(Arc<Commit>, Vec<Effect>)> {
        let UnderWay { commit, class, effects, end, patient_until } = under_way;
        let mut wait = FIRST_RETRY;
        let since = self.parts.clock.now().mono;
        let mut outcome = self.patiently(end, patient_until).await?;
        loop {
            let Err(failure) = outcome else {
                self.parts.service.stuck = false;
                if !self.on_ballast {
                    self.let_go();
                }
                return Some((commit, effects));
            };
            self.hold(&failure);
            if failure.fault == CommitFault::Ours {
                // The world is ahead of the journal for good; the next start restores it from there.
                self.broken = Some(failure);
                self.stopping = true;
                return None;
            }
            if let Some(ballast) = &self.parts.ballast
                && matches!(failure.fault, CommitFault::Full | CommitFault::Failing)
                && ballast.give_up()
            {
                self.on_ballast = true;
                self.next_try = Some(self.parts.clock.now().mono + FIRST_RETRY.into());
                let end = Box::pin(self.parts.journal.commit(&commit, class));
                outcome = self.patiently(end, self.patient_until()).await?;
                continue;
            }
            if self.parts.clock.now().mono.saturating_sub(since) >= PATIENCE.into() {
                self.give_answers_up();
            }
            let retry = self.parts.clock.at(self.parts.clock.now().mono + wait.into());
            wait = (wait * 2).min(LONGEST_RETRY);
            self.parts.service.stuck = true;
            self.hold_until(Box::pin(tokio::time::sleep_until(retry))).await?;
            let end = Box::pin(self.parts.journal.commit(&commit, class));
            outcome = self.patiently(end, self.patient_until()).await?;
        }
    }

    /// No commit succeeds: the daemon is held.
    fn hold(&mut self, failure: &CommitError) {
        if self.parts.service.held.replace(format!("{}; {}", failure.reason, failure.fault.advice())).is_none() {
            error!(%failure, "held: new work is refused until there is room again");
        }
        self.parts.engine.hold(true);
        self.waiters.set_held(true);
    }

    /// How long the disk may take for an operation that begins now.
    pub(super) fn patient_until(&self) -> Instant {
        self.parts.clock.at(self.parts.clock.now().mono + SILENCE.into())
    }

    /// Waits for the disk. If that takes seconds, the daemon is held: meanwhile it answers what can be answered. `None`
    /// where it is told to stop before.
    pub(super) async fn patiently<T>(&mut self, mut end: End<T>, until: Instant) -> Option<T> {
        tokio::select! {
            biased;
            outcome = &mut end => return Some(outcome),
            () = tokio::time::sleep_until(until) => {}
        }
        let reason = format!("the disk of the journal has not answered for {} s", SILENCE.as_secs());
        self.hold(&CommitError { fault: CommitFault::Failing, reason });
        self.parts.service.stuck = true;
        self.parts.service.silent = true;
        self.give_answers_up();
        let outcome = self.hold_until(end).await?;
        self.parts.service.stuck = false;
        self.parts.service.silent = false;
        if !self.on_ballast {
            self.let_go();
        }
        Some(outcome)
    }

    /// The daemon is no longer held.
    fn let_go(&mut self) {
        if self.parts.service.held.take().is_some() {
            info!("the journal commits again");
            self.parts.engine.hold(false);
            self.waiters.set_held(false);
            self.on_ballast = false;
            self.next_try = None;
            self.retry_wait = Duration::ZERO;
            // Inputs that waited for room get a step of their own.
            self.wants_step = true;
            self.parts.inbox.wake();
        }
    }

    /// While on ballast: looks from time to time whether there is room again.
    pub(super) async fn look_for_room(&mut self) {
        let now = self.parts.clock.now().mono;
        if !self.on_ballast || self.next_try.is_none_or(|due| due > now) {
            return;
        }
        let taken = match self.parts.ballast.clone() {
            Some(ballast) => {
                let taken = self.parts.blocking.get(Party::Daemon, move || ballast.take().is_ok());
                taken.await.unwrap_or(false)
            }
            None => true,
        };
        if taken {
            self.let_go();
        } else {
            self.retry_wait = (self.retry_wait * 2).clamp(FIRST_RETRY, LONGEST_RETRY);
            self.next_try = Some(self.parts.clock.now().mono + self.retry_wait.into());
        }
    }

    /// A client that waits for a step that cannot be committed is told so: no client waits for ever.
    fn give_answers_up(&mut self) {
        let refusal = self.held(HeldRequest::Undecided);
        self.replies.give_up(&refusal);
    }

    /// While stuck: answers reads and refuses the rest, until `end`. `None` where it is told to stop before.
    async fn hold_until<T>(&mut self, mut end: End<T>) -> Option<T> {
        loop {
            self.orders.beat();
            self.answer_what_can_be();
            if self.stopping {
                return None;
            }
            let (due, clock) = (self.waiters.first_due(), self.parts.clock);
            let time_is_up = async {
                match due {
                    Some(due) => tokio::time::sleep_until(clock.at(due)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ended = &mut end => return Some(ended),
                () = self.parts.inbox.came(1), if self.backlog.len() < self.parts.most_waiting => {}
                () = time_is_up => self.waiters.give_up(&self.parts.engine, self.parts.clock.now(), &self.held_error()),
                () = self.orders.stop() => {
                    self.stopping = true;
                    return None;
                }
            }
        }
    }

    fn answer_what_can_be(&mut self) {
        self.refuse_configurations();
        // A client with a request in the held step must not read the possible result of that step, until the request is
        // given up.
        let in_step = self.replies.connections();
        let mut requests = std::mem::take(&mut self.reads);
        requests.append(&mut self.backlog);
        if requests.len() < self.parts.most_waiting {
            requests.extend(self.parts.inbox.take_requests());
        }
        for request in requests {
            let Request { connection, caller, party, .. } = request;
            match request.wanted {
                Wanted::Stop(responder) => self.stop(responder),
                wanted @ (Wanted::Command(..)
                | Wanted::Own(..)
                | Wanted::Tidy(_)
                | Wanted::Drain(..)
                | Wanted::Reload(_)) => {
                    self.end_calls(&wanted, caller);
                    wanted.refuse(self.held_error());
                }
                wanted if in_step.contains(&connection) => {
                    self.backlog.push_back(Request { wanted, ..request });
                }
                // The end of a run may be in the held step: its waiting clients are told once that is committed.
                Wanted::Wait(params, responder) => {
                    let waited_for = self.wait_for(connection, caller, party, params, responder);
                    self.waits_of_hold.extend(waited_for.map(|(run, _)| run));
                }
                wanted => {
                    let request = Request { wanted, ..request };
                    if let Some(request) = self.lookups.resolved(request, &self.parts.engine) {
                        self.read(request);
                    }
                }
            }
        }
        self.lookups.begin();
        self.parts.inbox.turn_is_over();
    }

    /// A cancel cannot be recorded while stuck, but the calls of its runs are ended: a process of theirs may hold the
    /// journal. Their ends are recorded as soon as a commit succeeds. Then the cancel can be sent again.
    fn end_calls(&self, wanted: &Wanted, caller: Caller) {
        let Wanted::Command(Command::Cancel { select, force }, _) = wanted else { return };
        if caller.operator().is_none() {
            return;
        }
        let engine = &self.parts.engine;
        let runs: Vec<RunId> = match select.runs.is_empty() {
            true => {
                engine.select(select, (0, u64::MAX), (usize::MAX, LOOKED_AT)).map(|found| found.0).unwrap_or_default()
            }
            false => select.runs.iter().filter_map(|name| engine.find(name, caller).ok()).collect(),
        };
        for run in runs {
            let below = engine.tree_below(run, u32::MAX);
            [run].into_iter().chain(below).for_each(|run| self.parts.executor.end_calls(run, *force));
        }
    }

    /// Whether a command is refused while the daemon lives on its ballast: it would make new work.
    pub(super) fn is_refused(&self, command: &Command) -> bool {
        self.on_ballast && matches!(command, Command::Submit { .. } | Command::Retry { .. } | Command::Message { .. })
    }

    /// The refusal of a request while the journal cannot commit.
    pub(super) fn held_error(&self) -> Refusal {
        self.held(HeldRequest::Refused)
    }

    fn held(&self, request: HeldRequest) -> Refusal {
        let why = self.parts.service.held.clone();
        JournalRefusal::Held { why, retry: LONGEST_RETRY.into(), request }.into()
    }
}

/// Synced where an answer promises to survive a power loss, and where a command starts.
fn class_of(effects: &[Effect], sync_calls: bool) -> CommitClass {
    let promises = effects.iter().any(|effect| match effect {
        Effect::Reply { reply, synced, .. } => reply.is_ok() && *synced,
        // A command that has started must not start again, whatever happens. All that start in one step share the sync.
        Effect::Start(job) => sync_calls && matches!(job.task, Task::Call(_)),
        _ => false,
    });
    if promises { CommitClass::Synced } else { CommitClass::Written }
}

/// The runs of these events.
fn touched(events: &[Arc<Event>]) -> BTreeSet<RunId> {
    events.iter().filter_map(|event| event.run).collect()
}
