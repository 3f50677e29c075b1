//! Records that cannot be read, or that only a later daemon can read: at most one run ends for each, and says so.

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Place, Run, Value, json, runs, turn};
use rusqlite::Connection;

/// What can be wrong with a record, as what is set where, and in an event of which kind.
const GARBAGE: [(&str, &str); 9] = [
    ("body = '{\"kind\":'", "inference-finished"),
    ("body = CAST(x'ff00fe' AS TEXT)", "inference-finished"),
    ("body = '{\"kind\":\"drain-started\"}'", "step-begun"),
    ("version = -1", "inference-started"),
    ("version = 1000000", "inference-finished"),
    ("at = -5", "inference-finished"),
    ("at = 9223372036854775807", "inference-started"),
    ("via = 'window'", "step-begun"),
    ("body = '[]'", "run-submitted"),
];

fn journal(place: &Place) -> Connection {
    Connection::open(place.state("harness.db")).unwrap()
}

/// Spoils a record of each run.
fn spoil(place: &Place, runs: &[Run]) {
    let db = journal(place);
    for (run, (set, kind)) in runs.iter().zip(GARBAGE) {
        let sql = format!("UPDATE event SET {set} WHERE run = ?1 AND kind = ?2");
        assert_eq!(db.execute(&sql, [&run.id, kind]).unwrap(), 1, "{set}");
    }
}

fn asks() -> harness_tests::Script {
    turn("").ask("well?").turn("answered")
}

#[test]
fn a_live_run_with_a_record_that_cannot_be_read_ends_and_says_why_and_the_others_go_on() {
    let daemon = Daemon::start();
    let spoiled = daemon.submit_many(GARBAGE.len(), &asks());
    let healthy = daemon.submit(&asks());
    for run in spoiled.iter().chain([&healthy]) {
        run.reach(RunState::Waiting);
    }
    let place = daemon.crash();
    spoil(&place, &spoiled);
    for _ in 0..2 {
        let daemon = place.start();
        for (run, what) in spoiled.iter().zip(GARBAGE) {
            let view = run.wait();
            assert_eq!((view.state, view.exit_code), (RunState::Failed, Some(70)), "{what:?}: {view:?}");
            assert!(view.error.as_deref().unwrap().contains("cannot be read"), "{what:?}: {view:?}");
            daemon.ctl(["wait", &run.id]).exits(70).tells("cannot be read");
            daemon.ctl(["show", &run.id, "--json"]).json();
        }
        assert_eq!(daemon.rpc("interaction.list", json!({}))["total"], 1);
        let listed = daemon.ctl(["list", "--all", "--json"]).ok();
        assert_eq!(listed.lines().count(), GARBAGE.len() + 1);
        assert_eq!(healthy.view().state, RunState::Waiting);
        drop(daemon.crash());
    }
    let daemon = place.start();
    healthy.reply("yes");
    assert_eq!(healthy.answer(), "answered");
    assert!(daemon.lane_is_idle());
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
    // A reader of events is told which ones it does not get.
    let events = daemon.ctl(["events"]).ok();
    assert_eq!(events.matches("{\"gap\"").count(), GARBAGE.len(), "{events}");
}

#[test]
fn a_finished_run_with_a_record_that_cannot_be_read_stays_as_it_ended() {
    for config in ["", "[limits]\nfinished_runs = 1\n"] {
        let daemon = Daemon::configured(config);
        let done = daemon.submit_many(GARBAGE.len(), &runs("echo output"));
        done.iter().for_each(|run| assert_eq!(run.answer(), "done"));
        // With the bound, it lets all the others leave.
        assert_eq!(daemon.submit(&runs("true")).answer(), "done");
        assert_eq!(daemon.submit(&runs("true")).answer(), "done");
        let place = daemon.crash();
        let before = done.len();
        {
            let db = journal(&place);
            for (run, (set, kind)) in done.iter().zip(GARBAGE) {
                let first = "SELECT min(seq) FROM event WHERE run = ?1 AND kind = ?2";
                let sql = format!("UPDATE event SET {set} WHERE seq = ({first})");
                assert_eq!(db.execute(&sql, [&run.id, kind]).unwrap(), 1, "{set}");
            }
        }
        let daemon = place.start();
        for (run, what) in done.iter().zip(GARBAGE) {
            let view = run.wait();
            assert_eq!(view.state, RunState::Succeeded, "{what:?}: {view:?}");
            assert_eq!(view.answer.as_deref(), Some("done"), "{what:?}: {view:?}");
            daemon.ctl(["show", &run.id, "--json"]).json();
            daemon.ctl(["wait", &run.id]).ok();
        }
        assert_eq!(daemon.ctl(["list", "--all", "--json"]).ok().lines().count(), before + 2);
        assert!(daemon.lane_is_idle());
        assert_eq!(daemon.rpc("daemon.status", json!({}))["executing"], 0);
        daemon.ctl(["prune", "--all"]).ok();
        assert_eq!(daemon.ctl(["list", "--all", "--json"]).ok(), "");
    }
}

#[test]
fn a_record_of_a_kind_that_only_a_later_daemon_knows_is_shown_and_nothing_else() {
    let daemon = Daemon::start();
    let run = daemon.submit(&asks());
    run.reach(RunState::Waiting);
    let place = daemon.crash();
    let db = journal(&place);
    let sql = "INSERT INTO event SELECT max(seq) + 1, max(at), 'thought-dreamt', 3, ?1, 'harness', NULL, NULL, ?2
        FROM event";
    let body = r#"{"kind":"thought-dreamt","sheep":{"electric":true}}"#;
    db.execute(sql, [&run.id, body]).unwrap();
    db.execute(&sql.replace("thought-dreamt", "weather-changed"), [None, Some("\"sunny\"")]).unwrap();
    drop(db);
    let daemon = place.start();
    let events = daemon.ctl(["events"]).ok();
    let find = |kind: &str| -> Value {
        let line = events.lines().find(|line| line.contains(kind)).unwrap_or_else(|| panic!("no {kind}: {events}"));
        serde_json::from_str(line).unwrap()
    };
    let dreamt = find("thought-dreamt");
    assert_eq!((&dreamt["sheep"]["electric"], &dreamt["version"]), (&json!(true), &json!(3)));
    assert_eq!(dreamt["run"], run.id.as_str());
    assert!(find("weather-changed")["run"].is_null());
    assert!(!events.contains("gap"), "{events}");
    run.reply("yes");
    assert_eq!(run.answer(), "answered");
    daemon.ctl(["show", &run.id]).ok();
}
