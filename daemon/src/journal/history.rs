//! Reads from the journal: events after any number, runs that have left the world, runs that may be pruned.
//!
//! Every read blocks for as long as the disk takes, so no caller may read on the driver's thread. A read sees each
//! commit that was acknowledged before it. Has the reading connections. Must not change anything in the journal; the
//! only file that it writes is that of a backup.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use harness_protocol::blob::BlobHash;
use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::{IdPrefix, RunId, Seq};
use harness_protocol::rpc::Selector;
use harness_protocol::run::{RunState, RunView};
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Timestamp;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params, params_from_iter};

use super::content::{self, Files, Holds, Texts};
use super::record::{self, COLUMNS};
use super::writer::reason;
use super::{Record, backup, damage};
use crate::refusal::{JournalRefusal, NameRefusal, Refusal};
use crate::world::api::{KeySpace, MadeRun, Operator, may_be_an_id, name_and_id, short};

/// Connections kept open between reads.
const IDLE: usize = 4;
/// A message that was sent before is looked for among this many of the latest events.
const LATEST: u64 = 200_000;
/// Bytes of listings that are read for one page.
const LISTED_BYTES: usize = 8 * 1024 * 1024;

/// The reader. Clones share the same connections.
#[derive(Debug, Clone, Default)]
pub struct History {
    inner: Option<Arc<Inner>>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    holds: Holds,
}

/// Selects runs of the journal.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// By labels and state.
    pub select: Selector,
    /// Only runs of the tree of this run.
    pub root: Option<RunId>,
}

/// Selects finished runs that may be pruned.
#[derive(Debug, Clone, Default)]
pub struct Prunable {
    /// By labels and state.
    pub select: Selector,
    /// Only runs that ended before this time.
    pub before: Option<Timestamp>,
    /// Only runs that ended at this time with this number, or earlier in that order.
    pub before_or_at: Option<(Timestamp, u64)>,
}

type Read<T> = Result<T, rusqlite::Error>;

impl History {
    /// A reader of the journal at `path`, which must exist.
    pub fn new(path: &Path) -> Self {
        Self { inner: Some(Arc::new(Inner { path: path.to_owned(), idle: Mutex::default(), holds: Holds::default() })) }
    }

    /// A reader of an empty journal.
    pub fn none() -> Self {
        Self::default()
    }

    /// The holds of the files that this reads. The writer of the journal has them too.
    pub fn holds(&self) -> Holds {
        self.inner.as_ref().map(|inner| inner.holds.clone()).unwrap_or_default()
    }

    fn read<T: Default>(&self, read: impl FnOnce(&Connection) -> Read<T>) -> Result<T, JournalRefusal> {
        let Some(inner) = &self.inner else { return Ok(T::default()) };
        inner.read(read).map_err(|error| JournalRefusal::Unreadable { why: reason(&inner.path, &error) })
    }

    /// Records after `after`, in order: at most `most` records and about `bytes` bytes, and only of `run` if a run is
    /// named. Also returns whether these were all.
    ///
    /// # Errors
    /// If the journal cannot be read. The same holds for every method below.
    pub fn after(
        &self,
        after: Seq,
        run: Option<RunId>,
        most: usize,
        bytes: usize,
    ) -> Result<(Vec<Record>, bool), JournalRefusal> {
        self.read(|db| {
            let of_run = if run.is_some() { "run = ?2 AND" } else { "?2 IS NULL AND" };
            let sql = format!("SELECT {COLUMNS} FROM event WHERE {of_run} seq > ?1 ORDER BY seq");
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query(params![after.0.cast_signed(), run.map(|run| run.to_string())])?;
            let (mut records, mut size) = (Vec::new(), 0);
            while records.len() < most && size < bytes {
                let Some(row) = rows.next()? else { return Ok((records, true)) };
                let (record, bytes) = Record::read(row)?;
                size += bytes;
                records.push(record);
            }
            Ok((records, false))
        })
    }

    /// All records of a run, with the texts that they name.
    pub fn of(&self, run: RunId) -> Result<Vec<Record>, JournalRefusal> {
        self.with_texts(self.after(Seq(0), Some(run), usize::MAX, usize::MAX)?.0)
    }

