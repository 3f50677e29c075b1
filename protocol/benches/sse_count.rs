//! Instructions per event of the decoders, counted by callgrind: exact where times are not.
//!
//! `cargo bench -p harness-protocol --bench sse_count` (needs valgrind)
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::print_stdout, unreachable_pub)]

mod sse_streams;

use std::process::Command;

use sse_streams::{Chunks, DECODERS, anthropic, openai};

const EVENTS: usize = 1_000;
const CHUNKS: &[usize] = &[16_384, 1_460, 64, 1];

fn stream(name: &str) -> Vec<u8> {
    match name {
        "openai" => openai(EVENTS),
        "anthropic" => anthropic(EVENTS),
        other => panic!("no stream is called {other}"),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["decode", decoder, name, chunk, rounds] => {
            let (_, decode) = DECODERS.iter().find(|(found, _)| found == decoder).unwrap();
            let rounds = rounds.parse().unwrap();
            let found = decode(Chunks::new(&stream(name), chunk.parse().unwrap(), rounds));
            assert!(*decoder == "memchr" || found == rounds * EVENTS);
        }
        args if args.contains(&"--bench") => table(),
        // `cargo test --benches` asks for no measurement.
        _ => {}
    }
}

fn table() {
    println!("{:20} {:10} {:>7} instructions per event", "decoder", "stream", "chunk");
    for name in ["openai", "anthropic"] {
        println!("{:20} {name:10} {:7} {} bytes each", "", "", stream(name).len() / EVENTS);
        for chunk in CHUNKS {
            for (decoder, _) in DECODERS {
                let each =
                    (counted(decoder, name, *chunk, 3) - counted(decoder, name, *chunk, 1)) / (2 * EVENTS as u64);
                println!("{decoder:20} {name:10} {chunk:7} {each}");
            }
        }
    }
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
