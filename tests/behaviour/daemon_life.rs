//! How daemons start and stop: on demand, beside others, after a crash, with work in progress.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;
use std::time::Duration;

use harness_tests::{
    Daemon, PATIENCE, Place, Process, Running, copy_program, eventually, json, need, need_root, program, runs, says,
    turn,
};
use nix::sys::signal::Signal;

use crate::lane::{open, until_there_is};

/// How long a stop may take, whatever is at hand.
const SOON: Duration = Duration::from_secs(5);

fn harnessds_of(place: &Place) -> Vec<Process> {
    let all = Process::with_word(place.socket().to_str().unwrap());
    all.into_iter().filter(|process| process.is_called("harnessd")).collect()
}

#[test]
fn ten_commands_at_once_start_one_daemon() {
    let place = Place::new();
    let script = place.script_file(&says("hello"));
    let commands: Vec<_> = (0..10).map(|_| place.spawn_ctl(["submit", "-q", "--script", &script])).collect();
    let ids: Vec<String> = commands.into_iter().map(|command| command.finish().line()).collect();
    // Whichever of them lost the race has left by now, or is about to.
    eventually("one is left", || harnessds_of(&place).len() == 1);
    ids.iter().for_each(|id| assert_eq!(place.run(id).answer(), "hello"));
    assert_eq!(place.ctl(["list", "--json", "--all"]).ok().lines().count(), 10);
    let status = place.ctl(["daemon", "status", "--json"]).json();
    assert_eq!(harnessds_of(&place), [Process(status["pid"].as_u64().unwrap().try_into().unwrap())]);
}

#[test]
fn after_a_crash_the_next_command_starts_another() {
    let daemon = Daemon::start();
    assert_eq!(daemon.submit(&says("one")).answer(), "one");
    let place = daemon.crash();
    assert!(place.socket().exists());
    place.ctl(["--no-start", "list"]).exits(7);
    let output = place.ctl(["submit", "--wait", "--script", &place.script_file(&says("two"))]);
    assert_eq!(output.ok(), "two\n");
}

#[test]
fn a_daemon_that_hangs_is_never_displaced_and_its_clients_are_told() {
    let daemon = Daemon::start();
    daemon.signal(Signal::SIGSTOP);
    eventually("it stands still", || daemon.process().is_stopped());
    let asking = [["list", "--all"].as_slice(), &["lane", "--check", "queued"]].map(|words| daemon.spawn_ctl(words));
    let status = Daemon::adopt(&daemon, Daemon::spawn(&daemon, &[], &[])).ended(PATIENCE);
    assert_eq!(status.code(), Some(75));
    let log = fs::read_to_string(daemon.path("daemon.log")).unwrap();
    assert!(log.contains(&format!("pid {}", daemon.process().0)), "{log}");
    let [list, check] = asking.map(Running::finish);
    list.exits(7).tells(&format!("{}", daemon.process().0));
    assert!(check.exits(2).stdout.starts_with("LANE CRITICAL"));
    assert_eq!(daemon.daemon_process(), Some(daemon.process()));
    daemon.signal(Signal::SIGCONT);
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
}

#[test]
fn an_old_daemon_that_leaves_does_not_take_the_socket_of_the_new_one() {
    let mut old = Daemon::start();
    // A cleaner went too far: its socket is gone, and so are the locks. It stands still, or it would bind again.
    old.signal(Signal::SIGSTOP);
    eventually("it stands still", || old.process().is_stopped());
    fs::remove_dir_all(old.path("run/harness")).unwrap();
    fs::remove_dir_all(old.path("home/.local")).unwrap();
    let new = old.place().start();
    let inode = fs::metadata(new.socket()).unwrap().ino();
    old.signal(Signal::SIGCONT);
    old.signal(Signal::SIGTERM);
    assert_eq!(old.ended(SOON).code(), Some(0));
    assert_eq!(fs::metadata(new.socket()).unwrap().ino(), inode);
    assert_eq!(new.submit(&runs("true")).answer(), "done");
}

#[test]
fn a_stop_is_not_delayed_by_what_waits_executes_or_does_not_read() {
    let mut daemon = Daemon::start();
    let waiting = daemon.submit(&turn("").ask("well?").turn("never"));
    eventually("a question is asked", || !waiting.questions().is_empty());
    let executing = daemon.submit(&runs("trap '' TERM; echo $$ > pid; sleep 600 & echo $! > child; wait; sleep 600"));
    eventually("a call executes", || !daemon.written("child").is_empty());
    let mut stalled = daemon.connect();
    stalled.subscribe(json!({"after": 0, "deltas": true}));
    daemon.submit_many(500, &says(&"much ".repeat(500))).iter().for_each(|run| drop(run.wait()));
    let mut patient = daemon.connect();
    patient.send("run.wait", json!({"run": executing.id}));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.ended(SOON).code(), Some(0));
    for file in ["pid", "child"] {
        Process(daemon.written(file).trim().parse().unwrap()).is_gone_soon();
    }
    assert!(!daemon.socket().exists());
}

