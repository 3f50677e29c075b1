//! Defines the requests that connections send to the driver, and the channel by which each answer comes back.

use harness_protocol::event::Gap;
use harness_protocol::id::{CallId, RunId, Seq};
use harness_protocol::rpc::{
    BackupParams, BlobParams, DrainParams, ExportParams, InteractionListParams, ListParams, OutputParams, PruneParams,
    RequestId, Response, RpcError, Selector, ShowParams, SubscribeParams, Unchanged, WaitParams,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::oneshot;

use super::limits::request_permits::Place;
pub use super::outgoing::Outgoing;
use crate::fair_queue::Party;
use crate::inbox::{Kind, Queued};
use crate::journal::epochs::Epoch;
use crate::refusal::Refusal;
use crate::world::api::{Caller, Command, Reply};

/// The number of a connection, unique during the life of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request for the driver.
#[derive(Debug)]
pub struct Request {
    /// The connection that it came through.
    pub connection: ConnectionId,
    /// The party whose requests take turns with those of others.
    pub party: Party,
    /// The user, and the run, on whose behalf it is made.
    pub caller: Caller,
    /// The request itself, with the sender for its answer.
    pub wanted: Wanted,
    /// The results of its look-ups, so far.
    pub known: Known,
}

/// Results of look-ups in the journal, for a request.
#[derive(Debug, Default)]
pub struct Known {
    /// Selected runs that have left the world: they have ended.
    pub ended: Vec<Unchanged>,
    /// Set where its idempotency key was looked up: whether a run was made under that key since.
    pub key_used: Option<Arc<AtomicBool>>,
}

impl Request {
    /// A request without any look-up.
    pub fn new(connection: ConnectionId, caller: Caller, party: Party, wanted: Wanted) -> Self {
        Self { connection, caller, party, wanted, known: Known::default() }
    }

    /// A request of a part of the daemon.
    pub fn own(uid: u32, wanted: Wanted) -> Self {
        Self::new(ConnectionId(0), Caller { uid, run: None }, Party::Daemon, wanted)
    }
}

impl Queued for Request {
    fn connection(&self) -> u64 {
        self.connection.0
    }

    fn party(&self) -> Party {
        self.party
    }

    fn kind(&self) -> Kind {
        match &self.wanted {
            Wanted::Command(..) | Wanted::Own(..) | Wanted::Tidy(_) | Wanted::Drain(..) | Wanted::Reload(_) => {
                Kind::Change
            }
            Wanted::Read(Read::Status | Read::Lanes, _) | Wanted::Wait(..) | Wanted::Stop(_) => Kind::Light,
            Wanted::Read(Read::Show(params), _) if !params.transcript => Kind::Light,
            Wanted::Read(..) | Wanted::Prune(..) | Wanted::Backup(..) | Wanted::Which(..) => Kind::Heavy,
            Wanted::Subscribe(..) | Wanted::Output(..) => Kind::Heavy,
            Wanted::Left => Kind::Left,
        }
    }
}

/// The kinds of requests.
#[derive(Debug)]
pub enum Wanted {
    /// A change of the world.
    Command(Command, Responder),
    /// A change of the world, for a part of the daemon.
    Own(Command, oneshot::Sender<Result<Reply, Refusal>>),
    /// Which runs of the world are selected, for a part of the daemon.
    Which(Which, oneshot::Sender<Result<WhichFound, Refusal>>),
    /// The journal shall give some free space back to the file system; the reply says whether there is more.
    Tidy(oneshot::Sender<bool>),
    /// Finished runs shall be removed.
    Prune(PruneParams, Responder),
    /// A copy of the journal shall be made.
    Backup(BackupParams, Responder),
    /// A read of the world.
    Read(Read, Responder),
    /// A wait for a run to reach a state.
    Wait(WaitParams, Responder),
    /// Nothing new shall start; the reply comes when nothing executes.
    Drain(DrainParams, Responder),
    /// The configuration shall be read again.
    Reload(Responder),
    /// The daemon shall stop.
    Stop(Responder),
    /// The names of a subscription shall be resolved.
    Subscribe(SubscribeParams, oneshot::Sender<Result<Follow, Refusal>>),
    /// The file of an output shall be found.
    Output(OutputParams, oneshot::Sender<Result<OutputPlace, Refusal>>),
    /// The connection is gone: none of its requests waits any more.
    Left,
}

impl Wanted {
    /// Refuses the request: the caller is told why.
    pub fn refuse(self, error: Refusal) {
        match self {
            Self::Command(_, responder)
            | Self::Prune(_, responder)
            | Self::Backup(_, responder)
            | Self::Read(_, responder)
            | Self::Wait(_, responder)
            | Self::Drain(_, responder)
            | Self::Reload(responder)
            | Self::Stop(responder) => responder.send::<()>(Err(error)),
            // The caller may be gone.
            Self::Own(_, tell) => drop(tell.send(Err(error))),
            Self::Tidy(tell) => drop(tell.send(false)),
            Self::Which(_, tell) => drop(tell.send(Err(error))),
            Self::Subscribe(_, tell) => drop(tell.send(Err(error))),
            Self::Output(_, tell) => drop(tell.send(Err(error))),
            Self::Left => {}
        }
    }
}

/// A search for selected runs of the world, a part of them at a time.
#[derive(Debug)]
pub struct Which {
    /// The selection, by names or criteria.
    pub select: Selector,
    /// Only runs with a number above this one, if they are not named.
    pub after: u64,
    /// Only runs that existed when this was the highest number of a run and the last event.
    pub until: (u64, Seq),
}

/// A part of the selected runs.
#[derive(Debug, Default)]
pub struct WhichFound {
    /// The runs that were found in the world.
    pub runs: Vec<RunId>,
    /// Names without a run in the world.
    pub gone: Vec<String>,
    /// The number after which the next part begins; `None` at the end.
    pub next: Option<u64>,
}

/// Reads of the world.
#[derive(Debug)]
pub enum Read {
    /// Health and counts.
    Status,
    /// A page of runs, by filter.
    List(ListParams),
    /// One run, and its transcript where that is wanted.
    Show(ShowParams),
    /// A page of all events of one run.
    Export(ExportParams),
    /// A part of a long text that events name.
    Blob(BlobParams),
    /// Interactions that wait for an answer.
    Interactions(InteractionListParams),
    /// The reports of all lanes.
    Lanes,
}

/// A subscription, with the names resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follow {
    /// The first event is the one after this number.
    pub after: Seq,
    /// Number of the last event at the time of the request.
    pub last: Seq,
    /// Only events of these runs.
    pub runs: Option<BTreeSet<RunId>>,
    /// Also events of runs that those spawn.
    pub with_children: bool,
    /// Only events of these kinds.
    pub kinds: BTreeSet<String>,
    /// Deltas are wanted beside the events.
    pub deltas: bool,
    /// The gap that is sent first, if any.
    pub gap: Option<Gap>,
    /// The epochs of the event numbers.
    pub epochs: Arc<[Epoch]>,
}

