//! `harnessctl export`: a directory with everything of one run, complete enough to be replayed.

use std::fs;
use std::path::Path;

use harness_protocol::run::Entry;
use harness_tests::{Daemon, Run, Value, eventually, json, turn};

/// What a run called, and its answer.
fn said(run: &Run) -> (Vec<(String, String)>, String) {
    let calls = run.transcript().into_iter().filter_map(|entry| match entry {
        Entry::Assistant { calls, .. } => Some(calls),
        _ => None,
    });
    let calls = calls.flatten().map(|call| (call.tool.to_string(), call.args.to_string())).collect();
    (calls, run.answer())
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_run_that_left_the_world_is_written_whole_and_says_the_same_again() {
    let daemon = Daemon::configured("[limits]\nfinished_runs = 0\n");
    // Larger than one request for output, and than the envelope; and what looks like captures to a script.
    let script = turn("All of $${it}, \"quoted\"\nand on two lines.")
        .shell("seq 900000; echo wrong >&2")
        .call("shell", json!({"argv": ["sh", "-c", "x=1; echo $${x} ${y:-z} $$; printf '\\000\\377'"], "timeout": 20}))
        .turn("")
        .spawn("helper")
        .wait_for_all()
        .turn("${n} lines")
        .capture("n", "(helper says)")
        .child("helper", &turn("helper says $${hello}"));
    let run = daemon.submit_with(&script, json!({"name": "nightly"}));
    assert_eq!(run.answer(), "helper says lines");
    eventually("it has left", || daemon.ctl(["events", "--run", &run.id]).ok().contains("run-archived"));

    let dir = daemon.work().join("D");
    let told = daemon.ctl(["export", "nightly", "--dir", "D", "--json"]).json();
    assert_eq!(told["run"], run.id.as_str());
    assert_eq!(entries(&dir), ["events.jsonl", "outputs", "run.json", "script.toml", "transcript.jsonl"]);
    assert_eq!(entries(&daemon.work()), ["D"], "nothing else is left");
    let view: Value = serde_json::from_str(&fs::read_to_string(dir.join("run.json")).unwrap()).unwrap();
    assert_eq!((&view["id"], &view["answer"]), (&json!(run.id), &json!("helper says lines")));
    let events = daemon.ctl(["events", "--run", &run.id]).ok();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut exported = lines(&dir.join("events.jsonl"));
    // What subscribers are told by its hash, an export has as a text as well.
    let named = exported.iter_mut().filter(|event| event["definitions_blob"].is_string());
    let texts: Vec<Value> = named.filter_map(|event| event.as_object_mut()?.remove("definitions")).collect();
    assert!(texts.len() == 1 && texts[0][0]["description"].is_string(), "{texts:?}");
    assert_eq!(exported, events);
    let shown = daemon.ctl(["show", "nightly", "--json"]).json();
    assert_eq!(json!(lines(&dir.join("transcript.jsonl"))), shown["transcript"]);
    let results = run.results();
    let output =
        |call: usize, stream: &str| fs::read(dir.join(format!("outputs/{}.{stream}", results[call].call))).unwrap();
    let numbers: String = (1..=900_000).map(|n| format!("{n}\n")).collect();
    assert!(numbers.len() > 4 << 20 && output(0, "stdout") == numbers.as_bytes());
    assert_eq!(output(0, "stderr"), b"wrong\n");
    assert!(output(1, "stdout").ends_with(&[0, 0xff]), "bytes are bytes");

    assert_eq!(
        daemon.ctl(["submit", "--wait", "--name", "again", "--script", "D/script.toml"]).ok(),
        "helper says lines\n"
    );
    let again = daemon.run("again");
    assert_eq!(said(&again), said(&run));
    assert_eq!(
        again.results().iter().map(|result| result.exit_code).collect::<Vec<_>>(),
        results.iter().map(|r| r.exit_code).collect::<Vec<_>>()
    );
}

#[test]
fn an_existing_file_is_not_touched_and_a_failed_export_leaves_nothing() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("hello"));
    run.answer();
    fs::create_dir(daemon.work().join("full")).unwrap();
    fs::write(daemon.work().join("full/mine"), "mine").unwrap();
    daemon.ctl(["export", &run.id, "--dir", "full"]).exits(2).tells("is not empty");
    assert_eq!(entries(&daemon.work().join("full")), ["mine"]);
    daemon.ctl(["export", "no-such-run", "--dir", "new"]).exits(6);
    daemon.ctl(["export", &run.id, "--dir", "no/such/dir"]).exits(2).tells("cannot write");
    assert_eq!(entries(&daemon.work()), ["full"]);
    fs::create_dir(daemon.work().join("empty")).unwrap();
    daemon.ctl(["export", &run.id, "--dir", "empty"]).ok();
    assert!(entries(&daemon.work().join("empty")).contains(&"script.toml".to_owned()));
}

#[test]
fn an_output_that_is_gone_is_told_and_the_rest_is_written() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("").shell("echo lost").shell("echo kept").turn("done"));
    run.answer();
    let results = run.results();
    fs::remove_file(results[0].stdout.as_ref().unwrap().path.as_deref().unwrap()).unwrap();
    let told = format!("of stdout of call {} there are 0 of 5 bytes", results[0].call);
    daemon.ctl(["export", &run.id, "--dir", "D"]).exits(1).tells(&told);
    let kept = fs::read_to_string(daemon.work().join(format!("D/outputs/{}.stdout", results[1].call)));
    assert_eq!(kept.unwrap(), "kept\n");
}

#[test]
fn a_live_run_is_written_as_far_as_it_is() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("one").shell("echo hi").turn("two").ask("well?").turn("three"));
    eventually("it asks", || !run.questions().is_empty());
    daemon.ctl(["export", &run.id, "--dir", "D"]).ok();
    let script = fs::read_to_string(daemon.work().join("D/script.toml")).unwrap();
    assert!(script.contains("\"two\"") && !script.contains("three"), "{script}");
    run.reply("yes");
    assert_eq!(run.answer(), "three");
}
