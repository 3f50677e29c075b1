//! Records: an event as a row of the table `event`, and back.
//!
//! Owns what a row means. A kind that this daemon does not know stays readable; a row that nobody can read is told as such.

use std::sync::Arc;

use harness_protocol::event::{Cause, EVENT_KINDS, Event, EventBody, Via};
use harness_protocol::id::{RunId, Seq};
use harness_protocol::time::Timestamp;
use rusqlite::{CachedStatement, Row, params};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub(super) const INSERT: &str = "INSERT INTO event (seq, at, kind, version, run, via, uid, by_run, body)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
/// The columns, in the order in which [`Raw::read`] wants them.
pub(super) const COLUMNS: &str = "seq, at, kind, version, run, via, uid, by_run, body";

/// What a row holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// An event.
    Event(Arc<Event>),
    /// An event of a kind that a later daemon has written: as JSON.
    Unknown(Seq, Option<RunId>, Arc<Value>),
    /// Nothing that could be read.
    Unreadable(Seq, Option<RunId>, String),
}

impl Record {
    /// Its number.
    pub fn seq(&self) -> Seq {
        match self {
            Self::Event(event) => event.seq,
            Self::Unknown(seq, ..) | Self::Unreadable(seq, ..) => *seq,
        }
    }

    /// The run that it is about.
    pub fn run(&self) -> Option<RunId> {
        match self {
            Self::Event(event) => event.run,
            Self::Unknown(_, run, _) | Self::Unreadable(_, run, _) => *run,
        }
    }
}

/// Writes an event.
pub(super) fn insert(into: &mut CachedStatement<'_>, event: &Event, body: &mut Vec<u8>) -> Result<(), rusqlite::Error> {
    body.clear();
    let bad = |error: serde_json::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    serde_json::to_writer(&mut *body, &event.body).map_err(bad)?;
    let body = std::str::from_utf8(body).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let via = match event.cause.via {
        Via::Harness => "harness",
        Via::Socket => "socket",
        Via::Tool => "tool",
    };
    into.execute(params![
        event.seq.0.cast_signed(),
        event.at.as_micros().cast_signed(),
        event.body.kind(),
        event.version,
        event.run.map(|run| run.to_string()),
        via,
        event.cause.uid,
        event.cause.by_run.map(|run| run.to_string()),
        body,
    ])?;
    Ok(())
}

/// The last microsecond of the year 9999: what is after it can be written down nowhere.
const LAST_MICROSECOND: u64 = 253_402_300_799_999_999;

/// The time of a row, if it is one.
pub(super) fn time(at: i64) -> Option<Timestamp> {
    let micros = u64::try_from(at).ok().filter(|micros| *micros <= LAST_MICROSECOND);
    micros.map(Timestamp::from_micros)
}

/// A row as it was read, not yet understood. Texts may be anything: nobody has looked at them.
pub(super) struct Raw {
    seq: Seq,
    at: i64,
    kind: Vec<u8>,
    version: i64,
    run: Option<Vec<u8>>,
    via: Vec<u8>,
    uid: Option<i64>,
    by_run: Option<Vec<u8>>,
    body: Vec<u8>,
}

impl Raw {
    pub(super) fn read(row: &Row<'_>) -> Result<Self, rusqlite::Error> {
        let maybe = |at| Ok::<_, rusqlite::Error>(row.get_ref(at)?.as_bytes_or_null()?.map(<[u8]>::to_vec));
        let text = |at| Ok::<_, rusqlite::Error>(maybe(at)?.unwrap_or_default());
        Ok(Self {
            seq: Seq(row.get::<_, i64>(0)?.cast_unsigned()),
            at: row.get(1)?,
            kind: text(2)?,
            version: row.get(3)?,
            run: maybe(4)?,
            via: text(5)?,
            uid: row.get(6)?,
            by_run: maybe(7)?,
            body: text(8)?,
        })
    }

    /// Bytes of it.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + 128
    }

    pub(super) fn understand(self) -> Record {
        let seq = self.seq;
        let run = self.run.as_deref().and_then(|run| std::str::from_utf8(run).ok()?.parse().ok());
        self.try_understand().unwrap_or_else(|why| Record::Unreadable(seq, run, why))
    }

    fn try_understand(self) -> Result<Record, String> {
        let id = |bytes: &Option<Vec<u8>>| match bytes {
            Some(bytes) => {
                let text = text(bytes, "run")?;
                text.parse::<RunId>().map(Some).map_err(|error| format!("{text:?} is no run: {error}"))
            }
            None => Ok(None),
        };
        let (run, by_run) = (id(&self.run)?, id(&self.by_run)?);
        let (kind, via, body) = (text(&self.kind, "kind")?, text(&self.via, "door")?, text(&self.body, "body")?);
        let at = time(self.at).ok_or_else(|| format!("{} is no time", self.at))?;
        let version = u16::try_from(self.version).map_err(|_| format!("{} is no version", self.version))?;
        let uid = self.uid.map(|uid| u32::try_from(uid).map_err(|_| format!("{uid} is no user"))).transpose()?;
        if !EVENT_KINDS.contains(&kind) {
            let body: &RawValue = serde_json::from_str(body).map_err(|error| error.to_string())?;
            let mut event = Map::new();
            event.insert("seq".into(), self.seq.0.into());
            event.insert("version".into(), version.into());
            event.insert("at".into(), at.to_string().into());
            event.insert("run".into(), run.map_or(Value::Null, |run| run.to_string().into()));
            let mut cause = Map::new();
            cause.insert("via".into(), via.into());
            cause.extend(uid.map(|uid| ("uid".to_owned(), uid.into())));
            cause.extend(by_run.map(|run| ("by_run".to_owned(), run.to_string().into())));
            event.insert("cause".into(), cause.into());
            event.insert("kind".into(), kind.into());
            // What the row itself says goes before what its body says.
            let head = event;
            let mut event = serde_json::from_str::<Map<String, Value>>(body.get()).unwrap_or_default();
            event.extend(head);
            return Ok(Record::Unknown(self.seq, run, Arc::new(event.into())));
        }
        let via = match via {
            "harness" => Via::Harness,
            "socket" => Via::Socket,
            "tool" => Via::Tool,
            other => return Err(format!("{other:?} is no door")),
        };
        let body: EventBody = serde_json::from_str(body).map_err(|error| error.to_string())?;
        if body.kind() != kind {
            return Err(format!("it is filed as {kind} and says {}", body.kind()));
        }
        let cause = Cause { via, uid, by_run };
        Ok(Record::Event(Arc::new(Event { seq: self.seq, version, at, run, cause, body })))
    }
}

fn text<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(bytes).map_err(|error| format!("its {what} is no text: {error}"))
}
