//! Makes the store of texts whole in a copy of a journal: a backup has no file beside it, and after a salvage the
//! counts are made anew from what could be read.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use harness_protocol::blob::BlobHash;
use harness_protocol::id::RunId;
use rusqlite::{Connection, OptionalExtension, params};

use super::Files;
use crate::blob;
use crate::journal::record::{COLUMNS, Record};

/// Puts the texts that are files beside the journal `of` into `copy`, or beside its directory: there are those of a
/// journal that a restore has moved aside. A text that cannot be read stays missing: runs that name it are unreadable
/// in the copy as they are in the journal.
pub(in crate::journal) fn take_in(copy: &Connection, of: &Path) -> Result<(), rusqlite::Error> {
    let places = [Some(of), of.parent()].map(|place| place.map(Files::beside));
    let mut missing = copy.prepare("SELECT hash FROM blob WHERE body IS NULL")?;
    let hashes: Vec<String> = missing.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for hash in hashes.iter().filter_map(|hash| hash.parse::<BlobHash>().ok()) {
        let found = places.iter().flatten().map(|files| files.get(hash));
        match found.reduce(|first, second| first.or(second)).unwrap_or_else(|| Err(ErrorKind::NotFound.into())) {
            Ok(text) => {
                copy.execute("UPDATE blob SET body = ?2 WHERE hash = ?1", params![hash.to_string(), text])?;
            }
            Err(error) => tracing::error!(%error, %hash, "a text is missing in the copy of the journal"),
        }
    }
    Ok(())
}

/// Counts anew which texts the runs name. Those that none names are removed.
pub(in crate::journal) fn count_again(db: &Connection) -> Result<(), rusqlite::Error> {
    let (mut named, mut uses) = (BTreeMap::<RunId, String>::new(), BTreeMap::<i64, i64>::new());
    let mut number_of = db.prepare("SELECT number FROM blob WHERE hash = ?1")?;
    let events = format!("SELECT {COLUMNS} FROM event WHERE kind IN ('run-submitted', 'run-prepared') ORDER BY seq");
    let mut events = db.prepare(&events)?;
    let mut rows = events.query([])?;
    while let Some(row) = rows.next()? {
        let Record::Event(event) = Record::read(row)?.0 else { continue };
        let Some(run) = event.run else { continue };
        for hash in blob::names(&event.body) {
            let number = number_of.query_row([hash.to_string()], |row| row.get::<_, i64>(0)).optional()?;
            let Some(number) = number else { continue };
            *uses.entry(number).or_default() += 1;
            let numbers = named.entry(run).or_default();
            if !numbers.is_empty() {
                numbers.push(' ');
            }
            numbers.push_str(&number.to_string());
        }
    }
    drop(rows);
    db.execute_batch("UPDATE run SET blobs = NULL; UPDATE blob SET uses = 0")?;
    for (run, blobs) in named {
        db.execute("UPDATE run SET blobs = ?2 WHERE id = ?1", params![run.to_string(), blobs])?;
    }
    for (number, uses) in uses {
        db.execute("UPDATE blob SET uses = ?2 WHERE number = ?1", [number, uses])?;
    }
    db.execute_batch("DELETE FROM blob WHERE uses = 0")
}
