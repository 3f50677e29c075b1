//! Measures the decoding of an answer, from its bytes to its text and calls: the daemon's decoder and dialect reader
//! against `eventsource-stream` with `serde_json::Value`. The second reads the same fields and keeps nothing.
//!
//! `cargo bench -p harnessd --bench deltas`: first by time, one way after the other by criterion and then turn by turn
//! for the ratio; then instructions by callgrind (needs valgrind). With a part of a stream's name behind `--`, only
//! such streams.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    unreachable_pub
)]

mod delta_streams;

use std::convert::Infallible;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use delta_streams::{PIECES, Sent, all};
use eventsource_stream::Eventsource as _;
use futures_core::Stream;
use harness_protocol::sse::Decoder;
use harnessd::inference::dialects::{Ended, HttpDialect, Piece, Quirks};
use serde_json::Value;

const CHUNKS: [usize; 2] = [1_460, 16_384];
/// Turns of each way for a ratio.
const TURNS: usize = 101;

/// From a stream in chunks to the number of bytes of text and of arguments.
type Way = fn(&Sent, usize) -> usize;

const WAYS: [(&str, Way); 2] = [("harness", harness), ("Value", values)];

fn harness(sent: &Sent, chunk: usize) -> usize {
    let dialect = HttpDialect::named(sent.api).unwrap();
    let mut decoder = Decoder::new(40 << 20);
    let mut reader = dialect.reader(Quirks::default());
    let mut shown = 0;
    for bytes in sent.bytes.chunks(chunk) {
        let mut events = decoder.push(bytes);
        while let Some(event) = events.next() {
            let event = event.unwrap();
            let mut show = |piece: Piece<'_>| match black_box(piece) {
                Piece::Text(text) | Piece::Reasoning(text) => shown += text.len(),
            };
            reader.event(event.name, event.data, &mut show).unwrap();
        }
    }
    let completion = black_box(reader.finish(Ended::Clean).unwrap());
    shown + completion.calls.iter().map(|call| call.args.len()).sum::<usize>()
}

fn values(sent: &Sent, chunk: usize) -> usize {
    let read = match sent.api {
        "openai" => openai,
        "anthropic" => anthropic,
        _ => responses,
    };
    let mut events = pin!(Bytes(sent.bytes.chunks(chunk)).eventsource());
    let mut context = Context::from_waker(Waker::noop());
    let mut found = 0;
    while let Poll::Ready(Some(event)) = events.as_mut().poll_next(&mut context) {
        let event = event.unwrap();
        if event.data != "[DONE]" {
            found += read(&serde_json::from_str(&event.data).unwrap());
        }
    }
    found
}

/// A piece, and what it belongs to.
fn took(text: Option<&str>, of: (Option<u64>, Option<&str>)) -> usize {
    black_box(of);
    black_box(text).map_or(0, str::len)
}

fn openai(event: &Value) -> usize {
    assert!(event["error"].is_null());
    let mut found = 0;
    for choice in event["choices"].as_array().into_iter().flatten() {
        let delta = &choice["delta"];
        let of = (choice["index"].as_u64(), choice["finish_reason"].as_str());
        found += took(delta["content"].as_str(), of);
        found += took(delta["reasoning_content"].as_str(), of);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            found += took(function["arguments"].as_str(), (call["index"].as_u64(), function["name"].as_str()));
        }
    }
    found
}

fn anthropic(event: &Value) -> usize {
    if event["type"] != "content_block_delta" {
        return 0;
    }
    let delta = &event["delta"];
    let kind = delta["type"].as_str();
    let text = match kind {
        Some("text_delta") => &delta["text"],
        Some("input_json_delta") => &delta["partial_json"],
        Some("thinking_delta") => &delta["thinking"],
        _ => return 0,
    };
    took(text.as_str(), (event["index"].as_u64(), kind))
}

