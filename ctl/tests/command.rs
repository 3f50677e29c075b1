//! Tests the real command against a stand-in for the daemon: its output, and its exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fake::{Fake, Ran, answer, bounded, event, finished, id, refuse, send, until, view};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Numbers submitted runs from 1, and answers waits with `end`.
fn submitting(end: impl Fn(&str) -> Value + Send + Sync + 'static) -> Fake {
    let runs = AtomicU64::new(0);
    Fake::new(move |request, stream| match request["method"].as_str().unwrap() {
        "run.submit" => {
            let number = runs.fetch_add(1, Ordering::Relaxed) + 1;
            answer(stream, request, &json!({"id": id(number), "seq": number, "existing": false}));
        }
        "run.wait" => {
            let run = end(request["params"]["run"].as_str().unwrap());
            answer(stream, request, &json!({"run": run, "reached": true}));
        }
        other => panic!("{other}"),
    })
}

#[test]
fn submit_prints_the_id_and_never_reads_standard_input_beside_a_prompt() {
    let fake = submitting(|_| json!(null));
    // Its standard input stays open, and nothing ever comes.
    let words = ["submit", "-q", "hello", "-l", "a=b", "--max-time", "10m"];
    let mut child = bounded(fake.command(&words).stdin(Stdio::piped()));
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!((child.wait().unwrap().code(), stdout), (Some(0), format!("{}\n", id(1))));
    let spec = fake.seen("run.submit")[0]["params"]["spec"].clone();
    let root = std::fs::metadata("/").unwrap();
    let workdir_id = json!({"device": root.dev(), "inode": root.ino()});
    let expected = json!({"prompt": "hello", "labels": {"a": "b"}, "priority": "normal", "workdir": "/",
        "workdir_id": workdir_id, "env": {"PATH": "/nowhere"}, "limits": {"max_time_seconds": 600.0},
        "on_interaction": "fail"});
    assert_eq!(spec, expected);
}

#[test]
fn a_prompt_may_come_from_standard_input_and_must_not_be_empty() {
    let fake = submitting(|_| json!(null));
    assert_eq!(fake.run_with(&["submit", "-"], b"from a pipe\n").code, 0);
    assert_eq!(fake.seen("run.submit")[0]["params"]["spec"]["prompt"], "from a pipe\n");
    for (words, input) in [
        (&["submit"][..], &b"ignored"[..]),
        (&["submit", ""], b""),
        (&["submit", "-"], b" \n"),
        (&["submit", "-"], b"\xff"),
    ] {
        let ran = fake.run_with(words, input);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{words:?}: {ran:?}");
    }
    assert!(fake.run(&["submit"]).stderr.contains("hint: harnessctl submit"), "it says what to do");
    assert_eq!(fake.seen("run.submit").len(), 1);
}

#[test]
fn a_prompt_that_does_not_fit_a_frame_is_refused_here() {
    let fake = submitting(|_| json!(null));
    let ran = fake.run_with(&["submit", "-"], "\"".repeat(5 << 20).as_bytes());
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("10.0 MiB as JSON, and 8 MiB are the most"), "{}", ran.stderr);
    assert!(fake.seen("run.submit").is_empty());
}

