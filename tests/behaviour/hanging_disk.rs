//! A disk that hangs, as a disk on a network or a dying one does: it gives no error, it just does not answer.
//!
//! The disk is real, in a file, with a frozen file system.

use std::fs;
use std::os::unix::net::UnixStream;

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Disk, Place, Run, eventually, json, says, turn};
use nix::sys::signal::Signal;

/// More calls than the daemon has threads on a small machine.
const CALLS: usize = 6;

fn health(daemon: &Place) -> String {
    daemon.rpc("daemon.status", json!({}))["health"].as_str().unwrap().to_owned()
}

/// Calls that write once there is a file `go`, and do nothing before.
fn about_to_write(daemon: &Place) -> Vec<Run> {
    let script = turn("").shell("until [ -e go ]; do sleep 0.05; done; seq 20000").turn("wrote");
    let runs: Vec<Run> = (0..CALLS).map(|_| daemon.submit(&script)).collect();
    eventually("all execute", || daemon.lane("tool").busy as usize == CALLS);
    runs
}

/// A15: whatever waits for the disk, calls that write included, all that only reads is answered, and what changes
/// something is refused.
#[test]
#[ignore = "needs root, to mount a disk"]
fn a_disk_that_hangs_holds_the_daemon_which_answers_and_goes_on_once_it_answers() {
    let place = Place::configured("[lane.tool]\nwidth = 8\n");
    let disk = Disk::in_a_file(&place, 64);
    let daemon = place.start();
    let asking = daemon.submit(&turn("").ask("well?").turn("answered"));
    asking.reach(RunState::Waiting);
    let writing = about_to_write(&daemon);

    let frozen = disk.freeze();
    fs::write(daemon.work().join("go"), "").unwrap();
    let caught = daemon.refused("run.submit", json!({"spec": daemon.spec(&says("late"), json!({}))}));
    assert_eq!(caught["data"]["kind"], "held", "{caught}");
    assert_eq!(health(&daemon), "held");
    let run = json!(asking.id);
    for (method, params) in [
        ("daemon.status", json!({})),
        ("lane.list", json!({})),
        ("run.list", json!({})),
        ("run.show", json!({"run": run, "transcript": true})),
        ("interaction.list", json!({})),
        ("event.subscribe", json!({"after": 0})),
    ] {
        daemon.rpc(method, params);
    }
    let gone = daemon.refused("run.show", json!({"run": "of-long-ago"}));
    assert_eq!(gone["data"]["kind"], "held", "what is not in memory is not waited for: {gone}");
    for (method, params) in [
        ("run.cancel", json!({"select": {"runs": [run]}})),
        ("run.pause", json!({"select": {"runs": [run]}})),
        ("lane.resize", json!({"width": 3})),
        ("run.message", json!({"run": run, "text": "more"})),
        ("run.retry", json!({"run": run})),
    ] {
        let refused = daemon.refused(method, params);
        assert_eq!(refused["data"]["kind"], "held", "{method}: {refused}");
    }
    drop(frozen);

    eventually("it goes on", || health(&daemon) == "serving");
    for run in &writing {
        assert_eq!(run.answer(), "wrote");
        let stdout = run.results()[0].stdout.clone().unwrap();
        let file = fs::read(stdout.path.unwrap().as_ref()).unwrap();
        assert_eq!(file.len() as u64, stdout.bytes);
    }
    asking.reply("yes");
    assert_eq!(asking.answer(), "answered");
}

type Caught = fn(&Daemon);

/// A15: a stop ends within a bound, its log says why the last writes are left, and what was acknowledged is there
/// afterwards.
#[test]
#[ignore = "needs root, to mount a disk"]
fn a_stop_on_a_disk_that_hangs_ends_and_says_so_and_nothing_is_lost() {
    let cases: [(&str, Caught); 5] = [
        ("at rest", |_| {}),
        ("with a submit that waits for the disk", |daemon| {
            let mut line = daemon.connect();
            line.send("run.submit", json!({"spec": daemon.spec(&says("late"), json!({}))}));
            eventually("it is read", || daemon.connect().try_call("daemon.status", json!({})).is_ok());
        }),
        ("held", |daemon| {
            daemon.refused("run.submit", json!({"spec": daemon.spec(&says("late"), json!({}))}));
        }),
        ("with calls that write", |daemon| {
            fs::write(daemon.work().join("go"), "").unwrap();
            daemon.refused("run.submit", json!({"spec": daemon.spec(&says("late"), json!({}))}));
        }),
        ("told by a signal before", |daemon| daemon.signal(Signal::SIGTERM)),
    ];
    std::thread::scope(|scope| {
        for (what, catch) in cases {
            scope.spawn(move || {
                let place = Place::configured("[lane.tool]\nwidth = 8\n");
                let disk = Disk::in_a_file(&place, 64);
                let daemon = place.start();
                let kept = daemon.submit(&says("kept"));
                assert_eq!(kept.answer(), "kept");
                about_to_write(&daemon);
                let frozen = disk.freeze();
                catch(&daemon);
                // It has gone, or its disk keeps it and is named: which of the two is the kernel's.
                let told = daemon.ctl(["daemon", "stop", "--no-start"]);
                let named = told.stderr.contains("once its disk answers");
                assert_eq!((told.code, named), if told.code == 0 { (0, false) } else { (75, true) }, "{what}: {told}");
                assert!(UnixStream::connect(daemon.socket()).is_err(), "{what}: no daemon listens");
                let log = fs::read_to_string(place.path("daemon.log")).unwrap();
                assert!(log.contains("does not answer: stopping without"), "{what}: {log}");
                drop(frozen);
                drop(daemon);
                let daemon = place.start();
                assert_eq!(daemon.run(&kept.id).answer(), "kept", "{what}");
                assert_eq!(daemon.submit(&says("goes on")).answer(), "goes on", "{what}");
                drop(daemon);
                drop(disk);
            });
        }
    });
}
