//! A process inside a run leaves to the daemon what hangs when it is closed. Operators are answered all the same.

use std::fs;
use std::path::Path;
use std::time::Duration;

use harness_tests::{Daemon, Place, Run, eventually, json, says};

use crate::adversary::Arena;

/// What a run executes for what needs more than a shell.
const ADVERSARY: &str = env!("CARGO_BIN_EXE_adversary");
/// More connections at once than a daemon has threads for them.
const ASKING: usize = 16;
/// Longer than a daemon takes to stop, and less than what was left to it takes to be closed.
const STOPS_WITHIN: Duration = Duration::from_secs(60);
/// How sockets that linger are left to the daemon: `../adversary/lingering.rs`.
const WAYS: [&str; 9] = [
    "refused",
    "refused-and-written-on",
    "many-messages",
    "beside-one-message-1",
    "beside-one-message-4",
    "beside-one-message-253",
    "out-of-band",
    "left-at-once",
    "ended-early",
];

/// A daemon, and a run that has left to it what hangs.
fn left(way: &str) -> (Daemon, Run) {
    let place = Place::new();
    let daemon = place.start_unprivileged(&[Path::new(ADVERSARY)]);
    let script = harness_tests::turn("").shell(&format!("adversary leave-lingering {way}")).turn("tried");
    let run = daemon.submit_with(&script, json!({"env": Arena::environment(&daemon)}));
    eventually("it has left them", || !daemon.written("left").is_empty());
    (daemon, run)
}

fn operators_are_served(daemon: &Daemon, way: &str) {
    let mut asking: Vec<_> = (0..ASKING).map(|_| daemon.connect()).collect();
    for client in &mut asking {
        assert_eq!(client.call("daemon.status", json!({}))["health"], "serving", "{way}");
    }
    daemon.ctl(["daemon", "status"]).ok();
    assert_eq!(daemon.submit(&says("served")).answer(), "served", "{way}");
}

/// Tries 8, 9 and 24 of an adversary: all workers of the daemon waited in the close of a TCP socket.
#[test]
fn sockets_that_linger_keep_no_operator_waiting_however_a_run_leaves_them() {
    for way in WAYS {
        let (daemon, run) = left(way);
        operators_are_served(&daemon, way);
        fs::write(daemon.path("work/enough"), "").unwrap();
        assert_eq!(run.answer(), "tried", "{way}: {:?}", run.envelopes());
        operators_are_served(&daemon, way);
    }
}

#[test]
fn a_run_that_leaves_sockets_that_linger_is_cancelled_and_its_daemon_is_stopped() {
    for way in WAYS {
        let (mut daemon, run) = left(way);
        daemon.ctl(["cancel", &run.id]).ok();
        assert!(run.wait().state.is_terminal(), "{way}");
        daemon.ctl(["daemon", "stop"]).ok();
        daemon.ended(STOPS_WITHIN);
    }
}
