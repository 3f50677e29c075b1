//! What one connection may take of the other connections, of the daemon's memory, and of the time for a frame.

use std::os::unix::net::UnixStream;
use std::thread;

use harness_tests::{Client, Daemon, eventually, json, says, turn};

/// What a run executes for what needs more than a shell.
const ADVERSARY: &str = env!("CARGO_BIN_EXE_adversary");
const MIB: usize = 1024 * 1024;

/// A run that does this, and has done it so far that it holds what it can.
fn holding(daemon: &Daemon, way: &str) -> harness_tests::Run {
    let run = daemon.submit(&turn("").shell(&format!("{ADVERSARY} {way}")).turn("done"));
    eventually("it holds what it can", || !daemon.written("holding").is_empty());
    run
}

/// What operators can do all the same.
fn operators_are_served(daemon: &Daemon) {
    daemon.ctl(["lane"]).ok();
    assert_eq!(daemon.submit(&says("served")).answer(), "served");
    // A frame that is nearly as large as one may be.
    let large = daemon.spec(&says("x"), json!({"prompt": "p".repeat(6 * MIB)}));
    daemon.rpc("run.submit", json!({"spec": large}));
    daemon.rpc("daemon.status", json!({}));
}

/// A7: as a tool, by every connection that it can get.
#[test]
fn a_run_that_holds_every_connection_it_can_get_keeps_no_operator_away() {
    for connections in [16_u64, 64, 128, 300, 1_024] {
        let daemon = Daemon::configured(&format!("[limits]\nconnections = {connections}\n"));
        let run = holding(&daemon, "hold 1100");
        let there = daemon.rpc("daemon.status", json!({}))["connections"].as_u64().unwrap();
        assert!(there <= (connections - connections.div_ceil(4)).min(64) + 1, "{there} of {connections}");
        operators_are_served(&daemon);
        run.cancel();
        assert!(run.wait().state.is_terminal());
    }
}

