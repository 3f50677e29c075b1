//! Creates the journal's file, opens it, and upgrades an older version. A start uses it, and so do backups and salvage.
//!
//! The only place with the schema versions. A file that is refused, for whatever reason, is not changed; an older one
//! is copied before it is upgraded. After `open`, closing the file does not merge its write-ahead log: the caller calls
//! `keep` once the journal has proved usable.
//!
//! `rusqlite_migration` would replace only the five lines that execute the steps of an upgrade. The copy, the check of
//! the file's owner, and the refusal that writes nothing would remain.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness_files::{Opening, open_regular};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, params};

/// Version of the schema, in `user_version`.
pub const VERSION: u32 = 3;
/// "hrns" in the header of the file, by which programs such as `file` recognise it.
const APPLICATION_ID: u32 = 0x6872_6E73;
const FIRST: &str = include_str!("schema.sql");
/// The n-th statement upgrades a file from version n + 1 to version n + 2.
const MIGRATIONS: &[&str] = &[
    "ALTER TABLE daemon ADD COLUMN instance INTEGER NOT NULL DEFAULT 0;
     CREATE TABLE epoch (
         first_seq INTEGER PRIMARY KEY,
         id        TEXT NOT NULL,
         begun_at  INTEGER NOT NULL,
         reason    TEXT NOT NULL
     ) STRICT",
    "CREATE TABLE blob (
         number INTEGER PRIMARY KEY,
         hash   TEXT NOT NULL UNIQUE,
         bytes  INTEGER NOT NULL,
         uses   INTEGER NOT NULL,
         body   TEXT
     ) STRICT;
     ALTER TABLE run ADD COLUMN blobs TEXT",
];
/// Endings of the names of files that SQLite takes for a part of a database: the write-ahead log, its index, and the
/// rollback journal. The last has the old pages of a transaction. SQLite writes these back when it opens a file with
/// that name, whatever that file is.
pub(super) const BESIDE: [&str; 3] = ["-wal", "-shm", ROLLBACK];
/// The ending of a rollback journal. Only a file without a write-ahead log gets one.
pub(super) const ROLLBACK: &str = "-journal";
/// How long a commit waits for another program that holds a write lock on the file, for example an SQLite shell. The
/// writer does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why the journal could not be opened. Nothing was removed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A later daemon has written it.
    #[error(
        "{} has version {found}, and this daemon knows none after {VERSION}: a later daemon has written it. \
         Nothing was touched; install that daemon again, or give this one another state directory",
        path.display()
    )]
    Newer {
        /// The journal's file.
        path: PathBuf,
        /// The schema version of the file.
        found: u32,
    },
    /// The journal is gone, but outputs of runs are there.
    #[error(
        "there is no journal at {}, but {outputs} runs have outputs beside it. Nothing was touched. Put a backup in \
         its place (harnessd restore FILE), or move the directory `outputs` away to begin with an empty journal",
        path.display()
    )]
    Missing {
        /// The path at which it was expected.
        path: PathBuf,
        /// Number of runs that have outputs.
        outputs: usize,
    },
    /// It is a link to a missing file, which may come back.
    #[error(
        "{} leads to {}, and nothing is there. Nothing was touched; is a file system not mounted?",
        path.display(), to.display()
    )]
    LeadsNowhere {
        /// The link in the place of the journal.
        path: PathBuf,
        /// The target of the link.
        to: PathBuf,
    },
    /// It belongs to another user.
    #[error(
        "{} belongs to user {owner}, and this daemon runs as user {us}. Nothing was touched; give it to the user that \
         the daemon runs as, or start the daemon as that one",
        path.display()
    )]
    NotOurs {
        /// The journal's file.
        path: PathBuf,
        /// The owner of the file.
        owner: u32,
        /// The user of this daemon.
        us: u32,
    },
    /// It is another kind of file.
    #[error(
        "{} is not a journal of this daemon ({why}). Nothing was touched; move it away to begin with an empty one",
        path.display()
    )]
    Foreign {
        /// The path at which the journal was expected.
        path: PathBuf,
        /// What the file is.
        why: String,
    },
    /// It is damaged.
    #[error(
        "{} is damaged ({why}). Nothing was removed. Put a backup in its place (harnessd restore FILE), or save what \
         can be read: harnessd salvage {} NEW, then harnessd restore NEW",
        path.display(), path.display()
    )]
    Damaged {
        /// The journal's file.
        path: PathBuf,
        /// The error of SQLite.
        why: String,
    },
    /// It cannot be read or written.
    #[error("{} cannot be opened: {why}", path.display())]
    Io {
        /// The journal's file.
        path: PathBuf,
        /// The error of the operating system or of SQLite.
        why: String,
    },
}

