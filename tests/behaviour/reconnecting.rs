//! Watching and waiting commands when the daemon is killed and another one comes: they go on by themselves, and miss
//! and repeat nothing.

use std::collections::BTreeSet;

use harness_tests::{Daemon, Place, Running, Value, eventually, json, turn};
use nix::sys::signal::Signal;

use crate::daemon_gone::watchers;
use crate::lane::until_there_is;

/// Kills, one after the other.
const KILLS: usize = 4;

fn seq_of(line: &str) -> u64 {
    let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    event["seq"].as_u64().unwrap_or_else(|| panic!("no event: {line}"))
}

/// Reads lines up to the event of this number.
fn read_to(following: &mut Running, last: u64, lines: &mut Vec<String>) {
    while lines.last().is_none_or(|line| seq_of(line) < last) {
        let line = following.next_line();
        assert!(!line.is_empty(), "it ended after {:?}", lines.last());
        lines.push(line);
    }
}

fn last_seq(place: &Place) -> u64 {
    place.rpc("daemon.status", json!({}))["last_seq"].as_u64().unwrap()
}

#[test]
fn a_follower_sees_every_event_once_however_often_the_daemon_is_killed() {
    let place = Place::new();
    let mut daemon = place.start();
    let steps = (0..40).fold(turn("begin"), |script, step| script.shell("sleep 0.05").turn(&format!("step {step}")));
    let long = daemon.submit_with(&steps, json!({"name": "long"}));
    let mut everything = place.spawn_ctl(["events", "-f", "--after", "0"]);
    let mut ends = place.spawn_ctl(["events", "-f", "--after", "0", "--kind", "run-submitted,run-finished"]);
    let one = place.spawn_ctl(["follow", "long", "--json"]);
    let waiting = place.spawn_ctl(["wait", "long"]);
    let mut lines = Vec::new();
    for _ in 0..KILLS {
        daemon.submit_many(10, &turn("").shell("true").turn("").shell("true").turn("done"));
        // It is at it when the daemon is killed.
        read_to(&mut everything, last_seq(&place), &mut lines);
        place_is_killed(daemon);
        daemon = place.start();
    }
    long.cancel();
    long.wait();
    eventually("all have ended", || {
        let runs = place.rpc("daemon.status", json!({}))["runs"].clone();
        runs.as_object().unwrap().iter().all(|(state, number)| {
            matches!(state.as_str(), "succeeded" | "failed" | "cancelled") || *number == json!(0)
        })
    });
    read_to(&mut everything, last_seq(&place), &mut lines);
    let fresh = place.ctl(["events", "--after", "0"]).ok();
    let fresh: Vec<&str> = fresh.split_inclusive('\n').collect();
    assert_eq!(lines.len(), fresh.len());
    for (seen, there) in lines.iter().zip(&fresh) {
        assert_eq!(seen, there);
    }
    assert!(lines.iter().enumerate().all(|(index, line)| seq_of(line) == index as u64 + 1), "numbers are missing");

    let of = |words: &[&str]| place.ctl(["events", "--after", "0"].iter().chain(words)).ok();
    let wanted = of(&["--kind", "run-submitted,run-finished"]);
    let mut seen = Vec::new();
    read_to(&mut ends, seq_of(wanted.lines().last().unwrap()), &mut seen);
    assert_eq!(seen.concat(), wanted);
    let output = one.finish().exits(5);
    // After its end nothing more of the run is followed.
    let of_run: String =
        of(&["--run", &long.id]).split_inclusive('\n').filter(|line| !line.contains("run-archived")).collect();
    assert_eq!(output.stdout, of_run);
    waiting.finish().exits(5);
    drop(daemon);
}

fn place_is_killed(daemon: Daemon) {
    drop(daemon.crash());
}

