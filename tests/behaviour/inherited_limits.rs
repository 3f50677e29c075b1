//! Tests what a daemon inherits from the shell that starts it: limits are raised, given back to tools, or refused in
//! words.

use harness_tests::{Daemon, Place, json, turn};

/// Entry B8 in `tests/README.md`.
#[test]
fn limits_of_the_starters_shell_do_not_bind_the_daemon_and_tools_get_them_back() {
    // Soft limits, and what a call is to see of them.
    let cases = [
        ("ulimit -S -f 20000", "ulimit -f", "20000"),
        ("ulimit -S -t 1000", "ulimit -t", "1000"),
        ("ulimit -S -v 4000000", "ulimit -v", "4000000"),
        ("ulimit -S -n 200", "ulimit -n", "200"),
        ("ulimit -S -d 3000000", "ulimit -d", "3000000"),
        ("ulimit -S -n 100; ulimit -S -f 10", "echo $(ulimit -n) $(ulimit -f)", "100 10"),
    ];
    for (shell, look, seen) in cases {
        let place = Place::new();
        let script = turn("").shell(&format!("{look}; yes | head -c 3000000 | tail -c 1; true")).turn("done");
        let file = place.script_file(&script);
        let output = place.sh(&format!("{shell}; harnessctl submit --wait --script {file}"));
        assert_eq!(output.exits(0).stdout, "done\n", "{shell}");
        let run = place.run("@last");
        assert!(run.envelopes()[0].contains(seen), "{shell}: {:?}", run.envelopes());
        // The daemon itself writes more than its starter might.
        let more = turn("").shell("yes | head -c 40000000").turn("done");
        assert_eq!(place.submit(&more).answer(), "done", "{shell}");
    }
}

/// Entry B8 in `tests/README.md`.
#[test]
fn a_limit_that_would_end_the_daemon_and_cannot_be_raised_is_refused_in_words() {
    for open_files in [20, 24, 32, 40, 47] {
        let place = Place::new();
        let told = place.sh(&format!("ulimit -n {open_files}; harnessctl list"));
        told.exits(7).tells("limit of open files").tells(&open_files.to_string()).tells("ulimit -H -n");
    }
}

/// Entry B9 in `tests/README.md`.
#[test]
fn a_client_of_another_protocol_is_refused_and_may_look_and_stop() {
    let mut daemon = Daemon::start();
    for major in [2, 3, 7, 1_000, u32::MAX] {
        let mut client = daemon.connect();
        let spec = daemon.spec(&harness_tests::says("never"), json!({}));
        let replies = client.pipeline(
            [
                ("daemon.hello", json!({"protocol_major": major, "protocol_minor": 3})),
                ("run.submit", json!({"spec": spec})),
                ("run.cancel", json!({"select": {"all": true}})),
                ("run.list", json!({})),
                ("daemon.status", json!({})),
            ]
            .into_iter(),
        );
        for reply in &replies[..4] {
            assert_eq!(reply["error"]["data"]["kind"], "version", "{reply}");
        }
        assert_eq!(replies[4]["result"]["schema"], "harness.status/1");
    }
    assert_eq!(daemon.rpc("run.list", json!({}))["runs"], json!([]));
    let mut client = daemon.connect();
    let stop = [("daemon.hello", json!({"protocol_major": 2})), ("daemon.stop", json!({}))];
    assert!(client.pipeline(stop.into_iter())[1]["error"].is_null());
    assert_eq!(daemon.ended(harness_tests::PATIENCE).code(), Some(0));
}
