//! Fuzzes the decoder of event streams by libFuzzer.
//!
//! `cd protocol && cargo +nightly fuzz run sse fuzz/corpus/sse fuzz/seeds/sse tests/streams`
#![no_main]

#[path = "../sse_check.rs"]
mod sse_check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| sse_check::check(input));
