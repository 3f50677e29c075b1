//! Cancel and pause: queued work never begins, running work is ended or waited for, and permits come back at once.

use harness_protocol::run::RunState;
use harness_tests::{Daemon, eventually, json, runs, turn};

use crate::lane::{open, until_there_is};

#[test]
fn a_run_cancelled_while_queued_never_runs() {
    let daemon = Daemon::of_width(1);
    let holder = daemon.submit(&until_there_is("gate"));
    eventually("the lane is full", || daemon.lane("tool").busy == 1);
    let victim = daemon.submit(&runs("touch ran"));
    eventually("it is queued", || daemon.lane("tool").queued == 1);
    assert_eq!(daemon.ctl(["cancel", &victim.id]).line(), victim.id);
    let view = victim.wait();
    assert_eq!((view.state, view.exit_code), (RunState::Cancelled, Some(5)));
    assert_eq!(daemon.lane("tool").queued, 0);
    open(&daemon, "gate");
    assert_eq!(holder.answer(), "done");
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
    assert!(!daemon.work().join("ran").exists() && daemon.lane_is_idle());
    daemon.ctl(["wait", &victim.id]).exits(5);
    daemon.ctl(["cancel", &victim.id]).exits(6).tells("cancelled already");
}

#[test]
fn cancelled_during_the_first_of_three_calls_the_others_do_not_run() {
    let daemon = Daemon::start();
    let script = turn("").shell("echo $$ > one; exec sleep 600").shell("touch two").shell("touch three").turn("never");
    let run = daemon.submit(&script);
    eventually("the first call executes", || !daemon.written("one").is_empty());
    run.cancel();
    assert_eq!(run.wait().state, RunState::Cancelled);
    let results = run.results();
    assert_eq!(results.len(), 3);
    assert_eq!((results[0].exit_code, results[0].cancelled), (Some(143), true));
    assert!(results[1..].iter().all(|result| result.cancelled && result.exit_code.is_none()));
    for never in ["two", "three"] {
        assert!(!daemon.work().join(never).exists(), "{never}");
    }
    let pid = daemon.written("one").trim().parse().unwrap();
    assert!(!harness_tests::Process(pid).is_alive());
    assert!(daemon.lane_is_idle());
}

#[test]
fn a_release_by_cancel_grants_at_once() {
    let daemon = Daemon::of_width(1);
    let mut events = daemon.connect();
    events.subscribe(json!({"kinds": ["call-started", "call-finished"]}));
    let holder = daemon.submit(&runs("exec sleep 600"));
    assert_eq!(events.event()["kind"], "call-started");
    let next = daemon.submit(&runs("echo next"));
    eventually("it is queued", || daemon.lane("tool").queued == 1);
    holder.cancel();
    assert_eq!(next.answer(), "done");
    let (released, granted) = (events.event(), events.event());
    assert_eq!((&released["run"], &granted["run"]), (&json!(holder.id), &json!(next.id)));
    assert_eq!((&released["kind"], &granted["kind"]), (&json!("call-finished"), &json!("call-started")));
    assert_eq!(released["at"], granted["at"], "the step that takes the permit back gives it on");
}

/// A command that is asked to end and does not.
const STUBBORN: &str = "trap 'echo > asked' TERM; echo > began; while :; do sleep 0.05; done";

#[test]
fn a_command_that_ignores_the_term_signal_is_killed_and_holds_its_permit_until_then() {
    let daemon = Daemon::of_width(1);
    let stubborn = daemon.submit(&runs(STUBBORN));
    eventually("it executes", || daemon.work().join("began").exists());
    let next = daemon.submit(&runs("true"));
    eventually("another is queued", || daemon.lane("tool").queued == 1);
    let mut events = daemon.connect();
    events.subscribe(json!({"kinds": ["call-started", "call-finished"]}));
    stubborn.cancel();
    eventually("it was asked", || daemon.work().join("asked").exists());
    assert_eq!(stubborn.wait().state, RunState::Cancelled);
    assert_eq!(stubborn.results()[0].exit_code, Some(137));
    assert_eq!(next.answer(), "done");
    let order = [events.event(), events.event()].map(|event| (event["kind"].clone(), event["run"].clone()));
    assert_eq!(order, [(json!("call-finished"), json!(stubborn.id)), (json!("call-started"), json!(next.id))]);
    assert!(daemon.lane_is_idle());
}

#[test]
fn with_force_it_is_killed_without_being_asked() {
    let daemon = Daemon::start();
    let run = daemon.submit(&runs(STUBBORN));
    eventually("it executes", || daemon.work().join("began").exists());
    daemon.ctl(["cancel", "--force", &run.id]).ok();
    assert_eq!(run.wait().state, RunState::Cancelled);
    assert_eq!(run.results()[0].exit_code, Some(137));
    assert!(!daemon.work().join("asked").exists());
}

#[test]
fn a_cancel_takes_the_children_along() {
    let daemon = Daemon::start();
    let script = turn("").spawn("child").spawn("child").wait_for_all().turn("never").child("child", &runs("sleep 600"));
    let parent = daemon.submit(&script);
    eventually("both children are at work", || daemon.lane("tool").busy == 2);
    let cancelled = daemon.ctl(["cancel", &parent.id]).ok();
    assert_eq!(cancelled.lines().count(), 3, "{cancelled}");
    assert_eq!(parent.wait().state, RunState::Cancelled);
    eventually("nothing is left", || daemon.lane_is_idle());
    let left = daemon.ctl(["list", "--json", "--state", "acting"]).ok();
    assert_eq!(left, "");
}

#[test]
fn a_paused_run_finishes_its_call_and_begins_no_other() {
    let daemon = Daemon::start();
    let first = "echo >> began; until [ -e gate ]; do sleep 0.02; done";
    let run = daemon.submit(&turn("").shell(first).shell("touch second").turn("done"));
    eventually("the first call executes", || daemon.work().join("began").exists());
    assert_eq!(daemon.ctl(["pause", &run.id]).line(), run.id);
    assert_eq!(run.view().state, RunState::Paused);
    open(&daemon, "gate");
    // The outcome that comes now is kept, and advances nothing.
    eventually("the first call has its result", || run.results().len() == 1);
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
    assert!(run.view().state == RunState::Paused && !daemon.work().join("second").exists());
    assert!(daemon.lane_is_idle() || daemon.lane("tool").permits == 0, "{:?}", daemon.lane("tool"));
    daemon.ctl(["pause", &run.id]).exits(6).tells("paused already");
    daemon.ctl(["resume", &run.id]).ok();
    assert_eq!(run.answer(), "done");
    assert!(daemon.work().join("second").exists());
    assert!(run.view().timing.paused.as_micros() > 0);
}

#[test]
fn a_grant_is_not_lost_when_its_taker_is_cancelled_or_paused() {
    let daemon = Daemon::of_width(1);
    let holder = daemon.submit(&until_there_is("gate"));
    eventually("the lane is full", || daemon.lane("tool").busy == 1);
    let [cancelled, paused, last] = [0; 3].map(|_| daemon.submit(&runs("true")));
    eventually("three are queued", || daemon.lane("tool").queued == 3);
    // In one go with the release, so that both orders come about over time.
    open(&daemon, "gate");
    cancelled.cancel();
    paused.pause();
    assert_eq!(holder.answer(), "done");
    assert_eq!(last.answer(), "done");
    cancelled.wait();
    daemon.ctl(["resume", &paused.id]);
    assert_eq!(paused.answer(), "done");
    assert!(daemon.lane_is_idle());
}
