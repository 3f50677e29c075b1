//! Limits of a whole run, where the daemon has a cgroup of its own with the controllers for memory and processes. Most
//! machines cannot give it one, so the tests are ignored; `tests/vm/run` runs them in a virtual machine, and our unit
//! under systemd.

use harness_protocol::limit::CallLimit;
use harness_tests::{Cgroup, Place, Process, eventually, json, program, runs, turn};
use nix::sys::signal::Signal;
use std::time::Duration;

/// A user id that no other process on the machine has.
const SOMEBODY: u32 = 54_331;
/// Takes so much memory as its argument says, and holds it.
const HOLD: &str = "hold() { dd if=/dev/zero bs=$1 count=1 2>/dev/null | sleep 60; }";

#[test]
#[ignore = "needs a machine that has cgroup controllers to give: tests/vm/run"]
fn limits_of_a_run_are_set_by_the_cgroup_of_the_daemon_and_the_others_on_each_process() {
    for user in [0, SOMEBODY] {
        let cgroup = Cgroup::of(user);
        let place = Place::new();
        let mut daemon = cgroup.start(&place, user);
        let look =
            "cd /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/..; cat memory.max pids.max; ulimit -v; ulimit -n";
        let limits = json!({"address_space_bytes": 64 << 20, "processes": 40, "open_files": 64});
        let run = daemon.submit_with(&runs(look), json!({"limits": limits}));
        assert_eq!(run.answer(), "done");
        assert_eq!(run.envelopes(), ["Exit code: 0\n67108864\n40\nunlimited\n64\n"]);
        eventually("its cgroup is gone", || cgroup.is_idle());
        daemon.signal(Signal::SIGTERM);
        assert!(daemon.ended(Duration::from_secs(20)).success());
        assert_eq!((cgroup.below(), cgroup.read("cgroup.procs").as_str()), (Vec::new(), ""));
    }
}

#[test]
#[ignore = "needs a machine that has cgroup controllers to give: tests/vm/run"]
fn a_memory_hog_is_ended_with_its_whole_call_and_the_run_goes_on() {
    let cgroup = Cgroup::of(SOMEBODY);
    let place = Place::new();
    let daemon = cgroup.start(&place, SOMEBODY);
    let script = turn("")
        .shell("dd if=/dev/zero of=/dev/null bs=300M count=1; sleep 60; echo not reached")
        .shell(&format!("{HOLD}; for i in 1 2 3 4; do hold 30M & done; wait; sleep 60; echo not reached"))
        .shell("echo on")
        .turn("done")
        .expect("Exit code: 0\non\n");
    let run = daemon.submit_with(&script, json!({"limits": {"address_space_bytes": 64 << 20}}));
    assert_eq!(run.answer(), "done", "{:?}", run.envelopes());
    let results = run.results();
    // One alone, and four of which each one keeps the limit.
    for result in &results[..2] {
        assert_eq!((result.exit_code, result.signal, result.is_error), (Some(137), Some(9), true));
        assert_eq!(result.limit, Some(CallLimit::AddressSpaceBytes));
        // In between the shell may still say that its child was killed, before it is killed itself.
        let told = "\n[ended by the limit of memory, 64 MiB for the whole run]\n";
        assert!(
            result.envelope.starts_with("Exit code: 137\n") && result.envelope.ends_with(told),
            "{}",
            result.envelope
        );
        assert_eq!(result.stdout.as_ref().unwrap().bytes, 0, "{}", result.envelope);
    }
    assert_eq!(results[2].limit, None);
    eventually("its cgroup is gone", || cgroup.is_idle());
}

#[test]
#[ignore = "needs a machine that has cgroup controllers to give: tests/vm/run"]
fn a_fork_bomb_is_held_by_its_run_and_other_runs_go_on() {
    for user in [0, SOMEBODY] {
        let cgroup = Cgroup::of(user);
        let place = Place::new();
        let daemon = cgroup.start(&place, user);
        let other = daemon.submit(&crate::lane::until_there_is("gate"));
        eventually("the other one runs", || daemon.lane("tool").busy == 1);
        let bomb = turn("").call("shell", json!({"command": "b() { b | b; }; b", "timeout": 60})).turn("done");
        let run = daemon.submit_with(&bomb, json!({"limits": {"processes": 40}}));
        assert_eq!(run.answer(), "done");
        let result = run.results()[0].clone();
        assert!(result.is_error && !result.timed_out, "{}", result.envelope);
        assert_eq!(result.limit, Some(CallLimit::Processes), "{}", result.envelope);
        let told = "met the limit of processes, 40 for the whole run";
        assert!(result.envelope.trim_end().trim_end_matches(']').contains(told), "{}", result.envelope);
        crate::lane::open(&daemon, "gate");
        assert_eq!(other.answer(), "done");
        eventually("its cgroup is gone", || cgroup.is_idle());
    }
}