#[test]
fn submit_wait_prints_the_answer_alone_and_ends_as_the_run_did() {
    let fake = submitting(|run| view(run, "succeeded", Some(0), Some("42"), None));
    let ran = fake.run(&["submit", "--wait", "hello"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "42\n", ""));
    let file = fake.path("answer");
    let ran = fake.run(&["submit", "hello", "-o", file.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "42\n");

    let fake = submitting(|run| view(run, "failed", Some(9), None, Some("100 steps were not enough")));
    let ran = fake.run(&["submit", "--wait", "hello"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (9, ""));
    assert_eq!(ran.stderr, format!("harnessctl: run {} (nightly) failed: 100 steps were not enough\n", id(1)));
}

#[test]
fn a_wrong_script_is_an_error_with_its_place() {
    let fake = submitting(|_| json!(null));
    let file = fake.file("s.toml", "[[turn]]\ntexxt = \"x\"\n");
    let ran = fake.run(&["submit", "--script", file.to_str().unwrap()]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("s.toml:2:1: unknown field"), "{}", ran.stderr);
}

#[test]
fn a_wrong_line_keeps_the_whole_batch_from_being_submitted() {
    let fake = submitting(|_| json!(null));
    let ran = fake.run_with(&["submit", "--batch", "-"], b"{\"prompt\":\"a\"}\n{\"promt\":\"b\"}\n");
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("-:2: unknown field `promt`"), "{}", ran.stderr);
    assert!(fake.seen("run.submit").is_empty());
}

/// Answers submits in pairs, the second first, and tells the ends of all runs to each subscriber.
fn batching(runs: u64) -> Fake {
    let held: Mutex<Option<Value>> = Mutex::new(None);
    let reply = |request: &Value| {
        let number: u64 = request["params"]["spec"]["prompt"].as_str().unwrap().parse().unwrap();
        json!({"id": id(number), "seq": number * 10, "existing": false})
    };
    Fake::new(move |request, stream| match request["method"].as_str().unwrap() {
        "run.submit" => {
            let earlier = held.lock().unwrap().take();
            if earlier.is_none() && request["params"]["spec"]["prompt"] != json!(runs.to_string()) {
                *held.lock().unwrap() = Some(request.clone());
                return;
            }
            answer(stream, request, &reply(request));
            if let Some(earlier) = earlier {
                answer(stream, &earlier, &reply(&earlier));
            }
        }
        "event.subscribe" => {
            assert_eq!(request["params"]["after"], 9);
            answer(stream, request, &json!({"subscription": 1, "last_seq": 10}));
            finished(stream, 10_000, &id(runs + 1), "somebody else's");
            for number in (1..=runs).rev() {
                finished(stream, 20_000 - number, &id(number), &format!("answer {number}\nand more"));
            }
        }
        other => panic!("{other}"),
    })
}

fn lines(runs: u64) -> String {
    (1..=runs).map(|number| json!({"prompt": number.to_string()}).to_string() + "\n").collect()
}

#[test]
fn a_batch_prints_its_ids_in_the_order_of_its_lines() {
    let fake = batching(1001);
    let ran = fake.run_with(&["submit", "--batch", "-", "--idempotency-key", "k"], lines(1001).as_bytes());
    let expected: String = (1..=1001).map(|number| id(number) + "\n").collect();
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout == expected, "{}", ran.stdout.lines().next().unwrap());
    let keys: Vec<Value> = fake.seen("run.submit").iter().map(|r| r["params"]["idempotency_key"].clone()).collect();
    assert_eq!((&keys[0], &keys[1000]), (&json!("k/1"), &json!("k/1001")));
}

#[test]
fn a_batch_that_waits_prints_a_line_for_each_run() {
    let fake = batching(1001);
    let ran = fake.run_with(&["submit", "--batch", "-", "--wait"], lines(1001).as_bytes());
    let expected: String = (1..=1001).map(|number| format!("{} succeeded 0 answer {number}\n", id(number))).collect();
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout == expected, "{}", ran.stdout.lines().next().unwrap());
    assert_eq!(fake.seen("run.wait").len() + fake.seen("run.show").len(), 0, "one subscription is enough");
}

#[test]
fn refusals_have_their_codes() {
    for (kind, code) in [("not-found", 6), ("ambiguous", 2), ("busy", 75), ("forbidden", 2), ("internal", 70)] {
        let fake = Fake::new(move |request, stream| refuse(stream, request, kind, code));
        for words in [
            &["show", "x"][..],
            &["wait", "x"],
            &["wait", "x", "y"],
            &["follow", "x"],
            &["cancel", "x"],
            &["logs", "x"],
        ] {
            let ran = fake.run(words);
            assert_eq!((ran.code, ran.stdout.as_str()), (i32::from(code), ""), "{words:?}: {ran:?}");
            assert!(ran.stderr.starts_with(&format!("harnessctl: refused: {kind}\n")), "{}", ran.stderr);
        }
    }
}

