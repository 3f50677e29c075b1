//! Serves one connection: reads requests in order, hands them to the driver, and writes the replies and notifications.
//!
//! Bounded: a request has a place until its answer is written, and nothing more is read from a peer whose places are
//! all taken. Each request passes the table of rights before it goes anywhere. A line that is no request gets an error
//! and the connection stays. The connection ends on a line that is too long, or not finished within 30 s, or has no
//! memory; and if the peer reads nothing while others wait for the room that its answers take.

pub(super) mod background;
pub(super) mod decode;
pub(super) mod reading;
mod writing;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness_protocol::framing::{Decoder, Frame};
use harness_protocol::id::SubscriptionId;
use harness_protocol::rpc::{
    Call, ErrorKind, OutputParams, OutputReply, ProviderViews, Reason, RequestId, Response, RpcError, SubscribeParams,
    Subscribed,
};
use harness_protocol::time::Span;
use harness_protocol::{MAX_FRAME_BYTES, event};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connection::background::{Effort, by_effort};
use super::connection::decode::Line;
use super::connection::reading::{gone, place_among, receive, unless_gone, unread};
use super::connection::writing::write_all;
use super::limits::memory::Requests;
use super::limits::request_permits::Place;
use super::limits::request_weight;
use super::outgoing::{Outgoing, Piece, ROOM};
use super::provider_check;
use super::request::{ConnectionId, OutputPlace, Read, Request, Responder, Wanted};
use super::rights::{Kind, Who};
use super::services::Services;
use super::socket::listener::Accepted;
use super::subscription::{self, Past, Sink};
use super::workdir::Workdirs;
use crate::fair_queue::Party;
use crate::refusal::{Fault, JournalRefusal, Refusal, SubscriptionRefusal};
use crate::world::api::{Caller, Command};

/// Large answers, of up to megabytes, that one connection may wait for at once.
const LARGE_AT_ONCE: usize = 4;
/// The method by which a client waits for a run.
const WAIT: &str = "run.wait";
/// How long a frame may take from its first byte to its last.
const HALF_A_FRAME: Duration = Duration::from_secs(30);
/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;
/// How long a peer may take to read its answers when the daemon stops.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Bytes of output in one answer where the request does not say.
const OUTPUT_BYTES: u32 = 1024 * 1024;
/// Most bytes of output in one answer.
const MOST_OUTPUT_BYTES: u32 = 4 * 1024 * 1024;

/// Serves a connection to its end: on the current runtime, or in the background while the client asks much.
pub async fn serve(accepted: Accepted, id: ConnectionId, services: Arc<Services>, stop: CancellationToken) {
    let (effort, background) = (Arc::new(Effort::default()), services.background.clone());
    let serving = serve_here(accepted, id, services, stop, (Arc::clone(&effort), Handle::current()));
    by_effort(serving, &effort, &background).await;
}

async fn serve_here(
    accepted: Accepted,
    id: ConnectionId,
    services: Arc<Services>,
    stop: CancellationToken,
    (effort, runtime): (Arc<Effort>, Handle),
) {
    let Accepted { stream, who, pid, slot } = accepted;
    let party = match (&who, pid) {
        (Who::Run { run, .. }, _) => Party::Run(*run),
        (_, Some(pid)) => Party::Process(pid),
        (_, None) => Party::Connection(id.0),
    };
    // All peers that cannot be identified share one queue for closing their descriptors.
    let looks_as = if matches!(who, Who::Nobody { .. }) { Party::Connection(u64::MAX) } else { party };
    let workdirs = Workdirs::new(services.folders.clone(), looks_as, slot);
    let answers = services.memory.answers(who.kind() == Kind::Operator);
    let requests = services.memory.requests(who.kind() == Kind::Operator);
    let outgoing = Arc::new(Outgoing::new(Arc::clone(&answers), services.background.clone()));
    let large = Arc::new(Semaphore::new(LARGE_AT_ONCE));
    let (stuck, room) = (Arc::new(AtomicBool::new(false)), requests.clone());
    let mut connection = Connection {
        id,
        who,
        party,
        places: Arc::new(Semaphore::new(services.bounds.requests_per_connection as usize)),
        large: Arc::clone(&large),
        answers: Arc::clone(&answers),
        requests,
        stuck: Arc::clone(&stuck),
        waits: Arc::new(Semaphore::new(services.bounds.requests_per_connection as usize * 3 / 4)),
        services,
        outgoing: Arc::clone(&outgoing),
        subscriptions: BTreeMap::new(),
        next_subscription: 1,
        tasks: JoinSet::new(),
        foreign: None,
        workdirs,
        effort: Arc::clone(&effort),
        runtime,
    };
    // Whether the peer holds much of the shared room, and does not read.
    let is_in_the_way = |piece: &Piece| {
        let holds = large.available_permits() < LARGE_AT_ONCE || piece.bytes.len() > ROOM;
        (holds && answers.available_permits() == 0) || (stuck.load(Ordering::Relaxed) && room.is_used_up())
    };
    let mut writer = pin!(write_all(&stream, &outgoing, &effort, &is_in_the_way));
    tokio::select! {
        () = &mut writer => {}
        () = connection.read(&stream) => {}
        () = stop.cancelled() => {
            // Answers that are queued already are still written, to a peer that reads.
            let written = async {
                tokio::select! {
                    () = writer => {}
                    () = outgoing.drained() => {}
                }
            };
            let _ = timeout(LAST_WORDS, written).await;
        }
    }
    connection.close();
}

