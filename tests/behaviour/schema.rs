//! `harnessctl schema` describes the messages as they are on the wire.

use std::collections::BTreeSet;

use harness_protocol::rpc::METHODS;
use harness_tests::{Daemon, Place, Schemas, Value, eventually, json, turn};

#[test]
fn every_reply_and_every_event_of_a_live_daemon_is_as_described() {
    let daemon = Daemon::start();
    let schemas = Schemas(daemon.ctl(["schema", "--json"]).json());
    let mut client = daemon.connect();
    let mut asked = BTreeSet::new();
    let mut ask = |method: &'static str, params: Value| -> Value {
        schemas.check(&format!("/methods/{method}/params"), &params);
        let result = client.call(method, params);
        schemas.check(&format!("/methods/{method}/result"), &result);
        asked.insert(method);
        result
    };
    let mut follower = daemon.connect();
    follower.subscribe(json!({"after": 0, "deltas": true}));

    let guard = json!({"kind": "approval", "text": "may it?", "expires_seconds": 600});
    let script = turn("hm")
        .shell("echo out; echo err >&2; sleep 0.3")
        .asking(guard)
        .spawn("child")
        .ask("well?")
        .turn("${a} done");
    let script = script.capture("a", "(out)").child("child", &turn("hi"));
    let limits = json!({"limits": {"max_steps": 9, "max_time_seconds": 60.5}, "labels": {"a": "b"}});
    let run = ask("run.submit", json!({"spec": daemon.spec(&script, limits), "idempotency_key": "k"}));
    let run = daemon.run(run["id"].as_str().unwrap());
    ask("run.list", json!({}));
    eventually("it waits for an approval", || !run.questions().is_empty());
    let open = ask("interaction.list", json!({}));
    let approval =
        json!({"interaction": open["interactions"][0]["id"], "answer": "", "resolution": "allowed", "scope": "call"});
    ask("interaction.answer", approval);
    eventually("it executes", || daemon.lane("tool").busy == 1 || !run.questions().is_empty());
    ask("lane.list", json!({}));
    eventually("it asks", || !run.questions().is_empty());
    let open = ask("interaction.list", json!({}));
    ask("run.show", json!({"run": run.id, "transcript": true}));
    ask("run.wait", json!({"run": run.id, "for": ["waiting"], "timeout_seconds": 1.5}));
    ask("run.pause", json!({"select": {"runs": [run.id]}}));
    ask("run.resume", json!({"select": {"runs": [run.id, run.id]}}));
    ask("interaction.answer", json!({"interaction": open["interactions"][0]["id"], "answer": "yes"}));
    assert_eq!(run.answer(), "out done");
    let call = run.results()[0].call;
    ask("run.wait", json!({"run": run.id}));
    ask("run.show", json!({"run": run.id, "transcript": true, "limit": 2}));
    ask("run.list", json!({"select": {"labels": {"a": "b"}}, "limit": 1}));
    ask("run.output", json!({"run": run.id, "call": call, "stream": "stdout", "offset": -2}));
    let exported = ask("run.export", json!({"run": run.id}));
    let prepared = exported["events"].as_array().unwrap().iter().find(|event| event["kind"] == "run-prepared").unwrap();
    ask("blob.get", json!({"hash": prepared["definitions_blob"], "offset": 7}));
    ask("run.cancel", json!({"select": {"runs": [run.id]}, "force": true}));
    ask("run.retry", json!({"run": run.id}));
    ask("run.message", json!({"run": run.id, "text": "more"}));
    ask("run.prune", json!({"select": {"all": true}, "keep": 1, "older_than_seconds": 0.5, "dry_run": true}));
    let relieved = ask("lane.relieve", json!({"by": 2, "for_seconds": 60}));
    ask("lane.list", json!({}));
    ask("lane.relieve", json!({"undo": relieved["relief"]}));
    ask("lane.resize", json!({"width": 3}));
    ask("lane.pause", json!({"lane": "tool"}));
    ask("lane.resume", json!({}));
    ask("provider.list", json!({}));
    ask("provider.check", json!({"provider": "scripted"}));
    ask("daemon.hello", json!({}));
    ask("daemon.status", json!({}));
    ask("daemon.drain", json!({"timeout_seconds": 0}));
    ask("daemon.undrain", json!({}));
    ask("daemon.reload", json!({}));
    ask("daemon.backup", json!({"to": daemon.work().join("copy.db")}));
    let subscribed = ask("event.subscribe", json!({"run": run.id, "tree": true, "kinds": ["run-finished"]}));
    ask("event.unsubscribe", json!({"subscription": subscribed["subscription"]}));
    let last = daemon.rpc("daemon.status", json!({}))["last_seq"].as_u64().unwrap();
    let mut kinds = BTreeSet::new();
    loop {
        let mut note = follower.note();
        note.as_object_mut().unwrap().remove("jsonrpc");
        schemas.check("/notification", &note);
        let Some(event) = note["params"].get("event") else {
            kinds.insert(note["method"].to_string());
            continue;
        };
        schemas.check("/event", event);
        kinds.insert(event["kind"].to_string());
        if event["seq"].as_u64() >= Some(last) {
            break;
        }
    }
    assert!(kinds.len() > 20 && kinds.contains("\"delta\""), "{kinds:?}");
    for (method, params) in [("run.show", json!({"run": "x"})), ("run.submit", json!({"spec": {"script": 7}}))] {
        schemas.check("/error", &daemon.refused(method, params));
    }
    ask("daemon.stop", json!({}));
    let unasked: Vec<_> = METHODS.iter().filter(|method| !asked.contains(*method)).collect();
    assert!(unasked.is_empty(), "{unasked:?}");
}

#[test]
fn wrong_values_do_not_fit_and_optional_ones_may_be_left_out() {
    let place = Place::new();
    let schemas = Schemas(place.ctl(["schema", "--json"]).json());
    let fits = |method: &str, params: Value| schemas.fits(&format!("/methods/{method}/params"), &params);
    assert!(fits("run.list", json!({})) && !fits("run.list", json!({"limit": "many"})));
    assert!(!fits("run.list", json!({"selct": {}})));
    assert!(fits("run.show", json!({"run": "x"})) && !fits("run.show", json!({})));
    assert!(!fits("run.output", json!({"run": "x", "call": "short", "stream": "stdout"})));
    assert!(!fits("run.wait", json!({"run": "x", "timeout_seconds": -1})));
    assert!(!fits("run.wait", json!({"run": "x", "for": ["tired"]})));
    let one = place.ctl(["schema", "run.output"]).json();
    assert_eq!(one["result"]["$ref"], "#/$defs/received/OutputReply");
    assert!(one["$defs"]["received"].get("RunView").is_none(), "only what it needs");
    place.ctl(["schema", "run.party"]).exits(2).tells("run.output");
    assert!(place.daemon_process().is_none(), "it asks no daemon");
}
