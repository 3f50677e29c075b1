//! Runs that have left the daemon's memory: everything about them is answered as before, from the journal.

use harness_tests::{Daemon, Run, Value, eventually, json, says, turn};

/// A daemon that keeps no finished run in memory, and such a run that has left.
fn with_one() -> (Daemon, Run) {
    let daemon = Daemon::configured("[limits]\nfinished_runs = 0\n");
    let script = turn("first").shell("echo out; echo err >&2").turn("the answer");
    let run = daemon.submit_with(&script, json!({"name": "old", "labels": {"team": "a"}}));
    assert_eq!(run.answer(), "the answer");
    has_left(&daemon, &run);
    (daemon, run)
}

pub(crate) fn has_left(daemon: &Daemon, run: &Run) {
    eventually("it has left", || daemon.ctl(["events", "--run", &run.id]).ok().contains("run-archived"));
}

#[test]
fn it_is_listed_shown_waited_for_and_followed_as_before() {
    let (daemon, run) = with_one();
    assert!(daemon.ctl(["list"]).ok().contains("old"));
    for words in [&["--all"][..], &["-l", "team=a"], &["--state", "succeeded"], &["old"]] {
        let listed = daemon.ctl(["list", "--json"].iter().chain(words)).json();
        assert_eq!(listed["id"], run.id.as_str(), "{words:?}");
    }
    for name in ["old", &run.id, &run.id[..12], "@last"] {
        let shown = daemon.ctl(["show", name, "--json"]).json();
        assert_eq!(
            (&shown["answer"], shown["transcript"].as_array().unwrap().len()),
            (&json!("the answer"), 3),
            "{name}"
        );
        assert_eq!(daemon.ctl(["show", "--answer", name]).ok(), "the answer\n");
        assert_eq!(daemon.ctl(["wait", name]).ok(), "the answer\n");
        assert!(daemon.ctl(["follow", name]).ok().ends_with("the answer\n"));
        daemon.ctl(["wait", "--for", "waiting", name]).exits(6);
    }
    assert_eq!(daemon.ctl(["wait", &run.id, &run.id]).ok().lines().count(), 2);
    assert_eq!(daemon.ctl(["logs", "old", "--call", "1", "--raw"]).ok(), "out\n");
    assert_eq!(daemon.ctl(["logs", "old", "--call", "1", "--stream", "stderr"]).ok(), "err\n");
    let logs = daemon.ctl(["logs", "old"]).ok();
    assert!(logs.contains("| first\n$ echo out; echo err >&2\n| out\n") && logs.ends_with("the answer\n"), "{logs}");
    let events = daemon.ctl(["events", "--run", "old"]).ok();
    let kinds: Vec<Value> =
        events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone()).collect();
    assert_eq!((&kinds[0], &kinds[kinds.len() - 2]), (&json!("run-submitted"), &json!("run-finished")));
    assert_eq!(daemon.rpc("daemon.status", json!({}))["runs"]["succeeded"], 1);
}

#[test]
fn it_can_be_gone_on_from_and_its_key_is_still_its_own() {
    let daemon = Daemon::configured("[limits]\nfinished_runs = 0\n");
    let script = daemon.script_file(&turn("").shell("true").turn("one").turn("two"));
    let submit = ["submit", "-q", "--script", &script, "--idempotency-key", "k", "--wait"];
    assert_eq!(daemon.ctl(submit).ok(), "one\n");
    let run = daemon.run(daemon.run("@last").view().id.to_string().as_str());
    has_left(&daemon, &run);
    let again = ["submit", "-q", "--script", &script, "--idempotency-key", "k"];
    assert_eq!(daemon.ctl(again).line(), run.id, "the same key is the same run");
    let other = daemon.script_file(&says("other"));
    daemon.ctl(["submit", "--script", &other, "--idempotency-key", "k"]).exits(2).tells(&run.id);
    assert_eq!(daemon.ctl(["retry", "--wait", &run.id]).ok(), "one\n");
    let retried = daemon.ctl(["show", "@last", "--json"]).json();
    assert_eq!(retried["retry_of"], run.id.as_str());
    assert_eq!(daemon.ctl(["message", "--wait", &run.id, "and now?"]).ok(), "two\n");
    assert_eq!(daemon.ctl(["show", "@last", "--json"]).json()["continues"], run.id.as_str());
}

#[test]
fn a_run_that_can_no_longer_change_says_that_it_has_ended() {
    let (daemon, run) = with_one();
    for verb in ["cancel", "pause", "resume"] {
        for name in ["old", &run.id] {
            let told = format!("run {}: it has succeeded already", run.id);
            daemon.ctl([verb, name]).exits(6).tells(&told);
        }
    }
    daemon.ctl(["cancel", "no-such-run"]).exits(6).tells("no run");
    let live = daemon.submit(&turn("").ask("well?"));
    eventually("it asks", || !live.questions().is_empty());
    let output = daemon.ctl(["cancel", "old", &live.id]).exits(0).tells("it has succeeded already");
    assert_eq!(output.stdout, format!("{}\n", live.id));
    live.wait();
    has_left(&daemon, &live);
    daemon.ctl(["cancel", &live.id]).exits(6).tells("it was cancelled already");
}

#[test]
fn a_key_gives_the_same_run_at_whatever_moment_that_leaves() {
    let daemon = Daemon::configured("[limits]\nfinished_runs = 1\n");
    let clients: Vec<_> = (0..6)
        .map(|client| {
            let mut line = daemon.connect();
            std::thread::spawn(move || {
                let mut seen = std::collections::BTreeMap::new();
                for round in 0..40 {
                    // Each asks again for what the others ask for at the same time: those runs end and leave meanwhile.
                    let asked = (0..8).map(|back| {
                        let key = format!("key-{}", (round * 8 + back + client) / 2);
                        let spec = json!({"script": {"turn": [{"text": "ok"}]}});
                        ("run.submit", json!({"spec": spec, "idempotency_key": key}))
                    });
                    let keys: Vec<String> =
                        (0..8).map(|back| format!("key-{}", (round * 8 + back + client) / 2)).collect();
                    for (key, reply) in keys.into_iter().zip(line.pipeline(asked)) {
                        let id = reply["result"]["id"].as_str().unwrap().to_owned();
                        assert_eq!(seen.entry(key.clone()).or_insert_with(|| id.clone()), &id, "{key}");
                    }
                }
                seen
            })
        })
        .collect();
    let mut runs = std::collections::BTreeMap::new();
    for client in clients {
        for (key, id) in client.join().unwrap() {
            assert_eq!(runs.entry(key.clone()).or_insert_with(|| id.clone()), &id, "{key} gave two runs");
        }
    }
    assert!(runs.len() > 100);
}
