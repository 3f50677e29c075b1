//! Many waiting runs: no combination of them starves the runs that they wait for, and they cost nothing.

use std::fs;
use std::thread;
use std::time::Duration;

use harness_tests::{Daemon, Script, eventually, json, runs, turn};

fn parent_of(children: usize) -> Script {
    let spawning = (0..children).fold(turn(""), |script, _| script.spawn("child"));
    spawning.wait_for_all().turn("all are back").child("child", &runs("echo >> worked"))
}

fn all_finish(width: u32, parents: usize, children: usize) {
    let daemon = Daemon::of_width(width);
    for run in daemon.submit_many(parents, &parent_of(children)) {
        assert_eq!(run.answer(), "all are back");
    }
    assert_eq!(daemon.written("worked").lines().count(), parents * children);
    assert!(daemon.lane_is_idle());
}

#[test]
fn at_width_3_five_parents_that_each_wait_for_two_children_finish() {
    all_finish(3, 5, 2);
}

#[test]
fn a_hundred_parents_with_ten_children_each_finish_at_width_4() {
    all_finish(4, 100, 10);
}

#[test]
fn a_parent_whose_children_have_children_finishes_at_width_1() {
    let daemon = Daemon::of_width(1);
    let script = turn("").spawn("middle").spawn("middle").wait_for_all().shell("echo >> worked").turn("top");
    let run = daemon.submit(&script.child("middle", &parent_of(3)));
    assert_eq!(run.answer(), "top");
    assert_eq!(daemon.written("worked").lines().count(), 7);
    assert!(daemon.lane_is_idle());
}

#[test]
fn a_thousand_runs_that_ask_a_person_cost_nothing_and_let_others_through() {
    let daemon = Daemon::of_width(1);
    let line = json!({"script": turn("").ask("when?").turn("never").json(), "on_interaction": "wait"});
    let batch = daemon.file("batch.jsonl", &format!("{line}\n").repeat(1000));
    let ids = daemon.ctl(["submit", "--batch", &batch]).ok();
    assert_eq!(ids.lines().count(), 1000);
    eventually("all of them ask", || daemon.rpc("daemon.status", json!({}))["pending"] == 1000);
    let lane = daemon.lane("tool");
    assert_eq!((lane.queued, lane.busy, lane.resuming, lane.permits, lane.saturated), (0, 0, 0, 0, false));
    assert_eq!(daemon.rpc("interaction.list", json!({}))["interactions"].as_array().unwrap().len(), 1000);
    // What is measured is that nothing happens while time passes, so time must pass. The last work before may reach
    // into it.
    let window = Duration::from_secs(1);
    let mut used = (0..3).map(|_| {
        let before = daemon.process().cpu_ticks();
        thread::sleep(window);
        daemon.process().cpu_ticks() - before
    });
    assert!(used.any(|ticks| ticks <= 2), "it uses CPU time in {window:?} without anything to do");
    assert_eq!(daemon.submit(&runs("echo through")).answer(), "done");
    assert_eq!(daemon.ctl(["cancel", "--state", "waiting"]).ok().lines().count(), 1000);
    eventually("nothing is open", || daemon.rpc("daemon.status", json!({}))["pending"] == 0);
    assert!(daemon.lane_is_idle());
}

#[test]
fn fifty_that_resume_behind_a_full_lane_count_as_saturation_and_do_not_starve_new_ones() {
    let daemon = Daemon::of_width(1);
    let asking = daemon.submit_many(50, &turn("").ask("go?").shell("echo old >> order").turn("done"));
    eventually("all of them ask", || daemon.rpc("daemon.status", json!({}))["pending"] == 50);
    let holder = daemon.submit(&crate::lane::until_there_is("gate"));
    eventually("the lane is full", || daemon.lane("tool").busy == 1);
    let fresh = daemon.submit_many(5, &runs("echo new >> order"));
    eventually("the new ones are queued", || daemon.lane("tool").queued == 5);
    daemon
        .connect()
        .pipeline(asking.iter().map(|run| ("interaction.answer", json!({"interaction": run.id, "answer": "yes"}))));
    let lane = daemon.lane("tool");
    assert_eq!((lane.resuming, lane.queued, lane.saturated), (50, 5, true));
    fs::write(daemon.work().join("gate"), "").unwrap();
    asking.iter().chain(&fresh).chain([&holder]).for_each(|run| drop(run.answer()));
    let order = daemon.written("order");
    let first = order.lines().position(|line| line == "new").unwrap();
    assert!(first < 16, "every class gets one of eight: {first}");
    assert!(daemon.lane_is_idle());
}
