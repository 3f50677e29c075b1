//! Sends requests to the daemon over one connection, and receives replies in any order, and notifications.
//!
//! Blocking. The only place that reads from and writes to the socket, with bounds, and with the time limit that a
//! caller gives. Says its version of the protocol with the first request. Keeps notifications that come while it waits
//! for a reply. Must not start a daemon or repeat a request: a lost connection is an error, which `session/` handles.

pub(crate) mod connect;
pub(crate) mod error;
pub(crate) mod incoming;
pub(crate) mod interrupt;
/// Whether too many descriptors of this user are in flight, so that the kernel takes no more.
fn is_used_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::errno::Errno::ETOOMANYREFS as i32)
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod timeouts;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use harness_protocol::framing::{self, Decoder, Frame};
use harness_protocol::rpc::{ErrorKind, Hello, HelloParams, Method, Request, RpcError, method};
use harness_protocol::{MAX_FRAME_BYTES, PROTOCOL_MAJOR, PROTOCOL_MINOR};
use interprocess::local_socket::traits::Stream as _;
use interprocess::os::unix::uds_local_socket::Stream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::de::DeserializeOwned;

pub(crate) use crate::client::error::{ClientError, Taken, is_for_now, is_stopping};
pub(crate) use crate::client::incoming::Note;
use crate::client::incoming::{Incoming, parse};
use crate::client::interrupt::Interrupt;
use crate::client::timeouts::{PATIENCE, poll_timeout};

/// Requests at once on one connection.
pub(crate) const WINDOW: usize = 256;
/// Bytes of requests that are gathered before they are written.
const GATHER: usize = 64 * 1024;
/// The daemon keeps to the protocol's bound; this bound protects our memory from other programs at the socket.
const MAX_REPLY_BYTES: usize = 4 * MAX_FRAME_BYTES;

/// A request whose reply has not come yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// A reply, and its request.
pub(crate) type Replied<R> = (Ticket, Result<R, RpcError>);

/// What to do after a reply of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Send the next requests.
    Go,
    /// Send no more; only wait for pending replies.
    Stop,
}

/// The outcome of a wait for a notification.
#[derive(Debug)]
pub(crate) enum Came {
    /// The notification that was waited for.
    Note(Note),
    /// The other descriptor is readable.
    Input,
    /// The time was up.
    Nothing,
}

/// The readable descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    /// The socket of the connection.
    Socket,
    /// The other descriptor.
    Input,
    /// None, within the time limit.
    Nothing,
}

/// A connection to the daemon, with its gathered requests and unread replies.
#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
    decoder: Decoder,
    /// Gathered requests that are not written yet.
    unwritten: Vec<u8>,
    last_id: u64,
    replies: BTreeMap<u64, Result<String, RpcError>>,
    notes: VecDeque<Note>,
    interrupt: Option<Interrupt>,
    pid: Option<u32>,
    answered: bool,
    /// The greeting: it goes out with the first other request.
    hello: u64,
    /// The daemon's greeting; `None` before it has come.
    greeted: Option<Result<Hello, RpcError>>,
    /// Whether a daemon with another protocol version is accepted.
    across: bool,
}

