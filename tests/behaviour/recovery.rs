//! Recovery of a killed daemon: work in progress is not done twice, and waiting work is not forgotten.

use std::process::Child;
use std::time::Duration;

use harness_protocol::run::{Entry, RunState};
use harness_tests::storm::Line;
use harness_tests::{Daemon, Place, Process, Run, Value, eventually, found_within, json, runs, says, turn};

use crate::lane::until_there_is;

/// How long a daemon may take to pass a point.
const SOON: Duration = Duration::from_secs(20);

/// The daemon is killed, and another one takes its place.
fn killed_and_back(daemon: Daemon) -> Daemon {
    daemon.crash().start()
}

fn kinds(run: &Run, daemon: &Daemon) -> Vec<String> {
    let exported = daemon.rpc("run.export", json!({"run": run.id}));
    exported["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_call_that_executed_is_told_as_interrupted_and_is_not_run_again_and_the_next_one_runs() {
    let daemon = Daemon::start();
    let run = daemon.submit(
        &turn("").shell("echo $$ >> first; sleep 600").shell("echo second >> second").turn("on").expect("Interrupted"),
    );
    eventually("it executes", || !daemon.written("first").is_empty());
    let process = Process(daemon.written("first").trim().parse().unwrap());
    let daemon = killed_and_back(daemon);
    assert_eq!(run.answer(), "on");
    let results = run.results();
    assert_eq!((results[0].interrupted, results[0].exit_code, results[0].is_error), (true, None, true));
    assert!(!results[0].envelope.contains("Exit code") && results[0].envelope.contains("not run again"));
    assert_eq!((results[1].interrupted, results[1].exit_code), (false, Some(0)));
    assert_eq!((daemon.written("first").lines().count(), daemon.written("second").lines().count()), (1, 1));
    process.is_gone_soon();
}

#[test]
fn calls_that_stood_in_the_queue_run_after_the_restart() {
    let daemon = Daemon::of_width(1);
    let first = daemon.submit(&until_there_is("gate"));
    eventually("it executes", || daemon.lane("tool").busy == 1);
    let queued = daemon.submit_many(5, &runs("echo here >> here"));
    eventually("all are queued", || daemon.lane("tool").queued == 5);
    let daemon = killed_and_back(daemon);
    for run in &queued {
        assert_eq!(run.answer(), "done");
        assert_eq!(run.results()[0].exit_code, Some(0));
    }
    assert_eq!(daemon.written("here").lines().count(), 5);
    first.wait();
    assert!(daemon.lane_is_idle());
}

#[test]
fn an_inference_in_flight_is_asked_again() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("thought twice").after(1.0));
    run.reach(RunState::Thinking);
    eventually("it is out", || daemon.rpc("daemon.status", json!({}))["executing"] == 1);
    let daemon = killed_and_back(daemon);
    assert_eq!(run.answer(), "thought twice");
    let kinds = kinds(&run, &daemon);
    let count = |kind: &str| kinds.iter().filter(|found| *found == kind).count();
    assert_eq!((count("inference-started"), count("inference-failed"), count("inference-finished")), (2, 1, 1));
    assert_eq!(run.view().steps, 1);
}

#[test]
fn an_open_question_is_open_again_under_the_same_id() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("").ask("blue or green?").turn("${colour}").capture("colour", r"^(\w+)$"));
    run.reach(RunState::Waiting);
    let asked = run.questions();
    let since = run.view().waiting_for.unwrap().since;
    let daemon = killed_and_back(killed_and_back(daemon));
    assert_eq!(run.questions(), asked);
    assert_eq!(run.view().waiting_for.unwrap().since, since);
    daemon.ctl(["reply", &asked[0], "green"]).ok();
    assert_eq!(run.answer(), "green");
    let again = daemon.ctl(["reply", &asked[0], "blue"]).exits(6);
    assert!(again.stderr.contains("first"), "{again}");
}

#[test]
fn a_parent_goes_on_waiting_for_its_children() {
    let daemon = Daemon::start();
    let child = turn("").ask("well?").turn("a child's answer");
    let parent = turn("").spawn_as("elder", "child").spawn_as("younger", "child").wait_for_all().turn("both are back");
    let parent = daemon.submit(&parent.expect("a child's answer").child("child", &child));
    eventually("both children ask", || daemon.rpc("interaction.list", json!({}))["total"] == 2);
    let (elder, younger) = (parent.child("elder"), parent.child("younger"));
    elder.reply("yes");
    elder.wait();
    let _back = killed_and_back(daemon);
    assert_eq!(parent.view().state, RunState::Waiting);
    younger.reply("yes");
    assert_eq!(parent.answer(), "both are back");
    let waited = parent.envelopes().pop().unwrap();
    assert_eq!(waited.matches("succeeded:\na child's answer").count(), 2, "{waited}");
}

