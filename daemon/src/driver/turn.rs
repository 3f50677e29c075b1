//! Executes one turn: what the inbox gives for a turn goes into one step, then the reads are answered. Also performs
//! effects.
//!
//! The only place with the order within a turn: changes before reads, and reads when the steps are committed. The inbox
//! keeps a change behind a read of the same connection for the next turn, so requests of a connection take effect in
//! their order. A request that needs a look-up in the journal, and a large change, are left out of the turn; their
//! connection waits. A pruning has a step of its own.

use harness_protocol::id::RunId;
use harness_protocol::rpc::WaitParams;
use tracing::{info, warn};

use super::archive::is_reached;
use super::journal_lookups::Lookups;
use super::reads::Place;
use super::replies::Pending;
use super::{Driver, bulk_changes, housekeeping, reads};
use crate::control::request::{ConnectionId, Read, Request, Responder, Wanted};
use crate::fair_queue::Party;
use crate::inbox::{Kind, Queued, Report};
use crate::journal::Journal;
use crate::refusal::Fault;
use crate::world::api::{Caller, Command, Effect, Input};

impl<J: Journal> Driver<J> {
    /// Takes the inputs, steps the world with them, and hands over the step.
    pub(super) async fn turn(&mut self) {
        self.look_for_room().await;
        let mut inputs: Vec<Input> = self
            .parts
            .inbox
            .take_reports()
            .into_iter()
            .map(|report| match report {
                Report::Outcome(job, outcome) => Input::Outcome { job, outcome },
                Report::Ask(job, ask) => Input::Ask { job, ask },
            })
            .collect();
        self.take_over_configurations(&mut inputs);
        if self.backlog.is_empty() {
            self.backlog.extend(self.parts.inbox.take_requests());
        }
        self.sort_requests(&mut inputs).await;
        let now = self.parts.clock.now();
        let due = self.parts.engine.next_deadline().is_some_and(|due| due <= now.mono);
        if !inputs.is_empty() || due || std::mem::take(&mut self.wants_step) {
            let step = self.parts.engine.step(now, inputs);
            self.hand_over(step).await;
        }
        if !self.reads.is_empty() || self.lookups.are_due() || self.waiters.is_due(self.parts.clock.now()) {
            // Shown events and looked-up runs must be in the journal.
            self.catch_up().await;
        }
        if self.stopping {
            // The step may not be in the journal: no client is shown its outcome.
            return;
        }
        self.lookups.begin();
        while let Some(request) = self.reads.pop_front() {
            self.read(request);
        }
        if self.under_way.is_none() {
            self.waiters.look(&self.parts.engine, &self.archive, self.parts.clock.now());
        }
        if self.backlog.is_empty() {
            self.parts.inbox.turn_is_over();
        }
    }