struct Connection {
    id: ConnectionId,
    who: Who,
    party: Party,
    services: Arc<Services>,
    outgoing: Arc<Outgoing>,
    places: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Places for large answers of all connections of its kind.
    answers: Arc<Semaphore>,
    /// Places for large requests of all connections of its kind.
    requests: Requests,
    /// It holds room for a large request, and waits until the peer has read more of its answers.
    stuck: Arc<AtomicBool>,
    /// Places of waiting requests. Fewer than all, so that requests which end a wait always have one.
    waits: Arc<Semaphore>,
    subscriptions: BTreeMap<SubscriptionId, tokio::task::AbortHandle>,
    next_subscription: u64,
    tasks: JoinSet<()>,
    /// Why the peer's protocol is not ours, once it has said its version.
    foreign: Option<RpcError>,
    /// The working directories that it passes, and its place among the connections.
    workdirs: Workdirs,
    /// Counts the work for this connection.
    effort: Arc<Effort>,
    /// The runtime that asks providers and keeps the connections to them.
    runtime: Handle,
}

impl Connection {
    async fn read(&mut self, read: &UnixStream) {
        let mut decoder = Decoder::new(MAX_FRAME_BYTES);
        let mut buffer = vec![0; READ_BYTES];
        let mut passed = Vec::new();
        let mut held = self.services.memory.hold(self.who.kind() == Kind::Operator);
        let mut half = pin!(tokio::time::sleep(HALF_A_FRAME));
        let mut is_half = false;
        loop {
            let may_pass = || self.workdirs.may_pass();
            let came = tokio::select! {
                came = receive(read, &mut buffer, &mut passed, &may_pass) => came,
                () = &mut half, if is_half => {
                    let seconds = HALF_A_FRAME.as_secs();
                    let message = format!("a line has to be finished within {seconds} s; the connection is closed");
                    self.refuse(None, decode::bad_request(decode::OVERSIZED, message));
                    return self.flush(read).await;
                }
            };
            if !self.workdirs.arrived(came.as_ref().map_or(0, |bytes| *bytes), &mut passed) {
                tracing::warn!("a connection is closed: closing what it has passed before hangs");
                return;
            }
            match came {
                Ok(0) => {
                    if let Some(Frame::Line(line)) = decoder.finish() {
                        self.take(line, read).await;
                    }
                    break;
                }
                Ok(bytes) => {
                    self.effort.spend(0, bytes);
                    decoder.push(&buffer[..bytes]);
                }
                Err(error) => {
                    let Some(refusal) = reading::refusal(&error) else { return };
                    self.refuse(None, refusal);
                    return self.flush(read).await;
                }
            }
            if let Err(no_room) = held.set(decoder.held()) {
                let error = RpcError::new(ErrorKind::Busy, no_room.to_string()).because(Reason::NoMemory, None);
                self.refuse(None, error.retry_after(Span::from_secs(1)));
                drop((decoder, held));
                return self.flush(read).await;
            }
            let mut is_new = !is_half;
            while let Some(frame) = decoder.next_frame() {
                is_new = true;
                match frame {
                    Frame::Line(line) => {
                        self.effort.spend(1, line.len());
                        if !self.take(line, read).await {
                            return;
                        }
                        if self.effort.is_much() {
                            yield_now().await;
                        }
                    }
                    Frame::Oversized => {
                        let message = format!("a line has at most {MAX_FRAME_BYTES} bytes; the connection is closed");
                        self.refuse(None, decode::bad_request(decode::OVERSIZED, message));
                        self.flush(read).await;
                        return;
                    }
                }
            }
            while self.tasks.try_join_next().is_some() {}
            // The memory of a whole frame is free again. To hold less always fits.
            decoder.let_go();
            let _ = held.set(decoder.held());
            is_half = decoder.unfinished() > 0;
            if !is_half && !self.workdirs.no_line_is_open() {
                return;
            }
            if is_half && is_new {
                // Earlier lines may have waited: that time does not count for this one.
                half.set(tokio::time::sleep(HALF_A_FRAME));
            }
        }
        self.flush(read).await;
    }