    /// These records with the texts that they name.
    pub fn with_texts(&self, records: Vec<Record>) -> Result<Vec<Record>, JournalRefusal> {
        let Some(inner) = &self.inner else { return Ok(records) };
        let mut texts = Texts::beside(&inner.path);
        self.read(|db| Ok(records.into_iter().map(|record| texts.attach(db, record)).collect()))
    }

    /// A text by its name, if runs name it: runs of the tree below `top` where there is one.
    ///
    /// # Errors
    /// Also where the text is missing or damaged.
    pub fn text(&self, hash: BlobHash, top: Option<RunId>) -> Result<Option<String>, JournalRefusal> {
        let Some(inner) = &self.inner else { return Ok(None) };
        let files = Files::beside(&inner.path);
        // A prune between the statements, or between the row and its file, takes nothing from this read.
        let hold = inner.holds.hold();
        let found = self.read(|db| {
            let db = &db.unchecked_transaction()?;
            let sql = "SELECT number FROM blob WHERE hash = ?1";
            let number =
                db.prepare_cached(sql)?.query_row([hash.to_string()], |row| row.get::<_, i64>(0)).optional()?;
            let Some(number) = number else { return Ok(None) };
            if let Some(top) = top {
                let sql = "SELECT EXISTS (SELECT 1 FROM run WHERE id = ?1 AND instr(' ' || blobs || ' ', ?2) > 0)
                    OR EXISTS (SELECT 1 FROM run WHERE root = ?1 AND parent IS NOT NULL
                        AND instr(' ' || blobs || ' ', ?2) > 0)";
                let is_named: bool = db
                    .prepare_cached(sql)?
                    .query_row(params![top.to_string(), format!(" {number} ")], |row| row.get(0))?;
                if !is_named {
                    return Ok(None);
                }
            }
            Ok(Some(content::read(db, &files, hash)))
        })?;
        drop(hold);
        found.transpose().map_err(|why| JournalRefusal::Text { hash, why })
    }

    /// The run that an operator means by id, unique prefix, name or `@last`, whether it has left the world or not. A
    /// name means a run that an operator submitted: models choose the names of children.
    ///
    /// # Errors
    /// Also where there is no such run, or there are several.
    pub fn find(&self, name: &str, operator: Operator) -> Result<RunId, Refusal> {
        if name == "@last" {
            let sql = "SELECT id FROM run WHERE owner = ?1 AND parent IS NULL ORDER BY number DESC LIMIT 1";
            let last = self.read(|db| db.prepare_cached(sql)?.query_row([operator.uid()], run_id).optional())?;
            return last.ok_or_else(|| NameRefusal::NoRunYet.into());
        }
        let by_name = || {
            let sql = "SELECT id FROM run WHERE name = ?1 AND parent IS NULL ORDER BY number DESC LIMIT 1";
            self.read(|db| db.prepare_cached(sql)?.query_row([name], run_id).optional())
        };
        let not_found = || self.no_run(name).unwrap_or_else(Refusal::from);
        let Ok(prefix) = name.parse::<IdPrefix>() else { return by_name()?.ok_or_else(not_found) };
        // The digits of ids sort like their values.
        let (first, last) = prefix.range().into_inner();
        let (first, last) = (RunId::from_u64(first).to_string(), RunId::from_u64(last).to_string());
        let sql = "SELECT id FROM run WHERE id BETWEEN ?1 AND ?2 ORDER BY id LIMIT 8";
        let found =
            self.read(|db| db.prepare_cached(sql)?.query_map([first, last], run_id)?.collect::<Read<Vec<RunId>>>())?;
        // An id is never a name, whatever some run is called.
        let named = if prefix.is_whole() { None } else { by_name()? };
        match (named, found.as_slice()) {
            (Some(named), others) => {
                match others.iter().find(|&&other| other != named).filter(|_| may_be_an_id(name)) {
                    Some(&other) => Err(name_and_id(name, named, other).into()),
                    None => Ok(named),
                }
            }
            (None, [run]) => Ok(*run),
            (None, []) => Err(not_found()),
            (None, several) => Err(NameRefusal::SeveralRuns { name: short(name), runs: several.to_vec() }.into()),
        }
    }

