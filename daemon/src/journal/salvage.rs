//! Copies the readable rows of a damaged journal into a new journal.
//!
//! It reads rows in the order of their numbers. After a row that cannot be read, it goes on with the next number that
//! can be reached. A missing row is a gap in its run, and the next start reports it. It must not change the damaged
//! file, and must not trust a file that another user may have written: it refuses that one.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use harness_files::{Anew, Opening, Refusal, Trusted, open_regular, open_trusted};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Transaction, params_from_iter};

use super::schema::{self, Fresh, OpenError};
use super::{Record, content, made_inside_run, record, writer};

/// Name of the new journal in its hidden directory, until it is complete, and of the copy of the old journal there.
const NEW: &str = "journal";
const OLD: &str = "old";

/// The result of a salvage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Salvaged {
    /// Number of events that could be read.
    pub events: u64,
    /// Number of runs that these events belong to.
    pub runs: u64,
    /// Places at which something could not be read.
    pub holes: u64,
}

/// Why no journal was made.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// A file exists already at the path of the new journal.
    #[error("{} is there already; name a file that is not", .0.display())]
    Taken(PathBuf),
    /// Other users may write to the directory of one of the two journals, or to a directory above it.
    #[error(
        "others may write to the directory of {}, or to one above it; name a file in a place of your own, or do this \
         as its owner",
        .0.display()
    )]
    OfOthers(PathBuf),
    /// The directory in which the new journal is to be cannot be used.
    #[error("{} cannot be made: {source}", path.display())]
    NoPlace {
        /// The file that was to be made.
        path: PathBuf,
        /// The error of the system for its directory.
        source: io::Error,
    },
    /// Another user may have written the damaged journal.
    #[error("nothing is saved of {}: {source}", path.display())]
    NotBelieved {
        /// The damaged journal.
        path: PathBuf,
        /// Why it is refused.
        source: io::Error,
    },
    /// The first page of the journal cannot be read.
    #[error("nothing can be read of {}: {why}", path.display())]
    Unreadable {
        /// The file that was to be read or written.
        path: PathBuf,
        /// The problem with the file.
        why: String,
    },
    /// The new journal cannot be made.
    #[error(transparent)]
    Made(#[from] OpenError),
    /// The new journal cannot be written.
    #[error("{} cannot be written: {why}", path.display())]
    Write {
        /// The file that was to be read or written.
        path: PathBuf,
        /// The problem with the file.
        why: String,
    },
}

impl SalvageError {
    /// Whether the user named files that cannot be used.
    pub const fn is_usage(&self) -> bool {
        !matches!(self, Self::Made(_) | Self::Write { .. })
    }
}

/// Copies the readable part of the journal `from` into a new journal `to`, which counts as a backup.
///
/// # Errors
/// If nothing can be read, or nothing be written.
pub fn salvage(from: &Path, to: &Path) -> Result<Salvaged, SalvageError> {
    if to.symlink_metadata().is_ok() {
        return Err(SalvageError::Taken(to.to_owned()));
    }
    let unreadable =
        |error: rusqlite::Error| SalvageError::Unreadable { path: from.to_owned(), why: error.to_string() };
    let found = believed(from)?;
    // SQLite takes an empty file for a database without tables. For a file that it cannot open it gives no reason.
    let why = match from.metadata() {
        Err(error) => Some(error.to_string()),
        Ok(found) if !found.is_file() => Some("it is no file".to_owned()),
        Ok(found) if found.len() == 0 && !has_beside(from, "-wal") => Some("it is empty".to_owned()),
        Ok(_) => open_regular(from, Opening::Read).err().map(|error| error.to_string()),
    };
    if let Some(why) = why {
        return Err(SalvageError::Unreadable { path: from.to_owned(), why });
    }
    let write = |why: String| SalvageError::Write { path: to.to_owned(), why };
    let place = Anew::beside(to).map_err(|source| SalvageError::NoPlace { path: to.to_owned(), source })?;
    if !place.is_ours() {
        // SQLite opens files by name, and another user could redirect this name.
        return Err(SalvageError::OfOthers(to.to_owned()));
    }
    let (path, access) = if has_beside(from, schema::ROLLBACK) {
        copy_whole(&found, &place).map_err(|error| write(error.to_string()))?;
        (&place.path().join(OLD), OpenFlags::SQLITE_OPEN_READ_WRITE)
    } else {
        (&from.to_owned(), OpenFlags::SQLITE_OPEN_READ_ONLY)
    };
    let old = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(unreadable)?;
    // This fails if the file is not a SQLite database, or if the page with the names of the tables is damaged.
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name IN ('event', 'run', 'daemon')";
    let tables: u32 = old.query_row(tables, [], |row| row.get(0)).map_err(unreadable)?;
    if tables < 3 {
        let why = "it has not the tables of a journal".to_owned();
        return Err(SalvageError::Unreadable { path: from.to_owned(), why });
    }
    let key = super::fresh_key().map_err(|error| OpenError::Io { path: to.to_owned(), why: error.to_string() })?;
    let mut new = schema::open(&place.path().join(NEW), false, || Ok(Fresh { id_key: key }))?.db;
    let saved = copy(&old, &mut new, from).and_then(|saved| {
        if made_inside_run::is_noted(&old) {
            made_inside_run::note_inside(&new)?;
        }
        new.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(saved)
    });
    let saved = saved.map_err(|error| write(error.to_string()))?;
    drop(new);
    place.place(NEW, to.file_name().unwrap_or_default()).map_err(|error| write(error.to_string()))?;
    Ok(saved)
}

