//! Tests `harnessctl` against daemons of other protocol versions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;

use std::os::unix::net::UnixStream;

use fake::{Fake, answer, id, send};
use serde_json::{Value, json};

/// A daemon of protocol 2.0 as it refuses a greeting, and whatever comes behind it.
fn of_another_major(request: &Value, stream: &mut UnixStream) {
    let data = json!({"kind": "version", "retry_after_seconds": null, "exit_code": 7});
    let message = "this daemon (7.0.0) speaks protocol 2.0, the caller 1.4; update the older of the two";
    let error = json!({"code": -32008, "message": message, "data": data});
    send(stream, &json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
}

/// Entry B9 in `tests/README.md`.
#[test]
fn a_daemon_of_another_major_is_told_in_words_whatever_is_asked_of_it() {
    let refusing = Fake::new(of_another_major);
    refusing.greet_by_handler();
    // One that takes the greeting and tells its version, and does what is asked as it understands it.
    let telling = Fake::new(|request, stream| {
        let hello = json!({"version": "7.0.0", "protocol_major": 2, "protocol_minor": 0, "max_frame_bytes": 1});
        let made = json!({"id": id(1), "seq": 1});
        answer(stream, request, if request["method"] == "daemon.hello" { &hello } else { &made });
    });
    telling.greet_by_handler();
    let batch = refusing.file("batch", "{\"prompt\":\"a\"}\n");
    for words in [
        &["submit", "hi"][..],
        &["submit", "--batch", batch.to_str().unwrap()],
        &["cancel", "x"],
        &["list"],
        &["lane"],
        &["message", "x", "hi"],
        &["pause", "--all"],
        &["wait", "x"],
        &["pending"],
    ] {
        for fake in [&refusing, &telling] {
            let ran = fake.run(words);
            assert_eq!(ran.code, 7, "{words:?}: {ran:?}");
            assert!(ran.stderr.contains("protocol 2.0") && ran.stderr.contains("1.4"), "{words:?}: {ran:?}");
        }
    }
}

/// Entry B9 in `tests/README.md`.
#[test]
fn the_greeting_goes_out_with_the_first_request_and_is_not_waited_for() {
    let fake = Fake::new(|request, stream| {
        // The greeting is never answered.
        if request["method"] != "daemon.hello" {
            answer(stream, request, &json!({"id": id(1), "seq": 1}));
        }
    });
    fake.greet_by_handler();
    assert_eq!(fake.run(&["submit", "hi"]).stdout.trim(), id(1));
    let hello = &fake.seen("daemon.hello")[0]["params"];
    assert_eq!((&hello["protocol_major"], &hello["protocol_minor"]), (&json!(1), &json!(4)));
}

#[test]
fn a_daemon_from_before_there_were_submit_keys_gets_none() {
    let old = Fake::new(|request, stream| {
        if request["method"] == "daemon.hello" {
            let hello = json!({"version": "0.1.0", "protocol_major": 1, "protocol_minor": 0, "max_frame_bytes": 1});
            return answer(stream, request, &hello);
        }
        if request["params"].get("submit_key").is_some() {
            return fake::refuse(stream, request, "invalid", 2);
        }
        answer(stream, request, &json!({"id": id(1), "seq": 1}));
    });
    old.greet_by_handler();
    let batch = old.file("batch", "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n");
    for words in [&["submit", "hi"][..], &["submit", "--batch", batch.to_str().unwrap()]] {
        let ran = old.run(words);
        assert_eq!((ran.code, ran.stdout.lines().next()), (0, Some(id(1).as_str())), "{ran:?}");
    }
}
