//! The environment of tools: the named variables of the submitting client, and nothing of the daemon's own.

use harness_protocol::terminal_safe;
use harness_tests::{Daemon, Place, Running, json, runs, says, turn};

use crate::workdirs::reason;

const WANTED: &str = "[tool.shell]\npass = [\"SSH_AUTH_SOCK\", \"GH_TOKEN\", \"ODD\", \"GONE\", \"TERM\"]\n";

/// What the calls of a run see of these variables.
const LOOK: &str = "for n in SSH_AUTH_SOCK GH_TOKEN ODD GONE TERM SECRET; do eval \"echo $n=\\${$n-none}\"; done";

fn submits(daemon: &Daemon, words: &[&str], env: &[(&str, &str)]) -> Vec<String> {
    let mut command = daemon.command("harnessctl");
    command.args(["submit", "--wait", "--script", &daemon.script_file(&runs(LOOK))]).args(words);
    command.envs(env.iter().copied());
    assert_eq!(Running::start(command).finish().line(), "done");
    let envelope = daemon.run("@last").envelopes().remove(0);
    envelope.strip_prefix("Exit code: 0\n").unwrap().lines().map(str::to_owned).collect()
}

/// Entry U16 in `tests/README.md`.
#[test]
fn calls_get_the_configured_variables_of_the_submitting_client_and_none_of_the_daemon() {
    let place = Place::configured(WANTED);
    // What the daemon has itself is that of another one.
    let daemon =
        place.start_behind(&["env", "SSH_AUTH_SOCK=/daemon", "GH_TOKEN=daemon", "SECRET=daemon", "GONE=daemon"]);
    let none = ["SSH_AUTH_SOCK=none", "GH_TOKEN=none", "ODD=none", "GONE=none", "TERM=dumb", "SECRET=none"];
    assert_eq!(submits(&daemon, &[], &[]), none);
    let mine = [("SSH_AUTH_SOCK", "/mine"), ("GH_TOKEN", "t=1 $x"), ("ODD", ""), ("TERM", "xterm"), ("SECRET", "s")];
    let seen = ["SSH_AUTH_SOCK=/mine", "GH_TOKEN=t=1 $x", "ODD=", "GONE=none", "TERM=xterm", "SECRET=none"];
    assert_eq!(submits(&daemon, &[], &mine), seen);
    // A variable on the command line goes before it.
    let own = ["--env", "GH_TOKEN=own", "--env", "SECRET"];
    let seen = ["SSH_AUTH_SOCK=/mine", "GH_TOKEN=own", "ODD=", "GONE=none", "TERM=xterm", "SECRET=s"];
    assert_eq!(submits(&daemon, &own, &mine), seen);
    let shown = daemon.ctl(["show", "@last"]).ok();
    let line = shown.lines().find(|line| line.starts_with("env")).unwrap();
    assert!(line.ends_with("GH_TOKEN ODD PATH SECRET SSH_AUTH_SOCK TERM"), "{line}");
    let names = daemon.ctl(["show", "@last", "--json"]).json()["env"].clone();
    assert_eq!(names, json!(["GH_TOKEN", "ODD", "PATH", "SECRET", "SSH_AUTH_SOCK", "TERM"]));
    // Values are in no view, no event and no log.
    let log = std::fs::read_to_string(daemon.path("daemon.log")).unwrap();
    let told = [shown, daemon.ctl(["events"]).ok(), daemon.ctl(["list", "--json"]).ok(), log].concat();
    // The envelopes, which the calls wrote themselves, have them.
    let told: String = told.lines().filter(|line| !line.contains("call-finished")).collect();
    for value in ["t=1 $x", "/mine", "xterm", "=own"] {
        assert!(!told.contains(value), "{value} is told");
    }
}

