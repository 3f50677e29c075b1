//! Selecting the runs of a command: by several names, ids on standard input, labels, states, what they wait for; and
//! what the command does with each.

use std::io::Write;
use std::process::{Command, Stdio};

use harness_protocol::run::{RunState, WaitKind};
use harness_tests::chat::says as answers;
use harness_tests::{Daemon, FaultServer, Output, Place, Run, Running, eventually, json, runs, says, turn};
use nix::sys::signal::Signal;

use crate::lane::{open, until_there_is};

/// Runs `harnessctl` with this on standard input.
#[track_caller]
fn ctl_with(place: &Place, input: &str, words: &[&str]) -> Output {
    let mut command: Command = place.command(harness_tests::program("harnessctl"));
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(input.as_bytes()).unwrap();
    drop(writer);
    Running::start_reading(command, reader).finish()
}

fn labelled(daemon: &Daemon, gate: &str, label: &str) -> Run {
    daemon.submit_with(&until_there_is(gate), json!({"labels": {"of": label}}))
}

/// Fails with this exit code.
fn fails(daemon: &Daemon, label: &str) -> Run {
    daemon.submit_with(
        &turn("").shell("true").turn("never"),
        json!({"labels": {"of": label}, "limits": {"max_steps": 1}}),
    )
}

/// Entry U11 in `tests/README.md`.
#[test]
fn a_wait_for_several_prints_each_as_it_ends() {
    let daemon = Daemon::start();
    let runs: Vec<Run> = ["a", "b", "c"].iter().map(|gate| labelled(&daemon, gate, "w")).collect();
    let mut waits = daemon.spawn_ctl(["wait", &runs[0].id, &runs[1].id, &runs[2].id]);
    for (gate, run) in [("c", &runs[2]), ("a", &runs[0]), ("b", &runs[1])] {
        open(&daemon, gate);
        let line = waits.next_line();
        assert!(line.starts_with(&format!("{} succeeded 0", run.id)), "{line}");
    }
    waits.finish().exits(0);
    // As JSON as well, and those that had ended before come in the order of their ends.
    let lines = daemon.ctl(["wait", "--json", "-l", "of=w"]).ok();
    let ids: Vec<&str> = lines.lines().map(|line| line.split('"').nth(7).unwrap()).collect();
    assert_eq!(ids, [&*runs[2].id, &runs[0].id, &runs[1].id], "{lines}");
}

/// Entry U11 in `tests/README.md`.
#[test]
fn a_wait_for_any_returns_with_the_first_end_says_which_and_has_its_code() {
    let daemon = Daemon::start();
    let slow = labelled(&daemon, "slow", "any");
    let other = labelled(&daemon, "other", "any");
    let waits = daemon.spawn_ctl(["wait", "--any", &slow.id, &other.id]);
    open(&daemon, "other");
    let output = waits.finish().exits(0);
    assert!(output.stdout.starts_with(&format!("{} succeeded 0", other.id)) && output.stdout.lines().count() == 1);
    // A run that has ended already is the first, whatever its ending; selectors choose as well.
    let failed = fails(&daemon, "fail");
    failed.wait();
    let output = daemon.ctl(["wait", "--any", &slow.id, &failed.id]).exits(9);
    assert!(output.stdout.starts_with(&format!("{} failed 9", failed.id)), "{output}");
    daemon.ctl(["wait", "--any", "-l", "of=fail"]).exits(9);
    daemon.ctl(["wait", "--any", "--timeout", "0.1", &slow.id]).exits(8).tells("none of 1 run has ended");
    // For a state as well.
    let asks = daemon.submit(&turn("").ask("well?").turn("done"));
    let output = daemon.ctl(["wait", "--any", "--for", "waiting", &slow.id, &asks.id]).exits(0);
    assert!(output.stdout.starts_with(&asks.id), "{output}");
    assert_eq!(slow.view().state, RunState::Acting);
}

