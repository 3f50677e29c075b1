//! A full disk: which requests are refused and which succeed, and that work goes on by itself when there is room.

use std::time::Duration;

use harness_protocol::run::RunState;
use harness_tests::storm::{Chance, Storm, Told, check};
use harness_tests::{Daemon, Disk, Place, Run, eventually, found_within, json, now, runs, says, turn};

use crate::crash::{number, seed};
use crate::lane::open;

/// No client waits longer than this for an answer.
const SOON: Duration = Duration::from_secs(8);

fn health(place: &Place) -> String {
    place.rpc("daemon.status", json!({}))["health"].as_str().unwrap().to_owned()
}

/// Submits until that is refused, and sees that it is refused well.
fn submit_until_held(daemon: &Daemon) -> Vec<Run> {
    let file = daemon.script_file(&says("squeezed in"));
    let mut taken = Vec::new();
    loop {
        let output = daemon.ctl(["submit", "-q", "--script", &file]);
        if output.code != 0 {
            output.exits(75).tells("held").tells("no space").tells("harnessctl prune");
            return taken;
        }
        taken.push(daemon.run(output.stdout.trim()));
        assert!(taken.len() < 100, "the disk is full");
    }
}

#[test]
#[ignore = "needs root, to mount a disk"]
fn on_a_full_disk_reads_and_what_makes_room_go_through_and_new_work_is_refused() {
    let place = Place::new();
    let disk = Disk::in_memory(&place, 40);
    let mut daemon = place.start();
    let asking = daemon.submit(&turn("").ask("well?").shell("echo on").turn("answered"));
    let executing = daemon.submit(&runs("sleep 600"));
    let working = daemon.submit(&runs("until [ -e gate ]; do sleep 0.02; done"));
    let done = daemon.submit(&runs("seq 1000"));
    done.wait();
    asking.reach(RunState::Waiting);
    eventually("two execute", || daemon.lane("tool").busy == 2);
    disk.fill_around();
    let squeezed = submit_until_held(&daemon);

    let status = daemon.ctl(["daemon", "status", "--json"]).json();
    assert_eq!(status["health"], "held", "{status}");
    assert!(status["held"].as_str().unwrap().contains("no space is left"), "{status}");
    let said = daemon.ctl(["daemon", "status"]).ok();
    assert!(said.contains("held") && said.contains("no space is left"), "{said}");
    daemon.ctl(["list"]).ok();
    daemon.ctl(["show", &executing.id]).ok();
    daemon.ctl(["logs", "--call", "1", &done.id]).ok();
    assert!(daemon.ctl(["events"]).ok().contains("daemon-started"));

    daemon.ctl(["reply", &asking.id, "well enough"]).ok();
    // U3: it wants a permit now, and the journal is what it waits for.
    let told = "storage: the journal cannot commit";
    eventually("its page says so", || daemon.ctl(["show", &asking.id]).ok().contains(told));
    assert!(daemon.ctl(["list", &asking.id]).ok().contains(told));
    daemon.ctl(["wait", "--timeout", "1s", &asking.id]).exits(8).tells(told).tells("harnessctl daemon status");
    daemon.ctl(["logs", &asking.id]).exits(0).tells(told);
    assert!(daemon.ctl(["lane", "tool"]).ok().contains("limiter: storage"));
    daemon.ctl(["cancel", &executing.id]).ok();
    assert_eq!(executing.wait().state, RunState::Cancelled);
    daemon.ctl(["prune", &done.id]).ok();
    daemon.ctl(["show", &done.id]).exits(6);
    // What executes is recorded when it ends; nothing new is begun.
    open(&daemon, "gate");
    eventually("the call has its result", || !working.results().is_empty());
    assert_eq!(health(&daemon), "held");

    disk.make_room();
    assert_eq!(asking.answer(), "answered");
    assert_eq!(working.answer(), "done");
    squeezed.iter().for_each(|run| assert_eq!(run.answer(), "squeezed in"));
    eventually("it serves again", || health(&daemon) == "serving");
    assert_eq!(daemon.submit(&says("again")).answer(), "again");

    // The ballast is back as well.
    disk.fill_around();
    drop(submit_until_held(&daemon));
    daemon.ctl(["daemon", "stop"]).ok();
    assert_eq!(daemon.ended(SOON).code(), Some(0));
    disk.make_room();
}