    /// The refusal of what means no run to an operator.
    fn no_run(&self, text: &str) -> Result<Refusal, JournalRefusal> {
        let sql = "SELECT id FROM run WHERE name = ?1 AND parent IS NOT NULL ORDER BY number DESC LIMIT 8";
        let runs = self.read(|db| db.prepare_cached(sql)?.query_map([text], run_id)?.collect::<Read<Vec<RunId>>>())?;
        let name = short(text);
        let is_known = !runs.is_empty();
        Ok(if is_known { NameRefusal::ChildName { name, runs } } else { NameRefusal::NoRun { name } }.into())
    }

    /// The run that was submitted under an idempotency key, whether it has left the world or not.
    pub fn by_key(&self, space: KeySpace, key: &str) -> Result<Option<RunId>, JournalRefusal> {
        let (within, value) = match space {
            KeySpace::Operator(uid) => ("parent IS NULL AND owner = ?2", Sql::Integer(uid.into())),
            KeySpace::Tree(root) => ("parent IS NOT NULL AND root = ?2", Sql::Text(root.to_string())),
        };
        let sql = format!("SELECT id FROM run WHERE idempotency_key = ?1 AND {within} ORDER BY number DESC LIMIT 1");
        self.read(|db| db.prepare_cached(&sql)?.query_row(params![key, value], run_id).optional())
    }

    /// The run that was submitted under a key that its client made, whether it has left the world or not.
    pub fn by_submit_key(&self, key: SubmitKey) -> Result<Option<MadeRun>, JournalRefusal> {
        let sql = "SELECT id, seq, parent FROM run WHERE idempotency_key = ?1 ORDER BY number DESC LIMIT 1";
        self.read(|db| db.prepare_cached(sql)?.query_row([record::submit_key(key)], made).optional())
    }

    /// The run that got a message under a key that its client made, with the event of that message. Only the latest
    /// events are searched: a message is sent again soon, or not at all.
    pub fn told_under(&self, key: SubmitKey) -> Result<Option<MadeRun>, JournalRefusal> {
        let sql = "SELECT event.run, event.seq, run.parent FROM event LEFT JOIN run ON run.id = event.run
            WHERE event.seq > (SELECT max(seq) FROM event) - ?2 AND kind = 'message-received' AND instr(body, ?1) > 0
            ORDER BY event.seq LIMIT 1";
        let said = format!("\"submit_key\":\"{key}\"");
        self.read(|db| db.prepare_cached(sql)?.query_row(params![said, LATEST.cast_signed()], made).optional())
    }

