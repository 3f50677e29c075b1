//! Tests the pure readers against the behaviour of real servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod anthropic;
mod anthropic_blocks;
mod call_ids;
mod empty;
mod ends;
mod fast_path_agrees;
mod fixtures;
mod misplaced_parts;
mod openai;
mod openai_calls;
mod repeated_content;
mod requests;
mod responses;
mod returned_fields;
mod unexpected_fields;

use harness_protocol::sse::Decoder;

use super::dialects::{Ended, HttpDialect, Piece, Quirks};
use crate::prompt::{Completion, ErrorClass, InferenceError};

/// Compares a text with the snapshot of that name; the snapshots stand beside the streams, outside of the sources.
fn assert_snapshot(name: &str, text: &str) {
    let snapshots = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dialects/snapshots");
    insta::with_settings!({ snapshot_path => snapshots }, { insta::assert_snapshot!(name, text) });
}

/// What became of a stream.
struct Read {
    /// What was shown of the answer and of the thinking.
    text: String,
    reasoning: String,
    end: Result<Completion, InferenceError>,
}

impl Read {
    /// Name, arguments and fault of each call.
    fn calls(&self) -> Vec<(String, String, Option<String>)> {
        let calls = self.end.as_ref().unwrap().calls.iter();
        calls.map(|call| (call.tool.clone(), call.args.clone(), call.unusable.clone())).collect()
    }

    fn class(&self) -> ErrorClass {
        self.end.as_ref().unwrap_err().class
    }
}

/// Reads events of one name. Ends at the first error, as its caller does.
fn read_all<'a>(
    dialect: HttpDialect,
    events: impl IntoIterator<Item = (&'a str, &'a str)>,
    ended: Ended,
    quirks: Quirks,
) -> Read {
    let mut reader = dialect.reader(quirks);
    let (mut text, mut reasoning) = (String::new(), String::new());
    for (name, data) in events {
        let mut show = |piece: Piece<'_>| match piece {
            Piece::Text(piece) => text.push_str(piece),
            Piece::Reasoning(piece) => reasoning.push_str(piece),
        };
        if let Err(error) = reader.event(name, data, &mut show) {
            return Read { text, reasoning, end: Err(error) };
        }
    }
    Read { text, reasoning, end: reader.finish(ended) }
}

fn read(dialect: HttpDialect, events: &[impl AsRef<str>]) -> Read {
    let events = events.iter().map(|data| ("message", data.as_ref()));
    read_all(dialect, events, Ended::Clean, Quirks::default())
}

/// The events of a stream, for streams as tidy as the ones here.
fn events(stream: &str) -> Vec<(String, String)> {
    let mut events = Vec::new();
    let (mut name, mut data) = (String::new(), None::<String>);
    for line in stream.split_inclusive('\n') {
        // An unfinished last event is dropped.
        let Some(line) = line.strip_suffix('\n') else { break };
        if line.is_empty() {
            events.extend(data.take().map(|data| (std::mem::take(&mut name), data)));
        } else if let Some(value) = line.strip_prefix("event: ") {
            name = value.to_owned();
        } else if let Some(value) = line.strip_prefix("error: ") {
            (name, data) = ("error".to_owned(), Some(value.to_owned()));
        } else if let Some(value) = line.strip_prefix("data: ") {
            data = Some(data.map_or_else(|| value.to_owned(), |data| format!("{data}\n{value}")));
        }
    }
    events
}

/// Reads the bytes of a stream that come in chunks of this size, as they would from a connection.
fn read_chunks(dialect: HttpDialect, stream: &str, size: usize, quirks: Quirks) -> Read {
    let mut decoder = Decoder::new(1 << 20).telling_errors();
    let mut events = Vec::new();
    for chunk in stream.as_bytes().chunks(size) {
        let mut decoded = decoder.push(chunk);
        while let Some(event) = decoded.next() {
            let event = event.unwrap();
            events.push((event.name.to_owned(), event.data.to_owned()));
        }
    }
    read_all(dialect, events.iter().map(|(name, data)| (name.as_str(), data.as_str())), Ended::Clean, quirks)
}

/// Reads a stream whole, byte by byte and in chunks of seven bytes. All three come to the same.
fn read_in_chunks(dialect: HttpDialect, stream: &str) -> Read {
    let whole = read_chunks(dialect, stream, stream.len().max(1), Quirks::default());
    for size in [1, 7] {
        let chunked = read_chunks(dialect, stream, size, Quirks::default());
        assert_eq!(told(&chunked), told(&whole), "in chunks of {size}: {stream}");
    }
    whole
}

/// A stream with these events.
fn stream_of(events: &[impl AsRef<str>]) -> String {
    events.iter().map(|data| format!("data: {}\n\n", data.as_ref())).collect()
}

fn read_stream(dialect: HttpDialect, stream: &str, ended: Ended) -> Read {
    let events = events(stream);
    read_all(dialect, events.iter().map(|(name, data)| (name.as_str(), data.as_str())), ended, Quirks::default())
}

/// Numbers and words that are told of a completion.
fn told(read: &Read) -> String {
    let shown = format!("shown: {:?}\nthought: {:?}\n", read.text, read.reasoning);
    let end = match &read.end {
        Ok(completion) => format!("{completion:#?}"),
        Err(error) => format!("{:?}: {}", error.class, error.message),
    };
    shown + &end
}
