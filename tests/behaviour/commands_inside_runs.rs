//! Tests that a process inside a run may submit children of its run and look at its own tree, and do nothing else.

use std::fs;
use std::os::unix::net::UnixStream;

use harness_protocol::{PROTOCOL_MAJOR, PROTOCOL_MINOR};
use harness_tests::{Client, Daemon, Place, Process, json, need, need_root, says, turn};
use nix::sys::signal::Signal;

use crate::lane::{open, until_there_is};

/// Part of what an insider is told.
const REFUSED: &str = "look at its own tree";

#[test]
fn a_command_of_a_run_cannot_act_as_its_operator() {
    let daemon = Daemon::start();
    let stranger = daemon.submit_with(&until_there_is("gate"), json!({"name": "stranger"}));
    let asking = daemon.submit_with(&turn("").ask("may I?").turn("yes"), json!({"name": "asking"}));
    harness_tests::eventually("it asks", || !asking.questions().is_empty());
    let forbidden = [
        "cancel stranger",
        "pause stranger",
        "prune --all",
        "retry stranger",
        "message stranger hello",
        "reply asking yes",
        "lane relieve --by 5",
        "lane resize 50",
        "lane pause",
        "daemon stop",
        "daemon drain",
        "daemon reload",
        "pending",
        "lane",
    ];
    let script = forbidden.iter().fold(turn(""), |script, words| script.shell(&format!("harnessctl {words}")));
    let run = daemon.submit(&script.turn("tried"));
    assert_eq!(run.answer(), "tried");
    for (words, result) in forbidden.iter().zip(run.results()) {
        assert!(result.exit_code != Some(0) && result.envelope.contains(REFUSED), "{words}: {}", result.envelope);
    }
    let lane = daemon.lane("tool");
    assert_eq!((lane.width, lane.paused, asking.questions().len()), (8, false, 1));
    // It is not even found, neither by its name nor by its id.
    for name in ["stranger", stranger.id.as_str()] {
        let tries = ["show", "logs"].map(|verb| format!("harnessctl {verb} {name}"));
        let run = daemon.submit(&turn("").shell(&tries[0]).shell(&tries[1]).turn("tried"));
        assert_eq!(run.answer(), "tried");
        for result in run.results() {
            let told = &result.envelope;
            assert!(result.exit_code == Some(6) && told.contains(&format!("no run \"{name}\"")), "{told}");
        }
    }
    open(&daemon, "gate");
    assert_eq!(stranger.answer(), "done");
}

#[test]
fn no_disguise_makes_it_an_operator() {
    let daemon = Daemon::start();
    let tries = [
        "env -u HARNESS_RUN_ID harnessctl lane pause",
        "setsid harnessctl lane pause",
        "env -u HARNESS_RUN_ID setsid --wait harnessctl lane pause",
        "env -u HARNESS_RUN_ID -u HARNESS_CALL_ID sh -c '( harnessctl lane pause > out 2>&1; echo $? >> out ) & wait'; \
         cat out; tail -1 out | grep -qx 0",
        "HARNESS_RUN_ID=0000000000000 harnessctl lane pause",
    ];
    let script = tries.iter().fold(turn(""), |script, command| script.shell(command));
    let run = daemon.submit(&script.turn("tried"));
    assert_eq!(run.answer(), "tried");
    for (command, envelope) in tries.iter().zip(run.envelopes()) {
        assert!(envelope.contains(REFUSED) && !envelope.starts_with("Exit code: 0\n"), "{command}: {envelope}");
    }
    assert!(!daemon.lane("tool").paused);
}

#[test]
fn a_submit_of_a_run_is_its_child() {
    let daemon = Daemon::start();
    let child = daemon.script_file(&says("from below"));
    let script = turn("")
        .shell(&format!("harnessctl submit --wait --script {child}"))
        .shell("harnessctl show $HARNESS_RUN_ID > /dev/null && harnessctl list --json | wc -l")
        .turn("done")
        .expect("from below");
    let run = daemon.submit(&script);
    daemon.submit(&says("a stranger"));
    assert_eq!(run.answer(), "done");
    let listed = daemon.rpc("run.list", json!({"root": run.id}));
    let children: Vec<_> =
        listed["runs"].as_array().unwrap().iter().filter(|one| one["parent"] == run.id.as_str()).collect();
    assert_eq!(children.len(), 1, "{listed}");
    assert_eq!(children[0]["root"], run.id.as_str());
    assert_eq!(run.envelopes()[1], "Exit code: 0\n2\n", "it sees its own tree");
}

#[test]
fn a_call_knows_its_run_and_little_of_the_daemons_environment() {
    let place = harness_tests::Place::new();
    let daemon = place.start_behind(&["env", "SECRET_TOKEN=hush"]);
    let script = turn("").shell("env").shell("cat; tty; echo end").turn("done");
    let run = daemon.submit_with(&script, json!({"env": {"PATH": "/usr/bin:/bin", "EXTRA": "given"}}));
    assert_eq!(run.answer(), "done");
    let [env, input] = run.envelopes().try_into().unwrap();
    let socket = format!("HARNESS_SOCKET={}", daemon.socket().display());
    for part in
        ["EXTRA=given", &format!("HARNESS_RUN_ID={}", run.id), "HARNESS_CALL_ID=", &socket, "PATH=/usr/bin:/bin\n"]
    {
        assert!(env.contains(part), "{part}: {env}");
    }
    assert!(!env.contains("hush"), "{env}");
    assert!(input.contains("not a tty") && input.contains("end\n"), "standard input is empty: {input}");
}

/// The kernel names no process to a daemon in a pid namespace that its peer is outside of.
#[test]
#[ignore = "needs root, for a pid namespace"]
fn a_peer_whose_process_has_no_pid_is_answered_and_has_no_rights() {
    need_root();
    need("unshare", "util-linux");
    let place = Place::new();
    let before = ["unshare", "--pid", "--fork", "--mount-proc"];
    let daemon = Daemon::adopt(&place, Daemon::spawn(&place, &before, &[]));
    let greeting = json!({"protocol_major": PROTOCOL_MAJOR, "protocol_minor": PROTOCOL_MINOR});
    let connect = || Some(Client::over(UnixStream::connect(place.socket()).ok()?));
    harness_tests::eventually("the daemon greets", || {
        connect().is_some_and(|mut client| client.try_call("daemon.hello", greeting.clone()).is_ok())
    });
    let spec = place.spec(&says("never"), json!({}));
    for (method, params) in [
        ("run.submit", json!({ "spec": spec })),
        ("run.list", json!({})),
        ("lane.pause", json!({"lane": "tool"})),
        ("daemon.stop", json!({})),
    ] {
        let refused = Client::connect(&place.socket()).try_call(method, params).unwrap_err();
        assert_eq!(refused["data"]["kind"], "forbidden", "{method}: {refused}");
    }
    // `--kill-child` does not reach the daemon. As the first process of its namespace it takes all there along.
    let below = format!("/proc/{0}/task/{0}/children", daemon.process().0);
    let first = fs::read_to_string(below).unwrap().trim().parse().unwrap();
    Process(first).signal(Signal::SIGKILL);
    daemon.crash();
}