    /// Sorts the requests of the turn into commands and reads. Requests that need a look-up wait.
    async fn sort_requests(&mut self, inputs: &mut Vec<Input>) {
        let reports = inputs.len();
        while let Some(request) = self.backlog.pop_front() {
            // A pruning removes runs from the world: look-ups for other requests in the same step would no longer hold.
            let is_pruning = matches!(request.wanted, Wanted::Own(Command::Prune(_), _));
            if is_pruning && inputs.len() > reports {
                self.backlog.push_front(request);
                break;
            }
            let connection = request.connection;
            // A request that is refused in any case needs no look-up.
            let held = matches!(&request.wanted, Wanted::Command(command, _) if self.is_refused(command));
            let refusal = held.then(|| self.held_error()).or_else(|| Lookups::refusal(&request, &self.parts.engine));
            if let Some(refusal) = refusal {
                request.wanted.refuse(refusal);
                continue;
            }
            // A change of many runs is made in pieces, and unknown names are looked up: the connection waits for that.
            let taken = self.sweeps.take(request, &self.parts.engine);
            let resolved = taken.and_then(|request| self.lookups.resolved(request, &self.parts.engine));
            let Some(request) = resolved else {
                self.put_back(connection);
                continue;
            };
            if matches!(request.wanted, Wanted::Reload(_)) {
                self.reload(request);
                continue;
            }
            if request.kind() != Kind::Change {
                self.reads.push_back(request);
                continue;
            }
            let Request { caller, wanted, known, .. } = request;
            match wanted {
                Wanted::Command(command, responder) if known.ended.is_empty() => {
                    inputs.push(self.input(connection, caller, command, Pending::Answer(responder)));
                }
                Wanted::Command(command, responder) => {
                    inputs.push(self.input(connection, caller, command, Pending::Changed(known.ended, responder)));
                }
                Wanted::Own(command, tell) => {
                    inputs.push(self.input(connection, caller, command, Pending::Own(tell)));
                    if is_pruning {
                        break;
                    }
                }
                Wanted::Tidy(tell) => {
                    self.catch_up().await;
                    let end = Box::pin(self.parts.journal.tidy());
                    let more = self.patiently(end, self.patient_until()).await.unwrap_or(Ok(false));
                    // The caller may be gone.
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
                wanted => {
                    warn!("a read was taken for a change");
                    wanted.refuse(Fault::OtherRequest.into());
                }
            }
        }
    }

    /// Later requests of a connection wait in the inbox until its long request is done.
    fn put_back(&mut self, connection: ConnectionId) {
        let (back, rest): (Vec<Request>, Vec<Request>) =
            self.backlog.drain(..).partition(|request| request.connection == connection);
        self.backlog.extend(rest);
        self.parts.inbox.hold(connection.0, back);
    }

    fn reload(&mut self, request: Request) {
        let connection = request.connection;
        self.reload_on_request(request);
        self.put_back(connection);
    }

    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Start(job) => self.parts.executor.start(vec![job]),
            Effect::Cancel { job, force } => self.parts.executor.cancel(job, force),
            Effect::Resume(job) => self.parts.executor.go_on(job),
            Effect::Answer { job, settlement } => self.parts.executor.answer(job, settlement),
            Effect::Release(run) => self.parts.executor.release(run),
            Effect::Reply { to, reply, .. } => self.replies.tell(to, reply, &mut self.waiters),
        }
    }

    pub(super) fn read(&mut self, request: Request) {
        let Request { connection, caller, party, wanted, .. } = request;
        let now = self.parts.clock.now();
        let engine = &self.parts.engine;
        let (service, archive) = (&self.parts.service, &self.archive);
        let near = &self.near;
        let view = reads::View { engine, service, archive, near, caller, party, now };
        match wanted {
            Wanted::Read(Read::Status, responder) => {
                let behind = self.parts.inbox.most_behind(connection.0);
                self.facts.complete(view.status(behind), responder);
            }
            Wanted::Read(read, responder) => view.answer(read, responder),
            Wanted::Wait(params, responder) => {
                if let Some((run, true)) = self.wait_for(connection, caller, party, params, responder) {
                    self.waiters.told([run], &self.parts.engine, &self.archive, now);
                }
            }
            Wanted::Subscribe(params, tell) => view.follow(self.parts.feed.last(), params, tell),
            Wanted::Output(params, tell) => view.output(params, tell),
            Wanted::Prune(params, responder) => {
                info!(uid = caller.uid, dry_run = params.dry_run, "a prune was asked for");
                view.prune(params, &self.housekeeper, responder);
            }
            Wanted::Backup(params, responder) => {
                info!(uid = caller.uid, to = %params.to, "a backup was asked for");
                self.archive.off_to(party, move |archive| {
                    responder.send(housekeeping::back_up(&archive.history, &params));
                });
            }
            Wanted::Stop(responder) => {
                info!(uid = caller.uid, "told to stop");
                self.stop(responder);
            }
            // The caller may be gone.
            Wanted::Which(which, tell) => drop(tell.send(bulk_changes::which(engine, &which, caller))),
            Wanted::Left => self.waiters.left(connection),
            // These were sorted out before.
            wanted @ (Wanted::Command(..)
            | Wanted::Own(..)
            | Wanted::Tidy(_)
            | Wanted::Drain(..)
            | Wanted::Reload(_)) => {
                warn!("a change was taken for a read");
                wanted.refuse(Fault::OtherRequest.into());
            }
        }
    }

    /// Lets a client wait for a run of the world. Gives that run, and whether the wait may be over already.
    pub(super) fn wait_for(
        &mut self,
        connection: ConnectionId,
        caller: Caller,
        party: Party,
        params: WaitParams,
        responder: Responder,
    ) -> Option<(RunId, bool)> {
        let now = self.parts.clock.now();
        let (engine, service, archive) = (&self.parts.engine, &self.parts.service, &self.archive);
        let near = &self.near;
        let view = reads::View { engine, service, archive, near, caller, party, now };
        match view.place(&params.run) {
            Ok(Place::Here(run)) => {
                let due = params.timeout_seconds.map(|span| now.mono + span);
                let there = engine.state_of(run).is_none_or(|s| is_reached(&params.states, s) || s.is_terminal());
                self.waiters.wait_for(run, params.states, due, connection, responder);
                Some((run, there || due.is_some_and(|due| due <= now.mono)))
            }
            Ok(Place::Elsewhere(operator)) => {
                view.wait_in_archive(operator, params, responder);
                None
            }
            Err(error) => {
                responder.send::<()>(Err(error));
                None
            }
        }
    }

    pub(super) fn stop(&mut self, responder: Responder) {
        self.stopping = true;
        self.stop_answers.push(responder);
    }
}