/// Whether a file whose name has this ending lies beside the journal, and is not empty.
fn has_beside(from: &Path, end: &str) -> bool {
    let file = from.with_file_name(with_end(from.file_name().unwrap_or_default().to_owned(), end));
    file.metadata().is_ok_and(|found| found.len() > 0)
}

fn with_end(mut name: OsString, end: &str) -> OsString {
    name.push(end);
    name
}

/// Copies the journal with the files beside it: in the copy, SQLite undoes an unfinished transaction.
fn copy_whole(found: &Trusted, place: &Anew) -> io::Result<()> {
    for end in ["", "-wal", schema::ROLLBACK] {
        let name = with_end(found.name.clone(), end);
        if found.dir.has(&name)? {
            let mut copy = place.dir().create(format!("{OLD}{end}"), 0o600)?;
            io::copy(&mut found.dir.trusted_file(&name)?, &mut copy)?;
        }
    }
    Ok(())
}

/// Refuses a journal that another user may have written: the copy becomes ours, and its runs continue as ours. SQLite
/// opens the journal and its log by name, so no other user may be able to redirect these names either.
fn believed(from: &Path) -> Result<Trusted, SalvageError> {
    let refused = |source: io::Error| {
        let path = from.to_owned();
        match source.get_ref().and_then(|why| why.downcast_ref()) {
            Some(Refusal::NoFile(_)) => SalvageError::Unreadable { path, why: "it is no file".to_owned() },
            Some(_) => SalvageError::NotBelieved { path, source },
            None if source.kind() == io::ErrorKind::IsADirectory => {
                SalvageError::Unreadable { path, why: "it is no file".to_owned() }
            }
            None => SalvageError::Unreadable { path, why: source.to_string() },
        }
    };
    let found = open_trusted(from).map_err(refused)?;
    if !found.dir.is_ours() {
        return Err(SalvageError::OfOthers(from.to_owned()));
    }
    for end in schema::BESIDE {
        let beside = with_end(found.name.clone(), end);
        if found.dir.has(&beside).map_err(refused)? {
            found.dir.trusted_file(&beside).map_err(refused)?;
        }
    }
    Ok(found)
}

fn copy(old: &Connection, new: &mut Connection, from: &Path) -> Result<Salvaged, rusqlite::Error> {
    let mut saved = Salvaged::default();
    let transaction = new.transaction()?;
    // Runs first: the data from events is used only for runs that are missing in the table.
    let runs =
        "number, id, seq, owner, parent, root, name, labels, idempotency_key, submitted_at, state, ended_at, archived";
    copy_table(old, &transaction, ("run", "number", runs), &mut saved.holes)?;
    copy_table(old, &transaction, ("blob", "number", "number, hash, bytes, uses, body"), &mut saved.holes)?;
    content::take_in(&transaction, from)?;
    copy_table(old, &transaction, ("listing", "number", "number, view"), &mut saved.holes)?;
    saved.events = copy_table(old, &transaction, ("event", "seq", record::COLUMNS), &mut saved.holes)?;
    copy_table(old, &transaction, ("epoch", "first_seq", "first_seq, id, begun_at, reason"), &mut saved.holes)?;
    note_missing_runs(&transaction)?;
    // Which runs name a text is known by their events.
    content::count_again(&transaction)?;
    // The listing of a run that has left the world may be lost. It is made again from the run's events.
    transaction.execute_batch(
        "UPDATE run SET archived = (EXISTS (SELECT 1 FROM listing WHERE listing.number = run.number));
         DELETE FROM listing WHERE NOT EXISTS (SELECT 1 FROM run WHERE run.number = listing.number);
         DELETE FROM event WHERE kind = 'run-archived'
             AND EXISTS (SELECT 1 FROM run WHERE run.id = event.run AND run.archived = 0);
         INSERT INTO tally SELECT state, count(*) FROM run WHERE archived = 1 AND state IS NOT NULL GROUP BY state;
         UPDATE daemon SET runs = (SELECT coalesce(max(number), 0) FROM run)",
    )?;
    saved.runs = transaction.query_row("SELECT count(*) FROM run", [], |row| row.get::<_, i64>(0))?.cast_unsigned();
    transaction.commit()?;
    Ok(saved)
}