#[test]
fn a_busy_daemon_is_asked_again_for_as_long_as_was_said() {
    let asked = AtomicU64::new(0);
    let fake = Fake::new(move |request, stream| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => {
            let data = json!({"kind": "busy", "retry_after_seconds": 0.01, "exit_code": 75});
            send(stream, &json!({"id": request["id"], "error": {"code": -32006, "message": "full", "data": data}}));
        }
        _ => answer(stream, request, &json!({"id": id(7), "seq": 1})),
    });
    let ran = fake.run(&["submit", "hi", "--retry-for", "60"]);
    assert_eq!((ran.code, ran.stdout), (0, format!("{}\n", id(7))));
}

#[test]
fn a_followed_run_is_rendered_and_ends_the_command() {
    let fake = Fake::new(|request, stream| match request["method"].as_str().unwrap() {
        "run.show" => answer(stream, request, &json!({"run": view(&id(1), "acting", None, None, None)})),
        "event.subscribe" => {
            answer(stream, request, &json!({"subscription": 1, "last_seq": 9}));
            let call = json!({"call": id(5), "tool": "shell", "args": "{\"command\":\"ls\"}"});
            let usage = view("", "", None, None, None)["usage"].clone();
            let said = json!({"kind": "inference-finished", "step": 1, "text": "Let me see.", "calls": [call],
                "usage": usage});
            event(stream, 2, &id(1), said);
            event(stream, 3, &id(1), json!({"kind": "call-started", "call": id(5)}));
            let delta = json!({"run": id(1), "call": id(5), "stream": "stdout", "offset": 0, "text": "a\n"});
            send(stream, &json!({"method": "delta", "params": {"subscription": 1, "delta": delta}}));
            let result = json!({"call": id(5), "tool": "shell", "exit_code": 0, "signal": null, "timed_out": false,
                "cancelled": false, "interrupted": false, "is_error": false, "envelope": "Exit code: 0\na\n",
                "stdout": {"bytes": 2, "omitted": 0, "path": null}, "stderr": null, "cpu_seconds": null,
                "max_rss_bytes": null});
            event(stream, 4, &id(1), json!({"kind": "call-finished", "result": result}));
            event(
                stream,
                5,
                &id(1),
                json!({"kind": "run-finished", "ending": {"state": "failed", "error": "no", "exit_code": 4}}),
            );
        }
        other => panic!("{other}"),
    });
    let ran = fake.run(&["follow", "x"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (4, "| Let me see.\n$ ls\n| a\nExit code: 0\n"));
    assert_eq!(ran.stderr, "[failed: no (exit code 4)]\n");
    let ran = fake.run(&["follow", "x", "--json"]);
    let kinds: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone()).collect();
    assert_eq!(kinds, ["inference-finished", "call-started", "call-finished", "run-finished"]);
    assert_eq!(ran.code, 4);
}

#[test]
fn ctrl_c_detaches_and_says_how_to_come_back() {
    for words in [&["follow", "x"][..], &["wait", "x"], &["submit", "--wait", "hi"], &["submit", "--follow", "hi"]] {
        let fake = Fake::new(|request, stream| match request["method"].as_str().unwrap() {
            "run.show" => answer(stream, request, &json!({"run": view(&id(1), "acting", None, None, None)})),
            "run.submit" => answer(stream, request, &json!({"id": id(1), "seq": 1})),
            "event.subscribe" => answer(stream, request, &json!({"subscription": 1, "last_seq": 0})),
            "run.wait" => {}
            other => panic!("{other}"),
        });
        let child = fake.spawn(words);
        until("it asks", || !fake.seen("event.subscribe").is_empty() || !fake.seen("run.wait").is_empty());
        kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!((ran.code, ran.stdout.as_str()), (130, ""), "{words:?}: {ran:?}");
        let told = format!("detached; the run goes on: harnessctl follow {}\n", id(1));
        assert!(ran.stderr.ends_with(&told), "{}", ran.stderr);
    }
}