    /// A run that has left the world, as lists show it.
    pub fn view(&self, run: RunId) -> Result<Option<RunView>, JournalRefusal> {
        let sql =
            format!("SELECT view, number, id, {} FROM run JOIN listing USING (number) WHERE id = ?1", damage::COLUMNS);
        let listed = |row: &rusqlite::Row<'_>| {
            Ok(view(row).map_err(|error| error.to_string()).or_else(|why| unreadable(row, &why)).ok())
        };
        let found = self.read(|db| db.prepare_cached(&sql)?.query_row([run.to_string()], listed).optional())?;
        Ok(found.flatten())
    }

    /// Whether the journal knows a run.
    pub fn knows(&self, run: RunId) -> Result<bool, JournalRefusal> {
        let sql = "SELECT true FROM run WHERE id = ?1";
        let known = self.read(|db| db.prepare_cached(sql)?.query_row([run.to_string()], |_| Ok(())).optional())?;
        Ok(known.is_some())
    }

    /// Whether a run has left the world.
    pub fn has_left(&self, run: RunId) -> Result<bool, JournalRefusal> {
        let sql = "SELECT archived FROM run WHERE id = ?1";
        let left = self.read(|db| db.prepare_cached(sql)?.query_row([run.to_string()], |row| row.get(0)).optional())?;
        Ok(left.unwrap_or(false))
    }

    /// Those of these runs that the journal says were pruned.
    pub fn pruned_of(&self, runs: &BTreeSet<RunId>) -> Result<BTreeSet<RunId>, JournalRefusal> {
        let sql = format!("SELECT {COLUMNS} FROM event WHERE run IS NULL AND kind = 'runs-pruned'");
        self.read(|db| {
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query([])?;
            let mut found = BTreeSet::new();
            while let Some(row) = rows.next()? {
                if let Record::Event(event) = Record::read(row)?.0
                    && let EventBody::RunsPruned { runs: pruned } = &event.body
                {
                    found.extend(pruned.iter().filter(|run| runs.contains(run)));
                }
            }
            Ok(found)
        })
    }

    /// Number of events about the daemon, its lanes and its providers.
    pub fn count_of_daemon(&self) -> Result<usize, JournalRefusal> {
        let sql = "SELECT count(*) FROM event WHERE run IS NULL";
        let count = self.read(|db| db.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(0)))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// These events, as far as they can be read, and the number of the first event of the runs that have not left the
    /// world.
    pub fn of_daemon(&self) -> Result<(Vec<Arc<Event>>, Option<Seq>), JournalRefusal> {
        let sql = format!("SELECT {COLUMNS} FROM event WHERE run IS NULL ORDER BY seq");
        self.read(|db| {
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query([])?;
            let mut events = Vec::new();
            while let Some(row) = rows.next()? {
                if let Record::Event(event) = Record::read(row)?.0 {
                    events.push(event);
                }
            }
            let first = "SELECT min(seq) FROM run WHERE archived = 0";
            let first: Option<i64> = db.prepare_cached(first)?.query_row([], |row| row.get(0))?;
            Ok((events, first.map(|seq| Seq(seq.cast_unsigned()))))
        })
    }

    /// Number of the event with the submit of a run.
    pub fn made_by(&self, run: RunId) -> Result<Option<Seq>, JournalRefusal> {
        let sql = "SELECT seq FROM run WHERE id = ?1";
        let number = |row: &rusqlite::Row<'_>| Ok(Seq(row.get::<_, i64>(0)?.cast_unsigned()));
        self.read(|db| db.prepare_cached(sql)?.query_row([run.to_string()], number).optional())
    }

    /// Runs below `top`, at most `most` of them.
    pub fn tree_below(&self, top: RunId, most: u32) -> Result<Vec<RunId>, JournalRefusal> {
        let sql = "WITH RECURSIVE below (id) AS (
                SELECT ?1 UNION
                SELECT run.id FROM below CROSS JOIN run ON run.parent = below.id
                    AND run.root = (SELECT root FROM run WHERE id = ?1)
            ) SELECT id FROM below WHERE id <> ?1 LIMIT ?2";
        self.read(|db| db.prepare_cached(sql)?.query_map(params![top.to_string(), most], run_id)?.collect())
    }

    /// Runs that have left the world, newest first, with their numbers: those below `below` and not below `from`. Also
    /// returns whether there may be more: a page ends early if the listings are large.
    pub fn page(
        &self,
        query: &Query,
        below: u64,
        from: u64,
        most: usize,
    ) -> Result<(Vec<(u64, RunView)>, bool), JournalRefusal> {
        let mut filter = Filter::new("archived = 1");
        filter.and("number < ?", [number(below)]);
        filter.and("number >= ?", [number(from)]);
        filter.select(&query.select);
        if let Some(root) = query.root {
            filter.and("(root = ? OR id = ?)", [Sql::Text(root.to_string()), Sql::Text(root.to_string())]);
        }
        let sql = format!(
            "SELECT view, number, id, {} FROM run JOIN listing USING (number) WHERE {} ORDER BY number DESC LIMIT \
             {most}",
            damage::COLUMNS,
            filter.sql
        );
        self.read(|db| {
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query(params_from_iter(filter.values))?;
            let (mut page, mut bytes) = (Vec::new(), 0);
            while bytes < LISTED_BYTES {
                let Some(row) = rows.next()? else {
                    let full = page.len() >= most;
                    return Ok((page, full));
                };
                bytes += row.get_ref(0)?.as_bytes().map_or(0, <[u8]>::len);
                let number = row.get::<_, i64>(1)?.cast_unsigned();
                match view(row).map_err(|error| error.to_string()).or_else(|why| unreadable(row, &why)) {
                    Ok(view) => page.push((number, view)),
                    // Not even its id can be read.
                    Err(why) => tracing::error!(number, why, "a run cannot be listed"),
                }
            }
            Ok((page, true))
        })
    }

    /// Number of runs that have left the world, by state.
    pub fn counts(&self) -> Result<BTreeMap<RunState, u32>, JournalRefusal> {
        let sql = "SELECT state, runs FROM tally WHERE runs > 0";
        let counts: Vec<(String, u32)> =
            self.read(|db| db.prepare_cached(sql)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())?;
        Ok(counts.into_iter().filter_map(|(state, count)| Some((state.parse().ok()?, count))).collect())
    }

    /// Top runs of finished trees that may be pruned, with numbers above `after`, in the order of their numbers.
    pub fn prunable(&self, which: &Prunable, after: u64, most: usize) -> Result<Vec<(u64, RunId)>, JournalRefusal> {
        let mut filter = Filter::new("state IS NOT NULL AND parent IS NULL");
        filter.select(&which.select);
        if let Some(before) = which.before {
            filter.and("ended_at < ?", [number(before.as_micros())]);
        }
        if let Some((at, of)) = which.before_or_at {
            filter.and("(ended_at, number) <= (?, ?)", [number(at.as_micros()), number(of)]);
        }
        filter.and("number > ?", [number(after)]);
        let sql = format!("SELECT id, number FROM run WHERE {} ORDER BY number LIMIT {most}", filter.sql);
        self.read(|db| {
            let mut statement = db.prepare_cached(&sql)?;
            let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(1)?.cast_unsigned(), run_id(row)?));
            statement.query_map(params_from_iter(filter.values), row)?.collect()
        })
    }

    /// The latest of the selected trees after the `keep` latest are left out.
    pub fn last_beyond(&self, which: &Prunable, keep: u32) -> Result<Option<(Timestamp, u64)>, JournalRefusal> {
        let mut filter = Filter::new("state IS NOT NULL AND parent IS NULL");
        filter.select(&which.select);
        if let Some(before) = which.before {
            filter.and("ended_at < ?", [number(before.as_micros())]);
        }
        let sql = format!(
            "SELECT ended_at, number FROM run WHERE {} ORDER BY ended_at DESC, number DESC LIMIT 1 OFFSET {keep}",
            filter.sql
        );
        let row = |row: &rusqlite::Row<'_>| {
            let (at, number) = (row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned());
            Ok((Timestamp::from_micros(at), number))
        };
        self.read(|db| db.prepare_cached(&sql)?.query_row(params_from_iter(filter.values), row).optional())
    }

    /// Writes a copy that needs no other file to a new file.
    ///
    /// # Errors
    /// Also where the file exists already or cannot be made.
    pub fn back_up(&self, to: &Path, with_outputs: bool) -> Result<(u64, Option<u64>), JournalRefusal> {
        self.back_up_with(to, with_outputs, || {})
    }

    /// The same; `between` is called when the journal is copied, and before the files of its texts are.
    pub(super) fn back_up_with(
        &self,
        to: &Path,
        with_outputs: bool,
        between: impl FnOnce(),
    ) -> Result<(u64, Option<u64>), JournalRefusal> {
        let refused =
            |error: std::io::Error| JournalRefusal::Backup { path: to.display().to_string(), why: error.to_string() };
        let backup = backup::Unnamed::new(to, with_outputs).map_err(refused)?;
        let state_dir = self.inner.as_ref().and_then(|inner| inner.path.parent()).unwrap_or(Path::new("/"));
        let draft = backup.draft(state_dir).map_err(refused)?;
        let hold = self.holds().hold();
        self.read(|db| backup::copy_as_backup(db, &draft.path, state_dir, &hold, between))?;
        drop(hold);
        let bytes = backup.take(&draft).map_err(refused)?;
        drop(draft);
        // Outputs are copied after the journal: they have all that the journal refers to, but for runs pruned
        // meanwhile.
        let outputs = Some(state_dir.join("outputs")).filter(|dir| with_outputs && dir.is_dir());
        let copied = outputs.as_deref().map(|dir| backup.outputs(dir)).transpose().map_err(refused)?;
        backup.name(copied.is_some()).map_err(refused)?;
        Ok((bytes, with_outputs.then_some(copied.unwrap_or(0))))
    }
}