fn responses(event: &Value) -> usize {
    match event["type"].as_str() {
        Some("response.output_text.delta" | "response.function_call_arguments.delta") => {
            took(event["delta"].as_str(), (event["output_index"].as_u64(), event["item_id"].as_str()))
        }
        _ => 0,
    }
}

/// Chunks that are there already.
struct Bytes<'s>(std::slice::Chunks<'s, u8>);

impl<'s> Stream for Bytes<'s> {
    type Item = Result<&'s [u8], Infallible>;
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut streams = all();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["once", way, name, chunk, rounds] => {
            let sent = streams.into_iter().find(|sent| sent.name == *name).unwrap();
            let (_, way) = WAYS.into_iter().find(|(name, _)| name == way).unwrap();
            (0..rounds.parse().unwrap()).for_each(|_: usize| _ = black_box(way(&sent, chunk.parse().unwrap())));
        }
        args if args.contains(&"--bench") => {
            let filter = args.iter().find(|arg| !arg.starts_with('-'));
            streams.retain(|sent| filter.is_none_or(|part| sent.name.contains(part)));
            times(&streams);
            ratios(&streams);
            instructions(&streams);
        }
        // `cargo test --benches` asks for no measurement.
        _ => {}
    }
}

fn times(streams: &[Sent]) {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(900));
    for sent in streams {
        let mut group = criterion.benchmark_group(sent.name);
        group.throughput(Throughput::Elements(PIECES as u64));
        for chunk in CHUNKS {
            for (name, way) in WAYS {
                group.bench_function(BenchmarkId::new(name, chunk), |b| b.iter(|| black_box(way(sent, chunk))));
            }
        }
    }
}

/// Turn by turn, so that whatever else the machine does slows both.
fn ratios(streams: &[Sent]) {
    println!("{:16} {:>7} {:>12} {:>12} times as fast", "stream", "chunk", "harness", "Value");
    for sent in streams {
        for chunk in CHUNKS {
            let [(_, ours), (_, theirs)] = WAYS;
            assert_eq!(ours(sent, chunk), theirs(sent, chunk), "{}", sent.name);
            let timed = |way: Way| {
                let begun = Instant::now();
                black_box(way(sent, chunk));
                begun.elapsed()
            };
            let turns: Vec<_> = (0..TURNS).map(|_| (timed(ours), timed(theirs))).collect();
            let each = |of: fn(&(Duration, Duration)) -> Duration| {
                median(turns.iter().map(|turn| of(turn).as_secs_f64() * 1e9 / PIECES as f64).collect())
            };
            let ratio = median(turns.iter().map(|(ours, theirs)| theirs.as_secs_f64() / ours.as_secs_f64()).collect());
            let (ours, theirs) = (each(|turn| turn.0), each(|turn| turn.1));
            println!("{:16} {chunk:7} {ours:9.0} ns {theirs:9.0} ns {ratio:.1}", sent.name);
        }
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn instructions(streams: &[Sent]) {
    println!("{:16} {:>7} {:>12} {:>12} times as few instructions", "stream", "chunk", "harness", "Value");
    for sent in streams {
        let bytes = sent.bytes.len() / PIECES;
        for chunk in CHUNKS {
            let [ours, theirs] = WAYS.map(|(way, _)| {
                (counted(way, sent.name, chunk, 3) - counted(way, sent.name, chunk, 1)) as f64 / (2 * PIECES) as f64
            });
            println!("{:16} {chunk:7} {ours:12.0} {theirs:12.0} {:.1} ({bytes} bytes each)", sent.name, theirs / ours);
        }
    }
}

/// Instructions of a process that reads the stream so many times. What it does besides is the same each time.
fn counted(way: &str, stream: &str, chunk: usize, rounds: usize) -> u64 {
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["once", way, stream, &chunk.to_string(), &rounds.to_string()])
        .output()
        .unwrap_or_else(|error| panic!("valgrind: {error}"));
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}");
    let (_, after) = told.split_once("Collected : ").unwrap();
    after.lines().next().unwrap().trim().parse().unwrap()
}
