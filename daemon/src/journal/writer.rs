//! Writes the events of a step to the journal in one transaction, and updates the other tables from them. The only code
//! that writes new events; a salvage only copies rows.
//!
//! Blocking: the thread of `writer_thread` calls it. The only place that decides which rows follow from an event, and
//! how the file is synced for a class of commits; the driver chooses the class.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness_protocol::event::{Ending, Event, EventBody};
use harness_protocol::id::{IdMap, RunId};
use harness_protocol::run::{RunState, RunView};
use harness_protocol::time::Timestamp;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, params};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::content::{Holds, Keeper, NotKept};
use super::disk;
use super::failpoints::{self, Point};
use super::identity::Mark;
use super::{Commit, CommitClass, CommitError, CommitFault, record};

/// Number of pages that are given back to the file system at a time.
const TIDIED_PAGES: u32 = 256;
/// Number of runs whose events are counted in memory; the counts of others are looked up again.
const MOST_COUNTED: usize = 65_536;

/// How long the last checkpoint waits for readers.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// Writes commits to the journal's file. The only connection that writes.
pub struct Writer {
    db: Connection,
    path: PathBuf,
    /// The class for which `synchronous` is set.
    class: Option<CommitClass>,
    body: Vec<u8>,
    texts: Keeper,
    mark: Option<Mark>,
    /// Number of events of each run that had events lately.
    counts: IdMap<RunId, u64>,
}

impl Writer {
    /// A writer for an open journal. It removes no file of a text while readers hold it.
    pub fn new(db: Connection, path: &Path, holds: Holds) -> Self {
        db.set_prepared_statement_cache_capacity(32);
        Self {
            db,
            path: path.to_owned(),
            class: None,
            body: Vec::with_capacity(4096),
            texts: Keeper::beside(path, holds),
            mark: None,
            counts: IdMap::default(),
        }
    }

    /// Also records the number of the last committed event beside the journal.
    #[must_use]
    pub fn marking(mut self, mark: Option<Mark>) -> Self {
        self.mark = mark;
        self
    }

    /// Appends the result of a step, whole or not at all.
    ///
    /// # Errors
    /// If nothing was written.
    pub fn commit(&mut self, commit: &Commit, class: CommitClass) -> Result<(), CommitError> {
        failpoints::here(Point::BeforeWrite);
        if let Err(error) = self.try_commit(commit, class) {
            // The counts include events that are not in the file.
            self.counts.clear();
            self.texts.rolled_back();
            return Err(match error {
                NotKept::Journal(error) => failure(&self.path, &error),
                other => not_kept(&self.path, &other),
            });
        }
        self.texts.committed();
        if self.counts.len() > MOST_COUNTED {
            self.counts.clear();
        }
        if let (Some(mark), Some(last)) = (&self.mark, commit.events.last()) {
            // If the record cannot be written it is too low: a start notices less, and nothing is lost.
            let _ = mark.set(last.seq);
        }
        failpoints::here(Point::Synced);
        Ok(())
    }

    fn try_commit(&mut self, commit: &Commit, class: CommitClass) -> Result<(), NotKept> {
        if self.class != Some(class) {
            let level = match class {
                CommitClass::Written => "PRAGMA synchronous = NORMAL",
                CommitClass::Synced => "PRAGMA synchronous = FULL",
            };
            self.db.execute_batch(level)?;
            self.class = Some(class);
        }
        let transaction = self.db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut named = self.texts.keep(&transaction, &commit.events)?;
        {
            let mut insert = transaction.prepare_cached(record::INSERT)?;
            for event in &commit.events {
                let nth = event.run.map(|run| next_of(&transaction, &mut self.counts, run, &event.body)).transpose()?;
                record::insert(&mut insert, event, nth, &mut self.body)?;
                if let (EventBody::RunArchived, Some(run)) = (&event.body, event.run) {
                    self.counts.remove(&run);
                }
            }
        }
        let mut made = Made::default();
        for event in &commit.events {
            made.count(event);
            let blobs = match event.body {
                EventBody::RunSubmitted { .. } => event.run.and_then(|run| named.remove(&run)),
                _ => None,
            };
            follow(&transaction, event, blobs.as_deref())?;
        }
        // These runs were made before.
        for (run, blobs) in named {
            let sql = "UPDATE run SET blobs = coalesce(blobs || ' ', '') || ?2 WHERE id = ?1";
            transaction.prepare_cached(sql)?.execute(params![run.to_string(), blobs])?;
        }
        made.store(&transaction)?;
        for view in &commit.archived {
            archive(&transaction, view)?;
        }
        tally(&transaction, &commit.archived)?;
        // Last, since a run may be pruned in the step in which it left the world.
        for event in &commit.events {
            match &event.body {
                EventBody::RunsPruned { runs } => {
                    runs.iter().try_for_each(|run| prune(&transaction, *run, &mut self.texts))?;
                }
                EventBody::EventsPruned { events } => {
                    let mut delete = transaction.prepare_cached("DELETE FROM event WHERE seq = ?1 AND run IS NULL")?;
                    for gone in events.iter().filter(|gone| **gone < event.seq) {
                        delete.execute([gone.0.cast_signed()])?;
                    }
                }
                _ => {}
            }
        }
        failpoints::here(Point::Written);
        Ok(transaction.commit()?)
    }

