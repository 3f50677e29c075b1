//! Tests faults of the disk and of the machine: each gets a clear message, and nothing that was acknowledged is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness_protocol::run::RunState;
use harness_tests::storm::Chance;
use harness_tests::{Daemon, Disk, Place, Value, eventually, found_within, json, now, runs, says, turn};
use nix::sys::signal::Signal;
use rusqlite::Connection;

use crate::crash::seed;

/// How long a daemon may take to say that it does not start.
const SOON: Duration = Duration::from_secs(10);
/// The journal and what stands beside it.
const FILES: [&str; 3] = ["harness.db", "harness.db-wal", "harness.db-shm"];

/// Starts a daemon that is not to start, and gives what it says.
#[track_caller]
pub(crate) fn refuses(place: &Place, code: i32) -> String {
    let log = place.path("daemon.log");
    fs::write(&log, "").unwrap();
    let mut child = Daemon::spawn(place, &[], &[]);
    let status = found_within(SOON, "it ends", || child.try_wait().unwrap());
    let said = fs::read_to_string(log).unwrap();
    assert_eq!(status.code(), Some(code), "{said}");
    said
}

/// A stopped place whose journal has three finished runs and one that asks.
fn stopped() -> Place {
    let mut daemon = Daemon::start();
    daemon.submit_many(3, &runs("seq 100")).iter().for_each(|run| drop(run.wait()));
    daemon.submit(&turn("").ask("well?").turn("answered")).reach(RunState::Waiting);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.ended(SOON).code(), Some(0));
    let place = daemon.place();
    assert_eq!(fs::metadata(place.state("harness.db-wal")).map_or(0, |file| file.len()), 0, "all is in one file");
    place
}

fn bytes_of(place: &Place) -> Vec<Option<Vec<u8>>> {
    FILES[..2].iter().map(|name| fs::read(place.state(name)).ok()).collect()
}

