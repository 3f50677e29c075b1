//! Journals that are gone, older, damaged or replaced: nothing is deleted, and a start says clearly what it found.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use harness_protocol::rpc::{EpochReason, Finding};
use harness_protocol::run::RunState;
use harness_tests::{Daemon, Place, Run, eventually, runs, turn};
use nix::sys::signal::Signal;
use rusqlite::Connection;

/// A daemon with a run that wrote something, one that waits, and a backup from before a third one.
struct Before {
    daemon: Daemon,
    asks: Run,
    late: Run,
}

fn before() -> Before {
    let daemon = Daemon::start();
    assert_eq!(daemon.submit(&runs("echo early")).answer(), "done");
    let asks = daemon.submit(&turn("").shell("echo asked").ask("well?").turn("answered"));
    asks.reach(RunState::Waiting);
    daemon.ctl(["daemon", "backup", daemon.path("backup.db").to_str().unwrap()]).ok();
    let late = daemon.submit(&runs("echo late"));
    assert_eq!(late.answer(), "done");
    assert_eq!(daemon.output_files().len(), 3);
    Before { daemon, asks, late }
}

fn stop(mut daemon: Daemon) -> Place {
    daemon.signal(Signal::SIGTERM);
    daemon.ended(std::time::Duration::from_secs(20));
    daemon.place()
}

fn remove_log(place: &Place) {
    for end in ["-wal", "-shm"] {
        drop(fs::remove_file(place.state(&format!("harness.db{end}"))));
    }
}

fn remove_all(place: &Place) {
    fs::remove_file(place.state("harness.db")).unwrap();
    remove_log(place);
}

fn cut(path: &Path, to: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(to).unwrap();
}

fn by_hand(place: &Place, sql: &str) {
    Connection::open(place.state("harness.db")).unwrap().execute_batch(sql).unwrap();
}

type Change = fn(&Place);

/// A3: whatever became of the journal, a start that cannot go on from it deletes nothing, begins none, ends at once,
/// and says what to do.
#[test]
fn no_journal_is_begun_beside_outputs_and_a_damaged_one_is_told_with_what_to_do() {
    let changes: [(&str, Change, &str); 14] = [
        ("missing", remove_all, "no journal at"),
        (
            "empty",
            |place| {
                remove_all(place);
                fs::write(place.state("harness.db"), "").unwrap()
            },
            "no journal at",
        ),
        ("empty, its log is there", |place| cut(&place.state("harness.db"), 0), "harnessd restore"),
        (
            "half of it",
            |place| cut(&place.state("harness.db"), place.state("harness.db").metadata().unwrap().len() / 2),
            "is damaged",
        ),
        ("one page", |place| cut(&place.state("harness.db"), 4096), "is damaged"),
        ("less than a header", |place| cut(&place.state("harness.db"), 60), "is damaged"),
        (
            "zeros",
            |place| {
                let bytes = place.state("harness.db").metadata().unwrap().len();
                cut(&place.state("harness.db"), 0);
                cut(&place.state("harness.db"), bytes);
            },
            "is damaged",
        ),
        ("without a row that each has", |place| by_hand(place, "DELETE FROM daemon"), "harnessd salvage"),
        ("without a table", |place| by_hand(place, "DROP TABLE daemon"), "harnessd salvage"),
        (
            "another program's",
            |place| {
                remove_all(place);
                Connection::open(place.state("harness.db")).unwrap().execute_batch("CREATE TABLE a (b)").unwrap();
            },
            "another program's",
        ),
        (
            "a directory",
            |place| {
                remove_all(place);
                fs::create_dir(place.state("harness.db")).unwrap()
            },
            "no file",
        ),
        (
            "a pipe",
            |place| {
                remove_all(place);
                assert!(Command::new("mkfifo").arg(place.state("harness.db")).status().unwrap().success());
            },
            "no regular file; remove it",
        ),
        (
            "a link to nothing",
            |place| {
                remove_all(place);
                symlink(place.path("elsewhere/harness.db"), place.state("harness.db")).unwrap();
            },
            "nothing is there",
        ),
        (
            "of a later version",
            |place| {
                let db = Connection::open(place.state("harness.db")).unwrap();
                db.execute_batch("PRAGMA user_version = 77").unwrap();
            },
            "a later daemon has written it",
        ),
    ];
    for (what, change, told) in changes {
        let Before { daemon, .. } = before();
        let place = stop(daemon);
        let files = place.output_files();
        change(&place);
        for _ in 0..2 {
            let said = Daemon::refused(&place);
            assert!(said.contains(told), "{what}: {said}");
            assert_eq!(place.output_files(), files, "{what}");
        }
        if what != "of a later version" {
            let said = Daemon::refused(&place);
            assert!(
                said.contains("harnessd restore") || ["a link to nothing", "a pipe"].contains(&what),
                "{what}: {said}"
            );
            if what == "a pipe" {
                // The advice was to remove it.
                fs::remove_file(place.state("harness.db")).unwrap();
            }
            // The advice is right.
            place.sh(&format!("harnessd restore {}", place.path("backup.db").display())).ok();
            assert_eq!(place.start().submit(&runs("true")).answer(), "done", "{what}");
            assert_eq!(place.output_files(), files, "{what}");
        }
    }
}

