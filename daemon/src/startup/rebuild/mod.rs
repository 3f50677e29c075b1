//! Opens the journal at a start, and restores the world from it.
//!
//! The only place with the order of these steps. It must not let the daemon serve before the world is as it was. An
//! unusable journal is reported and not changed.

mod fold_journal;
mod orphan_outputs;
mod sharing;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use harness_protocol::id::{EpochId, Seq};
use harness_protocol::rpc::{EpochReason, Finding, JournalReport};
use rusqlite::Connection;
use tracing::{error, info, warn};

use crate::config::Config;
use crate::driver::Clock;
use crate::journal::epochs::{self, Epoch};
use crate::journal::history::History;
use crate::journal::identity::{Beside, Instance, Recognised};
use crate::journal::replay::{Past, Replay, past};
use crate::journal::schema::{self, Fresh, OpenError, Opened};
use crate::journal::{self, FILE, Store, content, damage, made_inside_run};
use crate::process::Outputs;
use crate::tools;
use crate::world::Engine;
use crate::world::api::Damage;

use fold_journal::{Fold, Unreadable};
pub use orphan_outputs::sweep;

/// Everything that a daemon starts from.
pub struct Restored {
    /// The restored world.
    pub engine: Engine,
    /// The journal, for new steps.
    pub store: Store,
    /// The journal, for reads.
    pub history: History,
    /// The runs with unreadable records.
    pub damage: Damage,
    /// The journal's identity, and its problems.
    pub report: JournalReport,
    /// The epochs of its event numbers, the oldest first.
    pub epochs: Arc<[Epoch]>,
    /// Whether it is the journal that was here before, complete.
    pub is_the_one: bool,
}