/// The values that a new file begins with.
#[derive(Debug, Clone, Copy)]
pub struct Fresh {
    /// The key of the ids.
    pub id_key: u64,
}

/// An open journal.
#[derive(Debug)]
pub struct Opened {
    /// The connection, which may write.
    pub db: Connection,
    /// The schema version that the file had; `None` for a new file.
    pub version: Option<u32>,
}

/// Opens the journal for writing, and makes it if there is none. Until [`keep`] is called, closing it changes nothing.
/// If there `was_here` a journal, a file that is no journal counts as a damaged one. `fresh` gives the values for a new
/// file, and may refuse to make one.
///
/// # Errors
/// If the journal cannot be used; it is unchanged then.
pub fn open(
    path: &Path,
    was_here: bool,
    fresh: impl FnOnce() -> Result<Fresh, OpenError>,
) -> Result<Opened, OpenError> {
    match open_with(path, fresh, FIRST, MIGRATIONS) {
        Err(OpenError::Foreign { path, why }) if was_here => Err(OpenError::Damaged { path, why }),
        opened => opened,
    }
}

/// Marks the journal as usable: from now on, closing it merges the write-ahead log into the file.
///
/// # Errors
/// If SQLite refuses.
pub fn keep(db: &Connection, path: &Path) -> Result<(), OpenError> {
    let kept = db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
    kept.map(|_| ()).map_err(|error| why(path, &error))
}

fn open_with(
    path: &Path,
    fresh: impl FnOnce() -> Result<Fresh, OpenError>,
    first: &str,
    migrations: &[&str],
) -> Result<Opened, OpenError> {
    let latest = 1 + u32::try_from(migrations.len()).unwrap_or(u32::MAX);
    is_file_of_ours(path)?;
    let found = version(path, latest)?;
    let io = |error: io::Error| OpenError::Io { path: path.to_owned(), why: error.to_string() };
    let fresh = if found.is_none() { Some(fresh()?) } else { None };
    if found.is_none() {
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(io)?;
    }
    let failed = |error| why(path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_timeout(PATIENCE).map_err(failed)?;
    // Closing the file changes nothing until the journal has turned out to be usable.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    // The write-ahead log may have a newer version than the header of the file.
    let newest: u32 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    if newest > latest {
        return Err(OpenError::Newer { path: path.to_owned(), found: newest });
    }
    let found = found.map(|found| found.max(newest));
    if found.is_none() {
        db.execute_batch("PRAGMA auto_vacuum = INCREMENTAL").map_err(failed)?;
    }
    db.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -4096;
         PRAGMA wal_autocheckpoint = 4000;
         PRAGMA journal_size_limit = 67108864",
    )
    .map_err(failed)?;
    match (found, fresh) {
        (None, Some(Fresh { id_key })) => {
            let transaction = db.transaction().map_err(failed)?;
            transaction.execute_batch(first).map_err(failed)?;
            transaction
                .execute(
                    "INSERT INTO daemon (id_key, runs, calls, interactions, reliefs) VALUES (?1, 0, 0, 0, 0)",
                    params![id_key.cast_signed()],
                )
                .map_err(failed)?;
            transaction.execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}")).map_err(failed)?;
            transaction.execute_batch(&format!("PRAGMA user_version = {latest}")).map_err(failed)?;
            transaction.commit().map_err(failed)?;
        }
        (Some(found), _) => {
            is_all_there(&db, path)?;
            if found < latest {
                migrate(&mut db, path, found, migrations)?;
            }
        }
        (None, None) => {}
    }
    Ok(Opened { db, version: found })
}

