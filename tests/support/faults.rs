//! Serves as a model server that sends exactly the bytes of the test: pieces, pauses, cuts.
//!
//! Each request takes the next prepared answer; the request is recorded, and the test fails if its body was not JSON. A
//! pause is a gate that the test opens: this server waits for no clock.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use crate::eventually;

/// A server. It ends with its last clone.
#[derive(Clone)]
pub struct FaultServer(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    address: SocketAddr,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<VecDeque<Answer>>,
    /// Given where no other one is left.
    last: Mutex<Option<Answer>>,
    /// Longer bodies are refused, as a model refuses a prompt that is too long.
    window: AtomicUsize,
    requests: Mutex<Vec<Recorded>>,
    /// Connections that are open, to be closed at the end.
    open: Mutex<Vec<TcpStream>>,
    connections: AtomicUsize,
    ending: AtomicBool,
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Path of the request, with its query.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body of the request, as JSON.
    pub body: Value,
    /// Bytes of that.
    pub length: usize,
    /// When it was whole.
    pub at: Instant,
}

impl Recorded {
    /// The value of the header with this lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The steps of an answer.
#[derive(Clone)]
enum Act {
    /// Bytes, as they are, in one write.
    Bytes(Vec<u8>),
    /// Nothing until the gate is open.
    Wait(Gate),
    /// Nothing until the client is gone.
    Hang,
    /// The connection is closed in an orderly way.
    Close,
    /// It is reset.
    Reset,
}

/// Something that the test opens.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens it, for good.
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let (open, opened) = (self.0.0.lock().unwrap(), &self.0.1);
        let (open, _) = opened.wait_timeout_while(open, crate::PATIENCE, |open| !*open).unwrap();
        assert!(*open, "nobody opened the gate");
    }
}

/// An answer to one request.
#[derive(Clone, Default)]
pub struct Answer(Vec<Act>);

impl Answer {
    /// These bytes, and what more is said of them.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::default().then(bytes)
    }

    /// An answer with this status and content type, whole.
    pub fn whole(status: u16, kind: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head =
            format!("HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n{more}\r\n", body.len());
        Self::bytes([head.as_bytes(), body].concat())
    }

    /// A refusal with a body of JSON.
    pub fn refusal(status: u16, headers: &[(&str, &str)], message: &str) -> Self {
        let body = serde_json::json!({"error": {"message": message, "type": "x"}}).to_string();
        Self::whole(status, "application/json", headers, body)
    }

    /// The head of a stream whose chunks are still to come.
    pub fn stream() -> Self {
        Self::bytes("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    }

    /// A whole stream with these events, one in each chunk.
    pub fn events<E: AsRef<str>>(events: impl IntoIterator<Item = E>) -> Self {
        events.into_iter().fold(Self::stream(), |answer, event| answer.chunk(event_of(event.as_ref()))).end()
    }

    /// Sends these bytes next, at once.
    #[must_use]
    pub fn then(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.0.push(Act::Bytes(bytes.into()));
        self
    }

    /// What that answer does, after this.
    #[must_use]
    pub fn append(mut self, answer: Self) -> Self {
        self.0.extend(answer.0);
        self
    }

    /// A chunk of a stream.
    #[must_use]
    pub fn chunk(self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        let head = format!("{:x}\r\n", bytes.len());
        self.then([head.as_bytes(), bytes, b"\r\n"].concat())
    }

    /// An event of a stream, in a chunk of its own.
    #[must_use]
    pub fn event(self, data: &str) -> Self {
        self.chunk(event_of(data))
    }

    /// The orderly end of a stream.
    #[must_use]
    pub fn end(self) -> Self {
        self.then("0\r\n\r\n")
    }

    /// Nothing until the gate is open.
    #[must_use]
    pub fn wait(mut self, gate: &Gate) -> Self {
        self.0.push(Act::Wait(gate.clone()));
        self
    }

    /// Nothing more, and the connection stays open until the other side has had enough.
    #[must_use]
    pub fn hang(mut self) -> Self {
        self.0.push(Act::Hang);
        self
    }

    /// The connection is closed, wherever it stands.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.0.push(Act::Close);
        self
    }

    /// The connection is reset.
    #[must_use]
    pub fn reset(mut self) -> Self {
        self.0.push(Act::Reset);
        self
    }
}

