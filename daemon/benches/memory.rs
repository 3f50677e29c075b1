//! What a run that waits for a person takes, by the growth of the process.
//!
//! `cargo bench -p harnessd --bench memory`
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod common;

use common::World;

fn resident() -> u64 {
    harnessd::observe::usage::resident_bytes().unwrap()
}

fn main() {
    // `cargo test --benches` asks for no measurement.
    let count = if std::env::args().any(|arg| arg == "--bench") { 500_000 } else { 1_000 };
    let mut world = World::new(8);
    world.waiting(10_000.min(count));
    let before = resident();
    world.waiting(count);
    let each = (resident() - before) / count as u64;
    println!("{count} more runs that wait for a person: {each} bytes each, their transcripts of two entries included");
}
