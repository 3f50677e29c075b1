//! Sends the bytes of a test over a connection to the control socket, well formed or not, and reads the replies.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};

use crate::PATIENCE;

/// A raw connection to a daemon: requests out, replies and notifications in, one line each.
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    next_id: u64,
    notes: VecDeque<Value>,
}

impl Client {
    /// Connects to the socket; the test fails where that is impossible.
    #[track_caller]
    pub fn connect(socket: &Path) -> Self {
        Self::over(UnixStream::connect(socket).unwrap_or_else(|error| panic!("{}: {error}", socket.display())))
    }

    /// Talks over a stream that is there already.
    pub fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let writer = stream.try_clone().unwrap();
        Self { reader: BufReader::new(stream), writer, next_id: 1, notes: VecDeque::new() }
    }

    /// Writes bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).unwrap();
    }

    /// Writes a line.
    pub fn write_line(&mut self, line: &str) {
        self.write(format!("{line}\n").as_bytes());
    }

    /// Says that nothing more comes.
    pub fn end_writing(&mut self) {
        self.writer.shutdown(Shutdown::Write).unwrap();
    }

    /// The stream that it writes to.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.writer
    }

    /// The id of the next request.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Sends a request and gives its id.
    pub fn send(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id();
        self.write_line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        id
    }

    /// The next line; `None` at the end.
    #[track_caller]
    pub fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            // A close with something unread is a reset.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))),
            Err(error) => panic!("nothing comes: {error}"),
        }
    }

    /// The reply to a request; what comes before it stays to be read.
    #[track_caller]
    pub fn reply(&mut self, id: u64) -> Value {
        loop {
            let value = self.read().expect("the daemon closed the connection");
            if value["id"] == id {
                return value;
            }
            self.notes.push_back(value);
        }
    }

    /// Calls a method.
    ///
    /// # Errors
    /// What the daemon says.
    #[track_caller]
    pub fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send(method, params);
        let mut reply = self.reply(id);
        match reply.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(reply["result"].take()),
        }
    }

    /// Calls a method that is to succeed.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Sends all requests at once, and gives their replies in the order of the requests.
    #[track_caller]
    pub fn pipeline<'a>(&mut self, requests: impl Iterator<Item = (&'a str, Value)>) -> Vec<Value> {
        let mut lines = String::new();
        let first = self.next_id;
        for (method, params) in requests {
            lines += &json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params}).to_string();
            lines.push('\n');
            self.next_id += 1;
        }
        // Written beside the reading, so that neither side waits for the other.
        let mut writer = self.writer.try_clone().unwrap();
        let writing = thread::spawn(move || writer.write_all(lines.as_bytes()).unwrap());
        let mut replies: Vec<Value> = (first..self.next_id).map(|_| self.next_reply()).collect();
        writing.join().unwrap();
        replies.sort_by_key(|reply| reply["id"].as_u64());
        replies
    }

    #[track_caller]
    fn next_reply(&mut self) -> Value {
        loop {
            let value = self.read().expect("the daemon closed the connection");
            if value.get("id").is_some() {
                return value;
            }
            self.notes.push_back(value);
        }
    }

    /// Subscribes to events; gives the reply.
    #[track_caller]
    pub fn subscribe(&mut self, params: Value) -> Value {
        self.call("event.subscribe", params)
    }

    /// The next notification.
    #[track_caller]
    pub fn note(&mut self) -> Value {
        match self.notes.pop_front() {
            Some(note) => note,
            None => self.read().expect("the daemon closed the connection"),
        }
    }

    /// The next event; gaps and deltas are passed over.
    #[track_caller]
    pub fn event(&mut self) -> Value {
        loop {
            let mut note = self.note();
            if note["method"] == "event" {
                return note["params"]["event"].take();
            }
        }
    }
}