/// Refuses a path that is not a regular file, a file of another user, and a link to nothing. A missing file is
/// accepted.
fn is_file_of_ours(path: &Path) -> Result<(), OpenError> {
    let io = |error: io::Error| OpenError::Io { path: path.to_owned(), why: error.to_string() };
    let file = match path.metadata() {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let to = path.read_link();
            return to.map_or(Ok(()), |to| Err(OpenError::LeadsNowhere { path: path.to_owned(), to }));
        }
        Err(error) => return Err(io(error)),
    };
    let us = nix::unistd::geteuid().as_raw();
    if !file.is_file() {
        return Err(OpenError::Foreign { path: path.to_owned(), why: "no file".to_owned() });
    }
    if file.uid() != us {
        return Err(OpenError::NotOurs { path: path.to_owned(), owner: file.uid(), us });
    }
    Ok(())
}

/// Refuses a file that is shorter than its header says, if no write-ahead log has the rest.
fn is_all_there(db: &Connection, path: &Path) -> Result<(), OpenError> {
    let failed = |error| why(path, &error);
    let number = |pragma| db.query_row(pragma, [], |row| row.get::<_, i64>(0)).map_err(failed);
    let says = number("PRAGMA page_count")?.saturating_mul(number("PRAGMA page_size")?).cast_unsigned();
    // SQLite keeps the log beside the file that a link leads to.
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let log = real.with_file_name(format!("{}-wal", real.file_name().unwrap_or_default().to_string_lossy()));
    let has = path.metadata().map_or(0, |file| file.len());
    if log.metadata().is_ok_and(|file| file.len() > 0) || has >= says {
        return Ok(());
    }
    Err(OpenError::Damaged { path: path.to_owned(), why: format!("it has {has} of its {says} bytes") })
}

/// Checks the whole file. Used when there is a reason for doubt.
///
/// # Errors
/// If it is damaged.
pub fn look_through(db: &Connection, path: &Path) -> Result<(), OpenError> {
    let said: String =
        db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|error| why(path, &error))?;
    if said == "ok" { Ok(()) } else { Err(OpenError::Damaged { path: path.to_owned(), why: said }) }
}

/// The version of an existing journal. Writes nothing.
///
/// # Errors
/// If it is not a journal that this daemon can read.
pub fn version_of(path: &Path) -> Result<u32, OpenError> {
    is_file_of_ours(path)?;
    let foreign = || OpenError::Foreign { path: path.to_owned(), why: "nothing is in it".to_owned() };
    version(path, VERSION)?.ok_or_else(foreign)
}