#[test]
fn a_wait_survives_a_restart_of_the_daemon() {
    let fake = Fake::new(|request, stream| match request["method"].as_str().unwrap() {
        "run.show" => answer(stream, request, &json!({"run": view(&id(1), "acting", None, None, None)})),
        "run.wait" => stream.shutdown(std::net::Shutdown::Both).unwrap(),
        other => panic!("{other}"),
    });
    let child = fake.spawn(&["wait", "x"]);
    until("it asks", || !fake.seen("run.wait").is_empty());
    fake.hide();
    fake.serve(|request, stream| {
        // By now the name may mean another run.
        assert_eq!((&request["method"], &request["params"]["run"]), (&json!("run.wait"), &json!(id(1))));
        let run = view(&id(1), "succeeded", Some(0), Some("still here"), None);
        answer(stream, request, &json!({"run": run, "reached": true}));
    });
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "still here\n"), "{}", ran.stderr);
}

#[test]
fn several_runs_have_a_line_each_as_they_end_and_the_worst_code_of_theirs() {
    let fake = Fake::new(|request, stream| match request["method"].as_str().unwrap() {
        "event.subscribe" => {
            answer(stream, request, &json!({"subscription": 1, "last_seq": 5}));
            if request["params"]["after"] == 5 {
                finished(stream, 6, &id(2), "two");
            }
        }
        "run.show" => {
            let run = match request["params"]["run"].as_str().unwrap() {
                "b" => view(&id(2), "acting", None, None, None),
                _ => view(&id(1), "cancelled", Some(5), None, Some("by uid 0")),
            };
            answer(stream, request, &json!({"run": run}));
        }
        other => panic!("{other}"),
    });
    let ran = fake.run(&["wait", "b", "a"]);
    assert_eq!((ran.code, ran.stdout), (5, format!("{} cancelled 5 by uid 0\n{} succeeded 0 two\n", id(1), id(2))));
    let ran = fake.run(&["wait", "a", "a"]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (5, 2));
    let ran = fake.run(&["wait", "--any", "b", "a"]);
    assert_eq!((ran.code, ran.stdout), (5, format!("{} cancelled 5 by uid 0\n", id(1))));
}

