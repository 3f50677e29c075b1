//! Takes and restores backups in a storm, and serves copies of the state directory beside the original.
//!
//! It records what was promised at each branch of the history, and which calls may execute in both. The test decides
//! when to branch.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::thread::{self, JoinHandle};

use harness_protocol::rpc::{EpochReason, Finding};
use rusqlite::{Connection, OpenFlags};

use super::check::{self, Verdict};
use super::told::{Promises, Told};
use super::{Chance, Mood, Shared, Storm, clients, watchers};
use crate::{Place, TOKENS};

/// Events before a copy of which is looked whether they are in it.
const LOOKED_AT: u64 = 3_000;

/// A backup, and what had been promised before it was taken.
pub struct Backup {
    file: PathBuf,
    promises: Promises,
    journal: Journal,
}

/// A copy of the state directory that is served by a daemon of its own.
pub struct Copy {
    serving: JoinHandle<(Verdict, Told)>,
}

/// What a journal says that no daemon serves.
struct Journal {
    /// Number of its last event, or the last one before the epoch that it is in.
    last: u64,
    /// The epochs that are noted in it.
    epochs: BTreeSet<String>,
    /// It is a backup with which no daemon has begun yet.
    is_backup: bool,
    /// Calls that it knows and that have not begun.
    open: BTreeSet<String>,
}

