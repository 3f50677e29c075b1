//! A round trip over the control socket beside a byte echo over a socket of the same kind, one at a time and pipelined.
//!
//! `cargo bench -p harness-tests --bench control`

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use harness_tests::Place;

const DEPTH: usize = 16;
/// Goes through the driver and the world, and finds nothing.
const REQUEST: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"interaction.list\"}\n";

/// Sends back line after line what it reads.
fn echo(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut write = stream.unwrap();
            let mut read = BufReader::new(write.try_clone().unwrap());
            let mut line = Vec::new();
            while read.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                if write.write_all(&line).is_err() {
                    break;
                }
                line.clear();
            }
        }
    });
}

struct Line {
    write: UnixStream,
    read: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Line {
    fn to(path: &Path) -> Self {
        let write = UnixStream::connect(path).unwrap();
        let read = BufReader::new(write.try_clone().unwrap());
        Self { write, read, line: Vec::new() }
    }

    fn exchange(&mut self, depth: usize) {
        self.write.write_all(&REQUEST.repeat(depth)).unwrap();
        for _ in 0..depth {
            self.line.clear();
            assert!(self.read.read_until(b'\n', &mut self.line).unwrap() > 0);
        }
    }
}

fn round_trips(criterion: &mut Criterion) {
    let place = Place::new();
    let daemon = place.start();
    let echo_path = place.path("echo.sock");
    echo(&echo_path);
    for (name, depth) in [("one at a time", 1), ("sixteen pipelined", DEPTH)] {
        let mut group = criterion.benchmark_group(format!("control socket, {name}"));
        group.throughput(Throughput::Elements(depth as u64));
        let mut harness = Line::to(&daemon.socket());
        group.bench_function("interaction.list", |bencher| bencher.iter(|| harness.exchange(depth)));
        let mut echo = Line::to(&echo_path);
        group.bench_function("byte echo", |bencher| bencher.iter(|| echo.exchange(depth)));
        group.finish();
    }
}

criterion_group!(benches, round_trips);
criterion_main!(benches);
