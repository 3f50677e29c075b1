//! Commits, and what happens while none goes through.
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
//! Owns when the daemon is held. Nothing of a step is done or shown before its commit has gone through.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::event::EventBody;
use harness_protocol::id::RunId;
use harness_protocol::rpc::{ErrorKind, RpcError};
use harness_protocol::time::Span;
use tracing::{error, info};

use super::{BATCH, Driver, Order, Pending, class_of, touched};
use crate::control::request::{ConnectionId, Request, Wanted};
use crate::journal::crash::{self, Point};
use crate::journal::{Commit, CommitClass, Journal};
use crate::world::Step;
use crate::world::boundary::{Command, Effect};

/// First wait before a failed commit is tried again; it doubles from there.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Longest wait.
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// How long those wait whose request is in a step that cannot be committed.
const PATIENCE: Duration = Duration::from_secs(3);

impl<J: Journal> Driver<J> {
    /// Commits what a step came to, as often as it takes; then shows it and acts.
    pub(super) async fn commit_and_act(&mut self, step: Step) {
        let Step { events, effects, archived } = step;
        if !events.is_empty() {
            let class = class_of(&effects);
            let commit = Arc::new(Commit { events, archived });
            if !self.commit(&commit, class).await {
                // Told to stop while it could not commit: nobody was told anything of this step.
                return;
            }
            self.parts.feed.publish(&commit.events);
            crash::here(Point::BeforeEffect);
            self.act(effects);
            let now = self.parts.clock.now();
            self.waiters.told(touched(&commit.events), &self.parts.engine, &self.archive, now);
            let pruned = commit.events.iter().filter_map(|event| match &event.body {
                EventBody::RunsPruned { runs } => Some(runs.iter().copied()),
                _ => None,
            });
            let pruned: Vec<RunId> = pruned.flatten().collect();
            if !pruned.is_empty() {
                (self.parts.erase)(pruned);
            }
        } else {
            self.act(effects);
        }
    }

    fn act(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.perform(effect);
            crash::here(Point::AfterEffect);
        }
    }

    /// Says whether the events are in the journal; they are not when the daemon is told to stop before.
    async fn commit(&mut self, commit: &Arc<Commit>, class: CommitClass) -> bool {
        let mut wait = FIRST_RETRY;
        let since = self.parts.clock.now().mono;
        loop {
            let Err(failure) = self.parts.journal.commit(commit, class).await else {
                if !self.on_ballast {
                    self.let_go();
                }
                return true;
            };
            if self.parts.service.held.replace(failure.reason.clone()).is_none() {
                error!(%failure, "held: new work is refused until there is room again");
            }
            self.parts.engine.hold(true);
            if let Some(ballast) = &self.parts.ballast
                && ballast.give_up()
            {
                self.on_ballast = true;
                self.next_try = Some(self.parts.clock.now().mono + FIRST_RETRY.into());
                continue;
            }
            if self.parts.clock.now().mono.saturating_sub(since) >= PATIENCE.into() {
                self.give_answers_up();
            }
            let retry = self.parts.clock.at(self.parts.clock.now().mono + wait.into());
            wait = (wait * 2).min(LONGEST_RETRY);
            if !self.hold_until(retry).await {
                return false;
            }
        }
    }

    /// Nothing is held any more.
    fn let_go(&mut self) {
        if self.parts.service.held.take().is_some() {
            info!("the journal commits again");
            self.parts.engine.hold(false);
            self.on_ballast = false;
            self.next_try = None;
            // What has waited for room starts with a step of its own.
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
            Some(ballast) => tokio::task::spawn_blocking(move || ballast.take().is_ok()).await.unwrap_or(false),
            None => true,
        };
        if taken {
            self.let_go();
        } else {
            self.retry_wait = (self.retry_wait * 2).clamp(FIRST_RETRY, LONGEST_RETRY);
            self.next_try = Some(self.parts.clock.now().mono + self.retry_wait.into());
        }
    }

    /// Whoever waits for what is in the step that cannot be committed is told so: nobody waits forever.
    fn give_answers_up(&mut self) {
        let mut error = self.held_error();
        error.message.push_str("; what was asked may still take effect once it commits");
        for (_, pending) in std::mem::take(&mut self.replies).into_values() {
            match pending {
                Pending::Nobody => {}
                Pending::Own(tell) => drop(tell.send(Err(error.clone()))),
                Pending::Answer(responder)
                | Pending::Changed(_, responder)
                | Pending::AfterDrain(_, responder)
                | Pending::AfterReload(_, _, responder) => responder.send::<()>(Err(error.clone())),
            }
        }
    }

    /// While stuck: answers reads, refuses the rest. Says whether to go on.
    async fn hold_until(&mut self, retry: tokio::time::Instant) -> bool {
        let sleep = tokio::time::sleep_until(retry);
        tokio::pin!(sleep);
        loop {
            tokio::select! {
                () = &mut sleep => return true,
                () = self.parts.inbox.came(), if self.backlog.len() < self.parts.most_waiting => {}
                order = self.orders.recv() => {
                    if order != Some(Order::Reload) {
                        self.stopping = true;
                        return false;
                    }
                    continue;
                }
            }
            // Whoever has something in the step that is held is not shown what that may come to.
            let in_step: BTreeSet<ConnectionId> = self.replies.values().map(|(connection, _)| *connection).collect();
            for request in self.parts.inbox.take_requests(BATCH) {
                let Request { connection, caller, wanted } = request;
                match wanted {
                    Wanted::Stop(responder) if caller.run.is_none() => {
                        self.stop(responder);
                        return false;
                    }
                    // That a run has ended may be in the step that is held.
                    wanted @ Wanted::Wait(..) => self.backlog.push_back(Request { connection, caller, wanted }),
                    Wanted::Command(_, responder) | Wanted::Drain(_, responder) | Wanted::Reload(responder) => {
                        responder.send::<()>(Err(self.held_error()));
                    }
                    Wanted::Own(_, tell) => drop(tell.send(Err(self.held_error()))),
                    Wanted::Tidy(tell) => drop(tell.send(false)),
                    wanted if in_step.contains(&connection) => {
                        self.backlog.push_back(Request { connection, caller, wanted });
                    }
                    wanted => self.read(Request { connection, caller, wanted }),
                }
            }
            if self.stopping {
                return false;
            }
        }
    }

    /// Whether a command is refused while the daemon lives on its ballast: those that make new work.
    pub(super) fn is_refused(&self, command: &Command) -> bool {
        self.on_ballast && matches!(command, Command::Submit { .. } | Command::Retry { .. } | Command::Message { .. })
    }

    pub(super) fn held_error(&self) -> RpcError {
        let reason = self.parts.service.held.as_deref().unwrap_or("the journal cannot commit");
        let message = format!(
            "held: {reason}; make room in {} (`harnessctl prune`), then it goes on by itself",
            self.parts.service.state_dir
        );
        RpcError::new(ErrorKind::Held, message).retry_after(Span::from(LONGEST_RETRY))
    }
}
