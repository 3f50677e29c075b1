//! Keeps the texts of a commit, and releases those that no run names any more.
//!
//! A part of the writer's transaction: the count of a text follows from the column `blobs` of its runs, and changes
//! with it. A file is written before that transaction ends, and removed after it, unless it is held: then after a later
//! one. The writer must call `committed` or `rolled_back` when the transaction has ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use harness_protocol::blob::BlobHash;
use harness_protocol::event::Event;
use harness_protocol::id::RunId;
use rusqlite::{OptionalExtension, Transaction, params};

use super::{Files, Holds, LONGEST_ROW};
use crate::blob::{self, Text};

/// Numbers of texts that are remembered; those of others are looked up again.
const MOST_KNOWN: usize = 4_096;

/// Why a text was not kept.
#[derive(Debug, thiserror::Error)]
pub(in crate::journal) enum NotKept {
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] rusqlite::Error),
    /// Its file cannot be written.
    #[error("the text {hash} cannot be written: {source}")]
    File { hash: BlobHash, source: io::Error },
    /// The name that an event has for it is not its name.
    #[error("internal error (bug): a text has the name {0}, and is another one")]
    OtherText(BlobHash),
}

/// The writer's part of the store.
#[derive(Debug)]
pub(in crate::journal) struct Keeper {
    files: Files,
    numbers: HashMap<BlobHash, i64>,
    /// Files of texts that no run names after this transaction.
    unnamed: Vec<BlobHash>,
    /// Files of texts that no run names, to be removed.
    to_remove: BTreeSet<BlobHash>,
    holds: Holds,
}

/// The numbers of the texts that runs name from a commit on, as the column `blobs` has them.
pub(in crate::journal) type Named = BTreeMap<RunId, String>;

impl Keeper {
    /// The keeper of the texts of this journal. It removes no file that is held.
    pub(in crate::journal) fn beside(journal: &Path, holds: Holds) -> Self {
        let (files, numbers) = (Files::beside(journal), HashMap::new());
        Self { files, numbers, unnamed: Vec::new(), to_remove: BTreeSet::new(), holds }
    }

    /// Keeps the texts that these events name.
    pub(in crate::journal) fn keep(
        &mut self,
        transaction: &Transaction<'_>,
        events: &[Arc<Event>],
    ) -> Result<Named, NotKept> {
        let (mut named, mut uses) = (Named::new(), BTreeMap::<i64, i64>::new());
        for event in events {
            let Some(run) = event.run else { continue };
            for (hash, text) in blob::named(&event.body) {
                let number = self.number_of(transaction, hash, text)?;
                *uses.entry(number).or_default() += 1;
                let numbers = named.entry(run).or_default();
                if !numbers.is_empty() {
                    numbers.push(' ');
                }
                numbers.push_str(&number.to_string());
            }
        }
        for (number, uses) in uses {
            let sql = "UPDATE blob SET uses = uses + ?2 WHERE number = ?1";
            transaction.prepare_cached(sql)?.execute([number, uses])?;
        }
        Ok(named)
    }

    /// The number of a text, which is kept from here on.
    fn number_of(&mut self, transaction: &Transaction<'_>, hash: BlobHash, text: Text<'_>) -> Result<i64, NotKept> {
        if let Some(&number) = self.numbers.get(&hash) {
            return Ok(number);
        }
        let sql = "SELECT number, body IS NULL FROM blob WHERE hash = ?1";
        let found = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?));
        let found = transaction.prepare_cached(sql)?.query_row([hash.to_string()], found).optional()?;
        let number = match found {
            Some((number, false)) => number,
            // The file may have been lost meanwhile.
            Some((number, true)) => {
                self.write(hash, text)?;
                number
            }
            None => {
                let (bytes, body) = self.write(hash, text)?;
                let sql = "INSERT INTO blob (hash, bytes, uses, body) VALUES (?1, ?2, 0, ?3)";
                transaction.prepare_cached(sql)?.execute(params![hash.to_string(), bytes, body])?;
                transaction.last_insert_rowid()
            }
        };
        if self.numbers.len() >= MOST_KNOWN {
            self.numbers.clear();
        }
        self.numbers.insert(hash, number);
        Ok(number)
    }

    /// The bytes of a text, and the text itself where it is to be a row. A longer one is in its file then.
    fn write(&mut self, hash: BlobHash, text: Text<'_>) -> Result<(i64, Option<String>), NotKept> {
        let unwritable = |error: serde_json::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
        let text = text.written().map_err(unwritable)?;
        if blob::hash(&text) != hash {
            return Err(NotKept::OtherText(hash));
        }
        let bytes = i64::try_from(text.len()).unwrap_or(i64::MAX);
        if text.len() <= LONGEST_ROW {
            return Ok((bytes, Some(text.into_owned())));
        }
        // A run names it again.
        self.to_remove.remove(&hash);
        self.files.put(hash, &text).map_err(|source| NotKept::File { hash, source })?;
        Ok((bytes, None))
    }

    /// A run is removed, whose row is there still: the texts that no other run names go with it.
    pub(in crate::journal) fn release(&mut self, transaction: &Transaction<'_>, run: &str) -> Result<(), NotKept> {
        let sql = "SELECT blobs FROM run WHERE id = ?1";
        let named = transaction.prepare_cached(sql)?.query_row([run], |row| row.get::<_, Option<String>>(0));
        let Some(named) = named.optional()?.flatten() else { return Ok(()) };
        for number in named.split(' ').filter_map(|number| number.parse::<i64>().ok()) {
            let sql = "UPDATE blob SET uses = uses - 1 WHERE number = ?1 RETURNING hash, uses, body IS NULL";
            let left =
                |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, bool>(2)?));
            let left = transaction.prepare_cached(sql)?.query_row([number], left).optional()?;
            let Some((hash, _, is_file)) = left.filter(|(_, uses, _)| *uses <= 0) else { continue };
            transaction.prepare_cached("DELETE FROM blob WHERE number = ?1")?.execute([number])?;
            if let Ok(hash) = hash.parse() {
                self.numbers.remove(&hash);
                self.unnamed.extend(is_file.then_some(hash));
            }
        }
        Ok(())
    }

    /// The transaction is in the journal: removes the files that nothing names any more, as soon as they are not held.
    /// What stays is removed by the next start.
    pub(in crate::journal) fn committed(&mut self) {
        self.to_remove.extend(self.unnamed.drain(..));
        let Self { files, to_remove, holds, .. } = self;
        if to_remove.is_empty() {
            return;
        }
        holds.unless_held(|| {
            for hash in std::mem::take(to_remove) {
                if let Err(error) = files.remove(hash) {
                    tracing::error!(%error, %hash, "the file of a text that no run names any more stays");
                }
            }
        });
    }

    /// Nothing of the transaction is in the journal.
    pub(in crate::journal) fn rolled_back(&mut self) {
        self.numbers.clear();
        self.unnamed.clear();
    }
}
