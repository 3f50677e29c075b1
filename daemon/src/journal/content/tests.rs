#![allow(clippy::unwrap_used, clippy::panic)]
//! Tests of the store of texts, with the writer and readers of a real journal.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use harness_protocol::event::{Cause, EVENT_VERSION, Event, EventBody};
use harness_protocol::id::{RunId, Seq};
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;
use harness_protocol::time::Timestamp;
use rusqlite::Connection;

use super::*;
use crate::blob;
use crate::journal::history::History;
use crate::journal::replay::{Replay, Row};
use crate::journal::schema::{self, Fresh};
use crate::journal::{Commit, CommitClass, CommitFault, FILE, Record, Writer, salvage};

/// A journal in a directory of its own.
struct Bench {
    dir: tempfile::TempDir,
    history: History,
    writer: Option<Writer>,
    seq: u64,
}

fn run(number: u64) -> RunId {
    RunId::from_u64(number)
}

fn spec(prompt: &str) -> RunSpec {
    let mut spec = RunSpec { prompt: Some(prompt.into()), ..RunSpec::default() };
    blob::name(&mut spec);
    spec
}

/// A prompt that is a row, and one that is a file.
fn short(letter: &str) -> String {
    letter.repeat(LONGEST_ROW)
}

fn long(letter: &str) -> String {
    letter.repeat(LONGEST_ROW + 1)
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let db = schema::open(&path, false, || Ok(Fresh { id_key: 1 })).unwrap().db;
        let history = History::new(&path);
        let writer = Some(Writer::new(db, &path, history.holds()));
        Self { dir, history, writer, seq: 0 }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(FILE)
    }

    fn db(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    fn history(&self) -> History {
        self.history.clone()
    }

    fn event(&mut self, run: Option<RunId>, body: EventBody) -> Arc<Event> {
        self.seq += 1;
        let at = Timestamp::from_micros(self.seq);
        Arc::new(Event { seq: Seq(self.seq), version: EVENT_VERSION, at, run, cause: Cause::HARNESS, body })
    }

    fn submitted(&mut self, number: u64, parent: Option<RunId>, spec: RunSpec) -> Arc<Event> {
        let body = EventBody::RunSubmitted {
            number,
            owner: 7,
            parent,
            retry_of: None,
            continues: None,
            idempotency_key: None,
            submit_key: None,
            spec: Arc::new(spec),
            earlier: Arc::default(),
        };
        self.event(Some(run(number)), body)
    }

    fn commit(&mut self, events: Vec<Arc<Event>>) -> Result<(), crate::journal::CommitError> {
        let commit = Commit { events, archived: Vec::new() };
        self.writer.as_mut().unwrap().commit(&commit, CommitClass::Written)
    }

    fn submit(&mut self, number: u64, prompt: &str) {
        let event = self.submitted(number, None, spec(prompt));
        self.commit(vec![event]).unwrap();
    }

    fn prune(&mut self, number: u64) {
        let event = self.event(None, EventBody::RunsPruned { runs: vec![run(number)] });
        self.commit(vec![event]).unwrap();
    }

    /// How often runs name each text, in the order in which they came.
    fn uses(&self) -> Vec<i64> {
        let db = self.db();
        let mut uses = db.prepare("SELECT uses FROM blob ORDER BY number").unwrap();
        uses.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn files(&self) -> Vec<String> {
        let Ok(dir) = fs::read_dir(self.dir.path().join("blobs")) else { return Vec::new() };
        dir.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn file(&self, prompt: &str) -> PathBuf {
        self.dir.path().join("blobs").join(blob::hash(prompt).to_string())
    }

    fn replayed(&self) -> Vec<Record> {
        Replay::start(&self.path()).unwrap().map(|row| row.map(|Row { record, .. }| record).unwrap()).collect()
    }
}

fn prompt_of(record: &Record) -> Arc<str> {
    match record {
        Record::Event(event) => match &event.body {
            EventBody::RunSubmitted { spec, .. } => Arc::clone(spec.prompt.as_ref().unwrap()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_text_is_stored_once_whatever_number_of_runs_name_it_and_read_as_one() {
    for prompt in [short("p"), long("p"), "p".repeat(2_000)] {
        let mut bench = Bench::new();
        for number in 1..=50 {
            bench.submit(number, &prompt);
        }
        assert_eq!(bench.uses(), [50]);
        let bytes: i64 = bench.db().query_row("SELECT sum(length(body)) FROM event", [], |row| row.get(0)).unwrap();
        assert!(bytes < 50 * 1_000, "{bytes}");
        let replayed = bench.replayed();
        let first = prompt_of(&replayed[0]);
        assert_eq!(*first, *prompt);
        assert!(replayed.iter().all(|record| Arc::ptr_eq(&prompt_of(record), &first)));
        // Subscribers read the name alone.
        let (shown, _) = bench.history().after(Seq(0), None, 1, usize::MAX).unwrap();
        let Some(Record::Event(event)) = shown.first() else { panic!("{shown:?}") };
        let EventBody::RunSubmitted { spec, .. } = &event.body else { panic!("{event:?}") };
        assert_eq!((&spec.prompt, spec.prompt_blob.as_deref()), (&None, Some(&blob::hash(&prompt))));
    }
}

#[test]
fn a_short_text_stands_in_its_event() {
    let mut bench = Bench::new();
    bench.submit(1, &"p".repeat(1_024));
    assert_eq!(bench.uses(), [] as [i64; 0]);
    assert_eq!(prompt_of(&bench.replayed()[0]).len(), 1_024);
}

#[test]
fn a_long_text_is_a_file_for_its_owner_alone_and_a_shorter_one_is_a_row() {
    let mut bench = Bench::new();
    bench.submit(1, &short("p"));
    assert_eq!(bench.files(), [] as [String; 0]);
    bench.submit(2, &long("p"));
    assert_eq!(bench.files(), [blob::hash(&long("p")).to_string()]);
    let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(bench.file(&long("p"))), mode(bench.dir.path().join("blobs"))), (0o600, 0o700));
}

#[test]
fn a_text_goes_with_the_last_run_that_names_it() {
    for prompt in [short("p"), long("p")] {
        let mut bench = Bench::new();
        (1..=3).for_each(|number| bench.submit(number, &prompt));
        bench.submit(4, &long("other"));
        bench.prune(1);
        bench.prune(3);
        assert_eq!(bench.uses(), [1, 1]);
        assert_eq!(bench.history().text(blob::hash(&prompt), None).unwrap().as_deref(), Some(&*prompt));
        bench.prune(2);
        assert_eq!(bench.uses(), [1]);
        assert_eq!(bench.files(), [blob::hash(&long("other")).to_string()]);
        assert_eq!(bench.history().text(blob::hash(&prompt), None).unwrap(), None);
        // A later run brings it back.
        bench.submit(5, &prompt);
        assert_eq!(bench.history().text(blob::hash(&prompt), None).unwrap().as_deref(), Some(&*prompt));
    }
}

#[test]
fn a_commit_that_prunes_the_last_run_and_makes_another_one_keeps_the_text() {
    let mut bench = Bench::new();
    bench.submit(1, &long("p"));
    let made = bench.submitted(2, None, spec(&long("p")));
    let pruned = bench.event(None, EventBody::RunsPruned { runs: vec![run(1)] });
    bench.commit(vec![made, pruned]).unwrap();
    assert_eq!((bench.uses(), bench.files().len()), (vec![1], 1));
}

#[test]
fn a_run_that_is_prepared_in_a_later_commit_names_that_text_too() {
    let mut bench = Bench::new();
    bench.submit(1, &short("p"));
    let tools = harness_protocol::event::ToolDefinition {
        name: "shell".into(),
        description: "d".repeat(3_000).into(),
        parameters: "{}".into(),
        kind: harness_protocol::run::CallKind::Job,
    };
    let definitions: Arc<[_]> = [tools].into();
    let definitions_blob = blob::name_of_tools(&definitions);
    let hash = **definitions_blob.as_ref().unwrap();
    let body = EventBody::RunPrepared { definitions: Some(Arc::clone(&definitions)), definitions_blob };
    let prepared = bench.event(Some(run(1)), body);
    bench.commit(vec![prepared]).unwrap();
    assert_eq!(bench.uses(), [1, 1]);
    let Record::Event(event) = &bench.replayed()[1] else { panic!() };
    let EventBody::RunPrepared { definitions: read, .. } = &event.body else { panic!() };
    assert_eq!(read.as_ref(), Some(&definitions));
    assert!(bench.history().text(hash, Some(run(1))).unwrap().is_some());
    bench.prune(1);
    assert_eq!(bench.uses(), [] as [i64; 0]);
}

#[test]
fn a_script_is_a_text_too() {
    let script = format!("[[turn]]\ntext = '{}'\ndelay = 0.1", "x".repeat(5_000));
    let script: Script = toml::from_str(&script).unwrap();
    let mut named = RunSpec { script: Some(Arc::new(script.clone())), ..RunSpec::default() };
    blob::name(&mut named);
    let mut bench = Bench::new();
    for number in 1..=2 {
        let event = bench.submitted(number, None, named.clone());
        bench.commit(vec![event]).unwrap();
    }
    assert_eq!(bench.uses(), [2]);
    let specs: Vec<Arc<RunSpec>> = bench
        .replayed()
        .into_iter()
        .map(|record| match record {
            Record::Event(event) => match &event.body {
                EventBody::RunSubmitted { spec, .. } => Arc::clone(spec),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(specs[0].script.as_deref(), Some(&script));
    assert!(Arc::ptr_eq(specs[0].script.as_ref().unwrap(), specs[1].script.as_ref().unwrap()));
}

/// A run reads what its own tree names, an operator all.
#[test]
fn a_tree_has_the_texts_of_its_own_runs_alone() {
    let mut bench = Bench::new();
    bench.submit(1, &short("a"));
    bench.submit(2, &short("b"));
    let child = bench.submitted(3, Some(run(1)), spec(&short("c")));
    bench.commit(vec![child]).unwrap();
    let history = bench.history();
    let may = |letter: &str, top| history.text(blob::hash(&short(letter)), top).unwrap().is_some();
    let of = |top| ["a", "b", "c"].map(|letter| may(letter, top));
    assert_eq!(of(None), [true, true, true]);
    assert_eq!(of(Some(run(1))), [true, false, true]);
    assert_eq!(of(Some(run(2))), [false, true, false]);
}

#[test]
fn a_text_that_is_missing_or_another_one_makes_the_record_of_its_runs_unreadable_and_of_no_other() {
    type Harm = fn(&Bench);
    let harms: [(&str, Harm); 5] = [
        ("no row", |bench| _ = bench.db().execute("DELETE FROM blob WHERE number = 2", []).unwrap()),
        ("another row", |bench| {
            _ = bench.db().execute("UPDATE blob SET body = 'x' WHERE number = 2", []).unwrap();
        }),
        ("no file", |bench| fs::remove_file(bench.file(&long("b"))).unwrap()),
        ("another file", |bench| fs::write(bench.file(&long("b")), "x").unwrap()),
        ("a link", |bench| {
            fs::remove_file(bench.file(&long("b"))).unwrap();
            std::os::unix::fs::symlink(bench.path(), bench.file(&long("b"))).unwrap();
        }),
    ];
    for (what, harm) in harms {
        let mut bench = Bench::new();
        [long("a"), long("b"), long("c")].iter().zip(1..).for_each(|(prompt, number)| bench.submit(number, prompt));
        bench.submit(4, &long("b"));
        harm(&bench);
        let replayed = bench.replayed();
        let unreadable = |record: &Record| matches!(record, Record::Unreadable(_, Some(_), _));
        assert_eq!(replayed.iter().map(unreadable).collect::<Vec<_>>(), [false, true, false, true], "{what}");
        assert!(bench.history().text(blob::hash(&long("a")), None).unwrap().is_some(), "{what}");
    }
}

#[test]
fn a_file_that_was_lost_is_written_anew_by_the_next_run_that_brings_its_text() {
    let mut bench = Bench::new();
    bench.submit(1, &long("p"));
    fs::write(bench.file(&long("p")), "damaged").unwrap();
    drop(bench.writer.take());
    let db = schema::open(&bench.path(), true, || unreachable!()).unwrap().db;
    bench.writer = Some(Writer::new(db, &bench.path(), Holds::default()));
    bench.submit(2, &long("p"));
    assert!(bench.replayed().iter().all(|record| *prompt_of(record) == *long("p")));
}

#[test]
fn a_text_with_the_name_of_another_one_is_never_stored() {
    let mut bench = Bench::new();
    let wrong = RunSpec { prompt: Some("other".into()), ..spec(&short("p")) };
    let event = bench.submitted(1, None, wrong);
    assert_eq!(bench.commit(vec![event]).unwrap_err().fault, CommitFault::Ours);
    assert_eq!((bench.uses().len(), bench.replayed().len()), (0, 0));
}

#[test]
fn a_text_that_cannot_be_written_fails_its_commit_and_the_next_try_succeeds() {
    let mut bench = Bench::new();
    fs::write(bench.dir.path().join("blobs"), "in the way").unwrap();
    let event = bench.submitted(1, None, spec(&long("p")));
    let failed = bench.commit(vec![Arc::clone(&event)]).unwrap_err();
    assert_eq!(failed.fault, CommitFault::Failing, "{failed}");
    assert!(bench.replayed().is_empty());
    fs::remove_file(bench.dir.path().join("blobs")).unwrap();
    bench.commit(vec![event]).unwrap();
    assert_eq!(*prompt_of(&bench.replayed()[0]), *long("p"));
}

/// A crash leaves a file whose event was never written, or whose last run is gone.
#[test]
fn a_start_removes_files_that_nothing_names_and_keeps_the_others() {
    let mut bench = Bench::new();
    bench.submit(1, &long("p"));
    Files::beside(&bench.path()).put(blob::hash(&long("q")), &long("q")).unwrap();
    fs::write(bench.dir.path().join("blobs/note"), "no text").unwrap();
    sweep(&bench.db(), &bench.path(), true).unwrap();
    let mut files = bench.files();
    files.sort();
    assert_eq!(files, [blob::hash(&long("p")).to_string(), "note".to_owned()]);
}

/// The files may be those of a journal that was here before, and may be back later.
#[test]
fn where_another_journal_was_put_in_place_its_files_are_moved_aside_and_still_found() {
    let mut bench = Bench::new();
    bench.submit(1, &long("p"));
    let other = Bench::new();
    sweep(&other.db(), &bench.path(), false).unwrap();
    assert_eq!(bench.files(), [] as [String; 0]);
    sweep(&bench.db(), &bench.path(), false).unwrap();
    sweep(&bench.db(), &bench.path(), true).unwrap();
    assert_eq!(*prompt_of(&bench.replayed()[0]), *long("p"));
}

#[test]
fn texts_that_cannot_be_moved_aside_fail_the_sweep_and_are_there_for_the_next_one() {
    let mut bench = Bench::new();
    bench.submit(1, &long("p"));
    let other = Bench::new();
    let aside = bench.dir.path().join("blobs.aside");
    fs::write(&aside, "in the way").unwrap();
    let failed = sweep(&other.db(), &bench.path(), false).unwrap_err();
    assert!(matches!(failed, SweepError::NotAside { .. }), "{failed}");
    assert_eq!(bench.files().len(), 1);
    fs::remove_file(&aside).unwrap();
    sweep(&other.db(), &bench.path(), false).unwrap();
    sweep(&other.db(), &bench.path(), true).unwrap();
    assert_eq!(*prompt_of(&bench.replayed()[0]), *long("p"));
}

#[test]
fn a_backup_and_a_salvage_have_all_texts_in_the_journal_itself() {
    let mut bench = Bench::new();
    bench.submit(1, &long("p"));
    bench.submit(2, &short("q"));
    bench.submit(3, &short("q"));
    let place = tempfile::tempdir().unwrap();
    let (backup, saved) = (place.path().join("backup.db"), place.path().join("saved.db"));
    bench.history().back_up(&backup, false).unwrap();
    drop(bench.writer.take());
    salvage::salvage(&bench.path(), &saved).unwrap();
    for copy in [backup, saved] {
        let db = Connection::open(&copy).unwrap();
        let uses: Vec<i64> = db
            .prepare("SELECT uses FROM blob WHERE body IS NOT NULL ORDER BY number")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(uses, [1, 2], "{}", copy.display());
        let replayed: Vec<Record> = Replay::start(&copy).unwrap().map(|row| row.unwrap().record).collect();
        let prompts: Vec<Arc<str>> = replayed.iter().map(prompt_of).collect();
        assert_eq!(
            prompts.iter().map(|prompt| &**prompt).collect::<Vec<_>>(),
            [&*long("p"), &*short("q"), &*short("q")]
        );
    }
}

/// The text in a backup.
fn text_in(backup: &Path, prompt: &str) -> Option<String> {
    let db = Connection::open(backup).unwrap();
    let sql = "SELECT body FROM blob WHERE hash = ?1";
    db.query_row(sql, [blob::hash(prompt).to_string()], |row| row.get(0)).unwrap()
}

#[test]
fn a_prune_during_a_backup_takes_no_text_from_it_and_the_file_goes_with_a_later_commit() {
    let mut bench = Bench::new();
    bench.submit(1, &long("p"));
    let place = tempfile::tempdir().unwrap();
    let backup = place.path().join("backup.db");
    let history = bench.history();
    history.back_up_with(&backup, false, || bench.prune(1)).unwrap();
    assert_eq!(text_in(&backup, &long("p")).as_deref(), Some(&*long("p")));
    assert_eq!(bench.uses(), [] as [i64; 0]);
    bench.submit(2, "short");
    assert_eq!(bench.files(), [] as [String; 0]);
}

#[test]
fn a_text_that_is_pruned_and_submitted_again_during_a_backup_stays() {
    let mut bench = Bench::new();
    bench.submit(1, &long("p"));
    let place = tempfile::tempdir().unwrap();
    let history = bench.history();
    let again = || {
        bench.prune(1);
        bench.submit(2, &long("p"));
    };
    history.back_up_with(&place.path().join("backup.db"), false, again).unwrap();
    bench.submit(3, "short");
    assert_eq!(bench.history().text(blob::hash(&long("p")), None).unwrap().as_deref(), Some(&*long("p")));
}

#[test]
fn a_reader_beside_prunes_finds_a_text_or_that_there_is_none_and_never_a_hole() {
    for prompt in [short("p"), long("p")] {
        let mut bench = Bench::new();
        let (history, hash) = (bench.history(), blob::hash(&prompt));
        let found = std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                for number in 1..=200 {
                    bench.submit(number, &prompt);
                    bench.prune(number);
                }
                bench.submit(201, &prompt);
                bench
            });
            let mut found = [0, 0];
            loop {
                let is_over = writer.is_finished();
                let text = history.text(hash, None).unwrap();
                found[usize::from(text.is_some())] += 1;
                assert!(text.is_none_or(|text| blob::hash(&text) == hash));
                if is_over {
                    drop(writer.join().unwrap());
                    return found;
                }
            }
        });
        assert!(found[1] > 0, "{found:?}");
    }
}
