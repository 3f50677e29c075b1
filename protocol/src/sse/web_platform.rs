//! Restates the public web-platform tests for event streams: the bytes of a stream, and the events that a reader gets.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::Decoder;

/// A stream, the events that it dispatches (name, data, id), the cursor afterwards and the time to wait.
struct Case {
    what: &'static str,
    stream: &'static [u8],
    events: &'static [(&'static str, &'static str, &'static str)],
    id: &'static str,
    retry: Option<u64>,
}

const fn case(
    what: &'static str,
    stream: &'static [u8],
    events: &'static [(&'static str, &'static str, &'static str)],
) -> Case {
    Case { what, stream, events, id: "", retry: None }
}

const CASES: &[Case] = &[
    case(
        "a byte order mark at the start is passed over, a later one is part of its line",
        b"\xEF\xBB\xBFdata:1\n\n\xEF\xBB\xBFdata:2\n\ndata:3\n\n",
        &[("message", "1", ""), ("message", "3", "")],
    ),
    case(
        "of two byte order marks the second is part of the first line",
        b"\xEF\xBB\xBF\xEF\xBB\xBFdata:1\n\ndata:2\n\ndata:3\n\n",
        &[("message", "2", ""), ("message", "3", "")],
    ),
    case("half a byte order mark is part of the first line", b"\xEF\xBBdata:1\n\ndata:2\n\n", &[("message", "2", "")]),
    case(
        "comments between the lines of an event, of any content and with any line end",
        b"data:1\r:\0\n:\r\ndata:2\n:loooong\rdata:3\n:data:fail\r:loooong\ndata:4\n\n",
        &[("message", "1\n2\n3\n4", "")],
    ),
    case(
        "an event without its blank line is dropped",
        b"data:test1\n\nid:test\ndata:test2",
        &[("message", "test1", "")],
    ),
    case("a last line without its end is dropped", b"data:test1\n\nid:test\ndata:test2\n", &[("message", "test1", "")]),
    case(
        "data that is empty is dispatched",
        b"data:\n\ndata\ndata\n\ndata:test\n\n",
        &[("message", "", ""), ("message", "\n", ""), ("message", "test", "")],
    ),
    case(
        "lines of data are joined, blank lines alone dispatch nothing",
        b"data:msg\ndata:msg\n\n:\n\nfalsefield:msg\n\n\n\nData:data\n\ndata\n\ndata:end\n\n",
        &[("message", "msg\nmsg", ""), ("message", "", ""), ("message", "end", "")],
    ),
    case("an empty name is the default one", b"event: \ndata:data\n\n", &[("message", "data", "")]),
    case("an empty name takes back the one before it", b"event:x\nevent\ndata:data\n\n", &[("message", "data", "")]),
    case(
        "a name is that of one event only",
        b"event:test\ndata:x\n\ndata:x\n\n",
        &[("test", "x", ""), ("message", "x", "")],
    ),
    case("a name without data is forgotten", b"event:test\n\ndata:x\n\n", &[("message", "x", "")]),
    case("of several names the last one counts", b"event:a\nevent:b\ndata:x\n\n", &[("b", "x", "")]),
    Case {
        what: "an id is opaque, and not of ASCII only",
        stream: "id:…\ndata:hello\n\n".as_bytes(),
        events: &[("message", "hello", "…")],
        id: "…",
        retry: None,
    },
    Case {
        what: "an id holds until there is another",
        stream: b"id: 1\ndata: 1\n\ndata: 2\n\nid: 2\ndata:3\n\ndata:4\n\n",
        events: &[("message", "1", "1"), ("message", "2", "1"), ("message", "3", "2"), ("message", "4", "2")],
        id: "2",
        retry: None,
    },
    case(
        "an empty id resets",
        b"id: 1\ndata: 1\n\nid:\ndata:2\n\ndata:3\n\n",
        &[("message", "1", "1"), ("message", "2", ""), ("message", "3", "")],
    ),
    case(
        "an id without a colon resets",
        b"id: 1\ndata: 1\n\nid\ndata:2\n\ndata:3\n\n",
        &[("message", "1", "1"), ("message", "2", ""), ("message", "3", "")],
    ),
    Case {
        what: "an id moves the cursor also without data",
        stream: b"id: 1\ndata: 1\n\nid: 2\n\n",
        events: &[("message", "1", "1")],
        id: "2",
        retry: None,
    },
    case(
        "an id with NUL anywhere is ignored",
        b"id:\0\0\ndata:1\n\nid:x\0\ndata:2\n\nid:\0x\ndata:3\n\nid:x\0x\ndata:4\n\nid: \0\ndata:5\n\n",
        &[("message", "1", ""), ("message", "2", ""), ("message", "3", ""), ("message", "4", ""), ("message", "5", "")],
    ),
    Case {
        what: "an ignored id leaves the one before it",
        stream: b"id:7\nid:x\0\ndata:1\n\n",
        events: &[("message", "1", "7")],
        id: "7",
        retry: None,
    },
    case(
        "names of fields are exact, NUL is a character like others",
        b"data:\0\ndata:  2\rData:1\ndata\0:2\ndata:1\r\0data:4\nda-ta:3\rdata_5\n\
          data:3\rdata:\r\n data:32\ndata:4\n\n",
        &[("message", "\0\n 2\n1\n3\n\n4", "")],
    ),
    Case {
        what: "a time to wait is decimal, leading zeros and all",
        stream: b"retry:03000\ndata:x\n\n",
        events: &[("message", "x", "")],
        id: "",
        retry: Some(3000),
    },
    Case {
        what: "a time to wait with something else in it is ignored",
        stream: b"retry:3000\nretry:1000x\ndata:x\n\n",
        events: &[("message", "x", "")],
        id: "",
        retry: Some(3000),
    },
    case("an empty time to wait is ignored", b"retry\ndata:test\n\n", &[("message", "test", "")]),
    Case { what: "a time to wait counts at once", stream: b"retry:1000\n", events: &[], id: "", retry: Some(1000) },
    case(
        "unknown fields and lines are ignored",
        b"data:test\n data\ndata\nfoobar:xxx\njustsometext\n:thisisacommentyay\ndata:test\n\n",
        &[("message", "test\n\ntest", "")],
    ),
    case("only one space is framing", b"data:\ttest\rdata: \ndata:test\n\n", &[("message", "\ttest\n\ntest", "")]),
    case(
        "line ends of all kinds in one event",
        b"data:test\r\ndata\ndata:test\r\n\r",
        &[("message", "test\n\ntest", "")],
    ),
    case(
        "a line feed after a carriage return is no blank line",
        b"data:a\r\ndata:b\r\n\r\n",
        &[("message", "a\nb", "")],
    ),
    case(
        "two carriage returns are a blank line",
        b"data:a\r\rdata:b\r\r",
        &[("message", "a", ""), ("message", "b", "")],
    ),
    case(
        "LF CR is a line end and a blank line",
        b"data:a\n\rdata:b\n\r",
        &[("message", "a", ""), ("message", "b", "")],
    ),
    case("NUL in data", b"data:\0\n\n", &[("message", "\0", "")]),
    case("always UTF-8", b"data:ok\xE2\x80\xA6\n\n", &[("message", "ok\u{2026}", "")]),
    case(
        "what is no UTF-8 is replaced",
        b"data:a\xFFb\xE2\x80\n\ndata:c\n\n",
        &[("message", "a\u{FFFD}b\u{FFFD}", ""), ("message", "c", "")],
    ),
    case("an endless stream of blank lines is nothing", b"\n\r\r\n\n\n\r", &[]),
    case("a stream of nothing", b"", &[]),
];

#[test]
fn the_public_cases_hold_whole_and_in_chunks_of_every_size() {
    for Case { what, stream, events, id, retry } in CASES {
        for chunk in 1..=stream.len().max(1) {
            let mut decoder = Decoder::new(1000);
            let mut found = Vec::new();
            for chunk in stream.chunks(chunk) {
                let mut events = decoder.push(chunk);
                while let Some(event) = events.next() {
                    let event = event.unwrap();
                    found.push((event.name.to_owned(), event.data.to_owned(), event.id.to_owned()));
                }
            }
            let found: Vec<_> =
                found.iter().map(|(name, data, id)| (name.as_str(), data.as_str(), id.as_str())).collect();
            assert_eq!(found, *events, "{what}, in chunks of {chunk}");
            assert_eq!(decoder.last_event_id(), *id, "{what}, in chunks of {chunk}");
            assert_eq!(decoder.retry(), retry.map(Duration::from_millis), "{what}, in chunks of {chunk}");
        }
    }
}
