//! Subscribers: each sees the next number or an explicit gap, and a slow one delays no other.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use harness_tests::{Client, Daemon, Value, json, runs, says};

/// Reads events up to a number; says which numbers were left out.
fn read_to(client: &mut Client, mut after: u64, last: u64) -> u64 {
    let mut missing = 0;
    while after < last {
        let note = client.note();
        match note["method"].as_str() {
            Some("event") => {
                assert_eq!(note["params"]["event"]["seq"], after + 1, "{note}");
                after += 1;
            }
            Some("gap") => {
                let gap = &note["params"]["gap"];
                assert_eq!(gap["from"], after + 1, "{note}");
                let to = gap["to"].as_u64().unwrap();
                assert!(to > after, "{note}");
                missing += to - after;
                after = to;
            }
            Some("delta") => {}
            other => panic!("{other:?}: {note}"),
        }
    }
    missing
}

fn last_seq(daemon: &Daemon) -> u64 {
    daemon.rpc("daemon.status", json!({}))["last_seq"].as_u64().unwrap()
}

#[test]
fn a_subscriber_that_does_not_read_costs_nothing_and_misses_nothing() {
    let daemon = Daemon::configured("[limits]\nevents = 500\nfinished_runs = 100\n");
    let mut stalled = daemon.connect();
    stalled.subscribe(json!({"after": 0, "deltas": true}));
    let mut prompt = daemon.connect();
    prompt.subscribe(json!({"after": 0}));
    let script = says(&"much to say. ".repeat(160));
    let mut seen = 0;
    let mut some_more = |chunks: usize| {
        for _ in 0..chunks {
            daemon.submit_many(50, &script).iter().for_each(|run| drop(run.wait()));
            let last = last_seq(&daemon);
            assert_eq!(read_to(&mut prompt, seen, last), 0, "who reads misses nothing");
            seen = last;
        }
        seen
    };
    // What the first thousands leave behind in memory is there with or without a subscriber.
    some_more(10);
    let before = daemon.process().resident_bytes();
    let last = some_more(50);
    assert!(last > 15_000, "{last}");
    let grown = daemon.process().resident_bytes().saturating_sub(before);
    assert!(grown < 30 << 20, "grown by {} KiB", grown >> 10);
    assert_eq!(read_to(&mut stalled, 0, last), 0, "what has left the memory is in the journal");
    daemon.submit(&says("one more"));
    assert_eq!(stalled.event()["seq"], last + 1, "from here on it goes on as for anybody");
}

#[test]
fn large_events_that_have_left_the_memory_are_all_there() {
    let daemon = Daemon::configured("[limits]\nevents = 5\n");
    daemon.submit_many(6, &says(&"x".repeat(700_000))).iter().for_each(|run| drop(run.wait()));
    let last = last_seq(&daemon);
    let mut client = daemon.connect();
    client.subscribe(json!({"after": 0}));
    assert_eq!(read_to(&mut client, 0, last), 0);
}

/// A7: they take turns at the place for what is large, and hold no page of the journal meanwhile.
#[test]
fn large_events_of_the_past_are_all_there_for_each_of_many() {
    // Room for one large event at a time.
    let daemon = Daemon::configured("[limits]\nevents = 5\nmemory_bytes = 67108864\n");
    daemon.submit_many(6, &says(&"x".repeat(100_000))).iter().for_each(|run| drop(run.wait()));
    let last = last_seq(&daemon);
    let readers: Vec<_> = (0..12)
        .map(|_| {
            let mut client = daemon.connect();
            client.subscribe(json!({"after": 0}));
            thread::spawn(move || read_to(&mut client, 0, last))
        })
        .collect();
    assert!(readers.into_iter().all(|reader| reader.join().unwrap() == 0));
}

#[test]
fn events_are_seen_from_any_number_on_and_then_live() {
    let daemon = Daemon::start();
    daemon.submit(&says("before")).answer();
    let last = last_seq(&daemon);
    for after in [0, 1, last - 1, last] {
        let mut client = daemon.connect();
        client.subscribe(json!({"after": after}));
        assert_eq!(read_to(&mut client, after, last), 0);
    }
    let mut live = daemon.connect();
    assert_eq!(live.subscribe(json!({}))["last_seq"], last);
    daemon.submit(&says("after")).answer();
    assert_eq!(live.event()["seq"], last + 1);
    let error = daemon.refused("event.subscribe", json!({"after": last + 1000}));
    assert_eq!(error["data"]["kind"], "no-longer-applies");
    let error = daemon.refused("event.subscribe", json!({"kinds": ["run-danced"]}));
    assert_eq!(error["data"]["kind"], "invalid");
}

