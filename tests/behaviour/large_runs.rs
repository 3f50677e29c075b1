//! One run whose texts are large as JSON spoils no answer: neither a listing, nor a request for that run.

use harness_tests::{Daemon, Place, Run, Script, Value, json, says, turn};

/// Bytes of JSON of the largest answer.
const MOST_ANSWER: usize = 4 << 20;

/// A run that is large in one way.
struct Large {
    /// The way in which it is large, for messages.
    way: &'static str,
    script: Script,
    more: Value,
    /// The state in which it ends.
    ends: &'static str,
}

fn large(way: &'static str, ends: &'static str, script: Script) -> Large {
    Large { way, script, more: json!({}), ends }
}

/// A script of which one turn asks a hundred times, and so is refused a hundred times.
fn asks(times: usize, question: &str) -> Script {
    (0..times).fold(turn(""), |script, _| script.ask(question)).turn("done")
}

fn cases() -> Vec<Large> {
    let quotes = "\"\\".repeat(255 / 2);
    let labels: serde_json::Map<String, Value> = (0..64).map(|n| (format!("{n:063}"), quotes.clone().into())).collect();
    vec![
        large("an answer of quotes that is just small enough", "succeeded", says(&"\"".repeat(MOST_ANSWER / 2))),
        large("an answer of quotes that is too large as JSON alone", "failed", says(&"\\".repeat(MOST_ANSWER / 2 + 1))),
        large("an answer of characters of four bytes", "succeeded", says(&"\u{1F600}".repeat(MOST_ANSWER / 4))),
        large("an answer of control characters", "succeeded", says(&"\u{1b}".repeat(MOST_ANSWER / 6))),
        large(
            "an answer of characters that stand for bad bytes",
            "succeeded",
            says(&"\u{FFFD}".repeat(MOST_ANSWER / 3)),
        ),
        large("five hundred refusals over five steps", "succeeded", {
            let step = |script: Script| (0..100).fold(script.turn(""), |script, n| script.ask(&format!("may I {n}?")));
            (1..5).fold(step(Script::default()), |script, _| step(script)).turn("done")
        }),
        large("refusals of half a megabyte each, all of quotes", "succeeded", asks(3, &"\"".repeat(300_000))),
        large(
            "a tool whose name has a megabyte",
            "succeeded",
            turn("").call(&"t".repeat(1 << 20), json!({})).turn("done"),
        ),
        large(
            "a script for a child whose name is all DEL",
            "succeeded",
            turn("").spawn(&"\u{7f}".repeat(900_000)).turn("done"),
        ),
        large("arguments with a megabyte where a number belongs", "succeeded", {
            turn("").call("wait_for_agent", json!({"mode": "\u{80}".repeat(500_000)})).turn("done")
        }),
        large("an expectation of a megabyte that does not hold", "failed", {
            turn("").shell("true").turn("never").expect(&"\u{7f}".repeat(1 << 20))
        }),
        Large {
            way: "labels, all at their bound",
            script: says("done"),
            more: json!({"labels": labels}),
            ends: "succeeded",
        },
        Large {
            way: "a prompt beside whose entry its large answer does not fit",
            script: turn("")
                .shell("head -c 30000 /dev/zero | tr '\\0' '\"'")
                .turn(&"${a}".repeat(69))
                .capture("a", "(\"+)"),
            more: json!({"prompt": "\\".repeat((7 << 20) / 2 - 4096)}),
            ends: "succeeded",
        },
    ]
}

/// Every read of a run, and of all of them, is answered.
fn all_is_answered(place: &Place, runs: &[(Large, Run)], small: &Run) {
    let listed = place.ctl(["list", "--all", "--json"]).ok();
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(listed.len(), runs.len() + 1);
    assert!(listed.iter().any(|run| run["id"] == small.id.as_str()));
    assert_eq!(place.ctl(["list", "--all"]).ok().lines().count(), runs.len() + 2);
    let used = place.ctl(["usage", "--by", "state", "--json"]).ok();
    assert!(used.lines().count() >= 2, "{used}");
    for (case, run) in runs {
        let way = case.way;
        let reply = place.rpc("run.wait", json!({"run": run.id, "timeout_seconds": 0}));
        assert_eq!((&reply["reached"], &reply["run"]["state"]), (&json!(true), &json!(case.ends)), "{way}");
        let shown = place.rpc("run.show", json!({"run": run.id, "transcript": true}));
        let has_transcript = shown["transcript"].as_array().is_some_and(|entries| !entries.is_empty());
        assert!(has_transcript || case.ends == "failed", "{way}");
        // Every page of what happened is there, too.
        assert!(!place.events(run).is_empty(), "{way}");
    }
}

