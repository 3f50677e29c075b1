//! Handles files of texts that the journal does not name, at a start.
//!
//! A crash between the transaction and the file of a text leaves such a file, which is removed. If the journal is not
//! the one that was here before, the files may be those of another one: they are moved aside, where they are found when
//! a journal names them, and nothing is removed. Where that fails the start fails: the next one would take the journal
//! for the one that was here before.

use std::io;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension};
use tracing::{error, info, warn};

use super::Files;

/// Why the files of texts could not be looked through.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] rusqlite::Error),
    /// Files that may belong to another journal cannot be moved aside.
    #[error("texts that may belong to another journal cannot be moved from {dir} to {aside}: {source}")]
    NotAside {
        /// The directory of texts.
        dir: String,
        /// Where they are to be.
        aside: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// Looks for files of texts that the journal `db` at `journal` does not name. To be called before it is written to: a
/// file is there before its name is. And before an epoch is recorded: until then a start that failed or died here is
/// repeated with the same `is_the_one`.
///
/// # Errors
/// If the journal cannot be read, or a file that may belong to another one stays in place.
pub fn sweep(db: &Connection, journal: &Path, is_the_one: bool) -> Result<(), SweepError> {
    let files = Files::beside(journal);
    let not_aside = |source| {
        let (dir, aside) = files.places();
        SweepError::NotAside { dir: dir.display().to_string(), aside: aside.display().to_string(), source }
    };
    let names = match files.names() {
        Ok(names) => names,
        Err(error) if is_the_one => {
            error!(%error, "the files of texts cannot be listed, and stay as they are");
            return Ok(());
        }
        Err(error) => return Err(not_aside(error)),
    };
    let mut unnamed = Vec::new();
    for hash in names {
        let sql = "SELECT 1 FROM blob WHERE hash = ?1";
        if db.prepare_cached(sql)?.query_row([hash.to_string()], |_| Ok(())).optional()?.is_none() {
            unnamed.push(hash);
        }
    }
    if unnamed.is_empty() {
        return Ok(());
    }
    if !is_the_one {
        files.set_aside(&unnamed).map_err(not_aside)?;
        let moved = unnamed.len();
        warn!(moved, "files of texts that this journal does not name were moved aside; nothing was deleted");
        return Ok(());
    }
    let mut removed = 0u64;
    for hash in unnamed {
        match files.remove(hash) {
            Ok(()) => removed += 1,
            Err(error) => error!(%error, %hash, "the file of a text that the journal does not name stays where it is"),
        }
    }
    info!(removed, "files of texts that nothing names were removed");
    Ok(())
}