/// A3: a journal that is another one than before, or lacks something, is gone on from, loudly, and nothing is deleted.
#[test]
fn a_journal_that_went_back_or_is_another_one_is_told_and_outputs_stay() {
    let replaced = |reason| move |finding: &Finding| *finding == Finding::Replaced { reason };
    type Is = Box<dyn Fn(&Finding) -> bool>;
    let changes: Vec<(&str, Change, Is)> = vec![
        (
            "a backup",
            |place| {
                remove_all(place);
                fs::copy(place.path("backup.db"), place.state("harness.db")).unwrap();
            },
            Box::new(replaced(EpochReason::Restored)),
        ),
        (
            "a backup in the same file",
            |place| {
                remove_log(place);
                fs::copy(place.path("backup.db"), place.state("harness.db")).unwrap();
            },
            Box::new(|finding| matches!(finding, Finding::EventsLost { .. })),
        ),
        (
            "a backup beside a log that is not its own",
            |place| {
                fs::remove_file(place.state("harness.db")).unwrap();
                fs::copy(place.path("backup.db"), place.state("harness.db")).unwrap();
            },
            Box::new(|finding| matches!(finding, Finding::StrangeLog { .. })),
        ),
        ("its log is gone", remove_log, Box::new(|finding| matches!(finding, Finding::EventsLost { .. }))),
        (
            "a copy of the same file",
            |place| {
                fs::copy(place.state("harness.db"), place.path("copy.db")).unwrap();
                fs::rename(place.path("copy.db"), place.state("harness.db")).unwrap();
            },
            Box::new(replaced(EpochReason::Copied)),
        ),
        (
            "another directory's",
            |place| {
                let other = Daemon::start();
                other.submit_many(9, &runs("true")).iter().for_each(|run| assert_eq!(run.answer(), "done"));
                let other = stop(other);
                remove_all(place);
                fs::copy(other.state("harness.db"), place.state("harness.db")).unwrap();
            },
            Box::new(replaced(EpochReason::Copied)),
        ),
        (
            "the directory was moved",
            |place| {
                fs::rename(place.state(""), place.path("moved")).unwrap();
                symlink(place.path("moved"), place.state("").to_str().unwrap().trim_end_matches('/')).unwrap();
            },
            Box::new(replaced(EpochReason::Copied)),
        ),
        (
            "the directory was copied",
            |place| {
                let copied = Command::new("cp").arg("-a").arg(place.state("")).arg(place.path("copy")).status();
                assert!(copied.unwrap().success());
                fs::rename(place.state(""), place.path("original")).unwrap();
                fs::rename(place.path("copy"), place.state("")).unwrap();
            },
            Box::new(replaced(EpochReason::Copied)),
        ),
        (
            "what is beside it is gone",
            |place| fs::remove_file(place.state("harness.id")).unwrap(),
            Box::new(replaced(EpochReason::Copied)),
        ),
    ];
    for (what, change, is) in changes {
        let Before { daemon, asks, late } = before();
        // Killed: what was last is in the write-ahead log alone.
        let epoch = daemon.journal_report().epoch;
        let place = daemon.crash();
        let files = place.output_files();
        change(&place);
        let daemon = place.start();
        let report = daemon.journal_report();
        assert!(report.findings.iter().any(is), "{what}: {report:?}");
        assert_ne!(report.epoch, epoch, "{what}");
        let log = fs::read_to_string(place.path("daemon.log")).unwrap();
        for finding in &report.findings {
            let told = finding.to_string();
            daemon.ctl(["daemon", "status"]).ok().split_once(told.as_str()).unwrap_or_else(|| panic!("{what}: {told}"));
            assert!(daemon.ctl(["doctor"]).stdout.contains(&told), "{what}");
            let is_logged = log.contains(&told) || matches!(finding, Finding::UnknownOutputs { .. });
            assert!(is_logged, "{what}: {log}");
        }
        assert_eq!(place.output_files(), files, "{what}");
        let knows = !["another directory's", "its log is gone"].contains(&what);
        if knows {
            asks.reply("yes");
            assert_eq!(asks.answer(), "answered", "{what}");
        }
        let lost = ["a backup", "a backup in the same file", "a backup beside a log that is not its own"];
        assert_eq!(daemon.ctl(["show", &late.id]).code, if lost.contains(&what) || !knows { 6 } else { 0 }, "{what}");
        // What a later start does not know either, it moves aside.
        let place = stop(daemon);
        let daemon = place.start();
        if lost.contains(&what) {
            let moved = |finding: &Finding| matches!(finding, Finding::UnknownOutputs { moved_to: Some(_), .. });
            eventually("they were moved aside", || daemon.journal_report().findings.iter().any(moved));
        }
        assert!(place.output_files().is_superset(&files), "{what}");
    }
}

