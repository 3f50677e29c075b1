//! Whole commands beside the best that the machine can do, alternating, in one run: a thousand runs of one `true`
//! beside `xargs -P8`, and the cold start of `harnessctl lane` beside `true`, with an empty history and with ten
//! thousand finished runs.
//!
//! `cargo bench -p harness-tests --bench commands`

use std::process::{Command, Stdio};
use std::time::Duration;

use harness_tests::{Place, now};

const RUNS: usize = 1_000;

fn main() {
    // `cargo test --benches` wants to see that it runs, not what it measures.
    let measured = std::env::args().any(|arg| arg == "--bench");
    let (rounds, starts) = if measured { (7, 400) } else { (1, 2) };
    thousand_runs(rounds);
    cold_start(starts, 0);
    cold_start(starts, if measured { 10_000 } else { 10 });
}

fn timed(command: &mut Command) -> Duration {
    let begun = now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
    let took = begun.elapsed();
    assert!(status.success(), "{command:?}");
    took
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn batch(place: &Place, count: usize) -> String {
    let line = r#"{"script":{"turn":[{"call":[{"tool":"shell","args":{"command":"true"}}]},{"text":"ok"}]}}"#;
    place.file(&format!("batch-{count}.jsonl"), &format!("{line}\n").repeat(count))
}

fn thousand_runs(rounds: usize) {
    let place = Place::configured("[lane.tool]\nwidth = 8\n");
    let _daemon = place.start();
    let file = batch(&place, RUNS);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        theirs.push(timed(Command::new("sh").args(["-c", &format!("seq {RUNS} | xargs -P8 -n1 true")])));
        ours.push(timed(place.command("harnessctl").args(["submit", "--batch", &file, "--wait"])));
    }
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    println!("{RUNS} runs of one `true` at width 8: {ours:.2?}, `xargs -P8 -n1 true`: {theirs:.2?}, ratio {ratio:.2}");
}

fn cold_start(starts: usize, finished: usize) {
    let place = Place::new();
    let _daemon = place.start();
    if finished > 0 {
        let file = batch(&place, finished);
        timed(place.command("harnessctl").args(["submit", "--batch", &file, "--wait"]));
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..starts {
        theirs.push(timed(&mut Command::new("true")));
        ours.push(timed(place.command("harnessctl").arg("lane")));
    }
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    println!("`harnessctl lane` with {finished} finished runs: {ours:.2?}, `true`: {theirs:.2?}, ratio {ratio:.2}");
}