/// Adds rows for runs of which only the events are left.
fn note_missing_runs(new: &Transaction<'_>) -> Result<(), rusqlite::Error> {
    let missing = format!(
        "SELECT {} FROM event WHERE kind = 'run-submitted' AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = event.run)
             OR kind = 'run-finished' AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = event.run AND state IS NOT NULL)
         ORDER BY seq",
        record::COLUMNS
    );
    let mut read = new.prepare(&missing)?;
    let mut rows = read.query([])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        if let Record::Event(event) = Record::read(row)?.0 {
            events.push(event);
        }
    }
    events.iter().try_for_each(|event| writer::follow(new, event, None))
}

/// Copies the readable rows of a table. Returns their number.
fn copy_table(
    old: &Connection,
    new: &Transaction<'_>,
    (table, key, columns): (&str, &str, &str),
    holes: &mut u64,
) -> Result<u64, rusqlite::Error> {
    let is_there = "SELECT count(*) FROM sqlite_schema WHERE name = ?1";
    if old.query_row(is_there, [table], |row| row.get::<_, u32>(0)).is_ok_and(|count| count == 0) {
        // A journal of an earlier version has no such table.
        return Ok(0);
    }
    let select = format!("SELECT {key}, {columns} FROM {table} WHERE {key} >= ?1 ORDER BY {key}");
    let places = vec!["?"; columns.split(',').count()].join(", ");
    let mut insert = new.prepare(&format!("INSERT OR IGNORE INTO {table} ({columns}) VALUES ({places})"))?;
    let mut from = Some(i64::MIN);
    let mut copied = 0;
    while let Some(first) = from {
        let mut last = None;
        let whole = each_row(old, &select, first, |key, values| {
            last = Some(key);
            copied += insert.execute(params_from_iter(values))? as u64;
            Ok(true)
        })?;
        from = None;
        if !whole {
            *holes += 1;
            from = next_readable(old, &select, last.map_or(first, |last| last.saturating_add(1)));
        }
    }
    Ok(copied)
}

/// Reads rows from a key on. Returns whether all could be read. An error of `take` is returned.
fn each_row(
    old: &Connection,
    select: &str,
    from: i64,
    mut take: impl FnMut(i64, Vec<Value>) -> Result<bool, rusqlite::Error>,
) -> Result<bool, rusqlite::Error> {
    let Ok(mut read) = old.prepare_cached(select) else { return Ok(false) };
    let columns = read.column_count();
    let Ok(mut rows) = read.query([from]) else { return Ok(false) };
    loop {
        let row = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(true),
            Err(_) => return Ok(false),
        };
        let values: Result<Vec<Value>, _> = (1..columns).map(|column| row.get(column)).collect();
        let (Ok(key), Ok(values)) = (row.get(0), values) else { return Ok(false) };
        if !take(key, values)? {
            return Ok(true);
        }
    }
}

/// The first key from `from` on at which rows can be read again; `None` if there is none. Found by steps that double
/// and then halve.
fn next_readable(old: &Connection, select: &str, from: i64) -> Option<i64> {
    let reads_at = |at: i64| {
        let mut found = None;
        let read = each_row(old, select, at, |key, _| {
            found = Some(key);
            Ok(false)
        });
        // If no row is left, the end of the table is reached as well.
        (read.unwrap_or(false), found)
    };
    let mut step: i64 = 1;
    let mut bad = from;
    let mut good = loop {
        let at = from.checked_add(step)?;
        match reads_at(at) {
            (true, None) => return None,
            (true, Some(_)) => break at,
            _ => bad = at,
        }
        step = step.checked_mul(2)?;
    };
    while good - bad > 1 {
        let middle = bad + (good - bad) / 2;
        if matches!(reads_at(middle), (true, Some(_))) { good = middle } else { bad = middle }
    }
    Some(good)
}