    /// The peer sends no more, and may still wait for answers: stays until it has them or is gone.
    async fn flush(&mut self, read: &UnixStream) {
        let all = self.services.bounds.requests_per_connection;
        let answered = async {
            // When every answer is written, every place is free again.
            let _ = self.places.acquire_many(all).await;
            self.outgoing.drained().await;
            if !self.subscriptions.is_empty() {
                // Subscriptions end with the peer.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = answered => {}
            () = gone(read) => {}
        }
    }

    /// Takes a line. Gives whether to go on; not, when the peer is gone.
    async fn take(&mut self, line: &[u8], read: &UnixStream) -> bool {
        // First its place: a peer that does not read waits for that, and holds no memory that others wait for.
        let Some(request) = place_among(&self.places, read).await else { return false };
        let weight = request_weight::of(line);
        let memory = if Requests::is_large(weight) {
            // It is not even parsed before there is room for the parsed request.
            match unless_gone(self.requests.room_for(weight), read).await {
                Some(memory) => Some(memory),
                None => return false,
            }
        } else {
            None
        };
        let line = if memory.is_some() {
            let line = line.to_vec();
            let parsed = self.services.parsing.get(self.party, move || decode::read(&line)).await;
            parsed.unwrap_or_else(decode::lost)
        } else {
            decode::read(line)
        };
        match line {
            Line::Notification => {}
            Line::Bad(id, error) => {
                self.outgoing.reply(Response::<()>::new(id, Err(error)), Some(Place::small(request)));
            }
            Line::Call(id, mut call) => {
                let special = match *call {
                    Call::RunWait(_) | Call::DaemonDrain(_) | Call::ProviderCheck(_) => {
                        match Arc::clone(&self.waits).try_acquire_owned() {
                            Ok(wait) => Some(wait),
                            Err(_) => {
                                let message = "too many requests of this connection wait already; use another one";
                                let error = RpcError::new(ErrorKind::Busy, message).because(Reason::TooManyWaits, None);
                                let place = Some(Place::small(request));
                                self.outgoing.reply(Response::<()>::new(Some(id), Err(error)), place);
                                return true;
                            }
                        }
                    }
                    Call::RunShow(_)
                    | Call::RunList(_)
                    | Call::RunExport(_)
                    | Call::RunPrune(_)
                    | Call::RunOutput(_)
                    | Call::BlobGet(_)
                    | Call::LaneList(_)
                    | Call::InteractionList(_) => match self.place_among(&self.large, memory.is_some(), read).await {
                        Some(large) => Some(large),
                        None => return false,
                    },
                    _ => None,
                };
                let answer = match *call {
                    Call::RunShow(_)
                    | Call::RunList(_)
                    | Call::RunExport(_)
                    | Call::RunOutput(_)
                    | Call::BlobGet(_)
                    | Call::InteractionList(_) => match self.place_among(&self.answers, memory.is_some(), read).await {
                        Some(answer) => Some(answer),
                        None => return false,
                    },
                    _ => None,
                };
                let place = Place { request, special, answer, memory };
                // Later lines of this connection wait, to keep the order. A caller without the right is not checked.
                if let Call::RunSubmit(params) = &*call
                    && self.who.admit(call.name()).is_ok()
                    && let Err(error) = (self.services.check_spec)(&params.spec).await
                {
                    Responder::new(id, Arc::clone(&self.outgoing), place).send::<()>(Err(error.into()));
                    return true;
                }
                let refused = match &mut *call {
                    Call::RunSubmit(params) if self.who.admit("run.submit").is_ok() => {
                        self.workdirs.find(params, || unread(read)).await
                    }
                    _ => None,
                };
                return self.call(id, *call, (place, refused), read).await;
            }
        }
        true
    }

    /// A place for a request that may hold memory for a large one meanwhile; `None` when the peer is gone before.
    async fn place_among(
        &self,
        places: &Arc<Semaphore>,
        holds_room: bool,
        read: &UnixStream,
    ) -> Option<OwnedSemaphorePermit> {
        self.stuck.store(holds_room, Ordering::Relaxed);
        let place = place_among(places, read).await;
        self.stuck.store(false, Ordering::Relaxed);
        place
    }

    fn refuse(&self, id: Option<RequestId>, error: RpcError) {
        self.outgoing.reply(Response::<()>::new(id, Err(error)), None);
    }

    /// Executes a call. Gives whether to go on; not, when the peer is gone.
    async fn call(
        &mut self,
        id: RequestId,
        call: Call,
        (place, refused): (Place, Option<Box<Refusal>>),
        read: &UnixStream,
    ) -> bool {
        let responder = Responder::new(id, Arc::clone(&self.outgoing), place);
        // After a greeting of another version, a request may mean something else. Any version may look and stop.
        if let Some(error) = &self.foreign
            && !matches!(call, Call::DaemonHello(_) | Call::DaemonStatus(_) | Call::DaemonStop(_))
        {
            responder.refuse(error.clone());
            return true;
        }
        let caller = match (self.who.admit(call.name()), &call) {
            (Ok(_), Call::DaemonHello(params)) => {
                let hello = decode::hello(params);
                self.foreign = hello.as_ref().err().cloned();
                match hello {
                    Ok(hello) => responder.send(Ok(hello)),
                    Err(error) => responder.refuse(error),
                }
                return true;
            }
            (Ok(Some(caller)), _) => caller,
            (Ok(None), _) => {
                responder.refuse(self.who.refusal(call.name()).into());
                return true;
            }
            (Err(denial), _) => {
                responder.refuse(denial.into());
                return true;
            }
        };
        match call {
            Call::EventUnsubscribe(params) => match self.subscriptions.remove(&params.subscription) {
                Some(task) => {
                    task.abort();
                    responder.send(Ok(harness_protocol::rpc::Empty {}));
                }
                None => {
                    let subscription = params.subscription;
                    responder.send::<()>(Err(SubscriptionRefusal::NoneSuch { subscription }.into()));
                }
            },
            Call::EventSubscribe(params) => return self.subscribe(caller, params, responder, read).await,
            Call::RunOutput(params) => return self.output(caller, params, responder, read).await,
            Call::ProviderList(_) => responder.send(Ok(ProviderViews { providers: (self.services.list_providers)() })),
            Call::ProviderCheck(params) => {
                let (uid, services) = (caller.uid, Arc::clone(&self.services));
                let check = async move { responder.send(provider_check::check(uid, &services, params).await) };
                self.tasks.spawn_on(check, &self.runtime);
            }
            other => return self.ask(caller, other, refused, responder, read).await,
        }
        true
    }

    /// Sends a request to the driver, and its answer to the client.
    async fn ask(
        &self,
        caller: Caller,
        call: Call,
        refused: Option<Box<Refusal>>,
        responder: Responder,
        read: &UnixStream,
    ) -> bool {
        let wanted = match decode::command(call) {
            Ok(mut command) => {
                if let Command::Submit { sent, .. } = &mut command {
                    sent.refused = refused;
                }
                Wanted::Command(command, responder)
            }
            Err(call) => match *call {
                Call::DaemonStatus(_) => Wanted::Read(Read::Status, responder),
                Call::RunList(params) => Wanted::Read(Read::List(params), responder),
                Call::RunShow(params) => Wanted::Read(Read::Show(params), responder),
                Call::InteractionList(params) => Wanted::Read(Read::Interactions(params), responder),
                Call::LaneList(_) => Wanted::Read(Read::Lanes, responder),
                Call::RunExport(params) => Wanted::Read(Read::Export(params), responder),
                Call::BlobGet(params) => Wanted::Read(Read::Blob(params), responder),
                Call::RunPrune(params) => Wanted::Prune(params, responder),
                Call::DaemonBackup(params) => Wanted::Backup(params, responder),
                Call::RunWait(params) => Wanted::Wait(params, responder),
                Call::DaemonDrain(params) => Wanted::Drain(params, responder),
                Call::DaemonReload(_) => Wanted::Reload(responder),
                Call::DaemonStop(_) => Wanted::Stop(responder),
                // All other calls were handled before.
                _ => {
                    responder.send::<()>(Err(Fault::OtherRequest.into()));
                    return true;
                }
            },
        };
        self.put(caller, wanted, read).await
    }

    fn request(&self, caller: Caller, wanted: Wanted) -> Request {
        Request::new(self.id, caller, self.party, wanted)
    }

    /// Puts a request into the inbox once there is room for it. Gives `false` when the peer is gone before.
    async fn put(&self, caller: Caller, wanted: Wanted, read: &UnixStream) -> bool {
        let Err(request) = self.services.inbox.request(self.request(caller, wanted)) else { return true };
        tokio::select! {
            () = self.services.inbox.put(request) => true,
            () = gone(read) => false,
        }
    }

    async fn subscribe(
        &mut self,
        caller: Caller,
        params: SubscribeParams,
        responder: Responder,
        read: &UnixStream,
    ) -> bool {
        self.subscriptions.retain(|_, task| !task.is_finished());
        if self.subscriptions.len() >= self.services.bounds.subscriptions_per_connection as usize {
            let most = self.services.bounds.subscriptions_per_connection;
            responder.send::<()>(Err(SubscriptionRefusal::TooMany { most }.into()));
            return true;
        }
        if let Some(unknown) = params.kinds.iter().find(|kind| !event::EVENT_KINDS.contains(&kind.as_str())) {
            responder.send::<()>(Err(SubscriptionRefusal::NoKind { kind: unknown.clone() }.into()));
            return true;
        }
        let (tell, told) = oneshot::channel();
        if !self.put(caller, Wanted::Subscribe(params, tell), read).await {
            return false;
        }
        let subscription = SubscriptionId(self.next_subscription);
        self.next_subscription += 1;
        let (history, blocking) = (self.services.history.clone(), self.services.blocking.clone());
        let [operators, others] = &self.services.pages;
        let pages = Arc::clone(if self.who.kind() == Kind::Operator { operators } else { others });
        let (feed, past) = (self.services.feed.clone(), Past { history, blocking, pages, party: self.party });
        let (outgoing, services) = (Arc::clone(&self.outgoing), Arc::clone(&self.services));
        let follow = async move {
            match told.await {
                Ok(Ok(follow)) => {
                    // Deltas that come before the reply is sent are not missed.
                    let deltas = follow.deltas.then(|| feed.listen());
                    responder.send(Ok(Subscribed {
                        subscription,
                        last_seq: follow.last,
                        epoch: follow.epochs.last().map(|epoch| epoch.id),
                    }));
                    let sink = Sink::new(&outgoing, &services.follower_turns);
                    subscription::run(subscription, follow, deltas, &feed, &past, sink).await;
                }
                Ok(Err(error)) => responder.send::<()>(Err(error)),
                Err(_) => drop(responder),
            }
        };
        // Even many subscribers must not delay the clients that ask.
        let task = self.tasks.spawn_on(follow, &self.services.background);
        self.subscriptions.insert(subscription, task);
        true
    }

    async fn output(&mut self, caller: Caller, params: OutputParams, responder: Responder, read: &UnixStream) -> bool {
        let (tell, told) = oneshot::channel();
        let (stream, offset) = (params.stream, params.offset);
        let limit = params.limit.unwrap_or(OUTPUT_BYTES).min(MOST_OUTPUT_BYTES);
        if !self.put(caller, Wanted::Output(params, tell), read).await {
            return false;
        }
        let (services, party) = (Arc::clone(&self.services), self.party);
        self.tasks.spawn(async move {
            let Ok(place) = told.await else { return drop(responder) };
            let OutputPlace { run, call, live } = match place {
                Ok(place) => place,
                Err(error) => return responder.send::<()>(Err(error)),
            };
            let blocking = services.blocking.clone();
            let read = blocking.get(party, move || (services.read_output)(run, call, stream, offset, limit)).await;
            responder.send(match read {
                Some(Ok((offset, bytes, total))) => Ok(OutputReply { offset, bytes, total, live }),
                Some(Err(error)) => Err(JournalRefusal::Output { why: error.to_string() }.into()),
                None => Err(JournalRefusal::OutputNotRead.into()),
            });
        });
        true
    }

    /// Frees everything, and tells the driver that no request waits here any more.
    fn close(mut self) {
        self.outgoing.close();
        self.tasks.abort_all();
        // A peer that may not wait for a run has no waiting request here.
        let Ok(Some(caller)) = self.who.admit(WAIT) else { return };
        // It always fits.
        let _ = self.services.inbox.request(self.request(caller, Wanted::Left));
    }
}