impl Journal {
    /// The runs that a journal without a daemon says were pruned.
    fn pruned(path: &Path) -> BTreeSet<String> {
        let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
        let sql = "SELECT run.value FROM event, json_each(body, '$.runs') AS run WHERE kind = 'runs-pruned'";
        let mut statement = db.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn read(path: &Path, flags: OpenFlags) -> Self {
        let db = Connection::open_with_flags(path, flags).unwrap();
        let calls = |sql: &str| -> BTreeSet<String> {
            let mut statement = db.prepare(sql).unwrap();
            statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        let asked = calls(
            "SELECT json_extract(call.value, '$.call') FROM event, json_each(body, '$.calls') AS call \
             WHERE kind = 'inference-finished'",
        );
        let begun = calls("SELECT json_extract(body, '$.call') FROM event WHERE kind = 'call-started'");
        let ended = calls("SELECT json_extract(body, '$.result.call') FROM event WHERE kind = 'call-finished'");
        let last = "SELECT max(seq) FROM (SELECT seq FROM event UNION ALL SELECT first_seq - 1 FROM epoch)";
        let last = db.query_row(last, [], |row| row.get::<_, Option<i64>>(0)).unwrap();
        let epochs = calls("SELECT id FROM epoch");
        let is_backup = db.query_row("SELECT instance = 0 FROM daemon", [], |row| row.get(0)).unwrap();
        let open = asked.into_iter().filter(|call| !begun.contains(call) && !ended.contains(call)).collect();
        Self { last: last.unwrap_or(0).cast_unsigned(), epochs, is_backup, open }
    }
}

impl Told {
    /// From here on the calls that have not begun may execute in one history more.
    fn branches(&mut self, journal: &Journal) {
        for call in &journal.open {
            *self.again.entry(call.clone()).or_default() += 1;
        }
    }
}

impl Storm {
    /// Takes a backup by the command, while clients go on.
    ///
    /// # Panics
    /// Where the daemon is there and gives none.
    pub fn back_up(&self, number: usize, with_outputs: bool) -> Backup {
        let (place, (promises, seen)) = (&self.shared.place, {
            let told = self.shared.told();
            (told.promises.clone(), told.events.keys().next_back().copied().unwrap_or(0))
        });
        let file = place.path(&format!("backup-{number}.db"));
        let name = file.to_str().unwrap();
        let words = ["daemon", "backup", "--no-start", name, "--outputs"];
        place.ctl(&words[..if with_outputs { 5 } else { 4 }]).ok();
        let journal = Journal::read(&file, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let mut told = self.shared.told();
        told.count("backups");
        if journal.last < seen {
            told.wrong.push(format!("event {seen} was seen before a backup, whose last one is {}", journal.last));
        }
        drop(told);
        Backup { file, promises, journal }
    }

    /// Restores a backup by the command, after the daemon has gone: what was promised since it was taken may be gone,
    /// nothing else.
    ///
    /// # Panics
    /// Where it is refused, or what was in the place is not kept.
    pub fn put_back(&self, backup: &Backup) {
        let place = &self.shared.place;
        let mut told = self.shared.told();
        told.count("backups restored");
        told.go_back(&backup.promises, backup.journal.last, &backup.journal.epochs);
        told.branches(&backup.journal);
        self.shared.past.lock().unwrap().promises = Promises::default();
        drop(told);
        place.ctl(["daemon", "restore", backup.file.to_str().unwrap()]).ok();
        assert!(place.state("replaced/harness.db").exists(), "what was in the place is kept");
        let pruned = Journal::pruned(&place.state("replaced/harness.db"));
        let mut were = names_in(&place.state("replaced/outputs"));
        were.extend(names_in(&place.state("replaced/outputs/.lost")));
        let are = names_in(&place.state("outputs"));
        self.shared.told().without_outputs.extend(pruned.into_iter().chain(were.difference(&are).cloned()));
        fs::remove_dir_all(place.state("replaced")).unwrap();
    }

    /// Copies the state directory of a daemon that does not move, dead or stopped, and lets another daemon serve the
    /// copy: it brings all that is in it to its end. What it has is checked like what the original has.
    pub fn copy(&self, chance: &mut Chance) -> Copy {
        let (from, place) = (self.shared.place.clone(), Place::new());
        let mut copied = self.shared.told().to_be_copied();
        copy_dir(&from.state(""), &place.state(""));
        copy_dir(&from.path("home/.config"), &place.path("home/.config"));
        // To be read, which changes a file whose log is still beside it.
        let read = place.path("read");
        copy_dir(&from.state(""), &read);
        let journal = Journal::read(&read.join("harness.db"), OpenFlags::SQLITE_OPEN_READ_WRITE);
        fs::remove_dir_all(read).unwrap();
        let reason = if journal.is_backup { EpochReason::Restored } else { EpochReason::Copied };
        if reason == EpochReason::Copied {
            // Otherwise the epoch of the backup is still to begin, here as in the original.
            copied.promises.cuts.push((journal.last, "copied"));
        }
        let mut told = self.shared.told();
        told.count("copies");
        told.branches(&journal);
        drop(told);
        let (shared, seed) = (Arc::clone(&self.shared), chance.below(u64::MAX));
        Copy { serving: thread::spawn(move || serve(&shared, place, copied, reason, seed)) }
    }

    /// Waits until a copy has been checked, and gives what was wrong with it.
    pub fn look_at(&self, copy: Copy) -> Verdict {
        let (verdict, mut told) = copy.serving.join().unwrap();
        // It has been looked at; what is left is whether the two share ids.
        told.wrong.clear();
        told.counts.clear();
        self.shared.told().add_past(told);
        verdict
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        let outputs = self.file.with_extension("db.outputs");
        drop((fs::remove_file(&self.file), fs::remove_dir_all(outputs)));
    }
}

impl Copy {
    /// Whether all in it has come to its end.
    pub fn is_over(&self) -> bool {
        self.serving.is_finished()
    }
}

impl Told {
    /// What a copy is to have: all that was promised. Clients talk to the original.
    fn to_be_copied(&self) -> Self {
        let mut promises = self.promises.clone();
        for submit in promises.submits.values_mut() {
            submit.gone = submit.run.is_none();
        }
        let last = self.events.keys().next_back().copied().unwrap_or(0);
        let events = self.events.range(last.saturating_sub(LOOKED_AT)..);
        Self {
            promises,
            perhaps_pruned: self.perhaps_pruned.clone(),
            without_outputs: self.without_outputs.clone(),
            events: events.map(|(seq, seen)| (*seq, seen.clone())).collect(),
            ..Self::default()
        }
    }
}

/// The names in a directory; none where it is not there.
fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let copied = Command::new("cp").arg("-aT").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "{} is copied", from.display());
}

/// Serves a copy until all in it has ended, and checks it.
fn serve(original: &Shared, place: Place, copied: Told, begins: EpochReason, seed: u64) -> (Verdict, Told) {
    let was_restored = original.told().era > 0;
    let daemon = place.start();
    let findings = daemon.journal_report().findings;
    let storm = Storm::calm(&place, copied, seed);
    let mut told = storm.end();
    // A backup without outputs leaves those of runs that it does not have, and a copy of that has them, too.
    let of_a_copy = |finding: &Finding| match finding {
        Finding::Replaced { reason } => *reason == begins,
        Finding::EventsLost { .. } => begins == EpochReason::Restored,
        Finding::UnknownOutputs { .. } => was_restored,
        _ => false,
    };
    let is_told = findings.contains(&Finding::Replaced { reason: begins });
    if !is_told || !findings.iter().all(of_a_copy) {
        told.wrong.push(format!("a copy was started, which found {findings:?}"));
    }
    let tokens = original.place.written(TOKENS);
    // Later than the lines: what may execute again is noted before it does.
    told.again = original.told().again.clone();
    (check::check_with(&place, &told, &tokens), told)
}

impl Storm {
    /// Clients that bring to an end what there is, and begin nothing.
    fn calm(place: &Place, told: Told, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            place: place.clone(),
            told: told.into(),
            past: Told::default().into(),
            mood: AtomicU8::new(Mood::Calm as u8),
            next: AtomicU64::new(0),
            last: AtomicU64::new(u64::MAX),
        });
        let mut chance = Chance::new(seed);
        let clients = [clients::answer, clients::meddle].map(|body| shared.start(&mut chance, body));
        let watcher = shared.start(&mut chance, watchers::everything);
        Self { shared, clients: clients.into(), watchers: vec![watcher] }
    }
}