/// The version of the file; `None` if there is none yet. Writes nothing.
fn version(path: &Path, latest: u32) -> Result<Option<u32>, OpenError> {
    let foreign = |why: &str| OpenError::Foreign { path: path.to_owned(), why: why.to_owned() };
    let io = |error: io::Error| OpenError::Io { path: path.to_owned(), why: error.to_string() };
    let mut file = match open_regular(path, Opening::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    // Section 1.3 of SQLite's file format: user_version at 60, application_id at 68, both big-endian.
    let mut header = Vec::new();
    file.by_ref().take(100).read_to_end(&mut header).map_err(io)?;
    if header.is_empty() {
        return Ok(None);
    }
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Err(foreign("no SQLite database"));
    }
    let word = |at: usize| header[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    match (word(68), word(60)) {
        // The file was made, and the daemon died before the first tables were in it. The tables may still be in the
        // write-ahead log.
        (0, 0) => begun(path),
        (APPLICATION_ID, found) if found > latest => Err(OpenError::Newer { path: path.to_owned(), found }),
        (APPLICATION_ID, found) => Ok(Some(found)),
        _ => Err(foreign("another program's database")),
    }
}

/// The version of a file whose header has none.
fn begun(path: &Path) -> Result<Option<u32>, OpenError> {
    let failed = |error| why(path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    let number = |pragma| db.query_row(pragma, [], |row| row.get::<_, u32>(0)).map_err(failed);
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    match (number("PRAGMA application_id")?, number("PRAGMA user_version")?) {
        (APPLICATION_ID, found) => Ok(Some(found)),
        (0, 0) if tables == 0 => Ok(None),
        _ => Err(OpenError::Foreign { path: path.to_owned(), why: "another program's database".to_owned() }),
    }
}

fn migrate(db: &mut Connection, path: &Path, found: u32, migrations: &[&str]) -> Result<(), OpenError> {
    let failed = |error| why(path, &error);
    // A copy that needs no other file, write-ahead log included. An earlier attempt may have left one.
    let copy = path.with_extension(format!("v{found}.db"));
    let io = |error: io::Error| OpenError::Io { path: copy.clone(), why: error.to_string() };
    match std::fs::remove_file(&copy) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&copy).map_err(io)?;
    db.execute("VACUUM INTO ?1", params![copy.to_string_lossy()]).map_err(failed)?;
    let transaction = db.transaction().map_err(failed)?;
    let first = usize::try_from(found.saturating_sub(1)).unwrap_or(usize::MAX);
    for step in migrations.iter().skip(first) {
        transaction.execute_batch(step).map_err(failed)?;
    }
    transaction.execute_batch(&format!("PRAGMA user_version = {}", migrations.len() + 1)).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    // The version is read from the file alone, so the log is merged into it.
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(failed)?;
    let to = migrations.len() + 1;
    tracing::info!(copy = %copy.display(), from = found, to, "the journal was brought up to date");
    Ok(())
}

fn why(path: &Path, error: &rusqlite::Error) -> OpenError {
    let (path, why) = (path.to_owned(), error.to_string());
    if matches!(error, rusqlite::Error::QueryReturnedNoRows) {
        return OpenError::Damaged { path, why: "a row that every journal has is not in it".to_owned() };
    }
    match error.sqlite_error_code() {
        // `Unknown` is reported for missing tables and columns.
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::Unknown) => OpenError::Damaged { path, why },
        // A value was read, but has the wrong type.
        None => OpenError::Damaged { path, why },
        Some(ErrorCode::NotADatabase) => OpenError::Foreign { path, why },
        _ => OpenError::Io { path, why },
    }
}

impl OpenError {
    /// The meaning of a failed read of the open file.
    pub fn of(path: &Path, error: &rusqlite::Error) -> Self {
        why(path, error)
    }