impl Inner {
    fn read<T>(&self, read: impl FnOnce(&Connection) -> Read<T>) -> Read<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let db = match idle {
            Some(db) => db,
            None => self.open()?,
        };
        let answer = read(&db);
        // A connection that failed is not used again.
        if answer.is_ok() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE {
                idle.push(db);
            }
        }
        answer
    }

    fn open(&self) -> Read<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(&self.path, flags)?;
        db.busy_timeout(std::time::Duration::from_secs(5))?;
        db.execute_batch("PRAGMA cache_size = -1024")?;
        Ok(db)
    }
}

/// An SQL condition with its values, built step by step.
struct Filter {
    sql: String,
    values: Vec<Sql>,
}

impl Filter {
    fn new(first: &str) -> Self {
        Self { sql: first.to_owned(), values: Vec::new() }
    }

    fn and(&mut self, sql: &str, values: impl IntoIterator<Item = Sql>) {
        self.sql.push_str(" AND ");
        self.sql.push_str(sql);
        self.values.extend(values);
    }

    fn select(&mut self, select: &Selector) {
        if !select.states.is_empty() {
            let places = vec!["?"; select.states.len()].join(", ");
            let states: Vec<Sql> = select.states.iter().map(|state| Sql::Text(state.as_str().to_owned())).collect();
            self.and(&format!("state IN ({places})"), states);
        }
        for (key, value) in &select.labels {
            // Labels of one run that are not JSON must not make the whole selection fail.
            let holds = "CASE WHEN json_valid(run.labels) THEN
                EXISTS (SELECT 1 FROM json_each(run.labels) WHERE key = ? AND value = ?) ELSE false END";
            self.and(holds, [Sql::Text(key.clone()), Sql::Text(value.clone())]);
        }
        if !select.waiting_for.is_empty() {
            // A finished run waits for nothing.
            self.and("0", []);
        }
        if !select.runs.is_empty() {
            let places = vec!["?"; select.runs.len()].join(", ");
            let runs: Vec<Sql> = select.runs.iter().map(|run| Sql::Text(run.clone())).collect();
            self.and(&format!("id IN ({places})"), runs);
        }
    }
}

