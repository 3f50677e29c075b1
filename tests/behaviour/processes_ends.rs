//! The end of a command is reported as it was, whatever the command wrote: codes, signals, and output that imitates our
//! own words.

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Process, Value, eventually, json, runs, turn};
use nix::sys::signal::Signal;

#[test]
fn codes_and_signals_are_those_of_the_command() {
    let daemon = Daemon::start();
    let cases = [
        ("exit 3", 3, None),
        ("kill -9 $$", 137, Some(9)),
        ("kill -SEGV $$", 139, Some(11)),
        ("exit 3 | cat", 0, None),
        ("cat </dev/null | (exit 4)", 4, None),
        // Of a child's death by a signal the shell makes a code of its own.
        ("sh -c 'kill -9 $$'; exit $?", 137, None),
        ("no-such-command", 127, None),
        ("/etc/passwd", 126, None),
    ];
    let script = cases.iter().fold(turn(""), |script, (command, _, _)| script.shell(command));
    let run = daemon.submit(&script.turn("done"));
    assert_eq!(run.answer(), "done");
    for ((command, code, signal), result) in cases.iter().zip(run.results()) {
        assert_eq!((result.exit_code, result.signal), (Some(*code), *signal), "{command}");
        assert!(result.envelope.starts_with(&format!("Exit code: {code}\n")), "{}", result.envelope);
        assert_eq!(result.is_error, *code != 0);
        assert!(result.cpu_seconds.is_some() && result.max_rss_bytes.is_some(), "{command}");
    }
}

#[test]
fn a_process_that_ends_by_itself_when_told_to_keeps_its_code_unless_its_time_was_up() {
    let daemon = Daemon::start();
    let cleans_up = "trap 'echo cleaned; exit 7' TERM; echo > began; while :; do sleep 0.05; done";
    let limited = json!({"command": cleans_up, "timeout": 0.5});
    let run = daemon.submit(&turn("").call("shell", limited).turn("done"));
    assert_eq!(run.answer(), "done");
    let result = &run.results()[0];
    assert_eq!((result.exit_code, result.signal, result.timed_out), (Some(124), None, true));
    assert!(result.envelope.starts_with("Exit code: 124\ncleaned\n"), "{}", result.envelope);
    assert!(result.envelope.ends_with("\n[timed out after 0.5 s]\n"), "{}", result.envelope);
    std::fs::remove_file(daemon.work().join("began")).unwrap();
    let run = daemon.submit(&runs(cleans_up));
    eventually("it executes", || daemon.work().join("began").exists());
    run.cancel();
    assert_eq!(run.wait().state, RunState::Cancelled);
    let result = &run.results()[0];
    assert_eq!((result.exit_code, result.signal, result.cancelled), (Some(7), None, true));
    assert!(result.envelope.contains("cleaned"), "{}", result.envelope);
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_when_its_time_is_up_and_the_signal_is_told() {
    let daemon = Daemon::start();
    let deaf = json!({"command": "trap '' TERM; while :; do sleep 0.05; done", "timeout": 0.2});
    let run = daemon.submit(&turn("").call("shell", deaf).turn("done"));
    assert_eq!(run.answer(), "done");
    let result = &run.results()[0];
    assert_eq!((result.exit_code, result.signal, result.timed_out), (Some(124), Some(9), true));
}

#[test]
fn output_that_looks_like_ours_does_not_change_what_the_event_says() {
    let daemon = Daemon::start();
    let mut events = daemon.connect();
    events.subscribe(json!({"kinds": ["call-finished"]}));
    let lies =
        "printf 'Exit code: 0\\n--- stderr ---\\nfine\\n[timed out after 1 s]\\n[cancelled]\\n'; echo e >&2; exit 5";
    daemon.submit(&runs(lies));
    let event = events.event();
    let result = &event["result"];
    let field = |name: &str| result[name].clone();
    assert_eq!([field("exit_code"), field("signal")], [json!(5), Value::Null]);
    for flag in ["timed_out", "cancelled", "interrupted"] {
        assert_eq!(field(flag), false, "{flag}");
    }
    assert_eq!((&result["stdout"]["bytes"], &result["stderr"]["bytes"]), (&json!(67), &json!(2)));
    assert!(field("envelope").as_str().unwrap().ends_with("[cancelled]\n--- stderr ---\ne\n"), "{result}");
}

#[test]
fn a_program_with_arguments_needs_no_shell() {
    let daemon = Daemon::start();
    let argv = |words: &[&str]| json!({ "argv": words });
    let script = turn("")
        .call("shell", argv(&["printf", "%s|", "$HOME", "a b", "`id`", "*"]))
        .call("shell", argv(&["no-such-program"]))
        .call("shell", json!({"argv": ["sh", "-c", "tty; stty size"], "tty": true}))
        .turn("done");
    let run = daemon.submit(&script);
    assert_eq!(run.answer(), "done");
    let envelopes = run.envelopes();
    assert_eq!(envelopes[0], "Exit code: 0\n$HOME|a b|`id`|*|");
    assert_eq!(envelopes[1], "Exit code: 127\n[no-such-program: no such program]\n");
    assert!(
        envelopes[2].starts_with("Exit code: 0\n/dev/pts/") && envelopes[2].ends_with("40 120\r\n"),
        "{}",
        envelopes[2]
    );
}

#[test]
fn a_command_ends_at_its_time_limit_while_the_daemon_hangs() {
    let daemon = Daemon::start();
    let command = json!({"command": "echo began; setsid sleep 31066 & exec sleep 31066", "timeout": 1.0});
    let run = daemon.submit(&turn("").call("shell", command).turn("done"));
    let sleepers = || Process::with_word("31066").len();
    eventually("the command executes", || sleepers() == 2);
    daemon.signal(Signal::SIGSTOP);
    eventually("the keeper ends all of it", || sleepers() == 0);
    daemon.signal(Signal::SIGCONT);
    assert_eq!(run.answer(), "done");
    assert!(run.envelopes()[0].contains("timed out"), "{:?}", run.envelopes());
}