/// The identity of an output, and whether it grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputPlace {
    /// The run of the call.
    pub run: RunId,
    /// Id of the call.
    pub call: CallId,
    /// Whether the call still executes, so that more output can come.
    pub live: bool,
}

/// The way back for one answer. If it is dropped without an answer, the client is told that the daemon stops.
#[derive(Debug)]
pub struct Responder {
    id: Option<RequestId>,
    outgoing: Arc<Outgoing>,
    /// The places of the request on its connection.
    place: Option<Place>,
}

impl Responder {
    /// The way back for the answer to request `id`.
    pub fn new(id: RequestId, outgoing: Arc<Outgoing>, place: Place) -> Self {
        Self { id: Some(id), outgoing, place: Some(place) }
    }

    /// Sends the answer to the client. A client that has left does not matter.
    pub fn send<T: Serialize + Send + 'static>(mut self, answer: Result<T, Refusal>) {
        self.reply(answer.map_err(RpcError::from));
    }

    /// Sends an error of the connection itself to the client.
    pub(in crate::control) fn refuse(mut self, error: RpcError) {
        self.reply::<()>(Err(error));
    }

    /// Waits for a place among the large answers of all connections, unless it has one.
    pub async fn room_for_large(&mut self) {
        if let Some(place) = &mut self.place
            && place.answer.is_none()
        {
            place.answer = self.outgoing.place_for_large().await;
        }
    }

    /// Frees the memory of a large request before its answer: nothing of the request is kept until then.
    pub fn let_go_of_memory(&mut self) {
        if let Some(place) = &mut self.place {
            place.memory = None;
        }
    }

    fn reply<T: Serialize + Send + 'static>(&mut self, answer: Result<T, RpcError>) {
        let Some(id) = self.id.take() else { return };
        self.let_go_of_memory();
        self.outgoing.reply(Response::new(Some(id), answer), self.place.take());
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.reply::<()>(Err(Refusal::Stopping { undecided: true }.into()));
    }
}