    /// Gives pages of pruned runs back to the file system. Returns whether there are more.
    ///
    /// # Errors
    /// If that fails; nothing is lost.
    pub fn tidy(&mut self) -> Result<bool, CommitError> {
        let tidied = || -> Result<bool, rusqlite::Error> {
            let free = |db: &Connection| db.query_row("PRAGMA freelist_count", [], |row| row.get::<_, u32>(0));
            if free(&self.db)? == 0 {
                return Ok(false);
            }
            let mut vacuum = self.db.prepare(&format!("PRAGMA incremental_vacuum({TIDIED_PAGES})"))?;
            let mut rows = vacuum.query([])?;
            while rows.next()?.is_some() {}
            drop(rows);
            let more = free(&self.db)? > 0;
            if !more {
                self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
            }
            Ok(more)
        };
        tidied().map_err(|error| failure(&self.path, &error))
    }
}

impl Drop for Writer {
    /// Merges the write-ahead log into the main file, if no other connection reads. Otherwise the log stays, and its
    /// commits are safe there.
    fn drop(&mut self) {
        let _ = self.db.busy_timeout(LAST_WAIT);
        let _ = self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
}

/// The number that the next event of a run, with this body, gets among the events of its run.
fn next_of(
    transaction: &Transaction<'_>,
    counts: &mut IdMap<RunId, u64>,
    run: RunId,
    body: &EventBody,
) -> Result<u64, rusqlite::Error> {
    let count = match counts.entry(run) {
        Entry::Occupied(count) => count.into_mut(),
        // No event of a run comes before its submit.
        Entry::Vacant(count) if matches!(body, EventBody::RunSubmitted { .. }) => count.insert(0),
        Entry::Vacant(count) => count.insert(written_of(transaction, run)?),
    };
    *count += 1;
    Ok(*count)
}

/// Number of events of a run that are in the file.
fn written_of(transaction: &Transaction<'_>, run: RunId) -> Result<u64, rusqlite::Error> {
    let id = run.to_string();
    let last = "SELECT body FROM event WHERE run = ?1 ORDER BY seq DESC LIMIT 1";
    let body: Option<String> = transaction.prepare_cached(last)?.query_row([&id], |row| row.get(0)).optional()?;
    match body.as_deref().map(record::nth) {
        None => Ok(0),
        Some(Some(nth)) => Ok(nth),
        // An earlier daemon has written it, without a number.
        Some(None) => {
            let count = "SELECT count(*) FROM event WHERE run = ?1";
            Ok(transaction.prepare_cached(count)?.query_row([&id], |row| row.get::<_, i64>(0))?.cast_unsigned())
        }
    }
}

/// The highest numbers that a step used for ids.
#[derive(Default)]
struct Made {
    /// The highest number of a run.
    runs: u64,
    calls: u64,
    interactions: u64,
    reliefs: u64,
}

impl Made {
    fn count(&mut self, event: &Event) {
        match &event.body {
            EventBody::RunSubmitted { number, .. } => self.runs = self.runs.max(*number),
            EventBody::InferenceFinished { calls, .. } => self.calls += calls.len() as u64,
            EventBody::InteractionOpened { .. } => self.interactions += 1,
            EventBody::LaneRelieved { .. } => self.reliefs += 1,
            _ => {}
        }
    }