#[test]
#[ignore = "needs a machine that has cgroup controllers to give: tests/vm/run"]
fn a_fork_bomb_in_the_background_is_told_and_ends_with_its_run() {
    let cgroup = Cgroup::of(SOMEBODY);
    let place = Place::new();
    let daemon = cgroup.start(&place, SOMEBODY);
    let run = daemon.submit_with(&runs("b() { b | b & }; b; sleep 2"), json!({"limits": {"processes": 40}}));
    assert_eq!(run.answer(), "done");
    let result = run.results()[0].clone();
    assert_eq!((result.exit_code, result.limit), (Some(0), Some(CallLimit::Processes)), "{}", result.envelope);
    assert!(result.envelope.contains("met the limit of processes, 40 for the whole run"), "{}", result.envelope);
    eventually("its cgroup is gone", || cgroup.is_idle());
}

#[test]
#[ignore = "needs a machine that has cgroup controllers to give: tests/vm/run"]
fn leftovers_of_earlier_calls_count_for_the_run_and_their_end_is_told() {
    let cgroup = Cgroup::of(SOMEBODY);
    let place = Place::new();
    let daemon = cgroup.start(&place, SOMEBODY);
    let script = turn("")
        .shell(&format!("{HOLD}; hold 45M & sleep 2"))
        .shell("dd if=/dev/zero of=/dev/null bs=40M count=1 2>/dev/null; echo $?")
        .turn("done");
    let run = daemon.submit_with(&script, json!({"limits": {"address_space_bytes": 64 << 20}}));
    assert_eq!(run.answer(), "done");
    let told = "[background children of the run met the limit of memory, 64 MiB for the whole run]";
    assert_eq!(run.envelopes(), ["Exit code: 0\n".to_owned(), format!("Exit code: 0\n0\n{told}\n")]);
    eventually("its cgroup is gone", || cgroup.is_idle());
}

/// A13: also where it has lowered the limit by which it would be known.
#[test]
#[ignore = "needs root and cgroups of version 2"]
fn a_process_that_killed_its_keeper_and_its_daemon_is_ended_by_the_next_daemon_wherever_that_starts() {
    let cgroup = Cgroup::with_any_controllers(0);
    let place = Place::new();
    let daemon = cgroup.start(&place, 0);
    let outlive = format!("{} outlive-and-lower-the-mark", program("adversary").display());
    daemon.submit(&runs(&format!("exec {outlive} {}", place.daemon_process().unwrap().0)));
    eventually("it has outlived both", || place.work().join("outlived.ready").exists());
    let left = Process(place.written("outlived.pid").parse().unwrap());
    drop(daemon);
    assert!(left.is_alive());
    let next = place.start();
    assert!(!left.is_alive(), "it is ended before anything is recovered");
    assert_eq!(next.submit(&runs("true")).answer(), "done");
    cgroup.trim();
}

#[test]
#[ignore = "needs a machine that has cgroup controllers to give: tests/vm/run"]
fn when_the_daemon_is_killed_no_process_is_left_in_its_cgroup() {
    let cgroup = Cgroup::of(SOMEBODY);
    let place = Place::new();
    let daemon = cgroup.start(&place, SOMEBODY);
    daemon.submit_with(&runs("sleep 600 & touch up; sleep 600"), json!({"limits": {"processes": 40}}));
    eventually("it runs", || place.work().join("up").exists());
    assert_eq!(cgroup.of_calls().len(), 2);
    daemon.crash();
    eventually("everybody is gone", || cgroup.read("cgroup.events").contains("populated 0"));
    // What a service manager does before it starts another one.
    cgroup.trim();
}