/// `data: …`, or the event itself where it names its fields.
fn event_of(data: &str) -> String {
    let named = ["event:", ":", "data:", "id:"].iter().any(|field| data.starts_with(field));
    if named { format!("{data}\n\n") } else { format!("data: {data}\n\n") }
}

impl Default for FaultServer {
    fn default() -> Self {
        Self::start()
    }
}

impl FaultServer {
    /// A server on a port of its own.
    pub fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// A server on a port that was one's before.
    pub fn on_port(port: u16) -> Self {
        let mut bound = None;
        eventually("the port is free", || {
            bound = TcpListener::bind(("127.0.0.1", port)).ok();
            bound.is_some()
        });
        Self::on(bound.unwrap())
    }

    fn on(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.ending.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                serving.connections.fetch_add(1, Ordering::AcqRel);
                serving.open.lock().unwrap().push(stream.try_clone().unwrap());
                let serving = Arc::clone(&serving);
                thread::spawn(move || drop(serve(stream, &serving)));
            }
        });
        Self(Arc::new(Inner { shared, address }))
    }

    /// What a configuration says of it.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.0.address)
    }

    /// The TCP port on which it listens.
    pub fn port(&self) -> u16 {
        self.0.address.port()
    }

    /// Puts an answer in: the next request that has none takes it.
    pub fn answer(&self, answer: Answer) -> &Self {
        self.0.shared.answers.lock().unwrap().push_back(answer);
        self
    }

    /// What requests get when nothing else is left.
    pub fn always(&self, answer: Answer) -> &Self {
        *self.0.shared.last.lock().unwrap() = Some(answer);
        self
    }

    /// Refuses bodies of more than so many bytes, as a model does whose context is no longer. That takes no answer.
    pub fn takes_at_most(&self, bytes: usize) -> &Self {
        self.0.shared.window.store(bytes, Ordering::Release);
        self
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Recorded> {
        self.0.shared.requests.lock().unwrap().clone()
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.0.shared.connections.load(Ordering::Acquire)
    }

    /// How many came.
    pub fn count(&self) -> usize {
        self.0.shared.requests.lock().unwrap().len()
    }

    /// Waits until so many came.
    #[track_caller]
    pub fn asked(&self, times: usize) {
        eventually(&format!("{times} requests come"), || self.count() >= times);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        // So that the listener looks up.
        drop(TcpStream::connect(self.address));
        for stream in self.shared.open.lock().unwrap().drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// Serves a connection until it is cut, or the other side has had enough.
fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some(request) = request(&mut reader)? {
        let window = shared.window.load(Ordering::Acquire);
        let answer = if window > 0 && request.length > window {
            shared.requests.lock().unwrap().push(request);
            Some(too_long())
        } else {
            shared.requests.lock().unwrap().push(request);
            let next = shared.answers.lock().unwrap().pop_front();
            next.or_else(|| shared.last.lock().unwrap().clone())
        };
        let answer = answer.unwrap_or_else(|| Answer::refusal(400, &[], "the test has no answer to this"));
        for act in answer.0 {
            match act {
                Act::Bytes(bytes) => writer.write_all(&bytes)?,
                Act::Wait(gate) => gate.wait(),
                Act::Hang => {
                    // It ends when the other side does.
                    let mut rest = Vec::new();
                    reader.read_to_end(&mut rest)?;
                    return Ok(());
                }
                Act::Close => return writer.shutdown(Shutdown::Both),
                Act::Reset => {
                    // The last close of a socket that may not linger is a reset.
                    let peer = writer.peer_addr()?;
                    shared.open.lock().unwrap().retain(|open| open.peer_addr().is_ok_and(|other| other != peer));
                    nix::sys::socket::setsockopt(
                        &writer,
                        nix::sys::socket::sockopt::Linger,
                        &nix::libc::linger { l_onoff: 1, l_linger: 0 },
                    )?;
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// As OpenAI says it.
fn too_long() -> Answer {
    let error = serde_json::json!({"error": {"message": "This model's maximum context length is 1 tokens.",
        "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}});
    Answer::whole(400, "application/json", &[], error.to_string())
}

fn request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Recorded>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
    let length = length.unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("a body that is no JSON came: {error}"));
    Ok(Some(Recorded { path, headers, body, length, at: crate::now() }))
}
