//! Tests the real command against a stand-in for the daemon: what it reports as done, refused or incomplete.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;

use std::sync::atomic::{AtomicU64, Ordering};

use fake::{Fake, Ran, answer, bounded, event, finished, id, view};
use serde_json::json;

/// Runs it with a standard output that takes nothing.
fn into_a_full_disk(fake: &Fake, words: &[&str]) -> Ran {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    Ran::from(bounded(fake.command(words).stdout(full)).wait_with_output().unwrap())
}

#[test]
fn what_was_done_and_cannot_be_told_on_standard_output_is_told_with_the_error() {
    let fake = Fake::new(|request, stream| match request["method"].as_str().unwrap() {
        "run.submit" => answer(stream, request, &json!({"id": id(7), "seq": 1})),
        "run.cancel" => answer(stream, request, &json!({"runs": [id(7)]})),
        "lane.resize" => answer(stream, request, &json!({"lane": "tool", "width_before": 8, "width": 4})),
        "lane.list" => answer(stream, request, &json!({"lanes": []})),
        other => panic!("{other}"),
    });
    for (words, code, told) in [
        (&["submit", "hi"][..], 70, format!("run {} was queued", id(7))),
        (&["submit", "hi", "--json"], 70, format!("run {} was queued", id(7))),
        (&["cancel", "x"], 70, format!("run {} was cancelled", id(7))),
        (&["lane", "resize", "4"], 70, "tool width 8 -> 4".to_owned()),
        (&["lane", "--check", "queued"], 3, "cannot write".to_owned()),
    ] {
        let ran = into_a_full_disk(&fake, words);
        assert_eq!(ran.code, code, "{words:?}: {ran:?}");
        assert!(ran.stderr.contains(&told) && ran.stderr.contains("No space left"), "{words:?}: {ran:?}");
    }
}

