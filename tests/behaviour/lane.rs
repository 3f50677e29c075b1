//! The tool lane under load: its width holds, its report is true, and its capacity can be changed while it works.

use std::fs;
use std::thread;

use harness_protocol::lane::Limiter;
use harness_tests::{Daemon, Place, Script, eventually, json, runs};

/// A command that counts those that are alive with it, waits for the file `go`, and then takes a fifth of a second.
fn counted(place: &Place) -> Script {
    fs::create_dir_all(place.work().join("live")).unwrap();
    runs("touch live/$$; ls live | wc -l >> seen; until [ -e go ]; do sleep 0.05; done; sleep 0.2; rm live/$$")
}

/// A command that waits for a file.
pub(crate) fn until_there_is(gate: &str) -> Script {
    runs(&format!("echo >> began; until [ -e {gate} ]; do sleep 0.02; done; echo >> ended"))
}

pub(crate) fn open(place: &Place, gate: &str) {
    fs::write(place.work().join(gate), "").unwrap();
}

fn most_seen(place: &Place) -> u32 {
    place.written("seen").lines().filter_map(|line| line.trim().parse().ok()).max().unwrap_or(0)
}

#[test]
fn two_hundred_runs_never_are_more_than_the_width_and_a_relief_drains_them() {
    let daemon = Daemon::of_width(4);
    let runs = daemon.submit_many(200, &counted(&daemon));
    eventually("all batches are in the lane", || daemon.lane("tool").queued == 196);
    let lane = daemon.lane("tool");
    assert_eq!((lane.busy, lane.permits, lane.parked, lane.resuming, lane.width), (4, 4, 0, 0, 4));
    assert!(lane.saturated && lane.saturated_since.is_some() && lane.limiter == Limiter::Width, "{lane:?}");
    assert!(lane.oldest_queued_seconds.is_some(), "{lane:?}");
    assert_eq!(lane.holders.len(), 4);
    for holder in &lane.holders {
        assert!(holder.tool.as_ref() == "shell" && holder.command.contains("touch live"), "{holder:?}");
        assert!(runs.iter().any(|run| run.id == holder.run.to_string()), "{holder:?}");
        assert!(holder.since >= lane.holders[0].since, "longest first");
    }
    let told = daemon.ctl(["lane", "tool", "--json"]).json();
    let same = json!({"queued": 196, "busy": 4, "parked": 0, "resuming": 0, "saturated": true, "limiter": "width"});
    for (key, value) in same.as_object().unwrap() {
        assert_eq!(&told[key], value, "{key}: {told}");
    }
    assert_eq!(told["schema"], "harness.lane/1");
    let shown = daemon.ctl(["lane"]).ok();
    assert!(shown.contains("196") && shown.contains("touch live"), "{shown}");
    assert!(most_seen(&daemon) <= 4);

    let relieved = daemon.ctl(["lane", "relieve", "--by", "12", "--json"]).json();
    assert_eq!((&relieved["width_before"], &relieved["width"]), (&json!(4), &json!(16)));
    eventually("sixteen are at work", || daemon.lane("tool").busy == 16);
    open(&daemon, "go");
    eventually("most have been", || daemon.lane("tool").queued <= 20);
    let relief = relieved["relief"].as_str().unwrap();
    assert_eq!(daemon.ctl(["lane", "relieve", "--undo", relief, "--json"]).json()["width"], 4);
    eventually("it runs down to its width", || daemon.lane("tool").permits <= 4);
    for run in &runs {
        assert_eq!(run.answer(), "done");
    }
    assert!(most_seen(&daemon) <= 16, "{}", most_seen(&daemon));
    assert!(daemon.lane_is_idle());
    let lane = daemon.lane("tool");
    assert_eq!((lane.width, lane.granted_total, lane.queue_wait.count, lane.reliefs.len()), (4, 200, 200, 0));
    assert_eq!(daemon.ctl(["relieve", "--undo", relief]).exits(6).stdout, "");
}