#[test]
fn twenty_that_come_and_read_at_once_all_see_everything() {
    let daemon = Daemon::start();
    let runs = thread::scope(|scope| {
        let submitting = scope.spawn(|| daemon.submit_many(200, &says("x")));
        let readers: Vec<_> = (0..20)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = daemon.connect();
                    client.subscribe(json!({"after": 0, "kinds": ["run-finished"]}));
                    (0..200).map(|_| client.event()["run"].clone()).collect::<Vec<Value>>()
                })
            })
            .collect();
        let seen: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert!(seen.iter().all(|one| *one == seen[0]));
        (submitting.join().unwrap().len(), seen[0].len())
    });
    assert_eq!(runs, (200, 200));
}

#[test]
fn live_output_comes_in_pieces_that_are_addressed_by_offset() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    client.subscribe(json!({"deltas": true}));
    daemon.submit(&runs("printf one; until [ -e gate ]; do sleep 0.02; done; printf two"));
    let mut text = String::new();
    while text.len() < 6 {
        let note = client.note();
        let delta = &note["params"]["delta"];
        if note["method"] == "delta" && delta["stream"] == "stdout" {
            assert_eq!(delta["offset"], text.len(), "{note}");
            text += delta["text"].as_str().unwrap();
            crate::lane::open(&daemon, "gate");
        }
    }
    assert_eq!(text, "onetwo");
}

#[test]
fn of_a_tree_the_children_are_followed_too() {
    let daemon = Daemon::start();
    let script = harness_tests::turn("").ask("go?").turn("").spawn("child").wait_for_all().turn("done");
    let run = daemon.submit(&script.child("child", &says("child")));
    let mut client = daemon.connect();
    client.subscribe(json!({"after": 0, "run": run.id, "tree": true, "kinds": ["run-submitted", "run-finished"]}));
    daemon.submit(&says("stranger")).answer();
    harness_tests::eventually("it asks", || !run.questions().is_empty());
    run.reply("yes");
    let kinds: Vec<_> =
        (0..4).map(|_| client.event()).map(|event| (event["run"].clone(), event["kind"].clone())).collect();
    let child = &kinds[1].0;
    let expected = [
        (&json!(run.id), "run-submitted"),
        (child, "run-submitted"),
        (child, "run-finished"),
        (&json!(run.id), "run-finished"),
    ];
    assert!(kinds.iter().zip(expected).all(|(found, (run, kind))| found.0 == *run && found.1 == kind), "{kinds:?}");
}

#[test]
fn a_client_that_asks_and_never_reads_costs_a_bounded_amount_and_delays_no_other() {
    let daemon = Daemon::start();
    daemon.submit_many(200, &says(&"much to say. ".repeat(100))).iter().for_each(|run| drop(run.wait()));
    let stream = UnixStream::connect(daemon.socket()).unwrap();
    // A write that waits this long is one that the daemon does not read.
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let before = daemon.process().resident_bytes();
    let request = format!("{}\n", json!({"jsonrpc": "2.0", "id": 1, "method": "run.list", "params": {"limit": 1000}}));
    let taken = (0..200_000).take_while(|_| (&stream).write_all(request.as_bytes()).is_ok()).count();
    assert!(taken < 200_000, "it goes on reading from somebody who does not");
    let grown = daemon.process().resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "grown by {} KiB", grown >> 10);
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
}

#[test]
fn a_connection_has_a_bounded_number_of_subscriptions_and_gets_them_back() {
    let daemon = Daemon::configured("[limits]\nsubscriptions_per_connection = 2\n");
    let mut client = daemon.connect();
    let first = client.subscribe(json!({}))["subscription"].clone();
    client.subscribe(json!({}));
    let error = client.try_call("event.subscribe", json!({})).unwrap_err();
    assert_eq!(error["data"]["kind"], "busy");
    client.call("event.unsubscribe", json!({"subscription": first}));
    client.subscribe(json!({}));
    let error = client.try_call("event.unsubscribe", json!({"subscription": first})).unwrap_err();
    assert_eq!(error["data"]["kind"], "not-found");
}