#[test]
fn it_is_started_looked_at_and_stopped_by_command() {
    let place = Place::new();
    place.ctl(["daemon", "status"]).exits(7);
    assert!(place.daemon_process().is_none(), "to look at it does not start it");
    place.sh("umask 0; harnessctl daemon start").ok();
    let status = place.ctl(["daemon", "status", "--json"]).json();
    assert_eq!((&status["schema"], &status["health"]), (&json!("harness.status/1"), &json!("serving")));
    assert_eq!(fs::metadata(place.socket()).unwrap().mode() & 0o7777, 0o600);
    let process = place.daemon_process().unwrap();
    assert_eq!(status["pid"], process.0);
    place.ctl(["daemon", "start"]).exits(0).tells("already running");
    place.ctl(["daemon", "stop"]).ok();
    process.is_gone_soon();
    assert!(!place.socket().exists());
    place.ctl(["daemon", "stop"]).exits(0).tells("does not run");
}

#[test]
fn relative_paths_in_the_environment_are_those_of_the_client_that_starts_the_daemon() {
    let place = Place::new();
    place.file("work/own.toml", "[lane.tool]\nwidth = 3\n");
    place.sh("HARNESS_STATE_DIR=state HARNESS_CONFIG=own.toml harnessctl daemon start").ok();
    let status = place.ctl(["daemon", "status", "--json"]).json();
    assert_eq!((status["state_dir"].as_str(), place.lane("tool").width), (place.work().join("state").to_str(), 3));
    let process = Process(status["pid"].as_u64().unwrap().try_into().unwrap());
    place.ctl(["daemon", "stop"]).ok();
    process.is_gone_soon();
}

#[test]
fn a_drain_starts_nothing_new_and_tells_when_nothing_executes() {
    let daemon = Daemon::start();
    let run =
        daemon.submit(&turn("").shell("until [ -e gate ]; do sleep 0.02; done").shell("touch second").turn("done"));
    eventually("a call executes", || daemon.lane("tool").busy == 1);
    daemon.ctl(["daemon", "drain", "--timeout", "0.1s"]).exits(8);
    assert_eq!(daemon.ctl(["daemon", "status", "--json"]).json()["health"], "draining");
    daemon.ctl(["submit", "--script", &daemon.script_file(&says("new"))]).exits(75).tells("draining");
    let draining = daemon.spawn_ctl(["daemon", "drain"]);
    open(&daemon, "gate");
    draining.finish().exits(0);
    assert!(run.view().exit_code.is_none());
    daemon.ctl(["daemon", "undrain"]).ok();
    assert_eq!(run.answer(), "done");
    assert_eq!(daemon.submit(&says("again")).answer(), "again");
}

#[test]
fn a_reload_changes_the_width_and_a_wrong_configuration_changes_nothing() {
    let daemon = Daemon::of_width(2);
    daemon.configure("[lane.tool]\nwidth = 5\n");
    daemon.ctl(["daemon", "reload"]).ok();
    assert_eq!((daemon.lane("tool").width, daemon.lane("tool").configured_width), (5, 5));
    daemon.configure("[lane.tool]\nwidht = 6\n");
    daemon.ctl(["daemon", "reload"]).exits(2).tells("did you mean `width`?");
    assert_eq!(daemon.lane("tool").width, 5);
    daemon.ctl(["lane", "resize", "3"]).ok();
    daemon.configure("[lane.tool]\nwidth = 7\n");
    daemon.ctl(["daemon", "reload"]).ok();
    // A width that was set by hand stays.
    assert_eq!((daemon.lane("tool").width, daemon.lane("tool").configured_width), (3, 7));
}

#[test]
fn a_daemon_that_cannot_start_tells_its_client_why() {
    let place = Place::configured("[lane.tool]\nwidth = \"wide\"\n");
    let output = place.ctl(["submit", "--script", &place.script_file(&says("never"))]);
    output.exits(7).tells("config.toml:2").tells("lane.tool.width");
    assert!(place.daemon_process().is_none());
}

#[test]
#[ignore = "needs root, to be another user"]
fn a_socket_that_may_not_be_opened_is_an_error_and_starts_nothing() {
    need_root();
    need("setpriv", "util-linux");
    let daemon = Daemon::start();
    for (path, mode) in [("", 0o711), ("run", 0o711), ("run/harness", 0o711)] {
        fs::set_permissions(daemon.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    for name in ["harnessctl", "harnessd"] {
        copy_program(&program(name), &daemon.work().join(name));
    }
    fs::create_dir(daemon.path("theirs")).unwrap();
    fs::set_permissions(daemon.path("theirs"), fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = daemon.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(daemon.work().join("harnessctl"));
    command.arg("--socket").arg(daemon.socket()).arg("list").env("HOME", daemon.path("theirs"));
    Running::start_reading(command, Stdio::null()).finish().exits(7).tells("no permission");
    assert_eq!(fs::read_dir(daemon.path("theirs")).unwrap().count(), 0);
    assert_eq!(daemon.daemon_process(), Some(daemon.process()));
}

#[test]
fn waiting_commands_are_told_that_the_daemon_stops_and_new_ones_find_the_next() {
    let daemon = Daemon::start();
    let run = daemon.submit(&until_there_is("gate"));
    let mut waiting = daemon.connect();
    let id = waiting.send("run.wait", json!({"run": run.id}));
    eventually("it executes", || daemon.lane("tool").busy == 1);
    daemon.ctl(["daemon", "stop"]).ok();
    let reply = waiting.reply(id);
    assert_eq!(reply["error"]["data"]["kind"], "busy", "{reply}");
    assert_eq!(daemon.ctl(["submit", "--wait", "--script", &daemon.script_file(&says("next"))]).ok(), "next\n");
}