/// Entry U11 in `tests/README.md`.
#[test]
fn ids_come_from_standard_input_wherever_a_run_may_be_named() {
    let daemon = Daemon::start();
    let runs: Vec<Run> = (0..3).map(|_| daemon.submit_with(&says("done"), json!({"labels": {"of": "in"}}))).collect();
    runs.iter().for_each(|run| drop(run.wait()));
    let ids: String = runs.iter().map(|run| format!("{}\n", run.id)).collect();
    for (words, lines) in [
        (&["wait", "-"][..], 3),
        (&["wait", "-", &runs[0].id], 4),
        (&["show", "--answer", "-"], 6),
        (&["list", "--json", "-"], 3),
        (&["retry", "-"], 3),
        (&["message", "-", "and more"], 3),
        (&["logs", "-", "--json"], 3),
    ] {
        let output = ctl_with(&daemon, &ids, words).exits(0);
        assert_eq!(output.stdout.lines().filter(|line| !line.is_empty()).count(), lines, "{words:?}: {output}");
    }
    // What other commands print is read: lines of a wait, and JSON.
    // (What was gone on from had nothing more to say, and failed.)
    let lines = daemon.ctl(["wait", "-l", "of=in"]).exits(1).stdout;
    ctl_with(&daemon, &lines, &["show", "-"]).exits(0);
    let json = daemon.ctl(["list", "--json", "-l", "of=in"]).ok();
    ctl_with(&daemon, &json, &["wait", "-"]).exits(1);
    // Nothing on standard input is nothing, also beside a label.
    let live = labelled(&daemon, "never", "in");
    for words in [&["cancel", "-"][..], &["cancel", "-", "-l", "of=in"], &["pause", "-", "--all"], &["wait", "-"]] {
        ctl_with(&daemon, "\n \n", words).exits(6).tells("standard input names no run");
    }
    ctl_with(&daemon, "{\"seq\":1}\n", &["cancel", "-"]).exits(2).tells("line 1");
    ctl_with(&daemon, "0000000000000\n", &["show", "-"]).exits(6);
    assert!(!live.view().state.is_terminal());
    for words in
        [&["wait"][..], &["show"], &["follow"], &["logs"], &["retry"], &["cancel"], &["pause"], &["message", "text"]]
    {
        daemon.ctl(words).exits(2);
    }
}

/// U10, U11: what is shown to wait is what a selector finds, everywhere and in one word.
#[test]
fn runs_are_selected_by_what_they_wait_for_and_a_lane_counts_the_same() {
    let server = FaultServer::start();
    server.always(answers("done"));
    let text = format!(
        "[lane.tool]\nwidth = 2\n[provider.local]\ndialect = \"openai\"\nbase_url = \"{}\"\nmodel = \"m\"\n",
        server.url()
    );
    let daemon = Daemon::configured(&text);
    daemon.ctl(["lane", "pause", "local"]).ok();
    let busy = daemon.submit_many(2, &until_there_is("gate"));
    eventually("the lane is full", || daemon.lane("tool").busy == 2);
    let lane = daemon.submit_many(5, &runs("true"));
    let asks = daemon.submit(&turn("").ask("which?").turn("done"));
    let parent =
        daemon.submit(&turn("").spawn("c").wait_for_all().turn("done").child("c", &turn("").ask("?").turn("x")));
    let held = daemon.ask("say it");
    eventually("all stand still", || {
        let report = daemon.lane("tool");
        (report.wanted, report.queued, report.parked) == (5, 5, 3)
    });
    let found = |words: &[&str]| {
        let lines = daemon.ctl([&["list", "--json"], words].concat()).ok();
        lines.lines().map(|line| serde_json::from_str::<harness_tests::Value>(line).unwrap()).collect::<Vec<_>>()
    };
    for (kind, count) in [("lane", 5), ("provider", 1), ("person", 2), ("run", 1), ("budget", 0), ("storage", 0)] {
        let runs = found(&["--waiting-for", kind]);
        assert_eq!(runs.len(), count, "{kind}: {runs:?}");
        assert!(runs.iter().all(|run| run["waiting_for"]["kind"] == kind), "{runs:?}");
    }
    assert_eq!(found(&["--waiting-for", "lane,person"]).len(), 7);
    assert_eq!(found(&["--waiting-for", "person", &parent.id, &asks.id]).len(), 1, "what is given must all hold");
    assert_eq!(found(&["--state", "queued"]).len(), 1, "the one that waits for its first inference");
    assert_eq!(found(&["--state", "queued", "--waiting-for", "lane"]).len(), 0);
    let shown = daemon.ctl(["lane", "tool"]).ok();
    assert!(shown.contains("wanted 5 ") && !shown.contains("queued"), "{shown}");
    assert!(daemon.ctl(["lane", "--check", "wanted"]).ok().contains("wanted=5;"));
    let json = daemon.ctl(["lane", "tool", "--json"]).json();
    assert_eq!((&json["wanted"], &json["shares"][0]["wanted"]), (&json!(5), &json!(5)), "{json}");
    // Every verb that changes runs takes it, and hits those runs alone.
    let paused = daemon.ctl(["pause", "--waiting-for", "lane"]).ok();
    assert_eq!(paused.lines().count(), 5);
    assert_eq!((found(&["--waiting-for", "lane"]).len(), daemon.lane("tool").wanted), (0, 0));
    assert_eq!(daemon.ctl(["resume", "--state", "paused"]).ok().lines().count(), 5);
    assert_eq!(daemon.lane("tool").wanted, 5);
    let cancelled = daemon.ctl(["cancel", "--waiting-for", "lane"]).ok();
    let mut expected: Vec<&str> = lane.iter().map(|run| &*run.id).collect();
    let mut hit: Vec<&str> = cancelled.lines().collect();
    expected.sort_unstable();
    hit.sort_unstable();
    assert_eq!(hit, expected);
    assert!(busy.iter().all(|run| run.view().state == RunState::Acting));
    assert_eq!(asks.view().waiting_for.unwrap().kind, WaitKind::Person);
    daemon.ctl(["cancel", "--waiting-for", "budget"]).exits(6);
    daemon.ctl(["cancel", "--waiting-for", "godot"]).exits(2).tells("lane, provider, person, run, budget or storage");
    daemon.ctl(["prune", "--waiting-for", "lane"]).exits(2);
    daemon.ctl(["retry", "--waiting-for", "lane"]).exits(2);
    let told = daemon.ctl(["message", "--waiting-for", "provider", "go on"]).line();
    assert_eq!(told, held.id);
    let waits = daemon.spawn_ctl(["wait", "--waiting-for", "provider"]);
    eventually("it is at it", || waits.process().catches(Signal::SIGINT));
    daemon.ctl(["lane", "resume", "local"]).ok();
    waits.finish().exits(0);
    let pending = daemon.ctl(["pending", &asks.id]).ok();
    assert!(pending.contains("which?") && pending.lines().count() == 2, "{pending}");
}

