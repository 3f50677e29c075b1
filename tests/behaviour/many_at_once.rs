//! Changes of many runs: made in pieces, and no other request waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use harness_tests::{Client, Daemon, Value, eventually, json};

/// Runs of each change: several pieces.
const MANY: usize = 650;

/// A run that asks a person and waits.
fn waiting(more: Value) -> Value {
    let call = json!({"tool": "ask_user", "args": {"question": "q"}});
    let mut spec = json!({"on_interaction": "wait", "script": {"turn": [{"call": [call]}, {"text": "x"}]}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

/// A daemon with many runs that wait for a person.
fn with_many() -> (Daemon, Vec<String>) {
    let daemon = Daemon::start();
    let mut line = daemon.connect();
    let submits = (0..MANY).map(|number| {
        ("run.submit", json!({"spec": waiting(json!({"name": format!("many-{number}"), "labels": {"of": "many"}}))}))
    });
    let replies = line.pipeline(submits);
    let runs: Vec<String> = replies.iter().map(|reply| reply["result"]["id"].as_str().unwrap().to_owned()).collect();
    eventually("all ask", || daemon.rpc("daemon.status", json!({}))["pending"] == MANY);
    (daemon, runs)
}

/// Asks for the status until it is told to stop; gives the most requests that it waited behind.
fn prober(daemon: &Daemon) -> (Arc<AtomicBool>, thread::JoinHandle<u64>) {
    let (mut line, stop) = (daemon.connect(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let probing = thread::spawn(move || {
        loop {
            let behind = line.call("daemon.status", json!({}))["waited_behind"].as_u64().unwrap();
            if stopped.load(Ordering::Acquire) {
                return behind;
            }
        }
    });
    (stop, probing)
}

fn state(daemon: &Daemon, run: &str) -> Value {
    daemon.rpc("run.show", json!({"run": run}))["run"]["state"].clone()
}

/// A9. What is selected is settled at the beginning: what the same connection submits after it is not hit.
#[test]
fn a_change_of_many_hits_what_was_there_when_it_began_and_keeps_no_request_waiting() {
    let names: Vec<String> = (0..MANY).map(|number| format!("many-{number}")).collect();
    let cases = [
        ("run.cancel", json!({"select": {"all": true}})),
        ("run.cancel", json!({"select": {"labels": {"of": "many"}}, "force": true})),
        ("run.cancel", json!({"select": {"states": ["waiting"]}})),
        ("run.cancel", json!({"select": {"runs": names}})),
        ("run.pause", json!({"select": {"labels": {"of": "many"}}})),
        ("run.pause", json!({"select": {"runs": names}})),
    ];
    for (method, select) in cases {
        let what = format!("{method} {}", select.to_string().chars().take(60).collect::<String>());
        let (daemon, mut runs) = with_many();
        let (stop, probing) = prober(&daemon);
        let mut line: Client = daemon.connect();
        let change = line.send(method, select.clone());
        let later = line.send("run.submit", json!({"spec": waiting(json!({"labels": {"of": "many"}}))}));
        let changed = line.reply(change)["result"].clone();
        let later = line.reply(later)["result"]["id"].as_str().unwrap().to_owned();
        let mut hit: Vec<String> = serde_json::from_value(changed["runs"].clone()).unwrap();
        hit.sort();
        runs.sort();
        assert_eq!(hit, runs, "{what}");
        stop.store(true, Ordering::Release);
        let behind = probing.join().unwrap();
        assert!(behind <= 64, "{what}: behind {behind}");
        assert_ne!(state(&daemon, &later), "cancelled", "{what}");
        assert!(daemon.rpc("run.show", json!({"run": later}))["run"]["paused"] != true, "{what}");
    }
}

/// A9. Nothing is there to be told of those that had ended by themselves; a name that means nothing changes nothing.
#[test]
fn a_name_among_many_that_means_no_run_is_told_before_anything_is_changed() {
    let (daemon, _) = with_many();
    let mut names: Vec<String> = (0..MANY).map(|number| format!("many-{number}")).collect();
    names.push("nobody".to_owned());
    let mut line = daemon.connect();
    for method in ["run.cancel", "run.pause", "run.resume"] {
        let refused = line.try_call(method, json!({"select": {"runs": names}})).unwrap_err();
        assert_eq!(refused["data"]["kind"], "not-found", "{method}");
    }
    assert_eq!(daemon.rpc("daemon.status", json!({}))["pending"], MANY);
}

/// A9. A deadline that many share ends them piece by piece.
#[test]
fn a_deadline_that_many_share_keeps_no_request_waiting() {
    let daemon = Daemon::start();
    let mut line = daemon.connect();
    let submits =
        (0..MANY).map(|_| ("run.submit", json!({"spec": waiting(json!({"limits": {"deadline_seconds": 3}}))})));
    line.pipeline(submits);
    let (stop, probing) = prober(&daemon);
    eventually("all have failed", || daemon.rpc("daemon.status", json!({}))["runs"]["failed"] == MANY);
    stop.store(true, Ordering::Release);
    let behind = probing.join().unwrap();
    assert!(behind <= 64, "behind {behind}");
}

/// A9. A crash in between leaves whole pieces: every run is cancelled or waits as before, and asking again does the
/// rest.
#[test]
fn a_crash_in_between_leaves_whole_pieces_and_asking_again_does_the_rest() {
    let (daemon, _) = with_many();
    let mut line = daemon.connect();
    line.send("run.cancel", json!({"select": {"all": true}}));
    eventually("some are cancelled", || {
        daemon.rpc("daemon.status", json!({}))["runs"]["cancelled"].as_u64().unwrap_or(0) > 0
    });
    let daemon = daemon.crash().start();
    let counts = daemon.rpc("daemon.status", json!({}))["runs"].clone();
    let count = |state: &str| counts[state].as_u64().unwrap_or(0);
    assert_eq!(count("cancelled") + count("waiting"), MANY as u64, "{counts}");
    let mut line = daemon.connect();
    let rest = line
        .try_call("run.cancel", json!({"select": {"all": true}}))
        .map_or(0, |done| done["runs"].as_array().unwrap().len());
    assert_eq!(count("cancelled") + rest as u64, MANY as u64);
}
