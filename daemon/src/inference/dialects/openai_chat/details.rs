//! Assembles structured reasoning (`reasoning_details` of OpenRouter, `thinking_blocks` of LiteLLM) from its pieces. It
//! has to go back unchanged in the request that carries the results of the calls.
//!
//! A piece continues the part before it if type, index and id agree. In a part that continues, texts grow and every
//! other field takes its last value. Encrypted data comes whole, so a second one is another part.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::inference::common::answer_limit::{ITEM, Room};
use crate::prompt::InferenceError;

/// What grows from piece to piece.
const TEXTS: [&str; 3] = ["text", "summary", "thinking"];

/// The parts so far.
#[derive(Debug, Default)]
pub(super) struct Details(Vec<Map<String, Value>>);

impl Details {
    /// Adds the pieces of one chunk. What has no such form is nothing that could be sent back.
    pub(super) fn add(&mut self, pieces: &RawValue, room: &mut Room) -> Result<(), InferenceError> {
        let Ok(pieces) = serde_json::from_str::<Option<Vec<Map<String, Value>>>>(pieces.get()) else { return Ok(()) };
        for piece in pieces.into_iter().flatten() {
            let texts = piece.values().filter_map(Value::as_str).map(str::len);
            room.take_bytes(texts.sum::<usize>() + ITEM)?;
            match self.0.last_mut().filter(|part| continues(part, &piece)) {
                Some(part) => grow(part, piece),
                None => self.0.push(piece),
            }
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, if there are any.
    pub(super) fn finish(self) -> Option<Box<RawValue>> {
        if self.0.is_empty() { None } else { to_raw_value(&self.0).ok() }
    }
}

fn continues(part: &Map<String, Value>, piece: &Map<String, Value>) -> bool {
    let said = |of: &Map<String, Value>, key| of.get(key).filter(|value| !value.is_null()).cloned();
    let same = |key| said(part, key) == said(piece, key);
    let other_id = said(piece, "id").is_some() && !same("id");
    // A signature ends a part, where no index tells it from the next one.
    let texts = TEXTS.iter().any(|key| piece.get(*key).and_then(Value::as_str).is_some_and(|text| !text.is_empty()));
    let ended = texts && said(part, "index").is_none() && said(part, "signature").is_some();
    same("type") && same("index") && !other_id && !ended && said(piece, "data").is_none()
}

fn grow(part: &mut Map<String, Value>, piece: Map<String, Value>) {
    for (key, value) in piece {
        match (part.get_mut(&key), value) {
            (_, Value::Null) => {}
            (Some(Value::String(text)), Value::String(more)) if TEXTS.contains(&&*key) => text.push_str(&more),
            (_, value) => _ = part.insert(key, value),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn gathered(chunks: &[Value]) -> Value {
        let (mut details, mut room) = (Details::default(), Room::default());
        for chunk in chunks {
            details.add(&to_raw_value(chunk).unwrap(), &mut room).unwrap();
        }
        details.finish().map_or(Value::Null, |json| serde_json::from_str(json.get()).unwrap())
    }

    #[test]
    fn texts_of_a_part_grow_and_its_signature_comes_last() {
        let piece = |text: &str| json!([{"type": "reasoning.text", "text": text, "format": "f", "index": 0}]);
        let signed = json!([{"type": "reasoning.text", "signature": "sig", "text": null, "index": 0}]);
        let whole =
            json!([{"type": "reasoning.text", "text": "I think so.", "format": "f", "index": 0, "signature": "sig"}]);
        assert_eq!(gathered(&[piece("I think"), piece(" so."), signed]), whole);
    }

    #[test]
    fn encrypted_parts_and_parts_of_another_index_type_or_id_stay_apart() {
        let data = |data: &str| json!([{"type": "reasoning.encrypted", "data": data}]);
        assert_eq!(gathered(&[data("a"), data("b")]).as_array().unwrap().len(), 2);
        let part = |kind: &str, index: u64, id: &str| json!([{"type": kind, "index": index, "id": id, "text": "x"}]);
        let apart = [part("t", 0, "1"), part("t", 1, "1"), part("u", 1, "1"), part("u", 1, "2")];
        assert_eq!(gathered(&apart).as_array().unwrap().len(), 4);
    }

    #[test]
    fn what_has_no_such_form_is_left_out() {
        assert_eq!(gathered(&[json!(null), json!("text"), json!({"a": 1}), json!([])]), Value::Null);
    }
}