/// Entry U11 in `tests/README.md`.
#[test]
fn retry_takes_many_runs_and_changes_the_named_fields() {
    let daemon = Daemon::start();
    let job = json!({"labels": {"job": "n"}, "limits": {"max_steps": 1, "max_tokens": 100_000}, "env": {"A": "1"}});
    let script = turn("").shell("true").turn("better");
    let failed: Vec<Run> = (0..3).map(|_| daemon.submit_with(&script, job.clone())).collect();
    failed.iter().for_each(|run| assert_eq!(run.wait().exit_code, Some(9)));
    daemon.submit_with(&says("fine"), json!({"labels": {"job": "n"}})).wait();
    daemon.submit_with(&script, json!({"limits": {"max_steps": 1}})).wait();
    let words =
        ["retry", "-l", "job=n", "--state", "failed", "--max-steps", "7", "--add-label", "try=2", "--env", "B=2"];
    let more = ["--priority", "low", "--limit", "open_files=64", "--max-time", "5m", "--wait"];
    let output = daemon.ctl(words.iter().chain(&more)).exits(0);
    assert_eq!(output.stdout.lines().filter(|line| line.contains("succeeded 0 better")).count(), 3, "{output}");
    for line in output.stdout.lines() {
        let run = daemon.ctl(["show", "--json", line.split(' ').next().unwrap()]).json();
        let limits = json!({"max_steps": 7, "max_tokens": 100_000, "max_time_seconds": 300, "open_files": 64});
        for (key, value) in limits.as_object().unwrap() {
            assert_eq!(run["limits"][key].as_f64(), value.as_f64(), "{key}: {run}");
        }
        assert_eq!((&run["labels"], &run["priority"]), (&json!({"job": "n", "try": "2"}), &json!("low")));
        assert!(failed.iter().any(|first| run["retry_of"] == *first.id), "{run}");
    }
    // A selector does not retry a run a second time; its id does.
    daemon.ctl(["retry", "-l", "job=n"]).exits(6).tells("tried again already");
    let again = daemon.ctl(["retry", &failed[0].id, &failed[1].id, "--max-steps", "2", "--wait"]).exits(0);
    assert_eq!(again.stdout.lines().count(), 2);
    // What a submit refuses, a retry refuses; nothing is half done.
    daemon.ctl(["retry", &failed[0].id, "--provider", "nowhere"]).exits(2).tells("no provider");
    daemon.ctl(["retry", &failed[0].id, "--add-label", "a\u{202e}=b"]).exits(2).tells("U+202E");
    daemon.ctl(["retry", &failed[0].id, &failed[1].id, "--name", "one"]).exits(2).tells("these are several");
    daemon.ctl(["retry", &failed[0].id, "--deadline", "2020-01-01T00:00:00Z"]).exits(2).tells("passed already");
    let named = daemon.ctl(["retry", &failed[0].id, "--name", "once", "--max-steps", "3"]).line();
    assert_eq!(daemon.run(&named).wait().name.as_deref(), Some("once"));
    // A live one among several is told, and the others are tried all the same.
    let live = daemon.submit(&until_there_is("never"));
    let output = daemon.ctl(["retry", &live.id, &failed[2].id]).exits(2).tells("has not ended");
    assert_eq!(output.stdout.lines().count(), 1);
}

