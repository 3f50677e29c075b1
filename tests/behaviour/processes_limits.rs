//! Limits of a call: from the configuration and from the run, never wider for its children; at a limit the call fails
//! and the run goes on.

use std::path::Path;
use std::time::Duration;

use harness_tests::{Daemon, Place, eventually, json, need, now, runs, turn};

/// A user id that no other process on the machine has, so that the test controls the number of its processes.
const SOMEBODY: u32 = 54_321;

#[test]
fn a_run_says_what_its_calls_may_use_and_the_configuration_says_the_rest() {
    let daemon = Daemon::configured("[tool.shell.limits]\nopen_files = 100\nfile_size_bytes = 1048576\n");
    let file = daemon.script_file(&turn("").shell("ulimit -n; ulimit -v; ulimit -f; ulimit -t").turn("done"));
    let words = ["--limit", "open_files=64", "--limit", "address_space_bytes=256MiB", "--limit", "cpu-seconds=7"];
    daemon.ctl(["submit", "--wait", "--script", &file].iter().chain(&words)).ok();
    assert_eq!(daemon.run("@last").envelopes(), ["Exit code: 0\n64\n262144\n2048\n7\n"]);
    let shown = daemon.ctl(["show", "@last", "--json"]).json();
    assert_eq!((&shown["limits"]["open_files"], &shown["limits"]["file_size_bytes"]), (&json!(64), &json!(null)));
    daemon.ctl(["submit", "--wait", "--script", &file]).ok();
    assert_eq!(daemon.run("@last").envelopes(), ["Exit code: 0\n100\nunlimited\n2048\nunlimited\n"]);
}

#[test]
fn a_limit_that_is_none_is_refused_with_its_bounds() {
    let daemon = Daemon::start();
    for (limits, told) in [
        (json!({"open_files": 3}), "the limit open_files is a number from 16 to 1048576"),
        (json!({"address_space_bytes": 1}), "the limit address_space_bytes"),
        (json!({"mood": 1}), "unknown field `mood`"),
    ] {
        let error =
            daemon.refused("run.submit", json!({"spec": daemon.spec(&runs("true"), json!({"limits": limits}))}));
        assert_eq!(error["data"]["kind"], "invalid", "{error}");
        assert!(error["message"].as_str().unwrap().contains(told), "{error}");
    }
    daemon.ctl(["submit", "--limit", "mood=3", "hi"]).exits(2).tells("cpu_seconds, address_space_bytes");
}

#[test]
fn children_have_no_wider_limits_than_their_parent_however_they_are_made() {
    let daemon = Daemon::configured("[tool.shell.limits]\nfile_size_bytes = 1048576\n");
    let look =
        turn("").shell("echo $(ulimit -n) $(ulimit -f) $(ulimit -t)").turn("${seen}").capture("seen", "^(\\d.*)");
    let file = daemon.script_file(&look);
    let wide = "--limit open_files=500 --limit file_size_bytes=1GiB --limit cpu_seconds=5";
    let script = turn("")
        .spawn("look")
        .wait_for_all()
        .shell(&format!("harnessctl submit --wait --script {file} {wide}"))
        .turn("done")
        .expect("64 2048 unlimited")
        .expect("64 2048 5");
    let run = daemon.submit_with(&script.child("look", &look), json!({"limits": {"open_files": 64}}));
    assert_eq!(run.answer(), "done", "{:?}", run.envelopes());
}

#[test]
#[ignore = "needs python3"]
fn a_memory_hog_fails_and_is_told_the_limit_and_the_run_goes_on() {
    need("python3", "python3");
    let daemon = Daemon::start();
    let script = turn("")
        .shell("python3 -c 'x = bytearray(1 << 30)'")
        .shell("echo on")
        .turn("done")
        .expect("Exit code: 0\non\n");
    let run = daemon.submit_with(&script, json!({"limits": {"address_space_bytes": 256 << 20}}));
    assert_eq!(run.answer(), "done");
    let results = run.results();
    assert_eq!((results[0].exit_code, results[0].is_error), (Some(1), true));
    let envelope = &results[0].envelope;
    assert!(envelope.contains("MemoryError"), "{envelope}");
    assert!(envelope.ends_with("[limits in force: address space 256 MiB]\n"), "{envelope}");
    assert!(results[0].max_rss_bytes.unwrap() > 1 << 20 && results[0].cpu_seconds.is_some());
}

#[test]
fn a_process_that_ignores_the_end_of_its_cpu_time_is_killed_and_the_limit_is_told() {
    let daemon = Daemon::start();
    let script = runs("trap '' XCPU; while :; do :; done");
    let run = daemon.submit_with(&script, json!({"limits": {"cpu_seconds": 1}}));
    assert_eq!(run.answer(), "done");
    let result = &run.results()[0];
    assert_eq!((result.exit_code, result.signal, result.timed_out), (Some(137), Some(9), false));
    assert_eq!(&*result.envelope, "Exit code: 137\n[limits in force: CPU time 1 s]\n");
    assert!(result.cpu_seconds.unwrap() > 1.5);
}

#[test]
#[ignore = "needs root, to be another user"]
fn a_fork_bomb_fails_and_is_told_the_limit_and_other_runs_go_on() {
    let place = Place::new();
    let daemon = place.start_as(SOMEBODY, &[]);
    let limits = json!({"limits": {"processes": 60}});
    let other = daemon.submit(&crate::lane::until_there_is("gate"));
    eventually("the other one runs", || daemon.lane("tool").busy == 1);
    let bomb = "b() { b | b; }; b";
    let run = daemon.submit_with(&turn("").call("shell", json!({"command": bomb, "timeout": 20})).turn("done"), limits);
    let begun = now();
    assert_eq!(run.answer(), "done");
    let result = run.results()[0].clone();
    assert!(result.is_error && result.envelope.contains("Cannot fork"), "{}", result.envelope);
    assert!(result.envelope.ends_with("limits in force: processes 60]\n"), "{}", result.envelope);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    crate::lane::open(&daemon, "gate");
    assert_eq!(other.answer(), "done");
    eventually("nobody of the bomb is left", || processes_of(SOMEBODY).iter().all(|line| line.contains("harnessd")));
}

#[test]
#[ignore = "needs root, to be another user"]
fn a_fork_bomb_in_the_background_ends_with_its_run() {
    let place = Place::new();
    let daemon = place.start_as(SOMEBODY + 1, &[]);
    let limits = json!({"limits": {"processes": 60}});
    let run = daemon.submit_with(&runs("b() { b | b & }; b"), limits);
    assert_eq!(run.answer(), "done");
    eventually("nobody of the bomb is left", || {
        processes_of(SOMEBODY + 1).iter().all(|line| line.contains("harnessd"))
    });
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
}

/// The command lines of what runs as a user.
fn processes_of(user: u32) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let owned = |path: &Path| path.metadata().is_ok_and(|metadata| metadata.uid() == user);
    let entries = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
    let lines = entries.filter(|path| owned(path)).filter_map(|path| std::fs::read(path).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).filter(|line| !line.is_empty()).collect()
}