    /// The same error for another file, of which this one is a copy.
    pub(super) fn at(mut self, file: &Path) -> Self {
        match &mut self {
            Self::Newer { path, .. }
            | Self::Missing { path, .. }
            | Self::LeadsNowhere { path, .. }
            | Self::NotOurs { path, .. }
            | Self::Foreign { path, .. }
            | Self::Damaged { path, .. }
            | Self::Io { path, .. } => file.clone_into(path),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fresh() -> Result<Fresh, OpenError> {
        Ok(Fresh { id_key: u64::MAX - 5 })
    }

    fn dir() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("harness.db");
        (dir, path)
    }

    #[test]
    fn a_new_journal_is_for_its_owner_alone_and_opens_again() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, path) = dir();
        drop(open(&path, false, fresh).unwrap());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let db = open(&path, false, || unreachable!()).unwrap().db;
        let key: i64 = db.query_row("SELECT id_key FROM daemon", [], |row| row.get(0)).unwrap();
        assert_eq!(key.cast_unsigned(), u64::MAX - 5);
        let vacuum: u32 = db.query_row("PRAGMA auto_vacuum", [], |row| row.get(0)).unwrap();
        assert_eq!(vacuum, 2);
    }

    #[test]
    fn a_journal_that_was_only_begun_is_begun_again() {
        let (_dir, path) = dir();
        std::fs::File::create(&path).unwrap();
        drop(open(&path, false, fresh).unwrap());
        let (_dir, path) = dir();
        Connection::open(&path).unwrap().execute_batch("PRAGMA journal_mode = WAL; VACUUM").unwrap();
        drop(open(&path, false, fresh).unwrap());
    }

    #[test]
    fn a_journal_of_a_later_daemon_is_refused_and_not_touched() {
        let (dir, path) = dir();
        let db = open(&path, false, fresh).unwrap().db;
        db.execute_batch("PRAGMA user_version = 7").unwrap();
        keep(&db, &path).unwrap();
        drop(db);
        let before = std::fs::read(&path).unwrap();
        let error = open(&path, false, fresh).unwrap_err();
        assert!(matches!(error, OpenError::Newer { found: 7, .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_later_version_that_is_only_in_the_write_ahead_log_is_refused_as_well() {
        let (_dir, path) = dir();
        let db = open(&path, false, fresh).unwrap().db;
        db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA user_version = 7").unwrap();
        drop(db);
        let files = || ["harness.db", "harness.db-wal"].map(|name| std::fs::read(path.with_file_name(name)).unwrap());
        let before = files();
        assert_eq!(version(&path, VERSION).unwrap(), Some(VERSION));
        assert!(matches!(open(&path, false, fresh), Err(OpenError::Newer { found: 7, .. })));
        assert_eq!(files(), before);
    }

    #[test]
    fn a_file_that_is_no_journal_is_told_from_a_journal() {
        let (_dir, path) = dir();
        std::fs::write(&path, "hello").unwrap();
        assert!(matches!(open(&path, false, fresh), Err(OpenError::Foreign { .. })));
        let (_dir, path) = dir();
        Connection::open(&path).unwrap().execute_batch("PRAGMA application_id = 5; CREATE TABLE a (b)").unwrap();
        assert!(matches!(open(&path, false, fresh), Err(OpenError::Foreign { .. })));
        let (_dir, path) = dir();
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE a (b)").unwrap();
        assert!(matches!(open(&path, false, fresh), Err(OpenError::Foreign { .. })));
    }

    #[test]
    fn an_older_journal_is_copied_and_brought_up_to_date() {
        let (dir, path) = dir();
        let db = open(&path, false, fresh).unwrap().db;
        db.execute("UPDATE daemon SET calls = 5", []).unwrap();
        drop(db);
        let steps = [MIGRATIONS[0], MIGRATIONS[1], "ALTER TABLE daemon ADD COLUMN extra INTEGER NOT NULL DEFAULT 9"];
        let db = open_with(&path, fresh, FIRST, &steps).unwrap().db;
        let row = db.query_row("SELECT calls, extra FROM daemon", [], |r| Ok((r.get(0)?, r.get(1)?))).unwrap();
        assert_eq!(row, (5i64, 9i64));
        drop(db);
        let copy = dir.path().join("harness.v3.db");
        assert_eq!(version(&copy, 3).unwrap(), Some(3));
        assert_eq!(version(&path, 4).unwrap(), Some(4));
        drop(open(&copy, false, fresh).unwrap());
    }

    #[test]
    fn a_migration_that_fails_leaves_the_journal_as_it_was() {
        let (_dir, path) = dir();
        drop(open(&path, false, fresh).unwrap());
        assert!(
            open_with(
                &path,
                fresh,
                FIRST,
                &[MIGRATIONS[0], MIGRATIONS[1], "CREATE TABLE more (a INTEGER) STRICT; nonsense"]
            )
            .is_err()
        );
        let db = open(&path, false, fresh).unwrap().db;
        let tables: u32 =
            db.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'more'", [], |r| r.get(0)).unwrap();
        assert_eq!(tables, 0);
    }
}
