//! Converts the world's answers to replies for clients. It keeps the requests that are in a step, and for each what to
//! do with its answer.

use std::collections::{BTreeMap, BTreeSet};

use harness_protocol::rpc::{Empty, Unchanged};
use harness_protocol::time::Span;
use tokio::sync::oneshot;

use super::reload::InForce;
use super::waiters::Waiters;
use crate::control::request::{ConnectionId, Responder};
use crate::refusal::Refusal;
use crate::world::api::{Reply, ReplyId};

/// What to do with the answer to a command.
pub(super) enum Pending {
    /// Send it to the client.
    Answer(Responder),
    /// Send it together with named runs that have left the world: they have ended.
    Changed(Vec<Unchanged>, Responder),
    /// The client waits until nothing executes any more, or until this time.
    AfterDrain(Option<Span>, Responder),
    /// A new configuration is in force.
    AfterReload(Box<InForce>),
    /// Send it to a part of the daemon.
    Own(oneshot::Sender<Result<Reply, Refusal>>),
}

/// The requests of uncommitted steps.
#[derive(Default)]
pub(super) struct Replies {
    pending: BTreeMap<ReplyId, (ConnectionId, Pending)>,
    last: u64,
}

impl Replies {
    /// Registers a request of a step; gives the number for its answer.
    pub(super) fn expect(&mut self, connection: ConnectionId, pending: Pending) -> ReplyId {
        self.last += 1;
        let reply = ReplyId(self.last);
        self.pending.insert(reply, (connection, pending));
        reply
    }

    /// The connections with requests in a step.
    pub(super) fn connections(&self) -> BTreeSet<ConnectionId> {
        self.pending.values().map(|(connection, _)| *connection).collect()
    }

    /// Passes on an answer of the world.
    pub(super) fn tell(&mut self, to: ReplyId, reply: Result<Reply, Refusal>, waiters: &mut Waiters) {
        let Some((connection, pending)) = self.pending.remove(&to) else { return };
        match (pending, reply) {
            // The receiver may be gone.
            (Pending::Own(tell), reply) => drop(tell.send(reply)),
            (Pending::AfterDrain(due, responder), Ok(_)) => waiters.wait_for_drain(due, connection, responder),
            (Pending::AfterReload(in_force), Ok(_)) => in_force.tell(),
            (Pending::AfterReload(in_force), Err(error)) => in_force.refuse(error),
            (
                Pending::Answer(responder) | Pending::Changed(_, responder) | Pending::AfterDrain(_, responder),
                Err(error),
            ) => responder.send::<()>(Err(error)),
            (Pending::Changed(mut ended, responder), Ok(Reply::Changed(mut changed))) => {
                changed.unchanged.append(&mut ended);
                responder.send(Ok(changed));
            }
            (Pending::Answer(responder) | Pending::Changed(_, responder), Ok(reply)) => match reply {
                Reply::Submitted(submitted) => responder.send(Ok(submitted)),
                Reply::Changed(changed) | Reply::Piece(changed, _) => responder.send(Ok(changed)),
                Reply::Answered(answered) => responder.send(Ok(answered)),
                Reply::Lane(changed) => responder.send(Ok(changed)),
                Reply::Done => responder.send(Ok(Empty {})),
            },
        }
    }

    /// The outcome of the steps may never be known: the clients are told why.
    pub(super) fn give_up(&mut self, error: &Refusal) {
        for (_, pending) in std::mem::take(&mut self.pending).into_values() {
            match pending {
                Pending::Own(tell) => drop(tell.send(Err(error.clone()))),
                Pending::AfterReload(in_force) => in_force.refuse(error.clone()),
                Pending::Answer(responder) | Pending::Changed(_, responder) | Pending::AfterDrain(_, responder) => {
                    responder.send::<()>(Err(error.clone()));
                }
            }
        }
    }
}
