//! Runs the body of the fuzz target over its seeds, over the recorded streams and over random input, with any compiler.
//! libFuzzer runs it longer; see ARCHITECTURE.md.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[path = "../fuzz/sse_check.rs"]
mod sse_check;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

fn files(dir: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    fs::read_dir(dir).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect()
}

#[test]
fn seeds_and_recordings_decode_alike_however_they_are_cut() {
    let inputs = [files("fuzz/seeds/sse"), files("tests/streams")].concat();
    assert!(inputs.len() >= 19, "only {} inputs are seen", inputs.len());
    for input in inputs {
        sse_check::check(&input);
        for seed in 0..=u8::MAX {
            sse_check::check(&[input.as_slice(), &[seed % 4, seed]].concat());
        }
    }
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(b"\n".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => Just(b"\r\n".to_vec()),
        3 => Just(b"data: ".to_vec()),
        2 => Just(b"data".to_vec()),
        2 => Just(b"event: ".to_vec()),
        1 => Just(b"id:".to_vec()),
        1 => Just(b"retry: 1".to_vec()),
        1 => Just(b":".to_vec()),
        1 => Just(b"\xEF\xBB\xBF".to_vec()),
        2 => "[a-z€😀 ]{1,8}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 1..4),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn streams_of_all_kinds_of_pieces_decode_alike_however_they_are_cut(stream in stream(), limit: u8, cuts: u8) {
        sse_check::check(&[stream.as_slice(), &[limit, cuts]].concat());
    }
}