/// A number for SQLite; a number that is too large for it becomes the largest.
fn number(number: u64) -> Sql {
    Sql::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

fn made(row: &rusqlite::Row<'_>) -> Read<MadeRun> {
    let seq = Seq(row.get::<_, i64>(1)?.cast_unsigned());
    let parent = row.get::<_, Option<String>>(2)?.and_then(|parent| parent.parse().ok());
    Ok(MadeRun { id: run_id(row)?, seq, parent })
}

fn run_id(row: &rusqlite::Row<'_>) -> Read<RunId> {
    let text: String = row.get(0)?;
    let wrong = |error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error));
    text.parse().map_err(wrong)
}

/// A run whose listing cannot be read, as far as its row has data.
fn unreadable(row: &rusqlite::Row<'_>, why: &str) -> Result<RunView, String> {
    let run = row.get::<_, String>(2).map_err(|error| error.to_string())?;
    let run: RunId = run.parse().map_err(|error| format!("{run:?} is no run: {error}"))?;
    tracing::error!(%run, why, "what a run is listed as cannot be read");
    damage::listed(run, row, 3).map_err(|error| error.to_string())
}

fn view(row: &rusqlite::Row<'_>) -> Read<RunView> {
    let text: String = row.get(0)?;
    let wrong = |error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error));
    serde_json::from_str(&text).map_err(wrong)
}