#[test]
fn a_hundred_submits_that_race_for_the_last_permit_never_exceed_the_width() {
    let daemon = Daemon::of_width(4);
    let held = daemon.submit_many(3, &until_there_is("gate"));
    eventually("three are held", || daemon.lane("tool").busy == 3);
    fs::create_dir(daemon.work().join("live")).unwrap();
    let quick = runs("touch live/$$; ls live | wc -l >> seen; rm live/$$");
    let racing: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..10).map(|_| scope.spawn(|| daemon.submit_many(10, &quick))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for run in &racing {
        assert_eq!(run.answer(), "done");
    }
    // Three of four permits were held all the time.
    assert_eq!(daemon.written("seen").lines().count(), 100);
    assert_eq!(most_seen(&daemon), 1);
    open(&daemon, "gate");
    held.iter().for_each(|run| assert_eq!(run.answer(), "done"));
    assert!(daemon.lane_is_idle());
}

#[test]
fn narrowing_a_full_lane_kills_nothing_and_falls_to_the_new_width() {
    let daemon = Daemon::of_width(3);
    let held: Vec<_> = (0..3).map(|n| daemon.submit(&until_there_is(&format!("gate-{n}")))).collect();
    eventually("all are at work", || daemon.written("began").lines().count() == 3);
    let queued = daemon.submit(&runs("echo later"));
    eventually("one is queued", || daemon.lane("tool").queued == 1);
    assert_eq!(daemon.ctl(["lane", "resize", "1"]).line(), "tool width 3 -> 1");
    let lane = daemon.lane("tool");
    assert_eq!((lane.width, lane.permits, lane.busy, lane.queued), (1, 3, 3, 1));
    for (n, run) in held.iter().enumerate() {
        open(&daemon, &format!("gate-{n}"));
        assert_eq!(run.answer(), "done");
        if n < 2 {
            let lane = daemon.lane("tool");
            assert_eq!((lane.permits as usize, lane.queued), (2 - n, 1));
        }
    }
    assert_eq!(queued.answer(), "done");
    assert!(daemon.lane_is_idle());
}

#[test]
fn a_relief_of_0_does_nothing_and_an_unknown_lane_is_told() {
    let daemon = Daemon::of_width(3);
    let output = daemon.ctl(["lane", "relieve", "--by", "0"]).exits(0).tells("does nothing");
    assert_eq!(output.stdout, "tool width 3 -> 3\n");
    assert!(daemon.lane("tool").reliefs.is_empty());
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
    daemon.ctl(["lane", "resize", "no-such-lane", "3"]).exits(6);
}

#[test]
fn a_relief_for_a_while_ends_by_itself() {
    let daemon = Daemon::of_width(1);
    let relieved = daemon.ctl(["relieve", "--by", "3", "--for", "0.5s", "--json"]).json();
    assert_eq!(relieved["width"], 4);
    assert!(daemon.lane("tool").reliefs[0].until.is_some());
    eventually("the relief is over", || daemon.lane("tool").width == 1);
    assert!(daemon.lane("tool").reliefs.is_empty());
}

#[test]
fn a_paused_lane_grants_nothing_and_goes_on_where_it_stood() {
    let daemon = Daemon::start();
    let before = daemon.submit(&until_there_is("gate"));
    eventually("one is at work", || daemon.lane("tool").busy == 1);
    daemon.ctl(["lane", "pause"]).ok();
    let behind = daemon.submit(&runs("touch ran"));
    eventually("one is queued", || daemon.lane("tool").queued == 1);
    // What executes is not touched.
    open(&daemon, "gate");
    assert_eq!(before.answer(), "done");
    let lane = daemon.lane("tool");
    assert!(lane.paused && lane.limiter == Limiter::Paused && lane.queued == 1 && lane.busy == 0, "{lane:?}");
    assert!(!daemon.work().join("ran").exists());
    daemon.ctl(["lane", "resume"]).ok();
    assert_eq!(behind.answer(), "done");
    assert!(daemon.lane_is_idle());
}
