//! Keeps the clients that wait for a run to reach a state, or for the end of all execution, and answers each when that
//! happens or when its time limit is up.

use std::collections::{BTreeMap, BTreeSet};

use harness_protocol::id::RunId;
use harness_protocol::rpc::{DrainReply, WaitReply};
use harness_protocol::run::RunState;
use harness_protocol::time::Span;

use super::archive::{Archive, is_reached};
use super::reads;
use crate::control::request::{ConnectionId, Responder};
use crate::fair_queue::Party;
use crate::refusal::Refusal;
use crate::world::Engine;
use crate::world::api::Now;

/// A client that waits for a run.
#[derive(Debug)]
struct Waiter {
    connection: ConnectionId,
    states: Vec<RunState>,
    due: Option<Span>,
    responder: Responder,
}

/// All waiting clients.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    by_run: BTreeMap<RunId, Vec<Waiter>>,
    by_time: BTreeSet<(Span, RunId)>,
    /// The runs that each connection waits for.
    by_connection: BTreeMap<ConnectionId, BTreeSet<RunId>>,
    drains: Vec<(ConnectionId, Option<Span>, Responder)>,
    /// The journal cannot commit: runs wait for that.
    held: bool,
}

impl Waiters {
    /// Sets whether the journal can commit from here on.
    pub(super) fn set_held(&mut self, held: bool) {
        self.held = held;
    }

    pub(super) fn wait_for(
        &mut self,
        run: RunId,
        mut states: Vec<RunState>,
        due: Option<Span>,
        connection: ConnectionId,
        mut responder: Responder,
    ) {
        // A wait may be long: no more of its request is kept than this, however large it was.
        states.sort_unstable();
        states.dedup();
        states.shrink_to_fit();
        responder.let_go_of_memory();
        if let Some(due) = due {
            self.by_time.insert((due, run));
        }
        self.by_connection.entry(connection).or_default().insert(run);
        self.by_run.entry(run).or_default().push(Waiter { connection, states, due, responder });
    }

    pub(super) fn wait_for_drain(&mut self, due: Option<Span>, connection: ConnectionId, mut responder: Responder) {
        responder.let_go_of_memory();
        self.drains.push((connection, due, responder));
    }

    /// Whether a client waits for this run.
    pub(super) fn has_some_for(&self, run: RunId) -> bool {
        self.by_run.contains_key(&run)
    }

    /// Whether a client's time is up, or a drain is waited for.
    pub(super) fn is_due(&self, now: Now) -> bool {
        !self.drains.is_empty() || self.first_due().is_some_and(|due| due <= now.mono)
    }

    /// The earliest time limit.
    pub(super) fn first_due(&self) -> Option<Span> {
        let drain = self.drains.iter().filter_map(|(_, due, _)| *due).min();
        self.by_time.first().map(|(due, _)| *due).into_iter().chain(drain).min()
    }

    /// Answers the clients that wait for these runs, if their condition holds.
    pub(super) fn told(&mut self, runs: impl IntoIterator<Item = RunId>, engine: &Engine, archive: &Archive, now: Now) {
        if !self.by_run.is_empty() {
            for run in runs {
                self.settle(run, engine, archive, now);
            }
        }
    }

    /// Answers the clients whose time is up, and those that wait for a drain.
    pub(super) fn look(&mut self, engine: &Engine, archive: &Archive, now: Now) {
        while let Some(&(due, run)) = self.by_time.first()
            && due <= now.mono
        {
            self.by_time.pop_first();
            self.settle(run, engine, archive, now);
        }
        let executing = engine.executing();
        let drains = std::mem::take(&mut self.drains);
        for (connection, due, responder) in drains {
            if executing == 0 || due.is_some_and(|due| due <= now.mono) || !engine.is_draining() {
                responder.send(Ok(DrainReply { executing }));
            } else {
                self.drains.push((connection, due, responder));
            }
        }
    }

    /// Answers the clients whose time is up while nothing can be committed: that it is up, or, if the state of the run
    /// may not be in the journal, the reason for that.
    pub(super) fn give_up(&mut self, engine: &Engine, now: Now, held: &Refusal) {
        while let Some(&(due, run)) = self.by_time.first()
            && due <= now.mono
        {
            self.by_time.pop_first();
            let Some(waiters) = self.by_run.get_mut(&run) else { continue };
            for waiter in waiters.extract_if(.., |waiter| waiter.due.is_some_and(|due| due <= now.mono)) {
                let view = engine.view(run, now).filter(|view| !view.state.is_terminal());
                let reply = view.map(|mut run| {
                    reads::wait_for_storage(&mut run, now);
                    WaitReply { run, reached: false }
                });
                waiter.responder.send(reply.ok_or_else(|| held.clone()));
            }
            if waiters.is_empty() {
                self.by_run.remove(&run);
            }
        }
        let executing = engine.executing();
        for (_, _, responder) in self.drains.extract_if(.., |(_, due, _)| due.is_some_and(|due| due <= now.mono)) {
            responder.send(Ok(DrainReply { executing }));
        }
    }

    fn settle(&mut self, run: RunId, engine: &Engine, archive: &Archive, now: Now) {
        let Some(waiters) = self.by_run.remove(&run) else { return };
        let state = engine.state_of(run);
        let (mut rest, mut told) = (Vec::<Waiter>::new(), BTreeSet::new());
        for waiter in waiters {
            let reached = state.is_some_and(|state| is_reached(&waiter.states, state));
            let over = state.is_none_or(RunState::is_terminal);
            if !reached && !over && waiter.due.is_none_or(|due| due > now.mono) {
                rest.push(waiter);
                continue;
            }
            let Waiter { connection, responder, states, due } = waiter;
            if let Some(due) = due {
                self.by_time.remove(&(due, run));
            }
            told.insert(connection);
            match engine.view(run, now) {
                Some(mut run) => {
                    if self.held {
                        reads::wait_for_storage(&mut run, now);
                    }
                    responder.send(Ok(WaitReply { run, reached }));
                }
                // It ended and left the world in the same step, or it was pruned.
                None => archive.off_to(Party::Connection(connection.0), move |archive| {
                    responder.send(archive.waited(run, &states));
                }),
            }
        }
        // A remaining waiter may have the same time or connection.
        self.by_time.extend(rest.iter().filter_map(|waiter| Some((waiter.due?, run))));
        for connection in told {
            if rest.iter().all(|waiter| waiter.connection != connection)
                && let Some(runs) = self.by_connection.get_mut(&connection)
            {
                runs.remove(&run);
            }
        }
        if !rest.is_empty() {
            self.by_run.insert(run, rest);
        }
    }

    /// No client waits behind this connection any more.
    pub(super) fn left(&mut self, connection: ConnectionId) {
        self.drains.retain(|(other, _, _)| *other != connection);
        for run in self.by_connection.remove(&connection).unwrap_or_default() {
            let Some(waiters) = self.by_run.get_mut(&run) else { continue };
            for waiter in waiters.extract_if(.., |waiter| waiter.connection == connection) {
                if let Some(due) = waiter.due {
                    self.by_time.remove(&(due, run));
                }
            }
            // A remaining waiter may have the same time.
            self.by_time.extend(waiters.iter().filter_map(|waiter| Some((waiter.due?, run))));
            if waiters.is_empty() {
                self.by_run.remove(&run);
            }
        }
    }
}
