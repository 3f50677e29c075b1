//! Handles files of texts that the journal does not name, at a start.
//!
//! A crash between the transaction and the file of a text leaves such a file, which is removed. If the journal is not
//! the one that was here before, the files may be those of another one: they are moved aside, where they are found when
//! a journal names them, and nothing is removed.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};
use tracing::{error, info, warn};

use super::Files;

/// Looks for files of texts that the journal `db` at `journal` does not name. To be called before it is written to: a
/// file is there before its name is.
///
/// # Errors
/// If the journal cannot be read.
pub fn sweep(db: &Connection, journal: &Path, is_the_one: bool) -> Result<(), rusqlite::Error> {
    let files = Files::beside(journal);
    let names = match files.names() {
        Ok(names) => names,
        Err(error) => {
            error!(%error, "the files of texts cannot be listed, and stay as they are");
            return Ok(());
        }
    };
    let (mut removed, mut moved) = (0u64, 0u64);
    for hash in names {
        let sql = "SELECT 1 FROM blob WHERE hash = ?1";
        if db.prepare_cached(sql)?.query_row([hash.to_string()], |_| Ok(())).optional()?.is_some() {
            continue;
        }
        let handled = if is_the_one {
            files.remove(hash).map(|()| removed += 1)
        } else {
            files.set_aside(hash).map(|_| moved += 1)
        };
        if let Err(error) = handled {
            error!(%error, %hash, "the file of a text that the journal does not name stays where it is");
        }
    }
    if removed > 0 {
        info!(removed, "files of texts that nothing names were removed");
    }
    if moved > 0 {
        warn!(moved, "files of texts that this journal does not name were moved aside; nothing was deleted");
    }
    Ok(())
}
