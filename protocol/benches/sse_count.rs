//! Counts the instructions per event of the decoders by callgrind: the counts are exact, times are not.
//!
//! `cargo bench -p harness-protocol --bench sse_count` (needs valgrind)
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::print_stdout, unreachable_pub)]

mod sse_streams;

use std::process::Command;

use sse_streams::{Chunks, DECODERS, Decode, anthropic, line, openai, small};

const EVENTS: usize = 1_000;
const CHUNKS: &[usize] = &[16_384, 1_460, 64, 1];

fn stream(name: &str) -> Vec<u8> {
    match name {
        "openai" => openai(EVENTS),
        "anthropic" => anthropic(EVENTS),
        "small" => small(EVENTS),
        mebibytes => line(mebibytes.parse::<usize>().unwrap() << 20),
    }
}

fn decoder_of(decoder: &str) -> Decode {
    DECODERS.iter().find(|(name, _)| *name == decoder).map(|(_, decode)| *decode).unwrap()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["decode", decoder, name, chunk, rounds] => {
            let rounds = rounds.parse().unwrap();
            let stream = stream(name);
            let found = decoder_of(decoder)(Chunks::new(&stream, chunk.parse().unwrap(), rounds));
            let events = if name.parse::<usize>().is_ok() { 1 } else { EVENTS };
            assert!(*decoder == "memchr" || found == rounds * events);
        }
        args if args.contains(&"--bench") => table(),
        // `cargo test --benches` asks for no measurement.
        _ => {}
    }
}

fn table() {
    println!("{:20} {:10} {:>7} instructions per event", "decoder", "stream", "chunk");
    for name in ["openai", "anthropic", "small"] {
        println!("{:20} {name:10} {:7} ({} bytes each)", "", "", stream(name).len() / EVENTS);
        for &chunk in CHUNKS {
            for (decoder, _) in DECODERS {
                println!("{decoder:20} {name:10} {chunk:7} {}", each(decoder, name, chunk, EVENTS));
            }
        }
    }
    println!("\n{:20} {:10} {:>7} instructions per KiB", "decoder", "one line", "chunk");
    for mebibytes in [4, 16] {
        for chunk in [16_384, 1_460] {
            for decoder in ["harness", "sse-core", "sse-stream"] {
                let each = each(decoder, &mebibytes.to_string(), chunk, mebibytes << 10);
                println!("{decoder:20} {mebibytes:6} MiB {chunk:7} {each}");
            }
        }
    }
}

/// Instructions for each of `parts` of a stream: two rounds more, less what is the same for any number of rounds.
fn each(decoder: &str, stream: &str, chunk: usize, parts: usize) -> u64 {
    (counted(decoder, stream, chunk, 3) - counted(decoder, stream, chunk, 1)) / (2 * parts as u64)
}

/// Instructions of a process that decodes the stream so many times. What it does besides is the same each time.
fn counted(decoder: &str, stream: &str, chunk: usize, rounds: usize) -> u64 {
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["decode", decoder, stream, &chunk.to_string(), &rounds.to_string()])
        .output()
        .unwrap_or_else(|error| panic!("valgrind: {error}"));
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}");
    let (_, after) = told.split_once("Collected : ").unwrap();
    after.lines().next().unwrap().trim().parse().unwrap()
}
