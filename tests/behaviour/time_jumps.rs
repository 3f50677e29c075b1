//! Wall clocks that jump, and retention by age: one look at a wrong clock makes nothing due, old or lost.

use std::time::Duration;

use harness_protocol::rpc::Finding;
use harness_tests::{Daemon, Place, Value, eventually, json, says};
use nix::sys::signal::Signal;
use rusqlite::Connection;

const DAY: i64 = 86_400;
const YEAR: i64 = 365 * DAY;

fn stop(mut daemon: Daemon) -> Place {
    daemon.signal(Signal::SIGTERM);
    daemon.ended(Duration::from_secs(20));
    daemon.place()
}

/// The journal as it were if the clock had been so much ahead when it was written; for the next start the clock has
/// jumped back by that, or ahead.
fn written_ahead(place: &Place, seconds: i64) {
    let db = Connection::open(place.state("harness.db")).unwrap();
    let micros = seconds * 1_000_000;
    db.execute("UPDATE event SET at = at + ?1", [micros]).unwrap();
    db.execute("UPDATE run SET submitted_at = submitted_at + ?1, ended_at = ended_at + ?1", [micros]).unwrap();
}

fn kinds(place: &Place) -> Vec<String> {
    let events = place.ctl(["events"]).ok();
    // A gap has none.
    let kind = |line: &str| serde_json::from_str::<Value>(line).unwrap()["kind"].as_str().map(ToOwned::to_owned);
    events.lines().filter_map(kind).collect()
}

/// Entry B10 in `tests/README.md`.
#[test]
fn a_time_that_was_once_in_the_future_is_told_wherever_a_daemon_tells_of_itself() {
    let place = Place::new();
    for (ahead, is_told) in
        [(-3_600, false), (0, false), (20, false), (150, true), (7_200, true), (40 * DAY, true), (YEAR, true)]
    {
        let daemon = place.start();
        daemon.submit(&says("done")).wait();
        let place = stop(daemon);
        written_ahead(&place, ahead);
        let daemon = place.start();
        let findings = place.journal_report().findings;
        let told = findings.iter().find_map(|finding| match finding {
            Finding::ClockAhead { seconds } => Some(seconds.as_secs()),
            _ => None,
        });
        let status = daemon.ctl(["daemon", "status"]).ok();
        assert_eq!((told.is_some(), status.contains("ahead of the clock")), (is_told, is_told), "{ahead}: {status}");
        let about = told.unwrap_or(ahead as f64);
        assert!(!is_told || (ahead as f64 - about).abs() < 60.0, "{ahead}: {about}");
        // A new run goes on all the same.
        assert_eq!(daemon.submit(&says("on")).answer(), "on", "{ahead}");
        drop(stop(daemon));
        std::fs::remove_dir_all(place.state("")).unwrap();
    }
}

/// A19: a start cannot know whether the daemon was away for a year or the clock is wrong.
#[test]
fn a_clock_that_is_far_ahead_at_a_start_makes_nothing_old() {
    for (away, goes) in [(YEAR, false), (90 * DAY, false), (8 * DAY, false), (6 * DAY, true), (2 * DAY, true)] {
        let place = Place::configured("[limits]\nfinished_runs = 0\n");
        let daemon = place.start();
        let run = daemon.submit(&says("kept"));
        run.wait();
        // Events that can go: by them it is seen that the daemon has looked after its journal.
        for _ in 0..15 {
            daemon.ctl(["lane", "pause"]).ok();
            daemon.ctl(["lane", "resume"]).ok();
        }
        let place = stop(daemon);
        written_ahead(&place, -away);
        place.configure("[limits]\nfinished_runs = 0\n[retention]\nage_days = 1\nevents = 10\nevery_seconds = 1\n");
        let daemon = place.start();
        eventually("it has looked after its journal", || kinds(&place).iter().any(|kind| kind == "events-pruned"));
        let listed = daemon.ctl(["list", "--all", "--json"]).ok();
        assert_eq!(listed.contains(&run.id), !goes, "away for {away} s: {listed}");
        assert_eq!(kinds(&place).iter().any(|kind| kind == "clock-set"), away > 7 * DAY, "{away}");
        drop(stop(daemon));
    }
}

