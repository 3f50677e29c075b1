//! Watching and waiting commands when the daemon, or its journal, is gone for good: they wait a little, start nothing,
//! and say what to do.

use harness_tests::{Daemon, Running, eventually, runs};
use nix::sys::signal::Signal;

use crate::lane::until_there_is;

/// Commands that are under way at a run whose call executes: by name what they do, and their words.
pub(crate) fn watchers(daemon: &Daemon, run: &str) -> Vec<(String, Running)> {
    let script = daemon.script_file(&until_there_is("gate"));
    let words: &[&[&str]] = &[
        &["follow", run],
        &["logs", "-f", run],
        &["logs", "-f", "--call", "1", run],
        &["wait", run],
        &["wait", run, run],
        &["wait", run, run, "--for", "waiting"],
        &["submit", "--follow", "--script", &script],
        &["submit", "--wait", "--script", &script],
        &["events", "-f", "--after", "0"],
        &["lane", "--watch", "0.2"],
    ];
    let mut watching: Vec<_> = words.iter().map(|words| (words.join(" "), daemon.spawn_ctl(*words))).collect();
    for (_, command) in watching.iter_mut().filter(|(words, _)| words.contains("lane") || words.contains("events")) {
        assert!(!command.next_line().is_empty(), "it shows something");
    }
    // All are at it: the submitted ones execute, the others have connections of their own.
    eventually("all are under way", || {
        let status = daemon.rpc("daemon.status", harness_tests::json!({}));
        status["connections"].as_u64().unwrap() > words.len() as u64 && daemon.lane("tool").busy == 3
    });
    eventually("those that heed Ctrl-C do", || {
        let heed = watching.iter().filter(|(_, command)| command.process().catches(Signal::SIGINT)).count();
        heed >= 8
    });
    watching
}

#[test]
fn nothing_that_watches_or_waits_starts_a_daemon_after_a_stop() {
    let daemon = Daemon::start();
    let run = daemon.submit(&until_there_is("gate"));
    eventually("it executes", || daemon.lane("tool").busy == 1);
    let watching = watchers(&daemon, &run.id);
    daemon.ctl(["daemon", "stop"]).ok();
    for (words, command) in watching {
        let output = command.finish();
        assert_eq!(output.code, 7, "{words}: {output}");
        assert!(output.stderr.contains("the daemon") && output.stderr.contains("10 s"), "{words}: {output}");
        let of_runs = !words.contains("lane") && !words.contains("events");
        let told = if of_runs { "once it is started again" } else { "nothing is lost" };
        output.tells(told).tells("harnessctl daemon start");
    }
    assert!(daemon.daemon_process().is_none(), "nobody started one");
}

#[test]
fn a_run_is_not_known_any_more_only_where_the_journal_was_lost_and_that_is_6() {
    let daemon = Daemon::start();
    let run = daemon.submit(&until_there_is("gate"));
    eventually("it executes", || daemon.lane("tool").busy == 1);
    let watching = watchers(&daemon, &run.id);
    let place = daemon.crash();
    place.lose_the_journal();
    let daemon = place.start();
    for (words, command) in watching {
        if words.contains("lane") {
            command.signal(Signal::SIGINT);
            assert_eq!(command.finish().code, 130, "{words} goes on");
            continue;
        }
        let several = words.matches(&run.id).count() > 1;
        let output = command.finish();
        assert_eq!(output.code, 6, "{words}: {output}");
        let told = format!("{}{}", output.stdout, output.stderr);
        assert!(!told.contains("has not happened"), "{words}: {output}");
        if !several {
            output.tells("the daemon that came back has ").tells("journal").tells("lost or replaced");
        }
    }
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
}
