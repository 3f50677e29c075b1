//! Requests of connections to the driver, and the way back for the answers.

use harness_protocol::event::Gap;
use harness_protocol::id::{CallId, RunId, Seq};
use harness_protocol::rpc::{
    BackupParams, DrainParams, ExportParams, InteractionListParams, ListParams, OutputParams, PruneParams, RequestId,
    Response, RpcError, Selector, ShowParams, SubscribeParams, Unchanged, WaitParams,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::oneshot;

use super::limits::request_place::Place;
pub use super::outgoing::Outgoing;
use crate::fair::Party;
use crate::inbox::{Kind, Queued};
use crate::journal::epochs::Epoch;
use crate::world::api::{Caller, Command, Reply};

/// Number of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request, in the order of its coming.
#[derive(Debug)]
pub struct Request {
    /// Through which connection.
    pub connection: ConnectionId,
    /// With whom it takes turns.
    pub party: Party,
    /// The user, and the run, on whose behalf it is made.
    pub caller: Caller,
    /// The request itself, with the sender for its answer.
    pub wanted: Wanted,
    /// What was looked up for it already.
    pub known: Known,
}

/// What was looked up in the journal for a request.
#[derive(Debug, Default)]
pub struct Known {
    /// Runs that it named and that have left the world: they have ended.
    pub ended: Vec<Unchanged>,
    /// Its idempotency key was looked up, and whether a run was made under it since.
    pub key_used: Option<Arc<AtomicBool>>,
}

impl Request {
    /// A request, for which nothing was looked up.
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

/// What may be wanted.
#[derive(Debug)]
pub enum Wanted {
    /// A change of the world.
    Command(Command, Responder),
    /// A change of the world, wanted by a part of the daemon.
    Own(Command, oneshot::Sender<Result<Reply, RpcError>>),
    /// Which runs of the world are selected, wanted by a part of the daemon.
    Which(Which, oneshot::Sender<Result<WhichFound, RpcError>>),
    /// That the journal gives back space, a little; told whether there is more.
    Tidy(oneshot::Sender<bool>),
    /// That finished runs are removed.
    Prune(PruneParams, Responder),
    /// A copy of the journal.
    Backup(BackupParams, Responder),
    /// Something to read.
    Read(Read, Responder),
    /// To be told when a run has reached a state.
    Wait(WaitParams, Responder),
    /// That nothing new starts, and to be told when nothing executes.
    Drain(DrainParams, Responder),
    /// That the configuration is read again.
    Reload(Responder),
    /// That the daemon stops.
    Stop(Responder),
    /// To follow events: what the names in the request mean.
    Subscribe(SubscribeParams, oneshot::Sender<Result<Follow, RpcError>>),
    /// To read output: which file.
    Output(OutputParams, oneshot::Sender<Result<OutputPlace, RpcError>>),
    /// The connection is gone: none of its requests waits any more.
    Left,
}

impl Wanted {
    /// Refuses the request: the caller gets `error`.
    pub fn refuse(self, error: RpcError) {
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

/// Runs of the world that are to be found, a part of them at a time.
#[derive(Debug)]
pub struct Which {
    /// By name, or by what they are.
    pub select: Selector,
    /// Only those with a number above this one, where they are not named.
    pub after: u64,
    /// Only those that had been made when this was the highest number of a run and the last event.
    pub until: (u64, Seq),
}

/// Those that were found.
#[derive(Debug, Default)]
pub struct WhichFound {
    /// Runs of the world.
    pub runs: Vec<RunId>,
    /// Names of which the world knows no run.
    pub gone: Vec<String>,
    /// The number to go on after, where there are more.
    pub next: Option<u64>,
}

/// Reads that are answered from the world.
#[derive(Debug)]
pub enum Read {
    /// Health and counts.
    Status,
    /// A page of runs, by filter.
    List(ListParams),
    /// One run, and its transcript where that is wanted.
    Show(ShowParams),
    /// Everything that happened to one.
    Export(ExportParams),
    /// Interactions that wait for an answer.
    Interactions(InteractionListParams),
    /// The reports of all lanes.
    Lanes,
}

/// A subscription, with the names resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follow {
    /// Events after this one.
    pub after: Seq,
    /// The last that had happened.
    pub last: Seq,
    /// Only of these runs.
    pub runs: Option<BTreeSet<RunId>>,
    /// And of those that they spawn.
    pub with_children: bool,
    /// Only of these kinds.
    pub kinds: BTreeSet<String>,
    /// Deltas are wanted beside the events.
    pub deltas: bool,
    /// What is left out before all else.
    pub gap: Option<Gap>,
    /// The epochs of the numbers.
    pub epochs: Arc<[Epoch]>,
}

/// Where the output of a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputPlace {
    /// The run of the call.
    pub run: RunId,
    /// Id of the call.
    pub call: CallId,
    /// Whether more can come.
    pub live: bool,
}

/// The way back of one answer. Dropped without one, it says that the daemon stops.
#[derive(Debug)]
pub struct Responder {
    id: Option<RequestId>,
    outgoing: Arc<Outgoing>,
    /// The request's place among those of its connection.
    place: Option<Place>,
}

impl Responder {
    /// The way back for the request `id`.
    pub fn new(id: RequestId, outgoing: Arc<Outgoing>, place: Place) -> Self {
        Self { id: Some(id), outgoing, place: Some(place) }
    }

    /// Sends the answer to the client. A client that has left does not matter.
    pub fn send<T: Serialize + Send + 'static>(mut self, answer: Result<T, RpcError>) {
        self.reply(answer);
    }

    /// Waits until there is a place among the large answers of all connections, unless it has one.
    pub async fn room_for_large(&mut self) {
        if let Some(place) = &mut self.place
            && place.answer.is_none()
        {
            place.answer = self.outgoing.place_for_large().await;
        }
    }

    /// Gives back what the request takes of the memory for large ones: nothing of it is kept until the answer.
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
        self.reply::<()>(Err(RpcError::stopping().undecided()));
    }
}