#[test]
fn commands_that_watch_and_wait_go_on_with_the_next_daemon() {
    let daemon = Daemon::start();
    let run = daemon.submit(&until_there_is("gate"));
    eventually("it executes", || daemon.lane("tool").busy == 1);
    let watching = watchers(&daemon, &run.id);
    let daemon = daemon.crash().start();
    // The calls were interrupted, which the model is told; then each of the runs ends.
    for (words, mut command) in watching {
        if words.contains("lane") || words.contains("events") {
            if words.contains("events") {
                command.read_to("run-finished");
            } else {
                (0..20).for_each(|_| assert!(!command.next_line().is_empty(), "{words}"));
            }
            command.signal(Signal::SIGINT);
            assert_eq!(command.finish().code, 130, "{words}");
            continue;
        }
        let output = command.finish();
        // It has ended well, and so never waits.
        let code = if words.contains("--for") { 6 } else { 0 };
        assert_eq!(output.code, code, "{words}: {output}");
        match words.as_str() {
            words if words.starts_with("wait") => assert!(output.stdout.contains("done"), "{words}: {output}"),
            words if words.contains("--wait") => assert_eq!(output.stdout, "done\n", "{words}"),
            words if words.contains("--call") => {}
            words => assert!(
                output.stdout.contains("interrupted by a restart") && output.stdout.contains("done"),
                "{words}: {output}"
            ),
        }
    }
    assert_eq!(run.answer(), "done");
    drop(daemon);
}

#[test]
fn several_that_are_waited_for_are_told_once_each_after_a_restart_too() {
    let daemon = Daemon::start();
    let runs = daemon.submit_many(5, &until_there_is("gate"));
    let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
    eventually("they execute", || daemon.lane("tool").busy == 5);
    let waiting = daemon.spawn_ctl([&["wait"], ids.as_slice()].concat());
    eventually("it is at it", || waiting.process().catches(Signal::SIGINT));
    let daemon = daemon.crash().start();
    let output = waiting.finish().exits(0);
    let told: BTreeSet<String> = ids.iter().map(|id| format!("{id} succeeded 0 done")).collect();
    assert_eq!(output.stdout.lines().map(ToOwned::to_owned).collect::<BTreeSet<_>>(), told);
    assert_eq!((told.len(), output.stdout.lines().count()), (5, 5));
    drop(daemon);
}

#[test]
fn a_name_means_the_run_that_it_meant_when_the_wait_began() {
    let daemon = Daemon::start();
    let script = turn("").shell("touch began; sleep 600").turn("the first");
    let first = daemon.submit_with(&script, json!({"name": "nightly"}));
    let waiting = daemon.spawn_ctl(["wait", "nightly"]);
    eventually("it is at it", || waiting.process().catches(Signal::SIGINT) && daemon.work().join("began").exists());
    let place = daemon.crash();
    waiting.signal(Signal::SIGSTOP);
    let daemon = place.start();
    assert_eq!(first.answer(), "the first");
    let second = daemon.submit_with(&turn("the second"), json!({"name": "nightly"}));
    assert_eq!(second.answer(), "the second");
    waiting.signal(Signal::SIGCONT);
    assert_eq!(waiting.finish().ok(), "the first\n");
}

#[test]
fn a_stop_says_that_everything_goes_on_and_it_does() {
    let daemon = Daemon::start();
    let run = daemon.submit(&until_there_is("gate"));
    let asking = daemon.submit(&turn("").ask("well?").turn("thanks"));
    eventually("both are at it", || daemon.lane("tool").busy == 1 && !asking.questions().is_empty());
    let question = asking.questions();
    let told = "what executed was interrupted, and 2 runs go on with the next start";
    daemon.ctl(["daemon", "stop"]).exits(0).tells(told);
    let place = daemon.place();
    drop(daemon);
    place.ctl(["list"]).ok();
    assert_eq!(run.answer(), "done");
    assert!(run.results()[0].interrupted);
    assert_eq!(asking.questions(), question);
    asking.reply("yes");
    assert_eq!(asking.answer(), "thanks");
}

#[test]
fn large_events_of_before_the_restart_are_all_there() {
    let daemon = Daemon::start();
    // Some pages of the journal end at their bytes, long before they have their number of events.
    let large = turn(&"much to say. ".repeat(5_000));
    daemon.submit_many(60, &large).iter().for_each(|run| drop(run.wait()));
    let last = last_seq(&daemon);
    let daemon = daemon.crash().start();
    let events = daemon.ctl(["events", "--after", "0"]).ok();
    let seqs: Vec<u64> = events.lines().map(seq_of).collect();
    assert!(events.len() > 6 << 20 && seqs.len() as u64 > last);
    assert!(seqs.iter().enumerate().all(|(index, seq)| *seq == index as u64 + 1));
}