#[test]
fn a_cancel_that_was_acknowledged_stays_one() {
    let daemon = Daemon::start();
    // What ignores the signal is still being ended when the cancel has long been answered.
    let deaf = daemon.submit(&turn("").shell("trap '' TERM; echo x > deaf; sleep 600; sleep 600").turn("never"));
    let asking = daemon.submit(&turn("").ask("well?").turn("never"));
    eventually("it executes", || !daemon.written("deaf").is_empty());
    asking.reach(RunState::Waiting);
    deaf.cancel();
    asking.cancel();
    let daemon = killed_and_back(killed_and_back(daemon));
    for run in [&deaf, &asking] {
        let view = run.wait();
        assert_eq!((view.state, view.exit_code), (RunState::Cancelled, Some(5)));
    }
    assert_eq!(daemon.rpc("interaction.list", json!({}))["total"], 0);
}

#[test]
fn a_pause_and_a_message_survive() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("").shell("until [ -e gate ]; do sleep 0.02; done").turn("read it"));
    eventually("it executes", || daemon.lane("tool").busy == 1);
    run.pause();
    daemon.ctl(["message", &run.id, "mind the gap"]).ok();
    let daemon = killed_and_back(daemon);
    assert_eq!(run.view().state, RunState::Paused);
    run.resume();
    assert_eq!(run.answer(), "read it");
    let told = Entry::User { text: "mind the gap".into() };
    assert_eq!(run.transcript().iter().filter(|entry| **entry == told).count(), 1);
    drop(daemon);
}

#[test]
fn width_reliefs_and_pauses_of_a_lane_survive() {
    let daemon = Daemon::of_width(4);
    daemon.ctl(["lane", "resize", "3"]).ok();
    daemon.ctl(["lane", "relieve", "--by", "2"]).ok();
    daemon.ctl(["lane", "relieve", "--by", "5", "--for", "1h"]).ok();
    daemon.ctl(["lane", "pause"]).ok();
    let before = daemon.lane("tool");
    let daemon = killed_and_back(daemon);
    let after = daemon.lane("tool");
    assert_eq!((after.width, after.configured_width, after.reliefs.len()), (10, 4, 2));
    assert_eq!(after.reliefs, before.reliefs);
    let run = daemon.submit(&runs("true"));
    eventually("it is queued", || daemon.lane("tool").queued == 1);
    daemon.ctl(["lane", "resume"]).ok();
    assert_eq!(run.answer(), "done");
}

/// Starts a daemon that dies at a point when it commits for the second time: with the first submit.
fn dies_with_the_first_submit(place: &Place, point: &str) -> Child {
    let mut child = Daemon::spawn(place, &[], &[("HARNESS_CRASH_AT", &format!("{point}:2"))]);
    eventually("it listens", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended too soon");
        Line::open(&place.socket()).is_some()
    });
    child
}

#[test]
fn a_submit_whose_reply_was_lost_gives_one_run_when_it_is_repeated() {
    for (point, is_there) in [("before-write", false), ("written", false), ("synced", true), ("before-effect", true)] {
        let place = Place::new();
        let submit = json!({"spec": place.spec(&says("once"), json!({})), "idempotency_key": "k"});
        let mut child = dies_with_the_first_submit(&place, point);
        let mut line = Line::open(&place.socket()).unwrap();
        assert_eq!(line.call("run.submit", &submit).unwrap_err().kind(), "lost", "{point}");
        found_within(SOON, "it dies", || child.try_wait().unwrap());
        let daemon = place.start();
        let listed = || daemon.ctl(["list", "--all", "--json"]).ok().lines().count();
        assert_eq!(listed(), usize::from(is_there), "{point}");
        let reply = daemon.rpc("run.submit", submit.clone());
        assert_eq!(reply["existing"], is_there, "{point}");
        let id = reply["id"].as_str().unwrap();
        assert_eq!(daemon.rpc("run.submit", submit)["id"], id);
        assert_eq!((daemon.run(id).answer(), listed()), ("once".to_owned(), 1));
    }
}

#[test]
fn a_follower_of_large_events_misses_none_across_a_restart() {
    let daemon = Daemon::configured("[limits]\nevents = 10\n");
    let text = "much ".repeat(60_000);
    daemon.submit_many(12, &says(&text)).iter().for_each(|run| drop(run.wait()));
    let daemon = killed_and_back(daemon);
    let mut client = daemon.connect();
    let last = client.subscribe(json!({"after": 0}))["last_seq"].as_u64().unwrap();
    for seq in 1..=last {
        let note = client.note();
        assert_eq!((&note["method"], &note["params"]["event"]["seq"]), (&json!("event"), &json!(seq)), "of {last}");
    }
    // And of one run alone: to its end.
    let listed = daemon.ctl(["list", "--all", "--json"]).ok();
    let run: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    let mut client = daemon.connect();
    client.subscribe(json!({"after": 0, "run": run["id"]}));
    while client.event()["kind"] != "run-finished" {}
}

#[test]
fn a_model_is_told_once_that_what_ran_in_the_background_is_gone() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("").shell("sleep 600 & echo started").turn("").ask("go on?").turn("done"));
    run.reach(RunState::Waiting);
    let daemon = daemon.crash().start();
    let daemon = daemon.crash().start();
    let run = daemon.run(&run.id);
    run.reply("yes");
    assert_eq!(run.answer(), "done");
    let shown = daemon.ctl(["show", &run.id, "--json"]).ok();
    assert_eq!(shown.matches("had left running in the background are gone").count(), 1, "{shown}");
}
