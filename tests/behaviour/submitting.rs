//! A submit happens exactly once, whichever message is lost on the way.

use std::time::Duration;

use harness_tests::{Daemon, Place, Relay, eventually, found_within, json, runs, says, turn};
use rusqlite::Connection;

/// How long a daemon that dies on purpose may take to.
const SOON: Duration = Duration::from_secs(20);
/// Points of the path of a commit, as `HARNESS_CRASH_AT` has them.
const POINTS: [&str; 5] = ["before-write", "written", "synced", "before-effect", "after-effect"];

/// Ids of all runs with this label, newest first.
fn labelled(place: &Place, value: &str) -> Vec<String> {
    let page = place.rpc("run.list", json!({"select": {"labels": {"case": value}}, "limit": 200}));
    page["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
}

/// The key that a command tells to settle a submit by.
fn told_key(stderr: &str) -> String {
    let (_, rest) = stderr.split_once("--again ").unwrap_or_else(|| panic!("no key is told: {stderr}"));
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}

/// Entry B6 in `tests/README.md`.
#[test]
fn however_many_replies_are_lost_each_line_is_queued_once() {
    // Case, replies that pass on each connection before it is cut, more words.
    let cases: [(&str, &[usize], &[&str]); 7] = [
        ("one", &[0], &[]),
        ("three times", &[0, 0, 0], &[]),
        ("tried", &[0, 0, 0, 0, 0, 0, 0], &["--retry-for", "60s"]),
        ("batch", &[0], &["--batch"]),
        ("batch in the middle", &[3, 4, 0, 1], &["--batch"]),
        ("batch with keys of its user", &[3, 4, 0, 1], &["--batch", "--idempotency-key", "k"]),
        ("batch often", &[1, 1, 1, 1, 1, 1, 1, 1, 1], &["--batch"]),
    ];
    let daemon = Daemon::start();
    let script = daemon.script_file(&says("done"));
    let batch = daemon.file("batch.jsonl", &"{}\n".repeat(25));
    for (case, cuts, more) in cases {
        let relay = Relay::cutting(&daemon, cuts);
        let (socket, label) = (relay.socket(), format!("case={case}"));
        let mut words = vec!["submit", "-q", "--socket", &socket, "-l", &label, "--script", &script];
        for word in more {
            words.push(word);
            words.extend((*word == "--batch").then_some(batch.as_str()));
        }
        let printed = daemon.ctl(&words).ok();
        let mut ids: Vec<&str> = printed.lines().collect();
        ids.reverse();
        assert_eq!(labelled(&daemon, case), ids, "{case}");
        assert_eq!(relay.cuts(), cuts.len() as u64, "{case}");
        std::fs::remove_file(daemon.path("relay.sock")).unwrap();
    }
}

/// Entry B6 in `tests/README.md`.
#[test]
fn a_daemon_that_dies_at_any_point_of_the_commit_of_a_submit_has_queued_it_once_or_the_next_one_does() {
    let place = Place::new();
    let script = place.script_file(&says("done"));
    for point in POINTS {
        let at = format!("{point}:1");
        // Passed for the first time with the daemon's own start, or with the submit.
        for at in [at.clone(), at.replace(":1", ":2"), at.replace(":1", ":3")] {
            let mut dying = Daemon::spawn(&place, &[], &[("HARNESS_CRASH_AT", &at)]);
            let label = format!("case={at}");
            let submit = |again: &[&str]| {
                let words = ["submit", "-q", "--no-start", "--retry-for", "60s", "-l", &label, "--script", &script];
                place.spawn_ctl(words.iter().chain(again))
            };
            // Whether it listens before it dies is chance; a command that never reached it asked for nothing.
            let reached = std::cell::Cell::new(false);
            eventually("it listens or is dead", || {
                reached.set(place.socket().exists());
                reached.get() || dying.try_wait().unwrap().is_some()
            });
            let submitting = submit(&[]);
            let mut more = None;
            if dying.try_wait().unwrap().is_none() {
                // A start of which no client asks anything may pass no point at all.
                more = Some(place.spawn_ctl(["submit", "-q", "--no-start", "-l", "case=more", "--script", &script]));
                found_within(SOON, "it dies", || dying.try_wait().unwrap());
            }
            let daemon = place.start();
            more.map(harness_tests::Running::finish);
            let first = submitting.finish();
            let id = match first.code {
                0 => first.stdout,
                // It was dead before anything could be asked of it.
                7 => {
                    let key = first.stderr.contains("--again").then(|| told_key(&first.stderr));
                    let again: Vec<&str> = key.iter().flat_map(|key| ["--again", key.as_str()]).collect();
                    submit(&again).finish().ok()
                }
                _ => panic!("{at}: {first}"),
            };
            assert_eq!(labelled(&daemon, &at), [id.trim()], "{at}");
        }
    }
}

/// Entry B6 in `tests/README.md`.
#[test]
fn a_submit_that_was_refused_for_now_and_took_effect_later_is_not_repeated() {
    let daemon = Daemon::start();
    let script = daemon.script_file(&says("done"));
    let words = |case: &str| {
        let label = format!("case={case}");
        ["submit", "-q", "-l", &label, "--script", &script].map(str::to_owned).to_vec()
    };
    let db = Connection::open(daemon.state("harness.db")).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = daemon.spawn_ctl(words("refused"));
    eventually("it is held", || daemon.rpc("daemon.status", json!({}))["health"] == "held");
    let tried = daemon.spawn_ctl(words("tried").iter().map(String::as_str).chain(["--retry-for", "60s"]));
    let refused = refused.finish();
    let key = told_key(&refused.stderr);
    refused.exits(75).tells("may have been queued");
    db.execute_batch("ROLLBACK").unwrap();
    let id = tried.finish().line();
    assert_eq!(labelled(&daemon, "tried"), [id]);
    let settled = daemon.ctl(words("refused").iter().map(String::as_str).chain(["--again", &key])).line();
    assert_eq!(labelled(&daemon, "refused"), [settled.as_str()]);
    // Also when it has long ended, in a daemon that knows nothing of it any more.
    let again = daemon.ctl(words("another").iter().map(String::as_str).chain(["--again", &key])).line();
    assert_eq!((again, labelled(&daemon, "another").len()), (settled, 0));
}

#[test]
fn a_submit_is_known_by_its_key_as_long_as_its_run_is() {
    let place = Place::configured("[limits]\nfinished_runs = 1\n");
    let daemon = place.start();
    let params = |key: u32, first: bool| {
        let spec = place.spec(&says("done"), json!({}));
        json!({"spec": spec, "submit_key": format!("{key:032x}"), "first": first})
    };
    let submit = |key, first| place.rpc("run.submit", params(key, first));
    let made = submit(1, true);
    let id = made["id"].clone();
    for more in 2..8 {
        let other = submit(more, true);
        assert_eq!(other["existing"], false);
        place.run(other["id"].as_str().unwrap()).wait();
    }
    // In the world, out of it, under another daemon; with another specification; from another connection.
    let again = submit(1, false);
    assert_eq!((&again["id"], &again["seq"], &again["existing"]), (&id, &made["seq"], &json!(true)));
    drop(daemon);
    let daemon = place.start();
    assert_eq!(submit(1, false)["id"], id);
    let mut other = params(1, false);
    other["spec"]["labels"] = json!({"a": "b"});
    assert_eq!(place.rpc("run.submit", other)["id"], id);
    // It is no key of a user's: neither is it shown as one, nor found as one.
    let events = place.ctl(["events"]).ok();
    assert!(!events.contains("submit_key") && !events.contains("submit-key") && !events.contains("idempotency"));
    let mut as_users = params(1, false);
    as_users["submit_key"] = json!(null);
    as_users["first"] = json!(false);
    as_users["idempotency_key"] = json!(format!("{:032x}", 1));
    assert_eq!(place.rpc("run.submit", as_users)["existing"], false);
    let mut both = params(9, true);
    both["idempotency_key"] = json!("mine");
    assert_eq!(place.refused("run.submit", both)["data"]["kind"], "invalid");
    // It goes with its run.
    daemon.ctl(["prune", id.as_str().unwrap()]).ok();
    assert_eq!(submit(1, false)["existing"], false);
}

#[test]
fn a_submit_of_a_tool_is_queued_once_as_well_and_has_its_own_key() {
    let daemon = Daemon::start();
    let script = daemon.script_file(&says("a child's answer"));
    let call = format!("harnessctl submit --wait --script {script}");
    let run = daemon.submit(&turn("").shell(&call).turn("done"));
    assert_eq!(run.answer(), "done");
    assert!(run.envelopes()[0].contains("a child's answer"), "{:?}", run.envelopes());
    let key = format!("{:032x}", 77);
    let own = json!({"spec": daemon.spec(&runs("true"), json!({})), "submit_key": key});
    daemon.rpc("run.submit", own);
    let call = format!("harnessctl submit --again {key} --script {script} || true");
    let run = daemon.submit(&turn("").shell(&call).turn("done"));
    run.wait();
    assert!(run.envelopes()[0].contains("another caller"), "{:?}", run.envelopes());
}

/// A19: a retry and a message happen exactly once as well, whatever is lost on the way.
#[test]
fn however_many_replies_are_lost_a_retry_and_a_message_happen_once() {
    let daemon = Daemon::start();
    let ended = daemon.submit_with(&says("done"), json!({"labels": {"case": "ended"}}));
    ended.wait();
    let asks = daemon.submit_with(&turn("").ask("well?").turn("on"), json!({"labels": {"case": "asks"}}));
    asks.reach(harness_protocol::run::RunState::Waiting);
    // What, replies that pass on each connection before it is cut, and how many more runs and messages there are then.
    let cases: [(&[&str], &[usize], usize, usize); 6] = [
        (&["retry", &ended.id], &[0], 1, 0),
        (&["retry", &ended.id], &[0, 0, 0], 1, 0),
        (&["retry", &ended.id, "--retry-for", "60s"], &[0, 0, 0, 0, 0, 0, 0], 1, 0),
        (&["message", &ended.id, "and?"], &[0, 0], 1, 0),
        (&["message", &asks.id, "and?"], &[0, 0], 0, 1),
        (&["message", &asks.id, "and?", "--retry-for", "60s"], &[0, 0, 0, 0, 0, 0, 0], 0, 1),
    ];
    let count = || {
        let runs = labelled(&daemon, "ended").len();
        let told = daemon.ctl(["events", "--run", &asks.id]).ok().matches("message-received").count();
        (runs, told)
    };
    for (words, cuts, runs, told) in cases {
        let before = count();
        let relay = Relay::cutting(&daemon, cuts);
        let socket = relay.socket();
        daemon.ctl(words.iter().copied().chain(["--socket", &socket])).ok();
        let after = count();
        assert_eq!((after.0 - before.0, after.1 - before.1), (runs, told), "{words:?} {cuts:?}");
        assert_eq!(relay.cuts(), cuts.len() as u64, "{words:?}");
        std::fs::remove_file(daemon.path("relay.sock")).unwrap();
    }
}

/// A19: in the world, out of it, under another daemon; whatever became of the run that was named.
#[test]
fn a_retry_and_a_message_are_known_by_their_keys() {
    let place = Place::configured("[limits]\nfinished_runs = 1\n");
    let daemon = place.start();
    let run = daemon.submit_with(&turn("").ask("well?").turn("done"), json!({"name": "asker"}));
    run.reach(harness_protocol::run::RunState::Waiting);
    let key = |number: u32| format!("{number:032x}");
    let message = |first: bool| {
        place.rpc("run.message", json!({"run": "asker", "text": "and?", "submit_key": key(1), "first": first}))
    };
    let told = message(true);
    assert_eq!((&told["id"], &message(false)["seq"]), (&json!(run.id), &told["seq"]));
    run.reply("fine");
    run.wait();
    // It has ended, and would go on as a new run.
    assert_eq!(message(false)["seq"], told["seq"]);
    let retry = |first: bool| place.rpc("run.retry", json!({"run": run.id, "submit_key": key(2), "first": first}));
    let tried = retry(true);
    assert_eq!((&tried["existing"], &retry(false)["id"]), (&json!(false), &tried["id"]));
    place.run(tried["id"].as_str().unwrap()).cancel();
    for _ in 0..4 {
        daemon.submit(&says("more")).wait();
    }
    crate::archived::has_left(&daemon, &run);
    assert_eq!((&message(false)["seq"], &retry(false)["id"]), (&told["seq"], &tried["id"]));
    drop(daemon);
    let daemon = place.start();
    assert_eq!((&message(false)["seq"], &retry(false)["id"]), (&told["seq"], &tried["id"]));
    // Other keys are other requests.
    let other = place.rpc("run.retry", json!({"run": run.id, "submit_key": key(3), "first": false}));
    assert_eq!(other["existing"], false);
    daemon.ctl(["prune", &run.id]).ok();
    assert_eq!(retry(false)["id"], tried["id"], "the run that was made is still there");
}