/// A7: half frames of runs leave the memory that operators need, and those of operators are bounded.
#[test]
fn half_frames_take_no_more_than_the_memory_that_is_set_for_them() {
    let bound = 128 * MIB as u64;
    let daemon = Daemon::configured(&format!("[limits]\nmemory_bytes = {bound}\n"));
    let idle = daemon.rpc("daemon.status", json!({}))["rss_bytes"].as_u64().unwrap();
    let run = holding(&daemon, "half-frames 100");
    operators_are_served(&daemon);
    let mut held = Vec::new();
    let mut refused = 0;
    for size in [1, 2, 3, 5, 7, 8].into_iter().cycle().take(60) {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        // A refused connection may be closed before all of it is written.
        let _ = std::io::Write::write_all(&mut stream, &vec![b'a'; size * MIB]);
        held.push(stream);
    }
    for stream in held {
        stream.set_nonblocking(true).unwrap();
        let mut line = [0; 4096];
        if let Ok(count @ 1..) = std::io::Read::read(&mut &stream, &mut line) {
            let text = std::str::from_utf8(&line[..count]).unwrap();
            assert!(text.contains(r#""reason":"no-memory""#) && text.contains("limits.memory_bytes"), "{text}");
            refused += 1;
        }
    }
    assert!(refused > 0, "as much as was sent does not fit");
    let status = daemon.rpc("daemon.status", json!({}));
    let resident = status["rss_bytes"].as_u64().unwrap();
    assert!(resident < idle + bound, "{resident} of {idle} and {bound}");
    daemon.rpc("run.cancel", json!({"select": {"runs": [run.id]}}));
    assert!(run.wait().state.is_terminal());
}

/// A7: who begins a frame finishes it.
#[test]
fn half_a_frame_has_half_a_minute_and_whole_ones_have_all_the_time() {
    let daemon = Daemon::start();
    let mut idle = daemon.connect();
    let beginnings = [
        "{",
        "{\"jsonrpc\":\"2.0\"",
        " ",
        "\n\n{",
        "not json",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"daemon.status\"}\n{",
    ];
    let mut begun: Vec<Client> = beginnings
        .iter()
        .map(|text| {
            let mut client = daemon.connect();
            client.write(text.as_bytes());
            client
        })
        .collect();
    for (client, beginning) in begun.iter_mut().zip(beginnings) {
        let mut last = client.read().unwrap();
        if last["id"] == 1 {
            last = client.read().unwrap();
        }
        assert!(last["error"]["message"].as_str().unwrap().contains("finished within"), "{beginning}: {last}");
        assert!(client.read().is_none(), "{beginning}: it is closed");
    }
    // All that time it said nothing at all.
    assert!(idle.try_call("daemon.status", json!({})).is_ok());
}

/// A7: what is asked for and not read is bounded, and who does not read is closed when others wait for the room.
#[test]
fn a_client_that_does_not_read_large_answers_keeps_them_from_no_other() {
    // Room for one large answer of operators at a time.
    let daemon = Daemon::configured("[limits]\nmemory_bytes = 67108864\n");
    let text = "x".repeat(3 * MIB);
    let run = daemon.submit(&turn("").shell("head -c 5000000 /dev/zero | tr '\\0' y").turn(&text));
    assert_eq!(run.answer().len(), text.len());
    let call = run.results()[0].call.to_string();
    let ways = [
        ("run.show", json!({"run": run.id, "transcript": true})),
        ("run.export", json!({"run": run.id})),
        ("run.list", json!({})),
        ("run.output", json!({"run": run.id, "call": call, "stream": "stdout", "offset": 0, "limit": 4_000_000})),
        ("event.subscribe", json!({"run": run.id, "after": 0})),
        ("run.wait", json!({"run": run.id})),
    ];
    for (method, params) in ways {
        let mut deaf: Vec<Client> = (0..2).map(|_| daemon.connect()).collect();
        for client in &mut deaf {
            client.send(method, params.clone());
        }
        // Small answers wait for nothing.
        daemon.rpc("daemon.status", json!({}));
        daemon.rpc("lane.list", json!({}));
        assert_eq!(daemon.submit(&says("served")).answer(), "served", "{method}");
        let shown = daemon.rpc("run.show", json!({"run": run.id, "transcript": true}));
        assert!(shown["transcript"].as_array().is_some_and(|all| !all.is_empty()), "{method}");
    }
}

/// A7: what takes its place among the large answers when it comes, and what does so when it is written, on one
/// connection.
#[test]
fn a_client_that_asks_much_at_once_and_reads_gets_all_of_it() {
    // Room for one large answer of operators at a time.
    let daemon = Daemon::configured("[limits]\nmemory_bytes = 67108864\n");
    let text = "x".repeat(100_000);
    let run = daemon.submit(&says(&text));
    assert_eq!(run.answer(), text);
    let asked: Vec<_> = ["run.wait", "run.wait", "run.show", "run.wait"]
        .into_iter()
        .cycle()
        .take(24)
        .map(|method| (method, json!({"run": run.id})))
        .collect();
    let replies = daemon.connect().pipeline(asked.into_iter());
    assert!(replies.iter().all(|reply| reply["result"].to_string().len() > text.len()));
    operators_are_served(&daemon);
}

fn resident(daemon: &Daemon) -> u64 {
    daemon.rpc("daemon.status", json!({}))["rss_bytes"].as_u64().unwrap()
}

/// A7: what was sent counts until it is answered, as what it is in memory, and not only until its line is whole.
#[test]
fn requests_that_wait_for_their_answers_take_no_more_than_the_memory_that_is_set_for_them() {
    let bound = 64 * MIB as u64;
    let daemon = Daemon::configured(&format!("[limits]\nmemory_bytes = {bound}\n"));
    let idle = resident(&daemon);
    let names: Vec<String> = (0..10_000).map(|number| format!("none-{number}")).collect();
    let params = json!({"select": {"runs": names}});
    // Each connection's requests wait for the one ahead of them. All of them together would take 150 MiB.
    let asking: Vec<_> = (0..8)
        .map(|_| {
            let (mut client, params) = (daemon.connect(), params.clone());
            thread::spawn(move || client.pipeline((0..30).map(|_| ("run.pause", params.clone()))))
        })
        .collect();
    let mut most = 0;
    while !asking.iter().all(thread::JoinHandle::is_finished) {
        most = most.max(resident(&daemon));
    }
    for replies in asking {
        let replies = replies.join().unwrap();
        assert!(replies.iter().all(|reply| reply["error"]["data"]["kind"] == "not-found"), "{:?}", replies.first());
    }
    assert!(most < idle + bound, "{most} beside {idle}");
}

/// A7: what runs were made of goes when they go, and what is kept of it for subscribers has a bound.
#[test]
fn large_scripts_of_finished_runs_leave_the_memory() {
    let bound = 32 * MIB as u64;
    let daemon = Daemon::configured(&format!("[limits]\nmemory_bytes = {bound}\nfinished_runs = 1\n"));
    let idle = resident(&daemon);
    let large = says("done").turn(&"x".repeat(MIB));
    for _ in 0..60 {
        assert_eq!(daemon.submit(&large).answer(), "done");
    }
    let resident = resident(&daemon);
    assert!(resident < idle + bound, "{resident} beside {idle}");
}

/// A7: who reads nothing and still asks much holds nothing for long that others wait for.
#[test]
fn a_client_that_does_not_read_keeps_no_other_from_asking_much() {
    let daemon = Daemon::configured("[limits]\nmemory_bytes = 67108864\n");
    let mut deaf = daemon.connect();
    // More small answers than a socket takes, then more of those that have few places than there are.
    for _ in 0..800 {
        deaf.send("daemon.status", json!({}));
    }
    for _ in 0..4 {
        deaf.send("lane.list", json!({}));
    }
    let padded = |id: u32| {
        let spaces = " ".repeat(3 * MIB);
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"lane.list\",\"params\":{{}}{spaces}}}\n")
    };
    deaf.write(padded(9_000).as_bytes());
    operators_are_served(&daemon);
    // It waits for a long time, and takes no room meanwhile.
    let run = daemon.submit(&turn("").ask("well?").turn("done"));
    let mut waiting = daemon.connect();
    let id = run.id.to_string();
    for number in 0..8 {
        let line = padded(number).replace("lane.list", "run.wait").replace("{}", &json!({"run": id}).to_string());
        waiting.write(line.as_bytes());
    }
    operators_are_served(&daemon);
    run.cancel();
    for _ in 0..8 {
        assert_eq!(waiting.read().unwrap()["result"]["reached"], true);
    }
}