/// A3: a start sweeps what the journal says was pruned, moves aside what it does not know, and leaves the rest.
#[test]
fn only_outputs_of_runs_that_were_pruned_are_swept() {
    let Before { daemon, late, .. } = before();
    let place = daemon.place();
    let strange = ["0000000000000", "fzzzzzzzzzzzz", "1234567890abc"];
    daemon.ctl(["prune", &late.id]).ok();
    eventually("its outputs are gone", || place.output_files().len() == 2);
    let place = daemon.crash();
    for run in strange.iter().copied().chain([late.id.as_str()]) {
        let dir = place.state("outputs").join(run);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(format!("{run}.stdout")), "x").unwrap();
    }
    fs::write(place.state("outputs/notes.txt"), "mine").unwrap();
    let daemon = place.start();
    eventually("it was swept", || {
        let findings = daemon.journal_report().findings;
        findings.iter().any(|finding| matches!(finding, Finding::UnknownOutputs { runs: 3, moved_to: Some(_) }))
    });
    assert!(!place.state("outputs").join(&late.id).exists(), "the journal says that it was pruned");
    for run in strange {
        assert!(place.state("outputs/.lost").join(run).join(format!("{run}.stdout")).exists(), "{run}");
    }
    assert!(place.state("outputs/notes.txt").exists());
    // Without outputs a new journal is begun, and says so; what was moved aside stays.
    let place = stop(daemon);
    remove_all(&place);
    fs::rename(place.state("outputs"), place.path("outputs")).unwrap();
    let daemon = place.start();
    let findings = daemon.journal_report().findings;
    assert!(matches!(findings[..], [Finding::JournalGone { .. }]), "{findings:?}");
}

/// A3: an ordinary restart, be it after a crash, finds nothing and begins nothing.
#[test]
fn an_ordinary_restart_goes_on_in_the_same_epoch() {
    let Before { mut daemon, asks, .. } = before();
    let report = daemon.journal_report();
    assert!(report.epoch.is_some() && report.findings.is_empty(), "{report:?}");
    for crash in [true, false, true, true, false] {
        daemon = if crash { daemon.crash().start() } else { stop(daemon).start() };
        assert_eq!(daemon.journal_report(), report);
    }
    let place = stop(daemon);
    // A link to the journal is the journal.
    fs::rename(place.state("harness.db"), place.path("elsewhere.db")).unwrap();
    symlink(place.path("elsewhere.db"), place.state("harness.db")).unwrap();
    daemon = place.start();
    assert_eq!(daemon.journal_report(), report);
    asks.reply("yes");
    assert_eq!(asks.answer(), "answered");
}

/// A3: what can be read of a damaged journal is saved by our own program, and gone on from; no other program is needed.
#[test]
fn the_readable_part_of_a_damaged_journal_is_salvaged_and_used() {
    for (page, seed) in [(3u64, 1u8), (5, 2), (7, 3), (9, 4), (12, 5), (15, 6)] {
        let Before { daemon, .. } = before();
        daemon.submit_many(40, &runs("echo more")).iter().for_each(|run| assert_eq!(run.answer(), "done"));
        let place = stop(daemon);
        let path = place.state("harness.db");
        let mut bytes = fs::read(&path).unwrap();
        let at = usize::try_from(page * 4096).unwrap();
        assert!(bytes.len() > at + 4096, "there is such a page");
        bytes[at..at + 4096].fill(0xA0 | seed);
        fs::write(&path, bytes).unwrap();
        place.sh(&format!("harnessd salvage {} {}", path.display(), place.path("saved.db").display())).ok();
        place.sh(&format!("harnessd restore {}", place.path("saved.db").display())).ok();
        let daemon = place.start();
        let known = daemon.rpc("run.list", harness_tests::json!({"limit": 1000}))["runs"].as_array().unwrap().len();
        assert!(known > 10, "page {page}: {known} runs are left");
        daemon.ctl(["events"]).ok();
        assert_eq!(daemon.submit(&runs("true")).answer(), "done");
    }
}

/// A3: a journal of another user is refused before anything is made beside it.
#[test]
#[ignore = "needs root"]
fn a_journal_of_another_user_is_refused() {
    let Before { daemon, .. } = before();
    let place = stop(daemon);
    std::os::unix::fs::chown(place.state("harness.db"), Some(12_345), None).unwrap();
    let log = || fs::read(place.state("harness.db-wal")).ok();
    let before = log();
    let said = Daemon::refused(&place);
    assert!(said.contains("belongs to user 12345"), "{said}");
    assert_eq!(log(), before);
}
