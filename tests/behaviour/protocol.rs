//! The control protocol, as a client in any language sees it.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;

use harness_tests::{Client, Daemon, Value, eventually, found, json, need, runs, says, turn};

#[test]
#[ignore = "needs nc"]
fn a_line_that_is_no_json_gets_an_error_and_the_next_one_its_answer() {
    need("nc", "netcat-openbsd");
    let daemon = Daemon::start();
    let status = r#"{"jsonrpc":"2.0","id":1,"method":"daemon.status"}"#;
    let socket = daemon.socket();
    let output = daemon.sh(&format!("printf 'not json\\n{status}\\n' | nc -N -U {}", socket.display())).ok();
    let lines: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["error"]["code"], &lines[0]["id"]), (2, &json!(-32700), &Value::Null));
    assert_eq!((&lines[1]["id"], &lines[1]["result"]["health"]), (&json!(1), &json!("serving")));
}

#[test]
fn a_line_that_is_no_call_gets_its_error_code_and_the_connection_lives_on() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    for (line, code) in [
        (r#"[{"jsonrpc":"2.0","id":1,"method":"daemon.status"}]"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"daemon.dance"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"run.show","params":{"rum":"x"}}"#, -32602),
        (r#"{"jsonrpc":"1.0","id":1,"method":"daemon.status"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
        ("7", -32600),
        ("{", -32700),
        ("\u{0}", -32700),
    ] {
        client.write_line(line);
        let reply = client.read().unwrap();
        assert_eq!(reply["error"]["code"], code, "{line}: {reply}");
        assert_eq!(reply["error"]["data"]["kind"], "invalid", "{line}: {reply}");
    }
    client.write(b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\"}\n");
    assert_eq!(client.read().unwrap()["error"]["code"], -32700);
    client.write_line(r#"{"jsonrpc":"2.0","id":"a text","method":"daemon.status"}"#);
    assert_eq!(client.read().unwrap()["id"], "a text");
}

#[test]
fn a_notification_changes_nothing_and_is_not_answered() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    client.write_line(r#"{"jsonrpc":"2.0","method":"lane.pause","params":{}}"#);
    client.write_line(r#"{"jsonrpc":"2.0","method":"daemon.stop"}"#);
    let id = client.send("lane.list", json!({}));
    let reply = client.read().unwrap();
    assert_eq!((&reply["id"], &reply["result"]["lanes"][0]["paused"]), (&json!(id), &json!(false)));
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
}

#[test]
fn a_line_that_is_too_long_gets_an_error_and_a_close() {
    let daemon = Daemon::start();
    let stream = UnixStream::connect(daemon.socket()).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let mut client = Client::over(stream);
    // The daemon stops to read at its bound, so that not all of this is taken.
    let writing = thread::spawn(move || drop(writer.write_all(&vec![b'x'; 32 << 20])));
    let reply = client.read().unwrap();
    assert_eq!(reply["error"]["code"], -32600, "{reply}");
    assert!(reply["error"]["message"].as_str().unwrap().contains("bytes"), "{reply}");
    assert_eq!(client.read(), None);
    drop(client);
    writing.join().unwrap();
    assert_eq!(daemon.rpc("daemon.status", json!({}))["health"], "serving");
}

#[test]
fn hello_names_versions_and_refuses_another_major_without_a_hang() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let hello = client.call("daemon.hello", json!({"protocol_major": 1, "protocol_minor": 99, "colour": "blue"}));
    assert_eq!((&hello["protocol_major"], &hello["max_frame_bytes"]), (&json!(1), &json!(8 << 20)));
    let error = client.try_call("daemon.hello", json!({"protocol_major": 2})).unwrap_err();
    assert_eq!((&error["data"]["kind"], &error["data"]["exit_code"]), (&json!("version"), &json!(7)));
}

#[test]
fn requests_of_one_connection_take_effect_in_order() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    for round in 0..50 {
        let name = format!("run-{round}");
        let spec = daemon.spec(&runs("exec sleep 600"), json!({"name": name}));
        let replies = client.pipeline(
            [
                ("run.submit", json!({"spec": spec})),
                ("run.show", json!({"run": name})),
                ("run.cancel", json!({"select": {"runs": [name]}})),
                ("run.show", json!({"run": name})),
            ]
            .into_iter(),
        );
        let [submitted, before, cancelled, after] = &replies[..] else { panic!("{replies:?}") };
        assert_eq!(cancelled["result"]["runs"], json!([submitted["result"]["id"]]), "{replies:?}");
        let (before, after) = (&before["result"]["run"], &after["result"]["run"]);
        assert!(before["state"] != "cancelled" && before["stop_requested_at"].is_null(), "{before}");
        assert!(after["state"] == "cancelled" || !after["stop_requested_at"].is_null(), "{after}");
    }
    eventually("all have ended", || daemon.lane_is_idle());
}

#[test]
fn the_same_key_gives_the_same_run_and_another_specification_is_a_conflict() {
    let daemon = Daemon::start();
    let spec = daemon.spec(&runs("echo >> ran"), json!({}));
    let submit = json!({"spec": spec, "idempotency_key": "nightly-1"});
    let replies = daemon.connect().pipeline((0..20).map(|_| ("run.submit", submit.clone())));
    let first = &replies[0]["result"];
    assert!(replies.iter().all(|reply| reply["result"]["id"] == first["id"]), "{replies:?}");
    assert_eq!(replies.iter().filter(|reply| reply["result"]["existing"] == false).count(), 1);
    let other = json!({"spec": daemon.spec(&says("other"), json!({})), "idempotency_key": "nightly-1"});
    let error = daemon.refused("run.submit", other);
    assert_eq!((&error["data"]["kind"], &error["data"]["exit_code"]), (&json!("conflict"), &json!(2)));
    assert_eq!(daemon.run(first["id"].as_str().unwrap()).answer(), "done");
    assert_eq!(daemon.written("ran").lines().count(), 1);
    let again = daemon.rpc("run.submit", submit);
    assert_eq!((&again["id"], &again["existing"]), (&first["id"], &json!(true)));
}

#[test]
fn lists_come_in_pages_newest_first() {
    let daemon = Daemon::start();
    let mut ids: Vec<_> = daemon.submit_many(25, &says("x")).into_iter().map(|run| run.id).collect();
    ids.reverse();
    let (mut listed, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let page = daemon.rpc("run.list", json!({"limit": 10, "cursor": cursor}));
        let runs = page["runs"].as_array().unwrap();
        assert!(runs.len() <= 10);
        listed.extend(runs.iter().map(|run| run["id"].as_str().unwrap().to_owned()));
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(listed, ids);
}

#[test]
fn transcripts_come_in_pages_that_add_up_to_the_whole() {
    let daemon = Daemon::start();
    let script = (0..8).fold(turn("begin"), |script, n| script.shell(&format!("echo {n}")).turn("on"));
    let run = daemon.submit(&script);
    run.answer();
    let whole = daemon.rpc("run.show", json!({"run": run.id, "transcript": true}))["transcript"].clone();
    let (mut entries, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let page = daemon.rpc("run.show", json!({"run": run.id, "transcript": true, "limit": 3, "cursor": cursor}));
        let part = page["transcript"].as_array().unwrap();
        assert!(part.len() <= 3);
        entries.extend(part.iter().cloned());
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert!(entries.len() >= 17);
    assert_eq!(Value::Array(entries), whole);
}

#[test]
fn output_is_read_by_range_as_base64() {
    let daemon = Daemon::start();
    let run = daemon.submit(&runs("printf 'hello world'"));
    run.answer();
    let call = run.results()[0].call;
    let range = |offset, limit| {
        daemon.rpc(
            "run.output",
            json!({"run": run.id, "call": call, "stream": "stdout", "offset": offset, "limit": limit}),
        )
    };
    let reply = range(6, 3);
    assert_eq!((&reply["bytes"], &reply["offset"], &reply["total"]), (&json!("d29y"), &json!(6), &json!(11)));
    assert_eq!(range(-5, 100)["bytes"], "d29ybGQ=");
    assert_eq!(range(100, 100)["bytes"], "");
}

#[test]
fn a_wait_for_a_state_or_for_a_time_is_answered_then() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("").ask("well?").turn("done"));
    let reply = daemon.rpc("run.wait", json!({"run": run.id, "for": ["waiting"]}));
    assert_eq!(reply["reached"], true);
    let reply = daemon.rpc("run.wait", json!({"run": run.id, "timeout_seconds": 0.1}));
    assert_eq!((&reply["reached"], &reply["run"]["state"]), (&json!(false), &json!("waiting")));
    let mut client = daemon.connect();
    let id = client.send("run.wait", json!({"run": run.id, "for": ["paused"]}));
    run.reply("on");
    // It ended without reaching it: that is told, rather than waited for.
    assert_eq!(client.reply(id)["result"]["reached"], false);
}

#[test]
fn without_descriptors_it_lives_and_recovers() {
    let daemon = harness_tests::Place::new().start_behind(&["sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"]);
    let mut early = daemon.connect();
    early.call("daemon.status", json!({}));
    let crowd: Vec<_> = (0..100).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    eventually("there are no more descriptors", || {
        std::fs::read_to_string(daemon.path("daemon.log")).unwrap().contains("no connection can be accepted")
    });
    // A connection that is open is served, without a descriptor to spare, and nothing spins.
    let before = daemon.process().cpu_ticks();
    for _ in 0..50 {
        assert_eq!(early.call("daemon.status", json!({}))["health"], "serving");
    }
    assert!(daemon.process().cpu_ticks() - before < 50);
    drop(crowd);
    // Until the crowd is really closed a client may be told that the daemon is busy.
    found("others come in again", || {
        let status = daemon.ctl(["--no-start", "daemon", "status", "--json"]);
        let status: Value = serde_json::from_str(status.stdout.lines().next()?).ok()?;
        (status["connections"].as_u64()? <= 3).then_some(())
    });
    assert_eq!(daemon.submit(&runs("echo well")).answer(), "done");
}