/// What programs and people type.
fn all_commands_go_well(place: &Place, runs: &[(Large, Run)]) {
    for (case, run) in runs {
        let way = case.way;
        for words in [&["show"][..], &["show", "--why"], &["logs"], &["wait"], &["events", "--run"]] {
            let output = place.ctl(words.iter().copied().chain([run.id.as_str()]));
            assert!(
                output.code == 0 || (words[0] == "wait" && output.code == 1),
                "{way}: {words:?}: {}",
                output.stderr
            );
        }
        let dir = place.path(&format!("export-{}", run.id));
        let exported = place.ctl(["export", &run.id, "--dir", dir.to_str().unwrap()]);
        assert!(exported.code == 0 || case.ends == "failed", "{way}: {}", exported.stderr);
    }
}

/// Entry A6 in `tests/README.md`.
#[test]
fn a_run_that_is_large_as_json_leaves_all_commands_to_all_runs() {
    let daemon = Daemon::configured("[limits]\nfinished_runs = 1000\n");
    let small = daemon.submit(&says("small"));
    let submit = |case: Large| {
        let mut more = case.more.clone();
        more["on_interaction"] = "deny".into();
        let run = daemon.submit_with(&case.script, more);
        (case, run)
    };
    // Megabytes of JSON take a debug build long: a third of the ways, or all with HARNESS_SOAK=1.
    let (first, each) = if std::env::var_os("HARNESS_SOAK").is_some() { (0, 1) } else { (1, 3) };
    let runs: Vec<_> = cases().into_iter().skip(first).step_by(each).map(submit).collect();
    for (case, run) in &runs {
        assert_eq!(run.wait().state.as_str(), case.ends, "{}", case.way);
    }
    all_is_answered(&daemon, &runs, &small);
    all_commands_go_well(&daemon, &runs);
    // The same of runs that have left the memory of a new daemon.
    let place = daemon.crash();
    place.configure("[limits]\nfinished_runs = 0\n");
    let daemon = place.start();
    // A run that ends lets all leave.
    let last = daemon.submit(&says("last"));
    assert_eq!(last.answer(), "last");
    crate::archived::has_left(&daemon, &small);
    daemon.rpc("run.prune", json!({"select": {"runs": [last.id]}}));
    all_is_answered(&daemon, &runs, &small);
}

/// Entry A6 in `tests/README.md`.
#[test]
fn a_cut_text_is_marked_and_the_whole_can_be_asked_for() {
    let daemon = Daemon::start();
    let whole = "\"".repeat(MOST_ANSWER / 2);
    let run = daemon.submit(&says(&whole));
    assert_eq!(run.wait().answer.as_deref(), Some(whole.as_str()));
    let listed = daemon.rpc("run.list", json!({}))["runs"][0].clone();
    let answer = listed["answer"].as_str().unwrap();
    assert!(answer.len() < 256 * 1024 && answer.ends_with(" more bytes]"), "{}", answer.len());
    assert_eq!(listed["cut"], json!(["answer"]));
    assert_eq!(daemon.ctl(["show", "--answer", &run.id]).ok().len(), whole.len() + 1);
}

/// Entry A6 in `tests/README.md`.
#[test]
fn questions_that_are_large_as_json_are_all_listed() {
    let daemon = Daemon::start();
    let runs: Vec<Run> = ["\"", "\u{1F600}", "\u{1}", "\\", "\u{FFFD}"]
        .map(|unit| daemon.submit(&turn("").ask(&unit.repeat((3 << 20) / json!(unit).to_string().len())).turn("never")))
        .into();
    harness_tests::eventually("all ask", || daemon.ctl(["pending", "--json"]).ok().lines().count() == runs.len());
    let place = daemon.crash();
    let daemon = place.start();
    assert_eq!(daemon.ctl(["pending", "--json"]).ok().lines().count(), runs.len());
    assert_eq!(daemon.ctl(["pending"]).ok().lines().count(), runs.len() + 1);
}

/// Entry A6 in `tests/README.md`.
#[test]
fn a_run_that_could_never_be_shown_is_refused_with_a_reason() {
    let daemon = Daemon::start();
    let refused = |more: Value| {
        let error = daemon.refused("run.submit", json!({"spec": daemon.spec(&says("x"), more)}));
        (error["data"]["kind"].clone(), error["data"]["reason"].clone(), error["data"]["subject"].clone())
    };
    for (more, subject) in [
        (json!({"prompt": "\"".repeat(3_900_000)}), "prompt"),
        (json!({"prompt": "\u{1}".repeat(1_300_000)}), "prompt"),
        (json!({"workdir": format!("/{}", "d".repeat(4096))}), "workdir"),
        (json!({"model": "m".repeat(513)}), "model"),
        (json!({"prompt": "p".repeat(6 << 20), "env": {"BIG": "e".repeat((2 << 20) - 90_000)}}), "spec"),
    ] {
        assert_eq!(refused(more), (json!("invalid"), json!("too-large"), json!(subject)));
    }
}