/// Every event, as it is shown.
fn events(place: &Place) -> Vec<String> {
    place.ctl(["events"]).ok().lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs root, to mount a disk"]
fn a_file_system_that_became_read_only_is_told_and_reads_go_on() {
    let place = Place::new();
    let disk = Disk::in_a_file(&place, 64);
    let mut daemon = place.start();
    let asking = daemon.submit(&turn("").ask("well?").turn("answered"));
    asking.reach(RunState::Waiting);
    let before = events(&place);
    disk.fail();
    let output = daemon.ctl(["submit", "--script", &place.script_file(&says("no"))]);
    output.exits(75).tells("held").tells("read-only");
    let status = daemon.ctl(["daemon", "status", "--json"]).json();
    assert_eq!(status["health"], "held", "{status}");
    assert_eq!(asking.view().state, RunState::Waiting);
    assert_eq!(events(&place), before);
    daemon.ctl(["daemon", "stop"]).ok();
    assert_eq!(daemon.ended(SOON).code(), Some(0));
}

#[test]
#[ignore = "needs root, to mount a disk"]
fn a_state_directory_that_can_only_be_read_is_told_at_the_start_and_not_changed() {
    let place = Place::new();
    let disk = Disk::in_memory(&place, 64);
    let mut daemon = place.start();
    assert_eq!(daemon.submit(&says("before")).answer(), "before");
    daemon.signal(Signal::SIGTERM);
    daemon.ended(SOON);
    disk.only_read(true);
    assert!(refuses(&place, 70).contains("Read-only file system"));
    place.ctl(["list"]).exits(7).tells("Read-only file system");
    disk.only_read(false);
    assert_eq!(place.start().ctl(["list", "--json"]).ok().lines().count(), 1);
}

/// A place with what was left of another one's journal.
fn with_journal(of: &Path) -> Place {
    let place = Place::new();
    fs::create_dir_all(place.state("")).unwrap();
    for name in &FILES[..2] {
        if of.join(name).exists() {
            fs::copy(of.join(name), place.state(name)).unwrap();
        }
    }
    place
}

#[test]
fn a_log_that_is_cut_or_torn_anywhere_gives_a_world_that_was() {
    let seed = seed();
    println!("HARNESS_CRASH_SEED={seed}");
    let mut chance = Chance::new(seed);
    let daemon = Daemon::start();
    daemon.submit_many(12, &runs("true")).iter().for_each(|run| drop(run.wait()));
    daemon.submit(&turn("").ask("well?").turn("answered")).reach(RunState::Waiting);
    let all = events(&daemon);
    let place = daemon.crash();
    let log = fs::read(place.state("harness.db-wal")).unwrap();
    assert!(log.len() < 3 << 20, "nothing of it was copied into the file: cut, it would be older than that");
    let mut lengths = Vec::new();
    for round in 0..12 {
        let cut = usize::try_from(chance.below(log.len() as u64)).unwrap();
        let mut torn = log[..cut].to_vec();
        if round % 2 == 0 {
            // The rest of the page is there, and is not what was written.
            torn.extend((cut..log.len().min(cut + 4_096)).map(|_| u8::try_from(chance.below(256)).unwrap()));
        }
        let other = with_journal(&place.state(""));
        fs::write(other.state("harness.db-wal"), torn).unwrap();
        let daemon = other.start();
        let found = events(&daemon);
        let same = found.iter().zip(&all).take_while(|(found, was)| found == was).count();
        let further: Vec<Value> = found[same..].iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        // The directory is a copy, so its numbers go on elsewhere.
        assert_eq!(further[0]["gap"]["reason"], "copied", "cut at {cut} of {}: {further:?}", log.len());
        assert_eq!(further[1]["kind"], "daemon-started", "cut at {cut} of {}: {further:?}", log.len());
        assert_eq!(daemon.submit(&runs("true")).answer(), "done");
        lengths.push(same);
    }
    println!("{lengths:?} of {} events", all.len());
}

#[test]
fn a_damaged_journal_is_refused_and_left_as_it_is() {
    let place = stopped();
    let path = place.state("harness.db");
    let whole = fs::read(&path).unwrap();
    let mut noise = Chance::new(7);
    for first in [0, 1] {
        // All pages, or all but the first.
        let mut damaged = whole.clone();
        damaged[first * 4_096..].iter_mut().for_each(|byte| *byte = u8::try_from(noise.below(256)).unwrap());
        fs::write(&path, &damaged).unwrap();
        let before = bytes_of(&place);
        let said = refuses(&place, 70);
        assert!(said.contains(path.to_str().unwrap()) && said.contains("Nothing was"), "{said}");
        assert_eq!(bytes_of(&place), before);
        place.ctl(["list"]).exits(7).tells("Nothing was");
    }
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let before = bytes_of(&place);
    let said = refuses(&place, 70);
    assert!(said.contains("damaged") && said.contains("harnessd salvage"), "{said}");
    assert_eq!(bytes_of(&place), before);
    fs::write(&path, whole).unwrap();
    assert_eq!(place.start().ctl(["list", "--json"]).ok().lines().count(), 4);
}

#[test]
fn one_damaged_page_is_told_at_its_use_or_at_the_start() {
    let place = stopped();
    let whole = fs::read(place.state("harness.db")).unwrap();
    let pages = whole.len() / 4_096;
    let mut noise = Chance::new(11);
    let (mut refused, mut served) = (0, 0);
    for page in 1..pages.min(14) {
        let other = with_journal(&place.state(""));
        let mut damaged = whole.clone();
        damaged[page * 4_096..][..4_096].iter_mut().for_each(|byte| *byte = u8::try_from(noise.below(256)).unwrap());
        fs::write(other.state("harness.db"), &damaged).unwrap();
        let mut child = Daemon::spawn(&other, &[], &[]);
        let ended = found_within(SOON, "it serves or ends", || match child.try_wait().unwrap() {
            Some(status) => Some(Some(status)),
            None => std::os::unix::net::UnixStream::connect(other.socket()).ok().map(|_| None),
        });
        // It listens a little before it looks.
        let ended = ended.or_else(|| match other.ctl(["daemon", "status", "--no-start"]).code {
            0 => None,
            _ => Some(found_within(SOON, "it ends", || child.try_wait().unwrap())),
        });
        match ended {
            Some(status) => {
                refused += 1;
                let said = fs::read_to_string(other.path("daemon.log")).unwrap();
                assert_eq!(status.code(), Some(70), "page {page}: {said}");
                assert!(said.contains("damaged"), "page {page}: {said}");
                assert_eq!(fs::read(other.state("harness.db")).unwrap(), damaged);
            }
            None => {
                served += 1;
                // Whatever is asked has an answer.
                for words in [["list", "--all"], ["events", "--no-start"]] {
                    let output = other.ctl(words);
                    assert!(output.code == 0 || output.stderr.contains("damaged"), "page {page}: {words:?}: {output}");
                }
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
    }
    println!("{refused} times refused, {served} times served");
}

#[test]
fn a_journal_of_a_later_daemon_is_refused_and_not_touched() {
    let place = stopped();
    let db = Connection::open(place.state("harness.db")).unwrap();
    db.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(db);
    let before = bytes_of(&place);
    let said = refuses(&place, 70);
    assert!(said.contains("version 99") && said.contains("a later daemon"), "{said}");
    place.ctl(["list"]).exits(7).tells("a later daemon");
    assert_eq!(bytes_of(&place), before);
}

#[test]
fn a_long_lock_of_the_journal_holds_the_daemon_up_until_its_end() {
    let daemon = Daemon::start();
    let asking = daemon.submit(&turn("").ask("well?").turn("answered"));
    asking.reach(RunState::Waiting);
    let before = events(&daemon);
    let db = Connection::open(daemon.state("harness.db")).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut client = daemon.connect();
    let params = json!({"interaction": asking.id, "answer": "yes"});
    let id = client.send("interaction.answer", params);
    eventually("it is held", || daemon.rpc("daemon.status", json!({}))["health"] == "held");
    let held = daemon.rpc("daemon.status", json!({}))["held"].clone();
    assert!(held.as_str().unwrap().contains("another program"), "{held}");
    assert_eq!(events(&daemon), before);
    db.execute_batch("ROLLBACK").unwrap();
    // Whatever the one that waited was told, it was not lost.
    drop(client.reply(id));
    assert_eq!(asking.answer(), "answered");
}

#[test]
fn a_removed_output_file_is_told_as_missing() {
    let daemon = Daemon::start();
    let run = daemon.submit(&runs("seq 100"));
    run.wait();
    fs::remove_dir_all(daemon.state(&format!("outputs/{}", run.id))).unwrap();
    let output = daemon.ctl(["logs", "--call", "1", &run.id]);
    output.exits(0).tells("none of the 292 bytes of stdout were kept");
    assert!(run.envelopes()[0].contains("\n100\n"), "what the model read is in the journal");
}

#[test]
fn a_clock_that_was_set_back_takes_no_time_back_and_holds_no_timer_up() {
    let place = stopped();
    let db = Connection::open(place.state("harness.db")).unwrap();
    let year = 365 * 24 * 3_600 * 1_000_000_i64;
    let last = "UPDATE event SET at = at + ?1 WHERE seq > (SELECT max(seq) - 3 FROM event)";
    db.execute(last, [year]).unwrap();
    drop(db);
    let daemon = place.start();
    eventually("it says so", || fs::read_to_string(place.path("daemon.log")).unwrap().contains("ahead of the clock"));
    let begun = now();
    let slow = daemon.submit_with(&runs("sleep 600"), json!({"limits": {"deadline_seconds": 0.3}}));
    assert_eq!(slow.wait().exit_code, Some(124));
    assert!(begun.elapsed() < SOON);
    let times: Vec<String> = events(&daemon)
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap()["at"].as_str().unwrap().to_owned())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn a_second_daemon_on_the_same_state_is_refused_with_the_pid_of_the_first() {
    let daemon = Daemon::start();
    let other = Place::new();
    let state: PathBuf = daemon.state("");
    let mut child = Daemon::spawn(&other, &[], &[("HARNESS_STATE_DIR", state.to_str().unwrap())]);
    let status = found_within(SOON, "it ends", || child.try_wait().unwrap());
    let said = fs::read_to_string(other.path("daemon.log")).unwrap();
    assert_eq!(status.code(), Some(75), "{said}");
    assert!(said.contains(&format!("(pid {})", daemon.process().0)), "{said}");
    assert!(!other.socket().exists());
    assert_eq!(daemon.submit(&says("still here")).answer(), "still here");
}
