//! Contains recordings of real servers, and hand-written streams in the form of servers that cannot be recorded here.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::dialects::{Ended, HttpDialect, Quirks};
use super::{assert_snapshot, events, read_all, read_in_chunks, read_stream, told};
use crate::prompt::ErrorClass;

pub(super) fn fixtures() -> Vec<(String, HttpDialect, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dialects/fixtures");
    let mut paths: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "sse"));
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let dialect = match &name {
            name if name.contains("anthropic") => HttpDialect::Anthropic,
            name if name.contains("responses") => HttpDialect::Responses,
            _ => HttpDialect::OpenAi,
        };
        (name, dialect, fs::read_to_string(path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

#[test]
fn each_is_read_as_it_was_meant() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 26, "{}", fixtures.len());
    for (name, dialect, stream) in fixtures {
        assert_snapshot(&name, &told(&read_stream(dialect, &stream, Ended::Clean)));
    }
}

#[test]
fn each_is_read_alike_whole_byte_by_byte_and_in_chunks_of_seven() {
    for (_, dialect, stream) in fixtures() {
        read_in_chunks(dialect, &stream);
    }
}

/// The one thing that must never happen: that half an answer is taken for a whole one.
#[test]
fn a_stream_cut_anywhere_is_asked_again_or_gives_the_same_calls() {
    for (name, dialect, stream) in fixtures() {
        let whole = read_stream(dialect, &stream, Ended::Clean);
        let events = events(&stream);
        // Whatever byte the cut is at, the decoder drops the event that it cuts.
        for end in 0..events.len() {
            for ended in [Ended::Clean, Ended::Broken, Ended::Stalled] {
                let before = events[..end].iter().map(|(name, data)| (name.as_str(), data.as_str()));
                let cut = read_all(dialect, before, ended, Quirks::default());
                match (&cut.end, &whole.end) {
                    (Err(error), _) if error.class == ErrorClass::Retry => {}
                    // What followed was only what it used.
                    (Err(cut), Err(whole)) => assert_eq!(cut.class, whole.class, "{name} at {end}"),
                    (Ok(cut), Ok(whole)) => {
                        assert_eq!((&cut.calls, &cut.text), (&whole.calls, &whole.text), "{name} at {end}");
                        assert_eq!(cut.carried, whole.carried, "{name} at {end}");
                    }
                    _ => panic!("{name} at {end}: {}", told(&cut)),
                }
            }
        }
    }
}

#[test]
fn what_was_shown_is_the_text_of_the_answer() {
    for (name, dialect, stream) in fixtures() {
        let read = read_stream(dialect, &stream, Ended::Clean);
        if let Ok(completion) = &read.end {
            assert_eq!(completion.text, read.text, "{name}");
        }
    }
}
