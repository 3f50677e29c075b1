//! The cost of a submit and of a list with a short history and with a long one, alternating, in one run; and the cost
//! of one page that only the journal has.
//!
//! `cargo bench -p harness-tests --bench history`

use std::time::Duration;

use harness_tests::{Client, Daemon, Place, Value, json, now};

/// Runs that the short history has: as many as a page of the list.
const FEW: usize = 50;

fn main() {
    // `cargo test --benches` wants to see that it runs, not what it measures.
    let measured = std::env::args().any(|arg| arg == "--bench");
    let (many, rounds) = if measured { (100_000, 2_000) } else { (200, 3) };
    let (short, long) = (Place::new(), Place::new());
    let (short, long) = (short.start(), long.start());
    fill(&short, FEW);
    fill(&long, many);
    let (mut few, mut lots) = (short.connect(), long.connect());
    compare("run.submit", rounds, &mut few, &mut lots, |client| drop(client.call("run.submit", submit())));
    compare("run.list of 50", rounds, &mut few, &mut lots, |client| {
        let page = client.call("run.list", json!({"limit": FEW}));
        assert_eq!(page["runs"].as_array().unwrap().len(), FEW);
    });
    let middle = many as u64 / 2;
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let begun = now();
            let page = lots.call("run.list", json!({"limit": FEW, "cursor": middle}));
            assert_eq!(page["runs"].as_array().unwrap().len(), FEW);
            begun.elapsed()
        })
        .collect();
    println!("run.list of 50 in the midst of {many}, from the journal alone: {:.1?}", median(&mut times));
}

fn submit() -> Value {
    json!({"spec": {"prompt": "a task of a few words", "script": {"turn": [{"text": "ok"}]}}})
}

fn fill(daemon: &Daemon, count: usize) {
    let mut client = daemon.connect();
    for chunk in 0..count.div_ceil(500) {
        let here = (count - chunk * 500).min(500);
        let replies = client.pipeline((0..here).map(|_| ("run.submit", submit())));
        let last = replies.last().unwrap()["result"]["id"].as_str().unwrap().to_owned();
        client.call("run.wait", json!({"run": last}));
    }
}

fn compare(what: &str, rounds: usize, few: &mut Client, lots: &mut Client, mut ask: impl FnMut(&mut Client)) {
    let (mut with_few, mut with_lots) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for (client, times) in [(&mut *few, &mut with_few), (&mut *lots, &mut with_lots)] {
            let begun = now();
            ask(client);
            times.push(begun.elapsed());
        }
    }
    let (with_few, with_lots) = (median(&mut with_few), median(&mut with_lots));
    let ratio = with_lots.as_secs_f64() / with_few.as_secs_f64();
    println!("{what}: {with_few:.1?} with a short history, {with_lots:.1?} with a long one, ratio {ratio:.2}");
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
