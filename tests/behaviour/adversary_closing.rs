//! A process inside a run leaves to the daemon what hangs when it is closed. Operators are answered all the same.

use std::fs;
use std::path::Path;
use std::time::Duration;

use harness_tests::{Daemon, Place, Run, found, json, says};

use crate::adversary::Arena;

/// What a run executes for what needs more than a shell.
const ADVERSARY: &str = env!("CARGO_BIN_EXE_adversary");
/// More connections at once than a daemon has threads for them.
const ASKING: usize = 16;
/// Longer than a daemon takes to stop, and less than what was left to it takes to be closed.
const STOPS_WITHIN: Duration = Duration::from_secs(60);
/// The processors that a process may use, as the kernel lists them.
fn processors(process: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

/// A daemon with a single worker, and a run that has left to it what hangs. If that worker closes it, nothing is
/// answered any more. (A daemon has as many workers as there are processors for it.)
fn left(way: &str) -> (Daemon, Run) {
    let place = Place::new();
    let all = processors("self");
    let one = all.split(['-', ',']).next().unwrap();
    let daemon = place.start_unprivileged_behind(&["taskset", "--cpu-list", one], &[Path::new(ADVERSARY)]);
    assert_eq!(processors(&daemon.process().0.to_string()), one);
    let script = harness_tests::turn("").shell(&format!("adversary leave-lingering {way}")).turn("tried");
    let run = daemon.submit_with(&script, json!({"env": Arena::environment(&daemon)}));
    // Not by asking the daemon: it may hang already.
    found("it has left them", || (!daemon.written("left").is_empty()).then_some(()));
    (daemon, run)
}

fn operators_are_served(daemon: &Daemon) {
    let mut asking: Vec<_> = (0..ASKING).map(|_| daemon.connect()).collect();
    for client in &mut asking {
        assert_eq!(client.call("daemon.status", json!({}))["health"], "serving");
    }
    daemon.ctl(["daemon", "status"]).ok();
    assert_eq!(daemon.submit(&says("served")).answer(), "served");
}

/// Tries 8, 9 and 24 of an adversary: all workers of the daemon waited in the close of a TCP socket.
fn no_operator_waits(way: &str) {
    let (daemon, run) = left(way);
    operators_are_served(&daemon);
    fs::write(daemon.path("work/enough"), "").unwrap();
    assert_eq!(run.answer(), "tried", "{:?}", run.envelopes());
    operators_are_served(&daemon);
}

fn it_is_cancelled_and_its_daemon_is_stopped(way: &str) {
    let (mut daemon, run) = left(way);
    daemon.ctl(["cancel", &run.id]).ok();
    assert!(run.wait().state.is_terminal());
    daemon.ctl(["daemon", "stop"]).ok();
    daemon.ended(STOPS_WITHIN);
}

/// How sockets that linger are left to the daemon: `../adversary/lingering.rs`. Each way is a test of its own: where
/// one hangs, the others still tell.
macro_rules! ways {
    ($($test:ident: $way:literal,)*) => {
        mod sockets_that_linger_keep_no_operator_waiting {
            $(#[test] fn $test() { super::no_operator_waits($way); })*
        }
        mod a_run_that_leaves_sockets_that_linger_is_cancelled_and_its_daemon_is_stopped {
            $(#[test] fn $test() { super::it_is_cancelled_and_its_daemon_is_stopped($way); })*
        }
    };
}

ways! {
    over_refused_connections: "refused",
    over_refused_connections_that_are_written_on: "refused-and-written-on",
    in_many_messages: "many-messages",
    one_beside_a_message: "beside-one-message-1",
    four_beside_a_message: "beside-one-message-4",
    two_hundred_and_fifty_three_beside_a_message: "beside-one-message-253",
    out_of_band: "out-of-band",
    over_connections_that_their_sender_leaves: "left-at-once",
    over_connections_that_the_daemon_ends: "ended-early",
}