#[test]
fn a_batch_and_a_submit_inside_of_a_run_get_the_same_variables() {
    let daemon = Daemon::configured(WANTED);
    let inside = daemon.script_file(&runs("echo $GH_TOKEN >> tokens"));
    let submits = format!("harnessctl submit --wait --script {inside}");
    let child = says("").shell("echo $GH_TOKEN >> tokens").turn("ok");
    let family = turn("").spawn("child").wait_for_all().turn("done").child("child", &child);
    let mut lines = String::new();
    for script in [runs("echo $GH_TOKEN >> tokens"), runs(&submits), family] {
        lines += &format!("{}\n", json!({"script": script.json()}));
    }
    lines += &format!("{}\n", json!({"script": runs("echo $GH_TOKEN >> own").json(), "env": {"GH_TOKEN": "line"}}));
    let batch = daemon.file("home/batch.jsonl", &lines);
    let mut command = daemon.command("harnessctl");
    command.args(["submit", "--batch", &batch, "--wait"]).env("GH_TOKEN", "secret");
    Running::start(command).finish().ok();
    assert_eq!(daemon.written("tokens"), "secret\nsecret\nsecret\n");
    assert_eq!(daemon.written("own"), "line\n");
}

#[test]
fn a_raw_client_is_asked_only_where_it_can_be_and_where_something_is_wanted() {
    let wanting = Daemon::configured(WANTED);
    let spec = wanting.spec(&says("x"), json!({}));
    let error = wanting.refused("run.submit", json!({"spec": spec, "asks_variables": true}));
    assert_eq!(reason(&error), ("invalid", "pass-variables"), "{error}");
    assert_eq!(error["data"]["subject"], "SSH_AUTH_SOCK,GH_TOKEN,ODD,GONE,TERM");
    for params in [json!({"spec": spec}), json!({"spec": spec, "asks_variables": false})] {
        wanting.rpc("run.submit", params);
    }
    let plain = Daemon::start();
    let spec = plain.spec(&says("x"), json!({}));
    plain.rpc("run.submit", json!({"spec": spec, "asks_variables": true}));
}

/// Entries U16 and B12 in `tests/README.md`.
#[test]
fn a_variable_that_cannot_be_passed_is_refused_with_a_reason_and_told_by_its_problem() {
    let daemon = Daemon::configured(WANTED);
    let done = daemon.submit(&says("x"));
    done.wait();
    for (env, why, told) in [
        (json!({"": "x"}), "bad-variable", "cannot be the name"),
        (json!({"A B": "x"}), "bad-variable", "cannot be the name"),
        (json!({"A=B": "x"}), "bad-variable", "cannot be the name"),
        (json!({"A\u{1b}": "x"}), "bad-variable", "cannot be the name"),
        (json!({"A\nB": "x"}), "bad-variable", "cannot be the name"),
        (json!({"A\u{200B}": "x"}), "bad-variable", "cannot be the name"),
        (json!({"A\u{202E}": "x"}), "bad-variable", "cannot be the name"),
        (json!({"A\0": "x"}), "bad-variable", "cannot be the name"),
        (json!({"HARNESS_RUN_ID": "x"}), "bad-variable", "those of the harness"),
        (json!({"HARNESS_ANYTHING": "x"}), "bad-variable", "those of the harness"),
        (json!({"A": "s3cret\0"}), "bad-variable", "NUL"),
    ] {
        let spec = daemon.spec(&says("x"), json!({"env": env}));
        // What a retry changes is looked at as what is submitted.
        for error in [
            daemon.refused("run.submit", json!({"spec": spec})),
            daemon.refused("run.retry", json!({"run": done.id, "changes": {"env": env}})),
        ] {
            assert_eq!(reason(&error), ("invalid", why), "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(told) && !message.contains("s3cret"), "{message}");
            assert!(terminal_safe::refused(message).is_none(), "{message:?}");
        }
    }
    use std::os::unix::ffi::OsStrExt;
    let mut command = daemon.command("harnessctl");
    command.args(["submit", "--wait", "--script", &daemon.script_file(&runs("echo ${GH_TOKEN-none}"))]);
    command.env("GH_TOKEN", std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    let output = Running::start(command).finish().tells("GH_TOKEN is not passed: its value is not UTF-8");
    assert_eq!(output.line(), "done");
    assert_eq!(daemon.run("@last").envelopes(), ["Exit code: 0\nnone\n"]);
    let mut command = daemon.command("harnessctl");
    command.args(["submit", "--env", "ODD", "hi"]).env("ODD", std::ffi::OsStr::from_bytes(b"\xff"));
    Running::start(command).finish().exits(2).tells("ODD is set here, but its value is not UTF-8");
}