/// Why the world could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The files of its texts cannot be looked through.
    #[error(transparent)]
    Texts(#[from] content::SweepError),
    /// There is no thread for the writer of the journal.
    #[error("cannot start the thread that writes the journal: {0}")]
    Writer(std::io::Error),
    /// A file beside the journal cannot be written.
    #[error("cannot note in {dir} which journal it has: {source}")]
    Beside {
        /// Path of the state directory.
        dir: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// Makes the world from the journal of a state directory. There is a new journal where there was none, unless outputs
/// are there; it says so where this daemon `is_inside` of a run.
///
/// # Errors
/// Where the journal cannot be used.
pub fn restore(state_dir: &Path, config: &Config, is_inside: bool) -> Result<Restored, RestoreError> {
    let clock = Clock::start();
    let path = state_dir.join(FILE);
    let failed = |error: rusqlite::Error| OpenError::of(&path, &error);
    let beside_failed = |source| RestoreError::Beside { dir: state_dir.display().to_string(), source };
    let mut beside = Beside::read(state_dir);
    let strange_log = beside.set_strange_log_aside().map_err(beside_failed)?;
    let Opened { mut db, version } = schema::open(&path, beside.was_here(), || fresh(state_dir, &path))?;
    let before = past(&db, &path)?;
    let recognised = match version {
        None => Recognised::Another(EpochReason::Begun),
        // An earlier start was killed before it had begun an epoch.
        Some(_) if !beside.was_here() && before.epochs.is_empty() && before.made.last_seq == Seq(0) => {
            Recognised::Another(EpochReason::Begun)
        }
        Some(version) => beside.recognise(before.instance, version == 1, before.made.last_seq),
    };
    let mut findings = findings(&beside, recognised, &before);
    findings.extend(strange_log.map(|to| Finding::StrangeLog { moved_to: to.display().to_string() }));
    if !findings.is_empty() && version.is_some() {
        // A person who edits a file by hand may leave it half changed.
        schema::look_through(&db, &path)?;
    }
    let (epoch, id_key) = match recognised {
        Recognised::Another(reason) => (fresh_epoch(reason, &before, &beside, &path)?, fresh_number(&path)?),
        Recognised::Same => match before.epochs.last() {
            Some(epoch) => (*epoch, before.id_key),
            None => (fresh_epoch(EpochReason::Begun, &before, &beside, &path)?, before.id_key),
        },
    };
    let mut engine = Engine::new(config.clone(), tools::catalogue(), id_key);
    let Fold { events, mut unreadable, .. } = replay(&mut engine, &path)?;
    for run in damage::unmade(&db, |run| engine.made_by(run).is_some()).map_err(failed)? {
        unreadable.entry(run).or_default();
    }
    let mut made = before.made;
    made.last_seq = made.last_seq.max(Seq(epoch.first.0.saturating_sub(1)));
    engine.catch_up(&made);
    if !unreadable.is_empty() {
        findings.push(Finding::UnreadableRuns { runs: unreadable.len() as u64 });
    }
    let damage = damage(unreadable, &engine, &db).map_err(failed)?;
    match (is_inside, version) {
        (true, None) => made_inside_run::note_inside(&db),
        (true, Some(_)) => Ok(()),
        (false, _) => made_inside_run::note_outside(&db),
    }
    .map_err(failed)?;
    let is_the_one = recognised == Recognised::Same;
    content::sweep(&db, &path, is_the_one)?;
    let instance = fresh_number(&path)?;
    let is_new = before.epochs.last() != Some(&epoch);
    let epochs = before.epochs.iter().copied().chain(is_new.then_some(epoch)).collect();
    if is_new {
        // A start that dies between the two finds its own number here, and begins no second epoch.
        match epoch.reason {
            EpochReason::Begun => beside.expect(before.instance, instance),
            reason => beside.expect_epoch(before.instance, instance, reason),
        }
        .map_err(beside_failed)?;
        epochs::begin(&mut db, &epoch, id_key, instance, clock.now().wall).map_err(failed)?;
        schema::keep(&db, &path)?;
        checkpoint(&db).map_err(failed)?;
        beside.keep(instance).map_err(beside_failed)?;
    } else {
        schema::keep(&db, &path)?;
        match renumber(&mut beside, &db, before.instance, instance) {
            // Both numbers are known beside the journal, whichever was written.
            Err(error) if error.is_full() => warn!("the journal keeps its number: there is no room for another one"),
            renumbered => renumbered.map_err(|error| error.of(&path, state_dir))?,
        }
    }
    let mark = beside.mark(made.last_seq).map_err(beside_failed)?;
    if events > 0 {
        let runs = engine.counts().values().sum::<u32>();
        let took_milliseconds = clock.now().mono.as_micros() / 1000;
        info!(events, runs, last = %before.made.last_seq, took_milliseconds, "went on from the journal");
    }
    for finding in &findings {
        error!("{finding}");
    }
    let report = JournalReport { epoch: Some(epoch.id), since: Some(epoch.first), findings };
    let history = History::new(&path);
    let store = Store::start(db, &path, Some(mark), &history).map_err(RestoreError::Writer)?;
    Ok(Restored { engine, store, history, damage, report, epochs, is_the_one })
}

/// Why a journal did not get its new number.
#[derive(Debug)]
enum NotRenumbered {
    Beside(std::io::Error),
    Journal(rusqlite::Error),
}

impl NotRenumbered {
    /// Whether the disk was full.
    fn is_full(&self) -> bool {
        match self {
            Self::Beside(error) => matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded),
            Self::Journal(error) => error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
        }
    }

    fn of(self, path: &Path, state_dir: &Path) -> RestoreError {
        match self {
            Self::Beside(source) => RestoreError::Beside { dir: state_dir.display().to_string(), source },
            Self::Journal(error) => OpenError::of(path, &error).into(),
        }
    }
}

/// Gives the journal its next number. A start that dies in between finds either number beside it.
fn renumber(beside: &mut Beside, db: &Connection, now: Instance, next: Instance) -> Result<(), NotRenumbered> {
    beside.expect(now, next).map_err(NotRenumbered::Beside)?;
    epochs::rename(db, next).map_err(NotRenumbered::Journal)?;
    checkpoint(db).map_err(NotRenumbered::Journal)?;
    beside.keep(next).map_err(NotRenumbered::Beside)
}

/// Writes the number into the file itself, so that it does not depend on the write-ahead log.
fn checkpoint(db: &Connection) -> Result<(), rusqlite::Error> {
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// The number of a new journal. There is no new journal where outputs of an earlier one are.
fn fresh(state_dir: &Path, path: &Path) -> Result<Fresh, OpenError> {
    match Outputs::new(state_dir).runs().len() {
        0 => Ok(Fresh { id_key: fresh_number(path)? }),
        outputs => Err(OpenError::Missing { path: path.to_owned(), outputs }),
    }
}

fn fresh_number(path: &Path) -> Result<u64, OpenError> {
    let io = |error: std::io::Error| OpenError::Io { path: path.to_owned(), why: error.to_string() };
    // 0 has a meaning of its own.
    journal::fresh_key().map(|number| number.max(1)).map_err(io)
}

/// An epoch that begins now: with the first event, or far after the last one, and after all numbers that were used
/// here, even in lost histories.
fn fresh_epoch(reason: EpochReason, before: &Past, beside: &Beside, path: &Path) -> Result<Epoch, OpenError> {
    let first = match reason {
        EpochReason::Begun => Seq(1),
        EpochReason::Restored | EpochReason::Copied | EpochReason::WentBack => {
            epochs::first_behind(before.made.last_seq, beside.last().unwrap_or_default())
        }
    };
    Ok(Epoch { id: EpochId::from_u64(fresh_number(path)?), first, reason })
}

/// The problems of the journal.
fn findings(beside: &Beside, recognised: Recognised, before: &Past) -> Vec<Finding> {
    let Recognised::Another(reason) = recognised else { return Vec::new() };
    let has = before.made.last_seq;
    let lost = beside.last().filter(|had| *had > has);
    match reason {
        EpochReason::Begun => beside.last().map(|had| Finding::JournalGone { had }).into_iter().collect(),
        EpochReason::Copied => vec![Finding::Replaced { reason }],
        EpochReason::Restored | EpochReason::WentBack => {
            let lost = lost.map(|had| Finding::EventsLost { had, has });
            lost.into_iter().chain([Finding::Replaced { reason }]).collect()
        }
    }
}

/// Applies every event again. Gives their number, and the runs with unreadable records.
fn replay(engine: &mut Engine, path: &Path) -> Result<Fold, OpenError> {
    let mut fold = Fold::default();
    for row in Replay::start(path)? {
        fold.take(engine, row?);
    }
    Ok(fold)
}

/// What to do about runs with unreadable records.
fn damage(unreadable: Unreadable, engine: &Engine, db: &Connection) -> Result<Damage, rusqlite::Error> {
    let mut damage = Damage::default();
    for (run, ending) in unreadable {
        if engine.made_by(run).is_none() {
            damage.lost.extend(damage::view(db, run, ending)?);
        } else if ending.is_none() {
            damage.unreadable.push(run);
        }
    }
    Ok(damage)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::fs;

    use regex::Regex;

    use super::*;
    use crate::journal::{Commit, CommitClass, Writer};
    use crate::world::testing::simulation;

    /// The world as text, but for the numbers of tickets: a lane that never saw those that are gone gives others.
    fn text(engine: &Engine) -> String {
        Regex::new(r"TicketId\([^)]*\)|TicketId \{[^}]*\}")
            .unwrap()
            .replace_all(&engine.digest_of_runs(), "T")
            .into_owned()
    }

    #[test]
    fn the_world_that_is_made_from_the_file_is_the_world_that_was_live() {
        for seed in 40..52 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(FILE);
            let (live, commits) = simulation::history(seed, 300);
            let db = schema::open(&path, false, || Ok(Fresh { id_key: seed })).unwrap().db;
            let mut writer = Writer::new(db, &path, content::Holds::default());
            let mut archived = 0;
            for (events, left) in commits {
                archived += left.len();
                writer.commit(&Commit { events, archived: left }, CommitClass::Written).unwrap();
            }
            assert!(archived > 0, "nothing has left the world in this history");
            drop(writer);
            let db = schema::open(&path, false, || unreachable!()).unwrap().db;
            let before = past(&db, &path).unwrap();
            let mut engine = Engine::new(simulation::config(), simulation::tools(), before.id_key);
            let unreadable = replay(&mut engine, &path).unwrap().unreadable;
            engine.catch_up(&before.made);
            assert!(unreadable.is_empty(), "seed {seed}: {unreadable:?}");
            let (before, after) = (text(&live), text(&engine));
            let differ = before.lines().zip(after.lines()).find(|(a, b)| a != b);
            if let Some((live, restored)) = differ {
                let at = live.bytes().zip(restored.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(80);
                panic!("seed {seed}: live {:.400}\nrestored {:.400}", &live[at..], &restored[at..]);
            }
            assert_eq!(before.lines().count(), after.lines().count());
        }
    }

    #[test]
    fn a_first_start_that_was_killed_anywhere_is_taken_for_no_copy() {
        let instance = |path: &Path| {
            let db = Connection::open(path).unwrap();
            db.query_row("SELECT instance FROM daemon", [], |row| row.get::<_, i64>(0)).unwrap().cast_unsigned()
        };
        type Killed = fn(&Path, &Path, &dyn Fn(&Path) -> u64);
        let begin = |path: &Path| drop(schema::open(path, false, || Ok(Fresh { id_key: 7 })).unwrap());
        let at: [(&str, Killed); 3] = [
            ("before anything was noted", |_, _, _| {}),
            ("before it had begun", |dir, _, _| Beside::read(dir).expect(0, 9).unwrap()),
            ("before it was noted that it had begun", |dir, path, instance| {
                drop(restore(dir, &Config::default(), false).unwrap());
                fs::remove_file(dir.join("harness.id")).unwrap();
                Beside::read(dir).expect(0, instance(path)).unwrap();
            }),
        ];
        for (when, killed) in at {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(FILE);
            begin(&path);
            killed(dir.path(), &path, &instance);
            let restored = restore(dir.path(), &Config::default(), false).unwrap();
            assert!(restored.report.findings.is_empty(), "{when}: {:?}", restored.report.findings);
            assert_eq!(restored.report.since, Some(Seq(1)), "{when}");
        }
    }

    /// A12: also where a start is killed between an epoch and the note that it has begun.
    #[test]
    fn a_start_that_was_killed_while_an_epoch_began_begins_one_and_no_second() {
        let dir = tempfile::tempdir().unwrap();
        let (path, config) = (dir.path().join(FILE), Config::default());
        drop(restore(dir.path(), &config, false).unwrap());
        let instance = || {
            let db = Connection::open(&path).unwrap();
            db.query_row("SELECT instance FROM daemon", [], |row| row.get::<_, i64>(0)).unwrap().cast_unsigned()
        };
        let reasons = || {
            let epochs = epochs::all(&Connection::open(&path).unwrap()).unwrap();
            epochs.iter().map(|epoch| epoch.reason).collect::<Vec<_>>()
        };
        let mut expected = vec![EpochReason::Begun];
        for reason in [EpochReason::Restored, EpochReason::WentBack, EpochReason::Copied] {
            let was = if reason == EpochReason::Restored { 0 } else { instance() };
            epochs::rename(&Connection::open(&path).unwrap(), was).unwrap();
            Beside::read(dir.path()).expect_epoch(was, 9, reason).unwrap();
            let restored = restore(dir.path(), &config, false).unwrap();
            assert_eq!(restored.report.findings, [Finding::Replaced { reason }]);
            drop(restored);
            expected.push(reason);
            assert_eq!(reasons(), expected, "it was about to begin");
            Beside::read(dir.path()).expect_epoch(was, instance(), reason).unwrap();
            let restored = restore(dir.path(), &config, false).unwrap();
            assert!(restored.report.findings.is_empty(), "{reason:?}: {:?}", restored.report.findings);
            drop(restored);
            assert_eq!(reasons(), expected, "it had begun");
        }
    }

    /// A restored backup names no text that is a file: those in place are another journal's.
    #[test]
    fn a_start_that_cannot_move_texts_of_another_journal_aside_begins_no_epoch_and_none_deletes_them() {
        let dir = tempfile::tempdir().unwrap();
        let (path, config) = (dir.path().join(FILE), Config::default());
        drop(restore(dir.path(), &config, false).unwrap());
        epochs::rename(&Connection::open(&path).unwrap(), 0).unwrap();
        let (text, aside) = (dir.path().join("blobs"), dir.path().join("blobs.aside"));
        let name = crate::blob::hash("text").to_string();
        fs::create_dir(&text).unwrap();
        fs::write(text.join(&name), "text").unwrap();
        fs::write(&aside, "in the way").unwrap();
        for _ in 0..2 {
            let failed = restore(dir.path(), &config, false).map(drop).unwrap_err();
            assert!(matches!(failed, RestoreError::Texts(_)), "{failed}");
            assert!(text.join(&name).exists());
        }
        fs::remove_file(&aside).unwrap();
        let restored = restore(dir.path(), &config, false).unwrap();
        assert_eq!(restored.report.findings, [Finding::Replaced { reason: EpochReason::Restored }]);
        drop(restored);
        let restored = restore(dir.path(), &config, false).unwrap();
        assert!(restored.is_the_one);
        assert_eq!(fs::read_to_string(aside.join(&name)).unwrap(), "text");
    }

    #[test]
    fn a_new_state_directory_is_an_empty_world() {
        let dir = tempfile::tempdir().unwrap();
        let restored = restore(dir.path(), &Config::default(), false).unwrap();
        assert_eq!(restored.engine.last_seq().0, 0);
        assert!(restored.damage.unreadable.is_empty());
    }
}