/// Entry A19 in `tests/README.md`.
#[test]
fn old_events_of_the_daemon_go_and_what_they_left_behind_stays() {
    let place = Place::configured("[retention]\nevents = 10\nevery_seconds = 1\n");
    let daemon = place.start();
    let follow = daemon.ctl(["events"]).ok().lines().count();
    daemon.ctl(["lane", "resize", "3"]).ok();
    daemon.ctl(["relieve", "--by", "2"]).ok();
    for _ in 0..30 {
        daemon.ctl(["lane", "pause", "scripted"]).ok();
        daemon.ctl(["lane", "resume", "scripted"]).ok();
    }
    daemon.ctl(["lane", "pause", "scripted"]).ok();
    let run = daemon.submit(&says("late"));
    let left = || kinds(&place).iter().filter(|kind| kind.starts_with("lane-")).count();
    eventually("old events are gone", || left() < 20);
    let before = daemon.lane("tool");
    // A client that reads all events is told that some are missing.
    let mut client = daemon.connect();
    client.subscribe(json!({"after": follow}));
    let gap = std::iter::repeat_with(|| client.note()).find(|note| note["method"] == "gap");
    assert!(gap.is_some());
    let daemon = daemon.crash().start();
    let after = daemon.lane("tool");
    assert_eq!((after.width, after.reliefs.len()), (before.width, before.reliefs.len()));
    assert_eq!((before.width, before.reliefs.len()), (5, 1));
    assert!(daemon.ctl(["show", &run.id]).ok().contains("paused"), "its lane is still paused");
    daemon.ctl(["lane", "resume", "scripted"]).ok();
    assert_eq!(run.answer(), "late");
}

/// Entry A19 in `tests/README.md`.
#[test]
fn a_listing_that_cannot_be_read_is_shown_as_such_and_the_page_stays() {
    let place = Place::configured("[limits]\nfinished_runs = 0\n");
    let daemon = place.start();
    let runs: Vec<_> =
        (0..8).map(|n| daemon.submit_with(&says("x"), json!({"labels": {"n": n.to_string()}}))).collect();
    for run in &runs {
        run.wait();
        crate::archived::has_left(&daemon, run);
    }
    let place = stop(daemon);
    let db = Connection::open(place.state("harness.db")).unwrap();
    let harm = |nth: usize, sql: &str| {
        let number: i64 =
            db.query_row("SELECT number FROM run WHERE id = ?1", [&runs[nth].id], |row| row.get(0)).unwrap();
        assert_eq!(db.execute(sql, [number]).unwrap(), 1, "{sql}");
    };
    harm(0, "UPDATE listing SET view = '' WHERE number = ?1");
    harm(1, "UPDATE listing SET view = substr(view, 1, 40) WHERE number = ?1");
    harm(2, "UPDATE listing SET view = json_set(view, '$.state', 'resting') WHERE number = ?1");
    harm(3, "UPDATE listing SET view = json_set(view, '$.timing', 7) WHERE number = ?1");
    harm(4, "UPDATE listing SET view = CAST(x'7bff7d' AS TEXT) WHERE number = ?1");
    harm(5, "UPDATE run SET labels = '{' WHERE number = ?1");
    drop(db);
    let daemon = place.start();
    let page = daemon.rpc("run.list", json!({"limit": 50}));
    let listed: Vec<(&str, bool)> = page["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["id"].as_str().unwrap(), run["title"].as_str().unwrap().contains("cannot be read")))
        .collect();
    let expected: Vec<(&str, bool)> = runs.iter().enumerate().map(|(nth, run)| (&*run.id, nth < 5)).rev().collect();
    assert_eq!(listed, expected);
    for run in &runs {
        assert!(daemon.ctl(["show", &run.id]).ok().contains("succeeded"));
        assert_eq!(daemon.ctl(["list", "--json", &run.id]).json()["state"], "succeeded");
    }
    let labelled = daemon.rpc("run.list", json!({"select": {"labels": {"n": "7"}}, "limit": 50}));
    assert_eq!(labelled["runs"][0]["id"], runs[7].id.as_str());
}