    fn store(&self, transaction: &Transaction<'_>) -> Result<(), rusqlite::Error> {
        if self.runs + self.calls + self.interactions + self.reliefs == 0 {
            return Ok(());
        }
        let sql = "UPDATE daemon SET runs = max(runs, ?1), calls = calls + ?2, interactions = interactions + ?3,
            reliefs = reliefs + ?4";
        let numbers = [self.runs, self.calls, self.interactions, self.reliefs].map(u64::cast_signed);
        transaction.prepare_cached(sql)?.execute(numbers)?;
        Ok(())
    }
}

/// Updates the table of runs from an event. `blobs` are the numbers of the texts that a new run names.
pub(super) fn follow(transaction: &Transaction<'_>, event: &Event, blobs: Option<&str>) -> Result<(), rusqlite::Error> {
    match (&event.body, event.run) {
        (EventBody::RunSubmitted { number, owner, parent, idempotency_key, submit_key, spec, .. }, Some(run)) => {
            let sql =
                "INSERT INTO run (number, id, seq, owner, parent, root, name, labels, idempotency_key, submitted_at, \
                 blobs)
                VALUES (?1, ?2, ?3, ?4, ?5, coalesce((SELECT root FROM run WHERE id = ?5), ?2), ?6, ?7, ?8, ?9, ?10)";
            let of_a_top =
                "INSERT INTO run (number, id, seq, owner, parent, root, name, labels, idempotency_key, submitted_at, \
                 blobs)
                VALUES (?1, ?2, ?3, ?4, ?5, ?2, ?6, ?7, ?8, ?9, ?10)";
            let sql = if parent.is_some() { sql } else { of_a_top };
            let labels = (!spec.labels.is_empty()).then(|| serde_json::json!(spec.labels).to_string());
            // If the user gave a key, the key that the client made is not stored.
            let own_key = submit_key.filter(|_| idempotency_key.is_none()).map(record::submit_key);
            transaction.prepare_cached(sql)?.execute(params![
                number.cast_signed(),
                run.to_string(),
                event.seq.0.cast_signed(),
                owner,
                parent.map(|run| run.to_string()),
                spec.name,
                labels,
                idempotency_key.as_deref().or(own_key.as_deref()),
                event.at.as_micros().cast_signed(),
                blobs,
            ])?;
        }
        (EventBody::RunFinished { ending }, Some(run)) => {
            let state = match ending {
                Ending::Succeeded { .. } => RunState::Succeeded,
                Ending::Failed { .. } => RunState::Failed,
                Ending::Cancelled { .. } => RunState::Cancelled,
            };
            let sql = "UPDATE run SET state = ?2, ended_at = ?3 WHERE id = ?1";
            let at = event.at.as_micros().cast_signed();
            transaction.prepare_cached(sql)?.execute(params![run.to_string(), state.as_str(), at])?;
        }
        (EventBody::ClockSet { from }, _) => set_clock(transaction, *from, event.at)?,
        _ => {}
    }
    Ok(())
}

/// When the clock is set, the ends of runs move with it: `prune` computes ages from `ended_at`, and no run may get
/// older by this.
fn set_clock(transaction: &Transaction<'_>, from: Timestamp, to: Timestamp) -> Result<(), rusqlite::Error> {
    let (forward, back) = (to.since(from).as_micros().cast_signed(), from.since(to).as_micros().cast_signed());
    let sql = "UPDATE run SET ended_at = max(0, ended_at + ?1 - ?2) WHERE state IS NOT NULL AND ended_at > ?3";
    let above = if back > 0 { to.as_micros().cast_signed() } else { -1 };
    transaction.prepare_cached(sql)?.execute([forward, back, above])?;
    Ok(())
}

fn archive(transaction: &Transaction<'_>, view: &RunView) -> Result<(), rusqlite::Error> {
    let run = view.id.to_string();
    let text = serde_json::to_string(view).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let sql = "INSERT INTO listing (number, view) SELECT number, ?2 FROM run WHERE id = ?1";
    transaction.prepare_cached(sql)?.execute(params![run, text])?;
    transaction.prepare_cached("UPDATE run SET archived = 1 WHERE id = ?1")?.execute([run])?;
    Ok(())
}

/// Counts runs that left the world.
fn tally(transaction: &Transaction<'_>, archived: &[RunView]) -> Result<(), rusqlite::Error> {
    let mut counts = BTreeMap::<&str, u32>::new();
    archived.iter().for_each(|view| *counts.entry(view.state.as_str()).or_default() += 1);
    for (state, count) in counts {
        let sql = "INSERT INTO tally (state, runs) VALUES (?1, ?2) ON CONFLICT (state) DO UPDATE SET runs = runs + ?2";
        transaction.prepare_cached(sql)?.execute(params![state, count])?;
    }
    Ok(())
}

fn prune(transaction: &Transaction<'_>, run: RunId, texts: &mut Keeper) -> Result<(), NotKept> {
    let run = run.to_string();
    texts.release(transaction, &run)?;
    let sql = "UPDATE tally SET runs = runs - 1 WHERE state = (SELECT state FROM run WHERE id = ?1 AND archived = 1)";
    transaction.prepare_cached(sql)?.execute([&run])?;
    let sql = "DELETE FROM listing WHERE number = (SELECT number FROM run WHERE id = ?1)";
    transaction.prepare_cached(sql)?.execute([&run])?;
    transaction.prepare_cached("DELETE FROM event WHERE run = ?1")?.execute([&run])?;
    transaction.prepare_cached("DELETE FROM run WHERE id = ?1")?.execute([&run])?;
    Ok(())
}

fn failure(file: &Path, error: &rusqlite::Error) -> CommitError {
    // SQLite reports the kernel's EFBIG in the same way as a disk that fails.
    let may_be_limit = matches!(error.sqlite_error_code(), Some(ErrorCode::SystemIoFailure | ErrorCode::DiskFull));
    if may_be_limit && let Some(limit) = disk::file_size_limit() {
        let (path, pid) = (file.display(), std::process::id());
        let reason =
            format!("{path} cannot be written: the limit of file size of the daemon (pid {pid}) is {limit} bytes");
        return CommitError { fault: CommitFault::Limited, reason };
    }
    let fault = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => CommitFault::Full,
        Some(ErrorCode::ReadOnly) => CommitFault::ReadOnly,
        Some(ErrorCode::SystemIoFailure) if is_read_only(file) => CommitFault::ReadOnly,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => CommitFault::Locked,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => CommitFault::Damaged,
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::ApiMisuse) | None => {
            CommitFault::Ours
        }
        Some(_) => CommitFault::Failing,
    };
    CommitError { fault, reason: reason(file, error) }
}

