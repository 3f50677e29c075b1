//! Encodes the events of our own streams as text. The only place with their format. It must not interpret what an event
//! contains.

use std::fmt::Display;
use std::io::Write;

use super::cursor::Cursor;
use super::name::EventName;

/// The lines before the data of an event that we send.
///
/// ```
/// use harness_protocol::id::Seq;
/// use harness_protocol::sse::{Cursor, EventName, Frame};
///
/// let mut out = Vec::new();
/// let frame = Frame { event: Some(EventName::new("run-finished")?), id: Some(Cursor(Seq(7))) };
/// frame.text("one\ntwo", &mut out);
/// assert_eq!(out, b"event: run-finished\nid: 7\ndata: one\ndata: two\n\n");
/// # Ok::<(), harness_protocol::sse::EventNameError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frame<'a> {
    /// Name of the event. Without one, readers call it `message`.
    pub event: Option<EventName<'a>>,
    /// The cursor of a reader that has seen the event.
    pub id: Option<Cursor>,
}

impl Frame<'_> {
    /// Appends an event with `payload`: one data line for each of its lines. LF, CR and CRLF alike are line breaks, and
    /// all are read back as LF.
    pub fn text(&self, payload: &str, out: &mut Vec<u8>) {
        self.head(out);
        lines(payload.as_bytes(), out);
        out.push(b'\n');
    }

    /// Appends an event with `payload` as JSON.
    ///
    /// # Errors
    /// Only if `payload` has no JSON form, such as a map whose keys are not texts; nothing is appended then.
    pub fn json<T: serde::Serialize + ?Sized>(&self, payload: &T, out: &mut Vec<u8>) -> serde_json::Result<()> {
        let start = out.len();
        self.head(out);
        out.extend_from_slice(b"data: ");
        let json = out.len();
        if let Err(error) = serde_json::to_writer(&mut *out, payload) {
            out.truncate(start);
            return Err(error);
        }
        // Only raw JSON of other programs has line breaks, between its tokens.
        if memchr::memchr2(b'\n', b'\r', &out[json..]).is_some() {
            let broken = out.split_off(json);
            out.truncate(json - b"data: ".len());
            lines(&broken, out);
        } else {
            out.push(b'\n');
        }
        out.push(b'\n');
        Ok(())
    }

    fn head(&self, out: &mut Vec<u8>) {
        if let Some(event) = self.event {
            field("event", event.as_str(), out);
        }
        if let Some(id) = self.id {
            field("id", id, out);
        }
    }
}

/// Appends a comment, which readers skip: it shows that the connection lives.
pub fn keep_alive(out: &mut Vec<u8>) {
    out.extend_from_slice(b":\n\n");
}

fn field(name: &str, value: impl Display, out: &mut Vec<u8>) {
    // A write to memory cannot fail.
    let _ = writeln!(out, "{name}: {value}");
}

/// Appends a data line for each line of the payload: `k` line breaks make `k + 1` data lines.
fn lines(mut payload: &[u8], out: &mut Vec<u8>) {
    loop {
        let end = memchr::memchr2(b'\n', b'\r', payload);
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(&payload[..end.unwrap_or(payload.len())]);
        out.push(b'\n');
        let Some(end) = end else { return };
        let is_crlf = payload[end..].starts_with(b"\r\n");
        payload = &payload[end + if is_crlf { 2 } else { 1 }..];
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::Decoder;
    use super::*;
    use crate::id::Seq;
    use proptest::prelude::*;

    fn text(payload: &str) -> String {
        let mut out = Vec::new();
        Frame::default().text(payload, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_line_of_the_payload_is_a_data_line() {
        assert_eq!(text(""), "data: \n\n");
        assert_eq!(text("\n"), "data: \ndata: \n\n");
        assert_eq!(text(" a\n\nb\n"), "data:  a\ndata: \ndata: b\ndata: \n\n");
    }

    #[test]
    fn a_carriage_return_is_a_line_break_and_with_a_line_feed_one_only() {
        assert_eq!(text("a\rb\r\nc\n\rd"), "data: a\ndata: b\ndata: c\ndata: \ndata: d\n\n");
    }

    #[test]
    fn json_is_one_line_also_where_a_raw_part_of_it_has_line_breaks() {
        let mut out = Vec::new();
        Frame::default().json(&serde_json::json!({"text": "a\nb\r"}), &mut out).unwrap();
        assert_eq!(out, b"data: {\"text\":\"a\\nb\\r\"}\n\n");
        let raw = serde_json::value::RawValue::from_string("[\n1]".to_owned()).unwrap();
        out.clear();
        Frame::default().json(&raw, &mut out).unwrap();
        assert_eq!(out, b"data: [\ndata: 1]\n\n");
    }

    #[test]
    fn a_value_without_a_json_form_leaves_nothing_behind() {
        let mut out = b"before".to_vec();
        let broken = std::collections::BTreeMap::from([(vec![1], 2)]);
        assert!(Frame { event: None, id: Some(Cursor(Seq(1))) }.json(&broken, &mut out).is_err());
        assert_eq!(out, b"before");
    }

    #[test]
    fn a_keep_alive_is_no_event() {
        let mut out = Vec::new();
        keep_alive(&mut out);
        let mut decoder = Decoder::new(10);
        assert!(decoder.push(&out).next().is_none());
        assert!(!decoder.is_inside_event());
    }

    fn payload() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("\n".to_owned()),
            Just("\r".to_owned()),
            Just("\r\n".to_owned()),
            Just("data: x".to_owned()),
            Just(":".to_owned()),
            Just(" ".to_owned()),
            Just("\u{FEFF}".to_owned()),
            "\\PC{0,6}",
            any::<char>().prop_map(String::from),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn written_frames_are_read_back(
            frames in proptest::collection::vec(
                (proptest::option::of("[^\r\n]{1,12}"), proptest::option::of(any::<u64>()), payload()),
                1..6,
            ),
            chunk in 1usize..40,
        ) {
            let mut stream = Vec::new();
            let mut sent = Vec::new();
            let mut cursor = String::new();
            for (name, id, payload) in &frames {
                let event = name.as_deref().map(|name| EventName::new(name).unwrap());
                Frame { event, id: id.map(|id| Cursor(Seq(id))) }.text(payload, &mut stream);
                keep_alive(&mut stream);
                if let Some(id) = id {
                    cursor = id.to_string();
                }
                let data = payload.replace("\r\n", "\n").replace('\r', "\n");
                sent.push((name.clone().unwrap_or("message".into()), data, cursor.clone()));
            }
            let mut decoder = Decoder::new(10_000);
            let mut read = Vec::new();
            for chunk in stream.chunks(chunk) {
                let mut events = decoder.push(chunk);
                while let Some(event) = events.next() {
                    let event = event.unwrap();
                    read.push((event.name.to_owned(), event.data.to_owned(), event.id.to_owned()));
                }
            }
            prop_assert_eq!(read, sent);
            prop_assert!(!decoder.is_inside_event());
        }
    }
}
