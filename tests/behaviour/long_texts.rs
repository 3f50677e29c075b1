//! Long prompts, scripts and definitions of tools: events name them by their hash, and each is stored once.

use std::fs;

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Place, Run, Value, eventually, json, says, turn};

/// What a run executes to ask the daemon in its own words.
const ADVERSARY: &str = env!("CARGO_BIN_EXE_adversary");

/// A prompt that is stored as a file.
fn prompt(letter: &str) -> String {
    letter.repeat(300_000)
}

/// A run with this prompt that waits for an answer.
fn asks(place: &Place, prompt: &str) -> Run {
    let run = place.submit_with(&turn("").ask("well?").turn("done"), json!({"prompt": prompt}));
    run.reach(RunState::Waiting);
    run
}

fn events(place: &Place, run: &Run) -> Vec<Value> {
    place.ctl(["events", "--run", &run.id]).ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The hash that an event of this kind names at this place.
fn named(events: &[Value], kind: &str, place: &str) -> String {
    let event = events.iter().find(|event| event["kind"] == kind).unwrap();
    event.pointer(place).and_then(Value::as_str).unwrap_or_else(|| panic!("{place}: {event}")).to_owned()
}

/// The whole text of a hash, asked for part by part.
fn text(place: &Place, hash: &str) -> String {
    let mut text = String::new();
    loop {
        let part = place.rpc("blob.get", json!({"hash": hash, "offset": text.len()}));
        text.push_str(part["text"].as_str().unwrap());
        if text.len() as u64 == part["total"].as_u64().unwrap() {
            return text;
        }
    }
}

fn files(place: &Place) -> Vec<String> {
    let Ok(dir) = fs::read_dir(place.state("blobs")) else { return Vec::new() };
    dir.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_long_prompt_is_told_by_its_hash_read_by_it_and_survives_a_crash() {
    let daemon = Daemon::start();
    let runs = [asks(&daemon, &prompt("p")), asks(&daemon, &prompt("p"))];
    let daemon = daemon.crash().start();
    let hash = named(&events(&daemon, &runs[0]), "run-submitted", "/spec/prompt_blob");
    assert_eq!(hash, named(&events(&daemon, &runs[1]), "run-submitted", "/spec/prompt_blob"));
    assert_eq!(files(&daemon), [hash.as_str()]);
    let shown = events(&daemon, &runs[0]);
    let submitted = shown.iter().find(|event| event["kind"] == "run-submitted").unwrap();
    assert!(submitted["spec"]["prompt"].is_null() && submitted.to_string().len() < 4_000, "{submitted}");
    assert_eq!(text(&daemon, &hash), prompt("p"));
    for run in &runs {
        run.reply("yes");
        assert_eq!(run.answer(), "done");
        assert_eq!(run.transcript()[0], harness_protocol::run::Entry::User { text: prompt("p").into() });
    }
    assert!(daemon.ctl(["logs", &runs[0].id]).ok().contains(&prompt("p")));
    // An export goes where there is no store: it has the text itself.
    daemon.ctl(["export", &runs[0].id, "--dir", "D"]).ok();
    let exported = fs::read_to_string(daemon.work().join("D/events.jsonl")).unwrap();
    assert!(exported.contains(&prompt("p")) && exported.contains(&hash));
}

#[test]
fn a_text_goes_from_the_disk_with_the_last_run_that_names_it() {
    let daemon = Daemon::start();
    let runs = [asks(&daemon, &prompt("p")), asks(&daemon, &prompt("p"))];
    runs.iter().for_each(|run| run.reply("yes"));
    runs.iter().for_each(|run| drop(run.answer()));
    let hash = files(&daemon).pop().unwrap();
    daemon.ctl(["prune", &runs[0].id]).ok();
    assert_eq!(text(&daemon, &hash), prompt("p"));
    daemon.ctl(["prune", &runs[1].id]).ok();
    eventually("its file is gone", || files(&daemon).is_empty());
    let error = daemon.connect().try_call("blob.get", json!({"hash": hash})).unwrap_err();
    assert_eq!(error["data"]["reason"], "unknown-text", "{error}");
}

#[test]
fn a_text_that_is_lost_ends_the_runs_that_name_it_and_no_other() {
    let daemon = Daemon::start();
    let (lost, kept) = (asks(&daemon, &prompt("l")), asks(&daemon, &prompt("k")));
    let hash = named(&events(&daemon, &lost), "run-submitted", "/spec/prompt_blob");
    let place = daemon.crash();
    fs::write(place.state("blobs").join(&hash), "something else").unwrap();
    let daemon = place.start();
    let view = lost.wait();
    assert_eq!(view.state, RunState::Failed, "{view:?}");
    assert!(view.error.as_deref().is_some_and(|error| error.contains("cannot be read")), "{view:?}");
    let findings = daemon.rpc("daemon.status", json!({}))["journal"]["findings"].to_string();
    assert!(findings.contains("unreadable-runs"), "{findings}");
    kept.reply("yes");
    assert_eq!(kept.answer(), "done");
}

/// A run may read the texts of its own tree, also what its model is told of tools, and of no other one.
#[test]
fn a_process_of_a_run_reads_the_texts_of_its_own_tree_alone() {
    let daemon = Daemon::start();
    let stranger = asks(&daemon, &prompt("s"));
    let others = named(&events(&daemon, &stranger), "run-submitted", "/spec/prompt_blob");
    let tools = named(&events(&daemon, &stranger), "run-prepared", "/definitions_blob");
    let own = asks(&daemon, &prompt("o"));
    let own = named(&events(&daemon, &own), "run-submitted", "/spec/prompt_blob");
    let ask = |hash: &str| {
        let line =
            json!({"jsonrpc": "2.0", "id": 1, "method": "blob.get", "params": {"hash": hash, "offset": 299_990}});
        format!("{ADVERSARY} ask '{line}'")
    };
    let script = [&others, &tools, &own].iter().fold(turn(""), |script, hash| script.shell(&ask(hash)));
    let run = daemon.submit_with(&script.turn("tried"), json!({"prompt": prompt("o")}));
    assert_eq!(run.answer(), "tried");
    let told = run.envelopes();
    assert!(told[0].contains("there is no text") && !told[0].contains("\"result\""), "{}", told[0]);
    assert!(told[1].contains("\"result\""), "{}", told[1]);
    assert!(told[2].contains("oooooooooo"), "{}", told[2]);
}

#[test]
fn a_name_that_a_client_makes_up_gives_nothing() {
    let daemon = Daemon::start();
    let stranger = asks(&daemon, &prompt("s"));
    let others = named(&events(&daemon, &stranger), "run-submitted", "/spec/prompt_blob");
    let run = daemon.submit_with(&says("x"), json!({"prompt": "short", "prompt_blob": others}));
    run.answer();
    let submitted = events(&daemon, &run).into_iter().find(|event| event["kind"] == "run-submitted").unwrap();
    assert_eq!((&submitted["spec"]["prompt"], &submitted["spec"]["prompt_blob"]), (&json!("short"), &Value::Null));
}

#[test]
fn a_backup_has_the_texts_and_needs_no_other_file() {
    let daemon = Daemon::start();
    let run = asks(&daemon, &prompt("p"));
    let hash = named(&events(&daemon, &run), "run-submitted", "/spec/prompt_blob");
    let backup = daemon.work().join("copy.db");
    daemon.ctl(["daemon", "backup", backup.to_str().unwrap()]).ok();
    let place = daemon.crash();
    fs::remove_dir_all(place.state("blobs")).unwrap();
    place.ctl(["daemon", "restore", backup.to_str().unwrap()]).ok();
    let daemon = place.start();
    assert_eq!(text(&daemon, &hash), prompt("p"));
    run.reply("yes");
    assert_eq!(run.answer(), "done");
}