impl Client {
    /// A client on a connected stream.
    pub(crate) fn new(stream: Stream, interrupt: Option<Interrupt>) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_send_timeout(Some(PATIENCE))?;
        // For a socket that systemd listens on, the peer is systemd, which would mislead.
        let pid = getsockopt(&stream, sockopt::PeerCredentials)
            .ok()
            .and_then(|peer| u32::try_from(peer.pid()).ok())
            .filter(|&pid| pid > 1);
        let mut client = Self {
            stream,
            decoder: Decoder::new(MAX_REPLY_BYTES),
            unwritten: Vec::new(),
            last_id: 0,
            replies: BTreeMap::new(),
            notes: VecDeque::new(),
            interrupt,
            pid,
            answered: false,
            hello: 0,
            greeted: None,
            across: false,
        };
        // The greeting is only gathered: it costs no round trip, and no write of its own.
        let params = HelloParams {
            protocol_major: PROTOCOL_MAJOR,
            protocol_minor: PROTOCOL_MINOR,
            client: Some(concat!("harnessctl ", env!("CARGO_PKG_VERSION")).to_owned()),
        };
        client.hello = client.gather::<method::DaemonHello>(&params).map_or(0, |ticket| ticket.0);
        Ok(client)
    }

    /// From now on accepts a daemon with another protocol version: the following requests mean the same in each
    /// version.
    pub(crate) fn across_versions(&mut self) {
        self.across = true;
    }

    /// The daemon's greeting; waits for it if it has not come yet.
    pub(crate) fn greeting(&mut self) -> Result<&Hello, ClientError> {
        self.flush()?;
        let until = Instant::now() + PATIENCE;
        while self.greeted.is_none() {
            if !self.read_more(Some(until))? {
                return Err(self.silent(PATIENCE));
            }
        }
        match &self.greeted {
            Some(Ok(hello)) => Ok(hello),
            Some(Err(error)) => Err(ClientError::Refused(error.clone())),
            None => Err(self.silent(PATIENCE)),
        }
    }

    /// Fails if the daemon has another major version of the protocol, unless that is accepted.
    fn foreign(&self) -> Result<(), ClientError> {
        match &self.greeted {
            Some(Err(error)) if !self.across && error.kind() == ErrorKind::Version => {
                Err(ClientError::Refused(error.clone()))
            }
            Some(Ok(hello)) if !self.across && hello.protocol_major != PROTOCOL_MAJOR => {
                let message = format!(
                    "this daemon ({}) speaks protocol {}.{}, harnessctl {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}; update the \
                     older of the two",
                    hello.version, hello.protocol_major, hello.protocol_minor
                );
                Err(ClientError::Refused(RpcError::new(ErrorKind::Version, message)))
            }
            _ => Ok(()),
        }
    }

    /// Number of sent requests, without the greeting.
    fn asked(&self) -> u64 {
        self.last_id - self.hello
    }

    /// Pid of the process at the other end, if it is known.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Whether a frame has come from the daemon.
    pub(crate) fn was_answered(&self) -> bool {
        self.answered
    }

    /// From now on Ctrl-C ends a wait with [`ClientError::Interrupted`].
    pub(crate) fn heed(&mut self, interrupt: Interrupt) {
        self.interrupt = Some(interrupt);
    }

    /// Sends a request, and waits at most 10 s for its reply.
    pub(crate) fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Reply, ClientError> {
        self.call_within::<M>(params, Some(PATIENCE))
    }

    /// The same, with a descriptor sent along with the request.
    pub(crate) fn call_passing<M: Method>(
        &mut self,
        params: &M::Params,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<M::Reply, ClientError> {
        let ticket = self.gather::<M>(params)?;
        self.flush_passing(descriptor)?;
        self.reply(ticket, Some(PATIENCE))
    }

    /// The same with another time limit, or none.
    pub(crate) fn call_within<M: Method>(
        &mut self,
        params: &M::Params,
        limit: Option<Duration>,
    ) -> Result<M::Reply, ClientError> {
        let ticket = self.send::<M>(params)?;
        self.reply(ticket, limit)
    }

    /// Sends a request.
    pub(crate) fn send<M: Method>(&mut self, params: &M::Params) -> Result<Ticket, ClientError> {
        let ticket = self.gather::<M>(params)?;
        self.flush()?;
        Ok(ticket)
    }

    /// Adds a request to the next [`Self::flush`].
    fn gather<M: Method>(&mut self, params: &M::Params) -> Result<Ticket, ClientError> {
        let id = self.last_id + 1;
        let start = self.unwritten.len();
        framing::encode(&Request { jsonrpc: "2.0", id, method: M::NAME, params }, &mut self.unwritten)
            .map_err(|e| ClientError::Garbled(e.to_string()))?;
        let bytes = self.unwritten.len() - start - 1;
        if bytes > MAX_FRAME_BYTES {
            self.unwritten.truncate(start);
            return Err(ClientError::TooLarge { bytes });
        }
        self.last_id = id;
        Ok(Ticket(id))
    }

    /// Writes the gathered requests.
    fn flush(&mut self) -> Result<(), ClientError> {
        self.flush_passing(None)
    }

    /// Writes the gathered requests, with a descriptor sent along with the first byte.
    fn flush_passing(&mut self, mut descriptor: Option<BorrowedFd<'_>>) -> Result<(), ClientError> {
        let bytes = std::mem::take(&mut self.unwritten);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let written = match descriptor {
                Some(descriptor) => self.write_passing(rest, descriptor),
                None => self.stream.write(rest),
            };
            if matches!(written, Ok(1..)) {
                descriptor = None;
            }
            match written {
                Ok(0) => return Err(ClientError::Lost { taken: Taken::Maybe }),
                Ok(written) => rest = &rest[written..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Too many descriptors of this user are in flight. The request also names the folder by its numbers, so
                // the descriptor is left out.
                Err(e) if descriptor.is_some() && is_used_up(&e) => descriptor = None,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(self.silent(PATIENCE)),
                // A frame that was written only in part was not read as a whole.
                Err(e) if is_loss(&e) && self.asked() == 1 => return Err(ClientError::Lost { taken: Taken::No }),
                Err(e) if is_loss(&e) => return Err(ClientError::Lost { taken: Taken::Maybe }),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn write_passing(&self, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        if !beside.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)?)
    }

    /// Waits for the reply to a request that was sent.
    pub(crate) fn reply<R: DeserializeOwned>(
        &mut self,
        ticket: Ticket,
        limit: Option<Duration>,
    ) -> Result<R, ClientError> {
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            self.foreign()?;
            if let Some(result) = self.replies.remove(&ticket.0) {
                return read(result.map_err(ClientError::Refused)?);
            }
            if !self.read_more(until)? {
                return Err(self.silent(limit.unwrap_or_default()));
            }
        }
    }

    /// Sends requests, [`WINDOW`] of them at once, and hands over each reply with the position of its request.
    ///
    /// `limit` bounds the time without any reply. Notifications that come meanwhile are kept.
    pub(crate) fn pipeline<'a, M: Method>(
        &mut self,
        requests: impl IntoIterator<Item = &'a M::Params>,
        limit: Option<Duration>,
        mut each: impl FnMut(usize, Result<M::Reply, RpcError>) -> Flow,
    ) -> Result<(), ClientError>
    where
        M::Params: 'a,
    {
        let mut out: BTreeMap<u64, usize> = BTreeMap::new();
        let mut queue = requests.into_iter().enumerate();
        let mut flow = Flow::Go;
        loop {
            while flow == Flow::Go && out.len() < WINDOW {
                let Some((index, params)) = queue.next() else { break };
                let ticket = self.gather::<M>(params)?;
                out.insert(ticket.0, index);
                if self.unwritten.len() >= GATHER {
                    self.flush()?;
                }
            }
            self.flush()?;
            if out.is_empty() {
                return Ok(());
            }
            let until = limit.map(|limit| Instant::now() + limit);
            while !self.replies.keys().any(|id| out.contains_key(id)) {
                if !self.read_more(until)? {
                    return Err(self.silent(limit.unwrap_or_default()));
                }
            }
            self.foreign()?;
            // Other replies may belong to requests that are pending outside of the pipeline.
            let came: Vec<u64> = self.replies.keys().copied().filter(|id| out.contains_key(id)).collect();
            for id in came {
                let (Some(index), Some(result)) = (out.remove(&id), self.replies.remove(&id)) else { continue };
                let result = match result {
                    Ok(text) => Ok(read(text)?),
                    Err(error) => Err(error),
                };
                if each(index, result) == Flow::Stop {
                    flow = Flow::Stop;
                }
            }
        }
    }

    /// A notification that has come already; does not wait.
    pub(crate) fn note_at_hand(&mut self) -> Option<Note> {
        self.notes.pop_front()
    }

    /// The next notification; `None` if none came within the limit.
    pub(crate) fn note(&mut self, limit: Option<Duration>) -> Result<Option<Note>, ClientError> {
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            if let Some(note) = self.notes.pop_front() {
                return Ok(Some(note));
            }
            if !self.read_more(until)? {
                return Ok(None);
            }
        }
    }

    /// Waits for the next notification, or until `input` is readable.
    pub(crate) fn note_or_input(
        &mut self,
        limit: Duration,
        input: Option<BorrowedFd<'_>>,
    ) -> Result<Came, ClientError> {
        let until = Some(Instant::now() + limit);
        loop {
            if let Some(note) = self.notes.pop_front() {
                return Ok(Came::Note(note));
            }
            match self.wait_readable(until, input)? {
                Ready::Socket => self.take_in()?,
                Ready::Input => return Ok(Came::Input),
                Ready::Nothing => return Ok(Came::Nothing),
            }
        }
    }

    /// Any reply to one of these requests; `None` if none came within the limit. Other frames are kept.
    pub(crate) fn any_reply<R: DeserializeOwned>(
        &mut self,
        of: &BTreeMap<Ticket, usize>,
        limit: Duration,
    ) -> Result<Option<Replied<R>>, ClientError> {
        let until = Some(Instant::now() + limit);
        loop {
            self.foreign()?;
            let found = self.replies.keys().copied().map(Ticket).find(|ticket| of.contains_key(ticket));
            if let Some(ticket) = found
                && let Some(result) = self.replies.remove(&ticket.0)
            {
                return Ok(Some(match result {
                    Ok(text) => (ticket, Ok(read(text)?)),
                    Err(error) => (ticket, Err(error)),
                }));
            }
            if !self.read_more(until)? {
                return Ok(None);
            }
        }
    }

    /// Waits until the daemon has closed the connection; `false` if it has not within the limit.
    pub(crate) fn closed(&mut self, limit: Duration) -> Result<bool, ClientError> {
        let until = Instant::now() + limit;
        loop {
            match self.read_more(Some(until)) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(ClientError::Lost { .. }) => return Ok(true),
                Err(e) => return Err(e),
            }
        }
    }

    /// Waits for bytes and sorts the frames in them; `false` if the time is up.
    fn read_more(&mut self, until: Option<Instant>) -> Result<bool, ClientError> {
        if self.wait_readable(until, None)? == Ready::Nothing {
            return Ok(false);
        }
        self.take_in()?;
        Ok(true)
    }

    /// Reads the available bytes, and sorts the frames in them.
    fn take_in(&mut self) -> Result<(), ClientError> {
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => return Err(ClientError::Lost { taken: Taken::Maybe }),
            Ok(read) => self.decoder.push(&chunk[..read]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(e) if is_loss(&e) => return Err(ClientError::Lost { taken: self.taken(&e) }),
            Err(e) => return Err(e.into()),
        }
        while let Some(frame) = self.decoder.next_frame() {
            let Frame::Line(line) = frame else {
                return Err(ClientError::Garbled("a line without an end".to_owned()));
            };
            self.answered = true;
            match parse(line).map_err(ClientError::Garbled)? {
                Incoming::Reply { id: Some(id), result } if id == self.hello => {
                    // An unreadable notification is ignored; the daemon may be a later one of the same major version.
                    self.greeted = match result {
                        Ok(text) => serde_json::from_str(&text).ok().map(Ok),
                        Err(error) => Some(Err(error)),
                    };
                }
                Incoming::Reply { id: Some(id), result } => {
                    self.replies.insert(id, result);
                }
                // A reply to a request that the daemon could not read: it is the pending one.
                Incoming::Reply { id: None, result } => {
                    return Err(match result {
                        Err(error) => ClientError::Refused(error),
                        Ok(_) => ClientError::Garbled("a reply without an id".to_owned()),
                    });
                }
                Incoming::Note(note) => self.notes.push_back(note),
            }
        }
        Ok(())
    }

    /// How far the request got. A reset means that the peer closed the connection with unread bytes, or never accepted
    /// it. If one request is pending, the unread bytes were those of that request.
    fn taken(&self, error: &io::Error) -> Taken {
        match error.kind() {
            io::ErrorKind::ConnectionReset if self.asked() == 1 => Taken::No,
            _ => Taken::Maybe,
        }
    }

    fn wait_readable(&self, until: Option<Instant>, input: Option<BorrowedFd<'_>>) -> Result<Ready, ClientError> {
        loop {
            let timeout = match until {
                None => PollTimeout::NONE,
                Some(until) => poll_timeout(until.saturating_duration_since(Instant::now())),
            };
            let mut fds = vec![PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            fds.extend(self.interrupt.as_ref().map(|i| PollFd::new(i.as_fd(), PollFlags::POLLIN)));
            let with_interrupt = fds.len();
            fds.extend(input.map(|input| PollFd::new(input, PollFlags::POLLIN)));
            let is_ready = |fds: &[PollFd<'_>], place: usize| fds.get(place).and_then(PollFd::any) == Some(true);
            match poll(&mut fds, timeout) {
                Ok(0) if until.is_some_and(|until| until > Instant::now()) => {}
                Ok(0) => return Ok(Ready::Nothing),
                Ok(_) if with_interrupt > 1 && is_ready(&fds, 1) => return Err(ClientError::Interrupted),
                Ok(_) if is_ready(&fds, 0) => return Ok(Ready::Socket),
                Ok(_) => return Ok(Ready::Input),
                Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(ClientError::Io(e.into())),
            }
        }
    }

    fn silent(&self, limit: Duration) -> ClientError {
        ClientError::Silent { seconds: limit.as_secs(), pid: self.pid }
    }
}

fn is_loss(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionAborted | NotConnected)
}

#[expect(clippy::needless_pass_by_value, reason = "the text is of no use afterwards")]
fn read<R: DeserializeOwned>(text: String) -> Result<R, ClientError> {
    serde_json::from_str(&text).map_err(|e| ClientError::Garbled(e.to_string()))
}
