//! Opens a connection that may break at any instant. A broken one is an error for its user; nothing is repeated.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::PATIENCE;

/// A connection to a daemon that may be killed at any instant.
pub struct Line {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    next_id: u64,
    /// What has come of the frame that is under way.
    partial: Vec<u8>,
    /// How often a backup had taken the journal's place when it was made.
    pub(super) era: u64,
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// The daemon is gone. Whether the request took effect is not known.
    Lost,
    /// The daemon says no.
    Refused(Value),
}

impl Trouble {
    /// The kind of a refusal.
    pub fn kind(&self) -> &str {
        match self {
            Self::Lost => "lost",
            Self::Refused(error) => error["data"]["kind"].as_str().unwrap_or("without a kind"),
        }
    }
}

/// What a subscriber is sent.
#[derive(Debug)]
pub enum Note {
    /// An event, byte for byte.
    Event(String),
    /// The numbers of events that it does not get, and why, where an epoch begins behind them.
    Gap(u64, u64, Option<String>),
    /// Nothing for now.
    Nothing,
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(default, borrow)]
    method: Option<&'a str>,
    #[serde(default, borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(default, borrow)]
    event: Option<&'a RawValue>,
    #[serde(default)]
    gap: Option<Gap>,
}

#[derive(Deserialize)]
struct Gap {
    from: u64,
    to: u64,
    #[serde(default)]
    reason: Option<String>,
}

impl Line {
    /// Connects, if a daemon listens.
    pub fn open(socket: &Path) -> Option<Self> {
        let writer = UnixStream::connect(socket).ok()?;
        writer.set_write_timeout(Some(PATIENCE)).unwrap();
        let reader = BufReader::new(writer.try_clone().ok()?);
        Some(Self { reader, writer, next_id: 1, partial: Vec::new(), era: 0 })
    }

    /// The next frame; nothing where none comes within `limit`.
    fn frame(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, Trouble> {
        self.writer.set_read_timeout(Some(limit)).unwrap();
        match self.reader.by_ref().read_until(b'\n', &mut self.partial) {
            Ok(_) if self.partial.ends_with(b"\n") => Ok(Some(std::mem::take(&mut self.partial))),
            // The end, also in the middle of a frame.
            Ok(_) => Err(Trouble::Lost),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(_) => Err(Trouble::Lost),
        }
    }

    /// Calls a method.
    ///
    /// # Errors
    /// Where the daemon says no, or is gone.
    ///
    /// # Panics
    /// Where the daemon lives and does not answer.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, Trouble> {
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.writer.write_all(format!("{request}\n").as_bytes()).map_err(|_| Trouble::Lost)?;
        loop {
            let frame = self.frame(PATIENCE)?;
            let frame = frame.unwrap_or_else(|| panic!("{method} was not answered within {PATIENCE:?}: {params}"));
            let mut reply: Value = serde_json::from_slice(&frame).unwrap();
            if reply["id"] != id {
                continue;
            }
            return match reply.get("error") {
                Some(error) => Err(Trouble::Refused(error.clone())),
                None => Ok(reply["result"].take()),
            };
        }
    }

    /// What a subscriber is sent next, within `limit`.
    ///
    /// # Errors
    /// Where the daemon is gone.
    pub fn note(&mut self, limit: Duration) -> Result<Note, Trouble> {
        let Some(frame) = self.frame(limit)? else { return Ok(Note::Nothing) };
        let frame: Frame<'_> = serde_json::from_slice(&frame).unwrap();
        Ok(match (frame.method, frame.params) {
            (Some("event"), Some(Params { event: Some(event), .. })) => Note::Event(event.get().to_owned()),
            (Some("gap"), Some(Params { gap: Some(gap), .. })) => Note::Gap(gap.from, gap.to, gap.reason),
            _ => Note::Nothing,
        })
    }
}
