//! Tests the decoder beyond the public cases: the limit, the cursor, stopping early, and the cost of a stream.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::sse::Event;

/// The work of a decoder. Tests count it, since a measured time would not be reliable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::sse) struct Work {
    /// Bytes that were searched for the end of their line.
    searched: usize,
    /// Bytes that were copied into a buffer.
    copied: usize,
    /// Bytes that were checked as UTF-8.
    checked: usize,
}

impl Work {
    pub(super) fn search(&mut self, bytes: usize) {
        self.searched += bytes;
    }
    pub(super) fn copy(&mut self, bytes: usize) {
        self.copied += bytes;
    }
    pub(super) fn check(&mut self, bytes: usize) {
        self.checked += bytes;
    }
}

/// The data of each event, `!` for an error.
fn data(decoder: &mut Decoder, chunk: &[u8]) -> Vec<String> {
    let mut events = decoder.push(chunk);
    let mut found = Vec::new();
    while let Some(event) = events.next() {
        found.push(event.map_or("!".to_owned(), |event| event.data.to_owned()));
    }
    found
}

fn whole_and_by_byte(limit: usize, stream: &[u8]) -> Vec<String> {
    let whole = data(&mut Decoder::new(limit), stream);
    let mut decoder = Decoder::new(limit);
    let by_byte: Vec<_> = stream.chunks(1).flat_map(|byte| data(&mut decoder, byte)).collect();
    assert_eq!(whole, by_byte);
    whole
}

#[test]
fn an_event_may_have_exactly_the_bytes_of_the_limit() {
    // `data: 45` and `data: 9` with their line ends.
    assert_eq!(whole_and_by_byte(17, b"data: 45\ndata: 9\n\n"), ["45\n9"]);
    assert_eq!(whole_and_by_byte(16, b"data: 45\ndata: 9\n\n"), ["!"]);
    assert_eq!(whole_and_by_byte(9, b"data: 45\n\n"), ["45"]);
    assert_eq!(whole_and_by_byte(8, b"data: 45\n\n"), ["!"]);
    assert_eq!(whole_and_by_byte(18, b"event: ab\ndata: 4\n\n"), ["4"]);
    assert_eq!(whole_and_by_byte(17, b"event: ab\ndata: 4\n\n"), ["!"]);
}

#[test]
fn a_bad_event_is_one_error_and_the_next_is_whole() {
    let long = "x".repeat(100);
    for end in ["\n", "\r", "\r\n"] {
        let stream =
            format!("data: a\n\ndata: {long}\ndata: {long}\nevent: {long}\nid: 9\n\ndata: b\n\n").replace('\n', end);
        assert_eq!(whole_and_by_byte(50, stream.as_bytes()), ["a", "!", "b"], "{end:?}");
    }
    let stream = format!("event: {long}\ndata: a\n\n{long}\n\nid: {long}\n\ndata\n\n");
    assert_eq!(whole_and_by_byte(50, stream.as_bytes()), ["!", "!", "!", ""]);
}

#[test]
fn lines_without_end_are_refused_before_they_end() {
    let mut decoder = Decoder::new(10);
    assert_eq!(data(&mut decoder, b"data: 1234567890"), ["!"]);
    assert_eq!(data(&mut decoder, b"1234567890"), [""; 0]);
    assert_eq!(data(&mut decoder, b"\n\ndata: 1\n\n"), ["1"]);
}

#[test]
fn empty_lines_of_data_count_too() {
    let stream = ["data\n"; 20].concat();
    assert_eq!(whole_and_by_byte(99, stream.as_bytes()), ["!"]);
}

#[test]
fn comments_do_not_count_however_long_or_many() {
    let stream = format!("data: a\n{}: {}\n\n", ": ping\n".repeat(50), "x".repeat(500));
    assert_eq!(whole_and_by_byte(20, stream.as_bytes()), ["a"]);
}

#[test]
fn an_error_does_not_show_what_came_in() {
    let mut decoder = Decoder::new(10);
    let mut events = decoder.push(b"data: a secret that is too long\n\n");
    let error = events.next().unwrap().unwrap_err();
    assert_eq!(error, EventTooLarge { limit: 10 });
    assert_eq!(error.to_string(), "an event of the stream is longer than 10 bytes");
    data(&mut decoder, b"data: secret");
    assert!(!format!("{decoder:?}").contains("secret"));
}

#[test]
fn a_refused_event_does_not_move_the_cursor() {
    let mut decoder = Decoder::new(20);
    data(&mut decoder, b"id: 1\ndata: a\n\nid: 2\ndata: far too long for this\n\n");
    assert_eq!(decoder.last_event_id(), "1");
}

#[test]
fn a_caller_that_stops_early_goes_on_with_the_rest() {
    let mut decoder = Decoder::new(100);
    let mut events = decoder.push(b"data: a\n\ndata: b\n\nda");
    assert_eq!(events.next().unwrap().unwrap().data, "a");
    let rest = events.rest();
    assert_eq!(rest, b"data: b\n\nda");
    assert_eq!(data(&mut decoder, rest), ["b"]);
    assert_eq!(data(&mut decoder, b"ta: c\n\n"), ["c"]);
}

