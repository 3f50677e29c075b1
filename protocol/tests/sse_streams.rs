//! Tests that recorded streams of real servers give the same events, wherever they are cut into chunks, and whatever
//! their line ends.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::fs;
use std::path::Path;

use harness_protocol::sse::Decoder;

const LIMIT: usize = 1 << 20;

struct Recording {
    name: String,
    stream: Vec<u8>,
}

fn recordings() -> Vec<Recording> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams");
    let mut found: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| Recording {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            stream: fs::read(path).unwrap(),
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(found.len() >= 13, "only {} recordings are seen", found.len());
    found
}

type Seen = Vec<[String; 3]>;

fn decode<'c>(chunks: impl IntoIterator<Item = &'c [u8]>) -> Seen {
    let mut decoder = Decoder::new(LIMIT);
    let mut seen = Vec::new();
    for chunk in chunks {
        let mut events = decoder.push(chunk);
        while let Some(event) = events.next() {
            let event = event.unwrap();
            seen.push([event.name, event.data, event.id].map(str::to_owned));
        }
    }
    seen
}

/// Whether the chunks give these events. Nothing is copied: this runs millions of times.
fn gives<'c>(chunks: impl IntoIterator<Item = &'c [u8]>, expected: &Seen) -> bool {
    let mut decoder = Decoder::new(LIMIT);
    let mut expected = expected.iter();
    for chunk in chunks {
        let mut events = decoder.push(chunk);
        while let Some(event) = events.next() {
            let Ok(event) = event else { return false };
            if expected
                .next()
                .is_none_or(|[name, data, id]| (&**name, &**data, &**id) != (event.name, event.data, event.id))
            {
                return false;
            }
        }
    }
    expected.next().is_none() && !decoder.is_inside_event()
}

/// Where a stream is cut in pairs: everywhere if that is affordable, otherwise at every 97th byte and at every byte in
/// which something may go wrong: around line ends and field names, and inside characters. `HARNESS_SSE_PAIRS=1` cuts
/// everywhere.
fn places(stream: &[u8]) -> Vec<usize> {
    let everywhere = stream.len() <= 1_000 || std::env::var_os("HARNESS_SSE_PAIRS").is_some();
    let is_special = |at: usize| {
        let around = &stream[at.saturating_sub(1)..stream.len().min(at + 1)];
        around.iter().any(|byte| matches!(byte, b'\n' | b'\r') || !byte.is_ascii())
    };
    (0..=stream.len()).filter(|&at| everywhere || at % 97 == 0 || is_special(at)).collect()
}

#[test]
fn recordings_hold_what_their_servers_have_sent() {
    for Recording { name, stream } in recordings() {
        let text = String::from_utf8(stream.clone()).unwrap();
        let expected: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let seen = decode([stream.as_slice()]);
        let data: Vec<_> = seen.iter().map(|[_, data, _]| data.as_str()).collect();
        assert!(!data.is_empty(), "{name}");
        assert_eq!(data, expected, "{name}");
        for data in data {
            let is_known = data.is_empty() || data == "[DONE]" || data.starts_with("/message?");
            assert!(is_known || serde_json::from_str::<serde_json::Value>(data).is_ok(), "{name}: {data}");
        }
    }
}

#[test]
fn a_recording_split_at_any_byte_is_the_same() {
    for Recording { name, stream } in recordings() {
        let expected = decode([stream.as_slice()]);
        for at in 0..=stream.len() {
            let (first, second) = stream.split_at(at);
            assert!(gives([first, second], &expected), "{name} split at {at}");
        }
    }
}

#[test]
fn a_recording_split_at_any_two_bytes_is_the_same() {
    for Recording { name, stream } in recordings() {
        let expected = decode([stream.as_slice()]);
        let places = places(&stream);
        for (index, &first) in places.iter().enumerate() {
            for &second in &places[index..] {
                let chunks = [&stream[..first], &stream[first..second], &stream[second..]];
                assert!(gives(chunks, &expected), "{name} split at {first} and {second}");
            }
        }
    }
}

#[test]
fn line_ends_of_each_kind_and_of_all_kinds_are_the_same_in_chunks_of_every_size() {
    for Recording { name, stream } in recordings() {
        let expected = decode([stream.as_slice()]);
        let text = String::from_utf8(stream).unwrap();
        // A mixture must not put a line feed of its own behind a carriage return of its own: that would be one line
        // end.
        let mixed: String = text
            .split_inclusive('\n')
            .zip(["\n", "\r\n", "\r\n", "\r", "\r", "\r\n", "\n"].iter().cycle())
            .map(|(line, end)| line.replace('\n', end))
            .collect::<String>();
        for stream in [text.replace('\n', "\r"), text.replace('\n', "\r\n"), mixed] {
            let stream = stream.as_bytes();
            for size in (1..=70).chain([1_460, 16_384]) {
                assert!(gives(stream.chunks(size), &expected), "{name} in chunks of {size}");
            }
            for at in 0..=stream.len() {
                let (first, second) = stream.split_at(at);
                assert!(gives([first, second], &expected), "{name} with other line ends, split at {at}");
            }
        }
    }
}