/// What it means that a text is not kept.
fn not_kept(journal: &Path, error: &NotKept) -> CommitError {
    let fault = match error {
        NotKept::File { source, .. } => match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => CommitFault::Full,
            ErrorKind::ReadOnlyFilesystem => CommitFault::ReadOnly,
            ErrorKind::FileTooLarge => CommitFault::Limited,
            _ => CommitFault::Failing,
        },
        NotKept::Journal(_) | NotKept::OtherText(_) => CommitFault::Ours,
    };
    CommitError { fault, reason: format!("beside {}: {error}", journal.display()) }
}

/// The reason, for the operator.
pub(super) fn reason(file: &Path, error: &rusqlite::Error) -> String {
    let path = file.display();
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) if is_read_only(file) => {
            format!("{path} cannot be written: its file system has become read-only; see the kernel's log")
        }
        Some(ErrorCode::DiskFull) => format!("no space is left for {path}"),
        Some(ErrorCode::ReadOnly) => format!("{path} cannot be written: its file system is read-only"),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            format!("another program has {path} locked for writing")
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => format!("{path} is damaged: {error}"),
        _ => format!("{path} cannot be written: {error}"),
    }
}

/// Whether a file system that was writable is read-only now: SQLite reports that as any other failure. Asks for a file
/// without a name, because `access` knows nothing of a file system that its driver has shut, and to open and close the
/// journal itself would drop SQLite's locks on it.
fn is_read_only(file: &Path) -> bool {
    let nameless = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    file.parent().is_some_and(|dir| open(dir, nameless, Mode::RUSR | Mode::WUSR).err() == Some(Errno::ROFS))
}