/// Entry U11 in `tests/README.md`.
#[test]
fn several_are_followed_at_once_and_every_line_says_whose_it_is() {
    let daemon = Daemon::start();
    let script = |word: &str, gate: &str| {
        turn(&format!("{word} begins"))
            .shell(&format!("until test -e {gate}; do sleep 0.02; done; echo {word} 1; printf {word}2"))
            .turn(&format!("{word} is done"))
    };
    let one = daemon.submit_with(&script("alpha", "a"), json!({"name": "one", "labels": {"of": "f"}}));
    let two = daemon.submit_with(&script("beta", "b"), json!({"labels": {"of": "f"}}));
    let over = daemon.submit_with(&says("was over"), json!({"labels": {"of": "f"}}));
    over.wait();
    let follows = daemon.spawn_ctl(["follow", "-l", "of=f", "-o", "lines"]);
    open(&daemon, "b");
    two.wait();
    open(&daemon, "a");
    let output = follows.finish().exits(0);
    let (two_tag, over_tag) = (&two.id[..8], &over.id[..8]);
    for (tag, text) in [
        ("one", "alpha begins"),
        ("one", "alpha 1"),
        ("one", "alpha2"),
        ("one", "alpha is done"),
        (two_tag, "beta 1"),
        (over_tag, "was over"),
    ] {
        let line = format!("{tag:<8} | | {text}");
        assert!(output.stdout.lines().any(|found| found == line), "{line:?}: {output}");
    }
    assert!(output.stdout.lines().all(|line| line.contains(" | ")), "{output}");
    assert!(output.stderr.contains("one      | [succeeded]"), "{output}");
    let lines = daemon.written("lines");
    assert!(lines.lines().count() == 3 && lines.contains(&format!("{} succeeded 0 beta is done", two.id)), "{lines}");
    // Their codes are the worst of theirs, and JSON has the events of all.
    let failed = fails(&daemon, "g");
    let events = daemon.ctl(["follow", "--json", &one.id, &failed.id]).exits(9).stdout;
    assert!(
        [&one, &failed].iter().all(|run| events.contains(&format!("\"run\":\"{}\",\"cause\"", run.id))),
        "{events}"
    );
    daemon.ctl(["follow", &one.id, "nosuchrun"]).exits(6);
    drop(one);
}

/// Entry U11 in `tests/README.md`.
#[test]
fn codes_of_several_are_the_worst_of_theirs_whatever_waits_for_them() {
    let daemon = Daemon::start();
    let good = daemon.submit(&says("fine"));
    let budget = fails(&daemon, "x");
    let script = turn("").ask("may I?").turn("never");
    let asked = daemon.submit_with(&script, json!({"on_interaction": "fail"}));
    let cancelled = daemon.submit(&until_there_is("never"));
    cancelled.cancel();
    let live = daemon.submit(&until_there_is("never"));
    [&good, &budget, &asked, &cancelled].iter().for_each(|run| drop(run.wait()));
    for (runs, code) in [
        (&[&good, &good][..], 0),
        (&[&good, &cancelled], 5),
        (&[&cancelled, &asked], 3),
        (&[&asked, &budget, &good], 9),
        (&[&budget, &live], 8),
        (&[&good, &live], 8),
    ] {
        let ids: Vec<&str> = runs.iter().map(|run| &*run.id).collect();
        daemon.ctl([&["wait", "--timeout", "0.1"], &ids[..]].concat()).exits(code);
        if code != 8 {
            daemon.ctl([&["follow"], &ids[..]].concat()).exits(code);
        }
    }
}

