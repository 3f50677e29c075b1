//! Measures the memory of a run that waits for a person: the growth of the process, against the size of the transcript
//! alone.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, unreachable_pub)]

mod common;

use std::sync::Arc;

use common::World;
use harness_protocol::id::CallId;
use harness_protocol::run::{CallRequest, Entry};

fn resident() -> u64 {
    harnessd::observe::usage::resident_bytes().unwrap()
}

/// The same transcript as the runs of [`World::waiting`] have, in memory of its own.
fn transcript(call: u64) -> Vec<Entry> {
    let request = CallRequest::new(CallId::from_u64(call), "ask_user", r#"{"question":"Which of the two?"}"#);
    let mut entries = vec![Entry::User { text: Arc::from("a task of a few words, as people type them") }];
    entries.push(Entry::assistant("Let me see.", vec![request]));
    entries
}

fn main() {
    // `cargo test --benches` asks for no measurement.
    let count: u64 = if std::env::args().any(|arg| arg == "--bench") { 500_000 } else { 1_000 };
    let before = resident();
    let transcripts: Vec<Vec<Entry>> = (0..count).map(transcript).collect();
    let transcript = (resident() - before) / count;
    let mut world = World::new(8);
    world.waiting(10_000);
    let before = resident();
    world.waiting(usize::try_from(count).unwrap());
    let each = (resident() - before) / count;
    println!(
        "{count} runs that wait for a person: {each} bytes each, {transcript} of them the transcript, {} the rest",
        each.saturating_sub(transcript)
    );
    drop(transcripts);
}
