//! Measures the decoding of event streams beside other decoders. The whole path, from bytes to the answer of a model,
//! is measured by `harnessd`'s bench `deltas`.
//!
//! `cargo bench -p harness-protocol --bench sse`, or with a part of a name behind `--`: `small`, `openai`, `anthropic`,
//! `line`
#![allow(missing_docs, clippy::unwrap_used, unreachable_pub)]

mod sse_streams;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sse_streams::{Chunks, DECODERS, anthropic, line, openai, small};

const CHUNKS: &[usize] = &[1, 64, 1_460, 16_384];
const LONG: usize = 16 << 20;

fn events(c: &mut Criterion) {
    let streams = [("small", small(5_000)), ("openai", openai(2_000)), ("anthropic", anthropic(2_000))];
    for (name, stream) in &streams {
        let mut group = c.benchmark_group(*name);
        group.throughput(Throughput::Bytes(stream.len() as u64));
        for &chunk in CHUNKS {
            for (decoder, decode) in DECODERS {
                group.bench_with_input(BenchmarkId::new(*decoder, chunk), &chunk, |b, &chunk| {
                    b.iter(|| black_box(decode(Chunks::new(stream, chunk, 1))));
                });
            }
        }
    }
}

/// Lines of 16 MiB and of 32 MiB, neither of which fits into a cache: a decoder is linear if its rate is the same.
/// Several to a stream where that is affordable, because the memory for the first comes fresh from the kernel, page by
/// page, and costs more than the decoding.
fn lines(c: &mut Criterion) {
    for bytes in [LONG, 2 * LONG] {
        let stream = line(bytes);
        let mut group = c.benchmark_group(format!("line of {} MiB", bytes >> 20));
        for &chunk in CHUNKS {
            let rounds = if chunk < 1_000 { 1 } else { 8 };
            group.throughput(Throughput::Bytes((rounds * stream.len()) as u64));
            // One that is quadratic would take minutes.
            for (decoder, decode) in DECODERS.iter().filter(|(decoder, _)| *decoder != "eventsource-stream") {
                group.bench_with_input(BenchmarkId::new(*decoder, chunk), &chunk, |b, &chunk| {
                    b.iter(|| black_box(decode(Chunks::new(&stream, chunk, rounds))));
                });
            }
        }
    }
    let mut group = c.benchmark_group("line of 256 and of 1024 KiB, quadratic");
    for bytes in [1 << 18, 1 << 20] {
        let stream = line(bytes);
        group.throughput(Throughput::Bytes(stream.len() as u64));
        group.bench_function(BenchmarkId::new("eventsource-stream", bytes >> 10), |b| {
            b.iter(|| black_box(sse_streams::eventsource_stream(Chunks::new(&stream, 16_384, 1))));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(900));
    targets = events, lines
}
criterion_main!(benches);