/// U11: a change of more than one run that were not named is asked about on a terminal, whichever verb makes it.
#[test]
fn every_verb_that_changes_runs_asks_on_a_terminal_before_it_changes_several() {
    let daemon = Daemon::start();
    let live: Vec<Run> = (0..2).map(|_| labelled(&daemon, "never", "live")).collect();
    let over: Vec<Run> = (0..2).map(|_| fails(&daemon, "over")).collect();
    over.iter().for_each(|run| drop(run.wait()));
    eventually("they execute", || daemon.lane("tool").busy == 2);
    let cases: [(&[&str], &str); 6] = [
        (&["pause", "-l", "of=live"], "pause 2 runs? [y/N]"),
        (&["message", "-l", "of=live", "hello"], "tell 2 runs? [y/N]"),
        (&["retry", "-l", "of=over"], "retry 2 runs? [y/N]"),
        (&["prune", "-l", "of=over"], "remove 2 runs for good? [y/N]"),
        (&["resume", "-l", "of=live"], "resume 2 runs? [y/N]"),
        (&["cancel", "-l", "of=live"], "cancel 2 runs? [y/N]"),
    ];
    for (words, question) in cases {
        let mut asked = daemon.ctl_on_terminal(words);
        asked.shows(question);
        asked.types("n\n");
        let (code, screen) = asked.finish();
        assert!(code == 2 && screen.contains("nothing was done"), "{words:?}: {code} {screen}");
    }
    assert!(live.iter().all(|run| run.view().state == RunState::Acting));
    // One run, and runs that are named, are meant; -y answers before it is asked.
    for words in [
        &["pause", &live[0].id, &live[1].id][..],
        &["resume", "-l", "of=live", "-y"],
        &["retry", "-l", "of=over", "--yes"],
        &["cancel", &live[0].id, &live[1].id],
    ] {
        let (code, screen) = daemon.ctl_on_terminal(words).finish();
        assert!(code == 0 && !screen.contains("[y/N]"), "{words:?}: {code} {screen}");
    }
    let mut asked = daemon.ctl_on_terminal(["prune", "-l", "of=over"]);
    asked.shows("[y/N]");
    asked.types("yes\n");
    assert_eq!(asked.finish().0, 0);
}

/// Entry U11 in `tests/README.md`.
#[test]
fn commands_that_show_one_run_show_several() {
    let daemon = Daemon::start();
    let named = daemon.submit_with(&runs("echo out"), json!({"name": "first", "labels": {"of": "s"}}));
    let other = daemon.submit_with(&says("second answer"), json!({"labels": {"of": "s"}}));
    [&named, &other].iter().for_each(|run| drop(run.wait()));
    let answers = daemon.ctl(["show", "--answer", "-l", "of=s"]).ok();
    let expected = format!("==> {} (first) <==\ndone\n\n==> {} <==\nsecond answer\n", named.id, other.id);
    assert_eq!(answers, expected);
    let pages = daemon.ctl(["show", "first", &other.id]).ok();
    assert_eq!(pages.matches("\nstate ").count(), 2, "{pages}");
    assert_eq!(daemon.ctl(["show", "--json", "-l", "of=s"]).ok().lines().count(), 2);
    let logs = daemon.ctl(["logs", "-l", "of=s"]).ok();
    assert!(logs.contains("(first) <==") && logs.contains("out\n") && logs.contains("second answer"), "{logs}");
    let json = daemon.ctl(["logs", "--json", "-l", "of=s", "--tail", "1"]).ok();
    let lines: Vec<harness_tests::Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["run"], &lines[1]["run"]), (&json!(named.id), &json!(other.id)));
    daemon.ctl(["logs", "-l", "of=s", "--call", "1"]).exits(2);
    daemon.ctl(["export", "-l", "of=s", "--dir", "out"]).ok();
    for run in [&named, &other] {
        assert!(daemon.work().join("out").join(&run.id).join("script.toml").exists());
    }
    let used = daemon.ctl(["usage", "-l", "of=s", "--by", "state"]).ok();
    assert!(used.contains("succeeded") && used.lines().nth(1).unwrap().contains(" 2 "), "{used}");
    // A run without an answer does not keep the others from being shown.
    let live = daemon.submit(&until_there_is("never"));
    let output = daemon.ctl(["show", "--answer", &live.id, &other.id]).exits(6).tells("no answer yet");
    assert!(output.stdout.contains("second answer"), "{output}");
}
