//! Reads the events from which a start rebuilds the world, in order.
//!
//! It reads only the events of runs that are still in the world, and those about the daemon and its lanes. So the cost
//! of a start depends on these, and not on the length of the history. It must not apply an event: `startup/rebuild`
//! does.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use harness_protocol::id::Seq;
use rusqlite::{Connection, OpenFlags};

use super::Record;
use super::content::Texts;
use super::epochs::{self, Epoch};
use super::identity::Instance;
use super::record::{COLUMNS, time};
use super::schema::OpenError;
use crate::world::api::Made;

/// Records handed over at a time.
const BATCH: usize = 1_024;
/// A hole of this many numbers is read over; beyond it, looking up the next number is cheaper.
const SKIPPED: u64 = 16;

/// The data of the journal apart from its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// The key of the ids.
    pub id_key: u64,
    /// The numbers that were used for ids so far, and the last event: its number, and the time of the last event with a
    /// readable time.
    pub made: Made,
    /// The instance number of the file.
    pub instance: Instance,
    /// The epochs of its history.
    pub epochs: Vec<Epoch>,
}

/// A record, as a start reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The content of the row.
    pub record: Record,
    /// Its number among the events of its run, if it has one.
    pub nth: Option<u64>,
}

/// Reads the data apart from the events.
///
/// # Errors
/// If the journal is damaged.
pub fn past(db: &Connection, path: &Path) -> Result<Past, OpenError> {
    try_past(db).map_err(|error| OpenError::of(path, &error))
}

fn try_past(db: &Connection) -> Result<Past, rusqlite::Error> {
    let mut past =
        db.query_row("SELECT id_key, runs, calls, interactions, reliefs, instance FROM daemon", [], |row| {
            let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
            let made = Made {
                runs: number(1)?,
                calls: number(2)?,
                interactions: number(3)?,
                reliefs: number(4)?,
                ..Made::default()
            };
            Ok(Past { id_key: number(0)?, made, instance: number(5)?, epochs: Vec::new() })
        })?;
    let mut last = db.prepare("SELECT seq, at FROM event ORDER BY seq DESC")?;
    let mut rows = last.query([])?;
    while let Some(row) = rows.next()? {
        past.made.last_seq = past.made.last_seq.max(Seq(row.get::<_, i64>(0)?.cast_unsigned()));
        if let Some(at) = time(row.get(1)?) {
            past.made.last_at = at;
            break;
        }
    }
    past.epochs = epochs::all(db)?;
    if let Some(epoch) = past.epochs.last() {
        past.made.last_seq = past.made.last_seq.max(Seq(epoch.first.0.saturating_sub(1)));
    }
    Ok(past)
}

/// The records, in order, read by a thread of their own. The last message tells how the reading ended.
pub struct Replay {
    batches: Receiver<Result<Vec<Row>, OpenError>>,
    batch: std::vec::IntoIter<Row>,
}

impl Replay {
    /// Begins to read.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(path: &Path) -> Result<Self, OpenError> {
        let (send, batches) = sync_channel(4);
        let path = path.to_owned();
        let failed = |error: std::io::Error| OpenError::Io { path: PathBuf::new(), why: error.to_string() };
        let read = move || {
            if let Err(error) = read(&path, &send) {
                // A send fails if the reader of the replay has gone.
                let _ = send.send(Err(error));
            }
        };
        thread::Builder::new().name("replay".to_owned()).spawn(read).map_err(failed)?;
        Ok(Self { batches, batch: Vec::new().into_iter() })
    }
}

impl Iterator for Replay {
    type Item = Result<Row, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.batch.next() {
                return Some(Ok(row));
            }
            match self.batches.recv().ok()? {
                Ok(batch) => self.batch = batch.into_iter(),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Hands over records in batches.
struct Hand<'t> {
    db: &'t Connection,
    texts: Texts,
    to: &'t SyncSender<Result<Vec<Row>, OpenError>>,
    batch: Vec<Row>,
}

impl Hand<'_> {
    /// Adds a row to the batch, and sends the batch when it is full. Returns whether the receiver still exists.
    fn over(&mut self, row: &rusqlite::Row<'_>) -> Result<bool, rusqlite::Error> {
        let (record, nth) = Record::read_with_nth(row)?;
        let record = self.texts.attach(self.db, record);
        self.batch.push(Row { record, nth });
        Ok(self.batch.len() < BATCH || self.rest())
    }

    fn rest(&mut self) -> bool {
        self.to.send(Ok(std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH)))).is_ok()
    }
}

fn read(path: &Path, to: &SyncSender<Result<Vec<Row>, OpenError>>) -> Result<(), OpenError> {
    let failed = |error| OpenError::of(path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    let mut hand = Hand { db: &db, texts: Texts::beside(path), to, batch: Vec::with_capacity(BATCH) };
    let all_here = if has_archived(&db).map_err(failed)? {
        read_live(&db, &mut hand).map_err(failed)?
    } else {
        read_all(&db, &mut hand).map_err(failed)?;
        true
    };
    hand.rest();
    if all_here {
        return Ok(());
    }
    let why = "its index names events that are not there".to_owned();
    Err(OpenError::Damaged { path: path.to_owned(), why })
}

fn has_archived(db: &Connection) -> Result<bool, rusqlite::Error> {
    db.query_row("SELECT EXISTS (SELECT 1 FROM listing)", [], |row| row.get(0))
}

/// Reads every record.
fn read_all(db: &Connection, hand: &mut Hand<'_>) -> Result<(), rusqlite::Error> {
    let mut all = db.prepare(&format!("SELECT {COLUMNS} FROM event ORDER BY seq"))?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        if !hand.over(row)? {
            break;
        }
    }
    Ok(())
}

/// Reads the wanted records: it reads over small holes, and looks up records that are further away. Returns whether all
/// of them were there.
fn read_live(db: &Connection, hand: &mut Hand<'_>) -> Result<bool, rusqlite::Error> {
    let wanted = wanted(db)?;
    let mut from = db.prepare(&format!("SELECT {COLUMNS} FROM event WHERE seq >= ?1 ORDER BY seq"))?;
    let mut next = 0;
    while let Some(&first) = wanted.get(next) {
        let before = next;
        let mut rows = from.query([first.cast_signed()])?;
        while let (Some(row), Some(&want)) = (rows.next()?, wanted.get(next)) {
            let at = row.get::<_, i64>(0)?.cast_unsigned();
            if at > want {
                return Ok(false);
            }
            if at == want {
                next += 1;
                if !hand.over(row)? {
                    return Ok(true);
                }
            } else if want > at + SKIPPED {
                break;
            }
        }
        if next == before {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Numbers of the events from which the world is made, in order. Read from the indexes alone.
fn wanted(db: &Connection) -> Result<Vec<u64>, rusqlite::Error> {
    let mut numbers = Vec::new();
    for sql in [
        "SELECT seq FROM event WHERE run IS NULL",
        "SELECT event.seq FROM run CROSS JOIN event ON event.run = run.id WHERE run.archived = 0",
    ] {
        let mut statement = db.prepare(sql)?;
        let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
        for number in rows {
            numbers.push(number?.cast_unsigned());
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}
