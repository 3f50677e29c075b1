//! Tells whether a journal was made by a daemon inside a run, and has served no daemon outside since.
//!
//! Such a journal has the table `inside`, without rows. Every other journal belongs to a daemon outside all runs, and
//! no process of a run may continue it, even if files beside it were removed. It must not decide who may use a journal:
//! `main` does.

use std::path::Path;

use rusqlite::Connection;

use super::FILE;
use super::identity::{BESIDE, open_without_log};

/// The owner of the journal of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// There is no journal, nor a file of one.
    Nowhere,
    /// A daemon inside a run, which made it.
    Inside,
    /// A daemon outside all runs, or an owner that cannot be told.
    Outside,
}

/// The owner of the journal of a state directory.
pub fn made(dir: &Path) -> Made {
    let is_there = |name: &&str| dir.join(name).symlink_metadata().is_ok();
    if ![FILE, "outputs"].iter().chain(&BESIDE).any(is_there) {
        return Made::Nowhere;
    }
    let path = dir.join(FILE);
    // Opening anything but a regular file may hang.
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    match is_file && open_without_log(&path).is_some_and(|db| is_noted(&db)) {
        true => Made::Inside,
        false => Made::Outside,
    }
}

/// Whether a journal says that it was made inside a run.
pub(super) fn is_noted(db: &Connection) -> bool {
    let query = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'inside'";
    db.query_row(query, [], |row| row.get::<_, u32>(0)).is_ok_and(|count| count == 1)
}

/// Records in a journal that a daemon inside a run has just made it.
///
/// # Errors
/// If it cannot be written.
pub fn note_inside(db: &Connection) -> Result<(), rusqlite::Error> {
    db.execute_batch("CREATE TABLE IF NOT EXISTS inside (empty INTEGER) STRICT")
}

/// Records in a journal that a daemon outside all runs uses it.
///
/// # Errors
/// If it cannot be written.
pub fn note_outside(db: &Connection) -> Result<(), rusqlite::Error> {
    if !is_noted(db) {
        return Ok(());
    }
    // A run may have made the table, and others that refer to it. Ours have no such references.
    db.execute_batch("PRAGMA foreign_keys = OFF; DROP TABLE inside")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn a_journal_is_that_of_a_daemon_outside_unless_it_says_itself_that_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let is = |expected| assert_eq!(made(dir.path()), expected);
        is(Made::Nowhere);
        for name in ["outputs", "harness.id", "harness.seq"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            is(Made::Outside);
            fs::remove_dir(dir.path().join(name)).unwrap();
        }
        for text in ["", "inside", "SQLite format 3\0"] {
            fs::write(&path, text).unwrap();
            is(Made::Outside);
            fs::remove_file(&path).unwrap();
        }
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        is(Made::Outside);
        fs::remove_file(&path).unwrap();
        let db = Connection::open(&path).unwrap();
        db.execute_batch("CREATE TABLE daemon (a)").unwrap();
        is(Made::Outside);
        note_inside(&db).unwrap();
        note_inside(&db).unwrap();
        is(Made::Inside);
        note_outside(&db).unwrap();
        note_outside(&db).unwrap();
        is(Made::Outside);
    }

    /// A run may make the table as it likes.
    #[test]
    fn a_forged_note_goes_whatever_refers_to_it() {
        for forged in [
            "CREATE TABLE inside (a INTEGER PRIMARY KEY); INSERT INTO inside VALUES (1);
             CREATE TABLE more (a INTEGER REFERENCES inside (a)); INSERT INTO more VALUES (1)",
            "CREATE TABLE inside (a INTEGER PRIMARY KEY, b INTEGER REFERENCES inside (a));
             INSERT INTO inside VALUES (1, 1), (2, 1)",
            "CREATE TABLE inside (a); CREATE INDEX more ON inside (a); CREATE VIEW other AS SELECT a FROM inside",
            "CREATE TABLE inside (a); INSERT INTO inside VALUES (1);
             CREATE TRIGGER more BEFORE DELETE ON inside BEGIN SELECT RAISE(ABORT, 'no'); END",
            "CREATE VIRTUAL TABLE inside USING fts5 (a)",
        ] {
            let db = Connection::open_in_memory().unwrap();
            db.execute_batch(forged).unwrap();
            assert!(is_noted(&db), "{forged}");
            note_outside(&db).unwrap();
            assert!(!is_noted(&db), "{forged}");
        }
    }
}