/// A daemon that does not come to serve says what it does, and so does a harnessctl that waits for it.
#[test]
fn a_start_that_takes_its_time_is_told_with_what_the_daemon_does() {
    use std::io::{BufRead, BufReader, Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // Other processes write what is executed: a descriptor of ours that may write to it would be inherited for a moment
    // by whatever another test starts, and the file could not be executed (ETXTBSY).
    let install = |from: &std::path::Path, name: &str| {
        let done = std::process::Command::new("install").args(["-m", "755"]).arg(from).arg(at(name)).status();
        assert!(done.unwrap().success(), "{name}");
    };
    install(std::path::Path::new(env!("CARGO_BIN_EXE_harnessctl")), "harnessctl");
    let script = "#!/bin/sh\necho 'doing reading the journal in /x'\nread first < go\n\
                  printf 'doing \\033[2Jsomething else\\n'\nread second < go\necho 'it was in vain' >&2\nexit 1\n";
    std::fs::write(at("script"), script.replace("go", at("go").to_str().unwrap())).unwrap();
    install(&at("script"), "harnessd");
    nix::unistd::mkfifo(&at("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Open for both, it waits for no reader: where the script has ended, the test fails and does not hang.
    let mut go = std::fs::OpenOptions::new().read(true).write(true).open(at("go")).unwrap();
    let mut command = std::process::Command::new(at("harnessctl"));
    command
        .args(["--socket", at("socket").to_str().unwrap(), "list"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HARNESS_STATE_DIR", at("state"))
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    let mut child = bounded(&mut command);
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(next(), "harnessctl: the daemon starts: it is reading the journal in /x\n");
    go.write_all(b"\n").unwrap();
    assert_eq!(next(), "harnessctl: the daemon starts: it is  [2Jsomething else\n");
    go.write_all(b"\n").unwrap();
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("the daemon did not start: it was in vain"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn what_is_out_of_bounds_is_refused_with_the_bound() {
    let fake = Fake::absent();
    for (words, told) in [
        (&["lane", "resize", "99999999999"][..], "1000000 is the most"),
        (&["lane", "resize", "--width", "99999999999"], "1000000 is the most"),
        (&["relieve", "--by", "99999999999"], "1000000 is the most"),
        (&["relieve", "--for", "0"], "longer than 0"),
        (&["relieve", "--for", "9999999d"], "36500d is the longest"),
        (&["submit", "hi", "--max-time", "0s"], "longer than 0"),
        (&["submit", "hi", "--deadline", "0"], "longer than 0"),
        (&["submit", "hi", "--max-steps", "0"], "1 is the least"),
        (&["submit", "hi", "--max-steps", "4294967296"], "4294967295 is the most"),
        (&["submit", "hi", "--max-tokens", "0"], "1 is the least"),
        (&["logs", "x", "--tail", "99999999999999999999"], "is the most"),
        (&["events", "--from", "99999999999999999999"], "is the most"),
    ] {
        let ran = fake.run(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{words:?}: {ran:?}");
        assert!(ran.stderr.contains(told), "{words:?}: {ran:?}");
    }
    let ran = fake.run(&["relieve", "--undo", "nope"]);
    assert_eq!(ran.code, 6);
    assert!(ran.stderr.starts_with("harnessctl: no relief is called \"nope\"\n"), "{ran:?}");
}

#[test]
fn a_pause_of_a_lane_is_told_as_what_it_is() {
    let fake =
        Fake::new(|request, stream| answer(stream, request, &json!({"lane": "tool", "width_before": 8, "width": 8})));
    assert_eq!(fake.run(&["lane", "pause"]).stdout, "tool paused\n");
    assert_eq!(fake.run(&["lane", "resume"]).stdout, "tool grants again\n");
}

#[test]
fn nothing_is_said_twice_of_a_cancelled_run() {
    let fake = Fake::new(|request, stream| {
        let run = view(&id(1), "cancelled", Some(5), None, Some("cancelled"));
        match request["method"].as_str().unwrap() {
            "run.wait" => answer(stream, request, &json!({"run": run, "reached": true})),
            "run.show" => answer(stream, request, &json!({"run": run})),
            "event.subscribe" => {
                answer(stream, request, &json!({"subscription": 1, "last_seq": 9}));
                let ending = json!({"state": "cancelled", "error": "cancelled"});
                event(stream, 2, &id(1), json!({"kind": "run-finished", "ending": ending}));
            }
            "run.cancel" => {
                let unchanged = json!([{"run": id(1), "reason": "was-cancelled", "why": "in other words"}]);
                answer(stream, request, &json!({"runs": [], "unchanged": unchanged}));
            }
            other => panic!("{other}"),
        }
    });
    let told = |words: &[&str]| fake.run(words).stderr;
    assert_eq!(told(&["wait", "x"]), format!("harnessctl: run {} (nightly) was cancelled\n", id(1)));
    assert_eq!(told(&["follow", "x"]), "[cancelled]\n");
    assert_eq!(told(&["show", "--answer", "x"]), format!("harnessctl: run {} was cancelled\n", id(1)));
    assert!(told(&["cancel", "x"]).starts_with(&format!("harnessctl: run {}: it was cancelled already\n", id(1))));
    assert_eq!(fake.run(&["wait", "x", "x"]).stdout, format!("{0} cancelled 5\n{0} cancelled 5\n", id(1)));
}

/// Takes submits, and tells the ends of their runs to each subscriber.
fn submitting() -> Fake {
    let runs = AtomicU64::new(0);
    Fake::new(move |request, stream| match request["method"].as_str().unwrap() {
        "run.submit" => {
            let number = runs.fetch_add(1, Ordering::Relaxed) + 1;
            answer(stream, request, &json!({"id": id(number), "seq": number}));
        }
        "event.subscribe" => {
            answer(stream, request, &json!({"subscription": 1, "last_seq": 9}));
            (1..=2).for_each(|number| finished(stream, 10 + number, &id(number), "well"));
        }
        other => panic!("{other}"),
    })
}

#[test]
fn the_lines_of_a_batch_are_written_to_a_file_where_one_is_named() {
    for words in [&["--wait", "-o"][..], &["-o"]] {
        let fake = submitting();
        let file = fake.path("lines");
        let words = [&["submit", "--batch", "-"], words, &[file.to_str().unwrap()]].concat();
        let ran = fake.run_with(&words, b"{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n");
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""));
        let expected = format!("{} succeeded 0 well\n{} succeeded 0 well\n", id(1), id(2));
        assert_eq!(std::fs::read_to_string(file).unwrap(), expected);
    }
    let fake = submitting();
    let ran = fake.run_with(&["submit", "--batch", "-", "-o", "/no/such/dir/f"], b"{\"prompt\":\"a\"}\n");
    assert_eq!((ran.code, fake.seen("run.submit").len()), (2, 0), "{ran:?}");
}

#[test]
fn a_script_may_come_from_standard_input_alone() {
    let fake = submitting();
    let ran = fake.run_with(&["submit", "--script", "-"], b"[[turn]]\ntext = \"hi\"\n");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(fake.seen("run.submit")[0]["params"]["spec"]["script"]["turn"][0]["text"], "hi");
    let ran = fake.run_with(&["submit", "--script", "-"], b"[[turn]]\ntexxt = \"hi\"\n");
    assert!(ran.code == 2 && ran.stderr.contains("standard input:2:1: unknown field"), "{ran:?}");
    for words in [&["submit", "--script", "-", "-"][..], &["submit", "--script", "-", "--batch", "-"]] {
        let ran = fake.run_with(words, b"");
        assert!(ran.code == 2 && ran.stderr.contains("cannot both come from standard input"), "{ran:?}");
    }
}