#[test]
fn a_stream_that_ends_inside_an_event_says_so() {
    for (stream, inside) in [
        ("", false),
        ("data: a\n\n", false),
        (": ping", false),
        (": ping\n\n", false),
        ("data: a\n\nd", true),
        ("data: a\n", true),
        ("event: a\r", true),
        ("data: a\r\r", false),
    ] {
        let mut decoder = Decoder::new(100);
        data(&mut decoder, stream.as_bytes());
        assert_eq!(decoder.is_inside_event(), inside, "{stream:?}");
    }
}

#[test]
fn a_new_connection_keeps_the_cursor_and_drops_the_rest() {
    let mut decoder = Decoder::new(100);
    data(&mut decoder, b"retry: 50\nid: 7\ndata: a\n\nid: 8\nevent: x\ndata: half");
    decoder.reconnect();
    assert_eq!((decoder.last_event_id(), decoder.retry()), ("7", Some(Duration::from_millis(50))));
    let mut events = decoder.push(b"\xEF\xBB\xBFdata: b\n\n");
    assert_eq!(events.next(), Some(Ok(Event { name: "message", data: "b", id: "7" })));
}

#[test]
fn invalid_text_is_replaced_wherever_it_is_split() {
    let stream =
        b"event: n\xff\nid: \xf0\x9f\x98\ndata: \xe2\x82\xac \xe2\x82 \xf0\x9f\x98\x80\xc0\xaf\xed\xa0\x80\n\n";
    assert_eq!(whole_and_by_byte(100, stream), ["€ \u{FFFD} 😀\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}"]);
    let mut decoder = Decoder::new(100);
    let mut events = decoder.push(stream);
    let event = events.next().unwrap().unwrap();
    assert_eq!((event.name, event.id), ("n\u{FFFD}", "\u{FFFD}"));
}

/// The work for a stream in chunks of one size.
fn work(stream: &[u8], chunk: usize) -> Work {
    let mut decoder = Decoder::new(64 << 20);
    for chunk in stream.chunks(chunk) {
        let mut events = decoder.push(chunk);
        while let Some(event) = events.next() {
            event.unwrap();
        }
    }
    decoder.work
}

#[test]
fn no_byte_is_searched_twice_and_none_copied_or_checked_more_than_twice() {
    let line = |bytes: usize| [b"data: ".as_slice(), &b"x".repeat(bytes), b"\n\n"].concat();
    let events = b"event: some_name\nid: 12345\ndata: {\"a\":1}\ndata: second\n: comment\nother: x\n\n".repeat(2_000);
    let crlf = b"data: {\"choices\":[]}\r\n\r\n".repeat(2_000);
    let many_lines = [b"data: x\n".repeat(20_000).as_slice(), b"\n"].concat();
    for (stream, chunks) in [
        (line(200_000), [1, 2, 64, 1_460].as_slice()),
        (line(16 << 20), &[1_460, 16_384, 1 << 20]),
        (events, &[1, 2, 7, 64, 1_460, 16_384]),
        (crlf, &[1, 2, 7, 64, 1_460, 16_384]),
        (many_lines, &[1, 64, 16_384]),
    ] {
        for &chunk in chunks {
            let work = work(&stream, chunk);
            let len = stream.len();
            assert!(work.searched <= len, "{work:?} of {len} in chunks of {chunk}");
            assert!(work.copied <= 2 * len, "{work:?} of {len} in chunks of {chunk}");
            assert!(work.checked <= 2 * len, "{work:?} of {len} in chunks of {chunk}");
        }
    }
}

#[test]
fn an_event_within_a_chunk_is_not_copied() {
    let stream = b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\n".repeat(100);
    assert_eq!(work(&stream, stream.len()).copied, 0);
}

/// Entry P12 in `tests/README.md`.
#[test]
fn a_line_of_an_error_is_an_event_where_that_is_asked_for_however_the_stream_is_cut() {
    for (stream, expected) in [
        ("data: a\n\nerror: {\"code\":400}\n\n", vec![("message", "a"), ("error", "{\"code\":400}")]),
        ("error:x\n\n", vec![("error", "x")]),
        ("error: x\r\n\r\ndata: b\r\n\r\n", vec![("error", "x"), ("message", "b")]),
        (": comment\nerror: x\n\n", vec![("error", "x")]),
        ("id: 7\nerror: x\nretry: 1\n\n", vec![("error", "x")]),
        ("{\"error\":{\"code\":400}}\n\n", vec![("error", "{\"error\":{\"code\":400}}")]),
        ("data: a\n\nerrors: x\nerror\n\n", vec![("message", "a")]),
    ] {
        for size in [stream.len(), 1, 7, 3] {
            let read = |mut decoder: Decoder| {
                let mut found = Vec::new();
                for chunk in stream.as_bytes().chunks(size) {
                    let mut events = decoder.push(chunk);
                    while let Some(event) = events.next() {
                        let event = event.unwrap();
                        found.push((event.name.to_owned(), event.data.to_owned()));
                    }
                }
                found
            };
            let told = read(Decoder::new(1024).telling_errors());
            let told: Vec<(&str, &str)> = told.iter().map(|(name, data)| (&**name, &**data)).collect();
            assert_eq!(told, expected, "{stream:?} in chunks of {size}");
            assert!(read(Decoder::new(1024)).iter().all(|(name, _)| name == "message"), "the standard ignores it");
        }
    }
}
