//! Estimates the memory that a line takes once it is parsed as a request.
//!
//! The estimate is made before the line is parsed, from its characters alone: two bytes of JSON can take a hundred in
//! memory. It is about the real size or more, never much less. Pure.

use memchr::memchr2;

/// Bytes of an object: a map allocates room for eleven entries at once.
const OBJECT: usize = 640;
/// Bytes of an array: a list allocates room for four elements at once.
const ARRAY: usize = 160;
/// Bytes of each further element: its place, the places that are allocated ahead of need, and the allocation of its
/// text.
const ELEMENT: usize = 96;

/// An estimate of the bytes that a line takes as a request.
pub(in crate::control) fn of(line: &[u8]) -> usize {
    let (mut weight, mut at) = (line.len(), 0);
    while let Some(byte) = line.get(at) {
        at += 1;
        match byte {
            b'"' => at = end_of_text(line, at),
            b'{' => weight += OBJECT,
            b'[' => weight += ARRAY,
            b',' => weight += ELEMENT,
            _ => {}
        }
    }
    weight
}

/// The end of a text that begins at `from`. Most of a line is text, so it is searched many bytes at once.
fn end_of_text(line: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(found) = line.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found + 1;
        if line.get(at - 1) == Some(&b'"') {
            return at;
        }
        // The byte after a backslash does not end the text.
        at += 1;
    }
    line.len()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use harness_protocol::script::{Script, Turn};
    use serde_json::{Value, json};

    use super::*;

    fn weight(value: &Value) -> usize {
        of(value.to_string().as_bytes())
    }

    /// A7: names, turns, values and maps, each much larger in memory than on the wire.
    #[test]
    fn what_is_large_in_memory_weighs_as_much() {
        let names = json!(vec!["a"; 10_000]);
        assert!(weight(&names) >= 10_000 * (size_of::<String>() + 32));
        let turns = json!({"turn": vec![json!({}); 10_000]});
        assert!(weight(&turns) >= 10_000 * size_of::<Turn>());
        let args = json!({"turn": [{"call": [{"tool": "t", "args": vec![json!({"a": 1}); 1_000]}]}]});
        let script: Script = serde_json::from_value(args.clone()).unwrap();
        assert!(weight(&args) >= script.approximate_bytes());
        let numbers = json!(vec![0; 10_000]);
        assert!(weight(&numbers) >= 10_000 * size_of::<Value>());
        let labels: BTreeMap<String, String> = (0..5_000).map(|n| (n.to_string(), String::new())).collect();
        assert!(weight(&json!(labels)) >= 5_000 * 96);
    }

    #[test]
    fn signs_within_texts_weigh_nothing_more() {
        for text in ["{[,{[,", r#"a"{,"[\",{"#, "\\", "\\\",{", "ä,{"] {
            let line = serde_json::to_string(text).unwrap();
            assert_eq!(of(line.as_bytes()), line.len(), "{line}");
        }
        let line = br#"["\\",1]"#;
        assert_eq!(of(line), line.len() + ARRAY + ELEMENT);
        assert_eq!(of(b""), 0);
    }
}