#[test]
fn a_wait_whose_time_is_up_says_so() {
    let fake = Fake::new(|request, stream| {
        let run = view(&id(1), "acting", None, None, None);
        if request["method"] == "run.show" {
            return answer(stream, request, &json!({"run": run}));
        }
        assert_eq!(request["method"], "run.wait");
        assert!(request["params"]["timeout_seconds"].as_f64().unwrap() <= 5.0);
        answer(stream, request, &json!({"run": run, "reached": false}));
    });
    let ran = fake.run(&["wait", "x", "--timeout", "5"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (8, ""));
    assert!(ran.stderr.contains("is still acting"), "{}", ran.stderr);
}

#[test]
fn a_reader_that_has_read_enough_ends_the_command_quietly() {
    let pages = AtomicU64::new(0);
    let fake = Fake::new(move |request, stream| {
        assert_eq!(request["method"], "run.show");
        let page = pages.fetch_add(1, Ordering::Relaxed);
        let transcript: Vec<Value> =
            (0..50).map(|n| json!({"role": "user", "text": format!("{page}/{n} {}", "x".repeat(2000))})).collect();
        let run = view(&id(1), "acting", None, None, None);
        answer(stream, request, &json!({"run": run, "transcript": transcript, "cursor": page + 1}));
    });
    let mut child = fake.spawn(&["logs", "x"]);
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("> 0/0 "), "{first}");
    // The reader is gone; the transcript has no end.
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

#[test]
fn a_check_of_a_lane_never_starts_a_daemon_and_follows_the_convention() {
    let fake = Fake::absent();
    let ran = fake.run(&["lane", "--check", "queued", "-w", "1", "-c", "2"]);
    assert_eq!(ran.code, 2);
    assert_eq!(ran.stdout, format!("LANE CRITICAL - no daemon serves {}\n", fake.socket().display()));
    assert_eq!(fake.run(&["lane", "--check", "mood"]).code, 3);
    assert_eq!(fake.run(&["lane", "--check", "queued", "-w", "x"]).code, 3);
    assert_eq!(fake.run(&["lane", "--check", "queued", "--party"]).code, 3);
}

#[test]
fn without_a_daemon_and_without_leave_to_start_one_it_cannot_be_reached() {
    let fake = Fake::absent();
    let ran = fake.run(&["--no-start", "list"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (7, ""));
    assert!(ran.stderr.contains("hint: start it: harnessctl daemon start"), "{}", ran.stderr);
    assert_eq!(fake.run(&["daemon", "status"]).code, 7);
    assert_eq!(fake.run(&["daemon", "stop"]).code, 0, "it does not run, and that is what was wanted");
}

#[test]
fn events_end_with_the_last_one_that_there_was() {
    let fake = Fake::new(|request, stream| match request["method"].as_str().unwrap() {
        "run.show" => answer(stream, request, &json!({"run": view(&id(1), "acting", None, None, None)})),
        "event.subscribe" => {
            answer(stream, request, &json!({"subscription": 1, "last_seq": 4}));
            event(stream, 1, &id(1), json!({"kind": "run-paused"}));
            send(stream, &json!({"method": "gap", "params": {"subscription": 1, "gap": {"from": 2, "to": 3}}}));
            event(stream, 4, &id(2), json!({"kind": "run-paused"}));
            event(stream, 5, &id(1), json!({"kind": "run-resumed"}));
        }
        other => panic!("{other}"),
    });
    let ran = fake.run(&["events", "--run", "x"]);
    let kinds: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(ran.code, 0);
    assert_eq!(kinds[0]["seq"], 1);
    assert_eq!(kinds[1..], [json!({"gap": {"from": 2, "to": 3}})]);
}

#[test]
fn nothing_that_could_be_changed_is_exit_code_6_with_the_reason() {
    let fake = Fake::new(|request, stream| {
        let unchanged = json!([{"run": id(1), "why": "it has ended already"}]);
        answer(stream, request, &json!({"runs": [], "unchanged": unchanged}));
    });
    let ran = fake.run(&["cancel", "x"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (6, ""));
    assert!(ran.stderr.contains(&format!("run {}: it has ended already\n", id(1))), "{}", ran.stderr);
    assert_eq!(fake.run(&["cancel"]).code, 2, "nothing is named");
}

#[test]
fn completions_and_help_need_no_daemon() {
    let fake = Fake::absent();
    let ran = fake.run(&["completions", "bash"]);
    assert!(ran.code == 0 && ran.stdout.contains("harnessctl"));
    assert_eq!(fake.run(&["submit", "--help"]).code, 0);
    assert_eq!(fake.run(&["--version"]).code, 0);
}

#[test]
fn a_list_is_cut_only_where_nothing_was_selected() {
    // 50 live runs and 50 that have finished, in pages of 7, the last of which has a cursor, too.
    let fake = Fake::new(|request, stream| {
        let params = &request["params"];
        let states: Vec<&str> =
            params["select"]["states"].as_array().into_iter().flatten().map(|state| state.as_str().unwrap()).collect();
        let wanted: Vec<Value> = (1..=100)
            .map(|number| view(&id(number), if number <= 50 { "acting" } else { "succeeded" }, None, None, None))
            .filter(|run| states.is_empty() || states.contains(&run["state"].as_str().unwrap()))
            .collect();
        let from = usize::try_from(params["cursor"].as_u64().unwrap_or(0)).unwrap();
        let limit = usize::try_from(params["limit"].as_u64().unwrap().min(7)).unwrap();
        let page: Vec<_> = wanted.iter().skip(from).take(limit).collect();
        let cursor = (!page.is_empty()).then_some(from + page.len());
        answer(stream, request, &json!({"runs": page, "cursor": cursor}));
    });
    let lines = |words: &[&str]| {
        let ran = fake.run(&[&["list", "--json"], words].concat());
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        ran.stdout.lines().count()
    };
    assert_eq!(lines(&[]), 70);
    assert_eq!(lines(&["--tree"]), 70);
    for words in [&["-l", "a=b"][..], &["--all"], &["x", "y"], &["--root", "x"]] {
        assert_eq!(lines(words), 100, "{words:?}");
    }
    assert_eq!(lines(&["--state", "succeeded"]), 50);
    let asked = fake.seen("run.list");
    assert!(asked.iter().any(|request| request["params"]["select"]["runs"] == json!(["x", "y"])));
}
