//! Converts events to rows of the table `event` and back.
//!
//! The only place that gives a row its meaning. A row of an unknown kind stays readable as JSON; a row that cannot be
//! read is reported as unreadable, and is no error of the whole read.

use std::io::Write;
use std::sync::Arc;

use harness_protocol::event::{Cause, EVENT_KINDS, Event, EventBody, Via};
use harness_protocol::id::{RunId, Seq};
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Timestamp;
use rusqlite::{CachedStatement, Row, params};
use serde_json::{Map, Value, json};

use crate::blob;

pub(super) const INSERT: &str = "INSERT INTO event (seq, at, kind, version, run, via, uid, by_run, body)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
/// The columns, in the order in which `Record::read` wants them.
pub(super) const COLUMNS: &str = "seq, at, kind, version, run, via, uid, by_run, body";

/// The text before the event's number in its run, at the end of a body. No string can contain it: a quote in a string
/// is escaped.
const NTH: &str = ",\"nth\":";

/// The number of an event among those of its run, read from its body; `None` if an earlier daemon has written it.
pub(super) fn nth(body: &str) -> Option<u64> {
    let (_, digits) = body.strip_suffix('}')?.rsplit_once(NTH)?;
    digits.parse().ok()
}

/// The stored form of a key that a client made, which differs from every key that a user gave.
pub(super) fn submit_key(key: SubmitKey) -> String {
    format!("submit-key:{key}")
}

/// The content of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// An event of a kind that this daemon knows.
    Event(Arc<Event>),
    /// An event of a kind that this daemon does not know, because a later daemon has written it: as JSON.
    Unknown(Seq, Option<RunId>, Arc<Value>),
    /// A row that cannot be read, with the reason.
    Unreadable(Seq, Option<RunId>, String),
}

impl Record {
    /// The event number, which is the row's key.
    pub fn seq(&self) -> Seq {
        match self {
            Self::Event(event) => event.seq,
            Self::Unknown(seq, ..) | Self::Unreadable(seq, ..) => *seq,
        }
    }

    /// The run of the event, if it has one.
    pub fn run(&self) -> Option<RunId> {
        match self {
            Self::Event(event) => event.run,
            Self::Unknown(_, run, _) | Self::Unreadable(_, run, _) => *run,
        }
    }
}

/// Writes an event.
///
/// `nth` counts the events of its run, so that a missing event is noticed. It stands last in the body.
pub(super) fn insert(
    into: &mut CachedStatement<'_>,
    event: &Event,
    nth: Option<u64>,
    body: &mut Vec<u8>,
) -> Result<(), rusqlite::Error> {
    body.clear();
    let bad = |error: serde_json::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    match blob::named_form(&event.body) {
        Some(named) => serde_json::to_writer(&mut *body, &named),
        None => serde_json::to_writer(&mut *body, &event.body),
    }
    .map_err(bad)?;
    if let Some(nth) = nth
        && body.pop() == Some(b'}')
    {
        write!(body, "{NTH}{nth}}}").map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    }
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

/// The time of a row; `None` if the number is not a valid time.
pub(super) fn time(at: i64) -> Option<Timestamp> {
    let micros = u64::try_from(at).ok().filter(|micros| *micros <= Timestamp::MAX.as_micros());
    micros.map(Timestamp::from_micros)
}

/// Whether a body has the kind that its row says; the kind is the first field of a body.
fn says(body: &str, kind: &str) -> bool {
    let said = body.strip_prefix("{\"kind\":\"").and_then(|rest| rest.strip_prefix(kind));
    said.is_some_and(|rest| rest.starts_with('"'))
}

impl Record {
    /// Reads a row. Also returns its approximate size in bytes.
    pub(super) fn read(row: &Row<'_>) -> Result<(Self, usize), rusqlite::Error> {
        let seq = Seq(row.get::<_, i64>(0)?.cast_unsigned());
        let run = text(row, 4).ok().flatten().and_then(|run| run.parse().ok());
        let bytes = text(row, 8).ok().flatten().map_or(0, str::len) + 128;
        let record = understand(seq, row).unwrap_or_else(|why| Self::Unreadable(seq, run, why));
        Ok((record, bytes))
    }
}

impl Record {
    /// The record of a row, with its number among the events of its run.
    pub(super) fn read_with_nth(row: &Row<'_>) -> Result<(Self, Option<u64>), rusqlite::Error> {
        let nth = text(row, 8).ok().flatten().and_then(nth);
        Ok((Self::read(row)?.0, nth))
    }
}

/// A column of text, without a copy.
fn text<'r>(row: &'r Row<'_>, column: usize) -> Result<Option<&'r str>, String> {
    let value = row.get_ref(column).map_err(|error| error.to_string())?;
    value.as_str_or_null().map_err(|error| error.to_string())
}

fn some_text<'r>(row: &'r Row<'_>, column: usize) -> Result<&'r str, String> {
    text(row, column)?.ok_or_else(|| format!("column {column} is null"))
}

fn id(row: &Row<'_>, column: usize) -> Result<Option<RunId>, String> {
    let parse = |text: &str| text.parse().map_err(|error| format!("{text:?} is no run: {error}"));
    text(row, column)?.map(parse).transpose()
}

fn understand(seq: Seq, row: &Row<'_>) -> Result<Record, String> {
    let number = |column| row.get::<_, Option<i64>>(column).map_err(|error| error.to_string());
    let (run, by_run) = (id(row, 4)?, id(row, 7)?);
    let at = number(1)?.unwrap_or(-1);
    let at = time(at).ok_or_else(|| format!("{at} is no time"))?;
    let (kind, version) = (some_text(row, 2)?, number(3)?.unwrap_or_default());
    let (via, body) = (some_text(row, 5)?, some_text(row, 8)?);
    let uid = number(6)?.map(|uid| u32::try_from(uid).map_err(|_| format!("{uid} is no user"))).transpose()?;
    let doors = [("harness", Via::Harness), ("socket", Via::Socket), ("tool", Via::Tool)];
    let via = doors
        .iter()
        .find(|(name, _)| *name == via)
        .map(|(_, via)| *via)
        .ok_or_else(|| format!("{via:?} is no door"))?;
    let cause = Cause { via, uid, by_run };
    if !EVENT_KINDS.contains(&kind) {
        let body: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
        let mut event = match body {
            Value::Object(fields) if fields.get("kind").is_some_and(|said| said != kind) => {
                return Err(format!("it is filed as {kind} and says something else"));
            }
            Value::Object(fields) => fields,
            other => Map::from_iter([("body".to_owned(), other)]),
        };
        let known = json!({"seq": seq, "version": version, "at": at, "run": run, "cause": cause, "kind": kind});
        if let Value::Object(known) = known {
            event.extend(known);
        }
        return Ok(Record::Unknown(seq, run, Arc::new(event.into())));
    }
    if !says(body, kind) {
        return Err(format!("it is filed as {kind} and says something else"));
    }
    let body = EventBody::of_kind(kind, body).map_err(|error| error.to_string())?;
    let version = u16::try_from(version).map_err(|_| format!("{version} is no version"))?;
    Ok(Record::Event(Arc::new(Event { seq, version, at, run, cause, body })))
}