#[test]
#[ignore = "needs root, to mount a disk"]
fn without_ballast_what_would_change_something_is_refused_at_once_and_nothing_hangs() {
    let place = Place::new();
    let disk = Disk::in_memory(&place, 40);
    let daemon = place.start();
    let ask = turn("").ask("well?").turn("answered");
    let asking = daemon.submit_many(4, &ask);
    asking.iter().for_each(|run| drop(run.reach(RunState::Waiting)));
    disk.fill_around();
    drop(submit_until_held(&daemon));
    disk.fill_around();

    let quickly = |words: &[&str]| {
        let begun = now();
        let output = daemon.ctl(words);
        assert!(begun.elapsed() < SOON, "{words:?} took {:?}: {output}", begun.elapsed());
        output
    };
    quickly(&["cancel", &asking[0].id]).exits(75).tells("held").tells("no space");
    quickly(&["cancel", &asking[1].id]).exits(75).tells("held");
    quickly(&["reply", &asking[2].id, "yes"]).exits(75).tells("held");
    quickly(&["submit", "--script", &daemon.script_file(&says("no"))]).exits(75).tells("held");
    quickly(&["list"]).ok();
    quickly(&["show", &asking[1].id]).ok();
    // What stands behind a change of the same connection, too.
    let begun = now();
    let mut client = daemon.connect();
    let change = client.send("run.pause", json!({"select": {"runs": [asking[1].id]}}));
    let read = client.send("run.list", json!({}));
    assert_eq!(client.reply(change)["error"]["data"]["kind"], "held");
    assert!(client.reply(read)["result"]["held"].as_str().unwrap().contains("no space"));
    assert!(begun.elapsed() < SOON);
    quickly(&["events"]).ok();
    assert_eq!(quickly(&["daemon", "status", "--json"]).json()["health"], "held");
    quickly(&["wait", "--timeout", "0.3s", &asking[3].id]).exits(8);

    disk.make_room();
    // The one that was under way takes effect, as its refusal said it might; the others do not.
    assert_eq!(asking[0].wait().state, RunState::Cancelled);
    eventually("it serves again", || health(&daemon) == "serving");
    assert_eq!(asking[1].view().state, RunState::Waiting);
    daemon.ctl(["reply", &asking[2].id, "yes"]).ok();
    assert_eq!(asking[2].answer(), "answered");
}

#[test]
#[ignore = "needs root, to mount a disk"]
fn a_daemon_without_ballast_can_be_stopped_and_loses_nothing() {
    let place = Place::new();
    let disk = Disk::in_memory(&place, 40);
    let mut daemon = place.start();
    let asking = daemon.submit(&turn("").ask("well?").turn("answered"));
    asking.reach(RunState::Waiting);
    let before = daemon.ctl(["events"]).ok();
    disk.fill_around();
    drop(submit_until_held(&daemon));
    disk.fill_around();
    daemon.ctl(["cancel", &asking.id]).exits(75);
    daemon.ctl(["daemon", "stop"]).ok();
    assert_eq!(daemon.ended(SOON).code(), Some(0));
    disk.make_room();
    let daemon = place.start();
    assert!(daemon.ctl(["events"]).ok().starts_with(&before));
    // No client was told that it is cancelled.
    assert_eq!(asking.view().state, RunState::Waiting);
}

#[test]
#[ignore = "needs root, to mount a disk"]
fn a_daemon_that_starts_on_a_full_disk_serves_what_can_be_served() {
    let place = Place::new();
    let disk = Disk::in_memory(&place, 40);
    let daemon = place.start();
    let asking = daemon.submit(&turn("").ask("well?").turn("answered"));
    asking.reach(RunState::Waiting);
    drop(daemon.crash());
    disk.fill();
    let daemon = place.start();
    assert_eq!(asking.view().state, RunState::Waiting);
    drop(submit_until_held(&daemon));
    daemon.ctl(["reply", &asking.id, "yes"]).ok();
    disk.make_room();
    assert_eq!(asking.answer(), "answered");
    eventually("it serves again", || health(&daemon) == "serving");
}

#[test]
#[ignore = "needs root, to mount a disk"]
fn without_room_for_anything_a_start_is_refused_with_the_reason_or_serves() {
    let place = Place::new();
    let disk = Disk::in_memory(&place, 40);
    disk.fill();
    let mut child = Daemon::spawn(&place, &[], &[]);
    let status = found_within(SOON, "it ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(70));
    let log = std::fs::read_to_string(place.path("daemon.log")).unwrap();
    assert!(log.contains("no space") || log.contains("No space"), "{log}");
    disk.make_room();
    assert_eq!(place.start().submit(&says("now")).answer(), "now");
}

#[test]
#[ignore = "needs root, to mount a disk"]
fn nothing_that_a_client_was_told_is_lost_however_often_the_disk_is_full() {
    let (seconds, seed) = (number("HARNESS_CRASH_SECONDS", 8), seed());
    println!("HARNESS_CRASH_SEED={seed}");
    let mut chance = Chance::new(seed);
    let place = Place::configured("[limits]\nfinished_runs = 40\nevents = 400\n[lane.tool]\nwidth = 6\n");
    let disk = Disk::in_memory(&place, 64);
    let mut daemon = place.start();
    let storm = Storm::begin(&place, chance.below(u64::MAX));
    let end = now() + Duration::from_secs(seconds);
    let (mut fills, mut kills) = (0, 0);
    while now() < end {
        std::thread::sleep(chance.millis(100, 700));
        disk.fill();
        fills += 1;
        std::thread::sleep(chance.millis(50, 1_500));
        if chance.percent(30) {
            // What the ballast has left goes, too.
            disk.fill();
        }
        let dies = chance.percent(25);
        if dies {
            kills += 1;
            drop(daemon.crash());
            disk.make_room();
            daemon = place.start();
        } else {
            disk.make_room();
        }
    }
    let told = Told { disk_was_full: true, ..storm.end() };
    let verdict = check::check(&place, &told);
    println!("the disk was full {fills} times, {kills} of these with a kill");
    println!("told: {:?}, {} events seen", told.counts, told.events.len());
    println!("{verdict}");
    drop(daemon);
    assert!(verdict.losses.is_empty(), "HARNESS_CRASH_SEED={seed}: {verdict}");
}
