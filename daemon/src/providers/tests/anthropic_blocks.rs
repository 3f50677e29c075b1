//! Blocks of messages that are none of ours, and pieces that belong to none.

use serde_json::{Value, json};

use super::super::dialect::HttpDialect;
use super::{read_in_chunks, stream_of};
use crate::prompt::ErrorClass;

fn begin(index: u64, block: &Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn piece(index: u64, delta: &Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn end(index: u64) -> Value {
    json!({"type": "content_block_stop", "index": index})
}

fn input(index: u64, json: &str) -> Value {
    piece(index, &json!({"type": "input_json_delta", "partial_json": json}))
}

fn says(index: u64, text: &str) -> Value {
    piece(index, &json!({"type": "text_delta", "text": text}))
}

fn text(index: u64, text: &str) -> Vec<Value> {
    vec![begin(index, &json!({"type": "text", "text": ""})), says(index, text), end(index)]
}

fn call(index: u64) -> Value {
    begin(index, &json!({"type": "tool_use", "id": "t", "name": "shell", "input": {}}))
}

fn stream(events: &[Vec<Value>], reason: &str) -> String {
    let last = [json!({"type": "message_delta", "delta": {"stop_reason": reason}}), json!({"type": "message_stop"})];
    let events: Vec<String> = events.iter().flatten().chain(&last).map(Value::to_string).collect();
    stream_of(&events)
}

/// P1.
#[test]
fn what_comes_for_a_block_that_is_not_ours_is_no_call_and_no_text() {
    let unknown = |block: Value, pieces: Vec<Value>| [vec![begin(0, &block)], pieces, vec![end(0)]].concat();
    for (case, blocks) in [
        (
            "a search of the server's",
            unknown(
                json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
                vec![input(0, "{\"query\""), input(0, ":\"x\"}")],
            ),
        ),
        (
            "a call of code that the server runs",
            unknown(
                json!({"type": "code_execution_tool_use", "name": "shell", "id": "c", "input": {"code": "1"}}),
                vec![input(0, "")],
            ),
        ),
        ("a call that names no tool", unknown(json!({"type": "mcp_tool_use", "id": "m"}), vec![input(0, "{}")])),
        (
            "text of an unknown kind",
            unknown(json!({"type": "compaction", "content": "SECRET"}), vec![says(0, "SECRET"), says(0, " SECRET")]),
        ),
        (
            "thinking and a signature of an unknown kind",
            unknown(
                json!({"type": "plan"}),
                vec![
                    piece(0, &json!({"type": "thinking_delta", "thinking": "SECRET"})),
                    piece(0, &json!({"type": "signature_delta", "signature": "SECRET"})),
                ],
            ),
        ),
        ("a block without a kind", unknown(json!({"text": "SECRET"}), vec![says(0, "SECRET")])),
        ("a block that is no object", unknown(json!("text"), vec![says(0, "SECRET")])),
        ("a kind that is no text", unknown(json!({"type": 7}), vec![input(0, "{}")])),
        (
            "all kinds of pieces at once",
            unknown(json!({"type": "new"}), vec![says(0, "SECRET"), input(0, "{\"a\":1}")]),
        ),
    ] {
        let read = read_in_chunks(HttpDialect::Anthropic, &stream(&[blocks.clone(), text(1, "hi")], "end_turn"));
        assert_eq!((read.text.as_str(), read.reasoning.as_str(), read.calls().len()), ("hi", "", 0), "{case}");
        let completion = read.end.unwrap();
        assert_eq!(completion.text, "hi", "{case}");
        assert!(!format!("{completion:?}").contains("SECRET"), "{case}");
        // Beside a call of ours it is none, either, and that one is whole.
        let ours = vec![call(1), input(1, "{\"a\""), input(1, ":1}"), end(1)];
        let read = read_in_chunks(HttpDialect::Anthropic, &stream(&[blocks, ours], "tool_use"));
        assert_eq!(read.calls(), [("shell".to_owned(), "{\"a\":1}".to_owned(), None)], "{case}");
    }
}

/// P1.
#[test]
fn a_piece_without_its_block_is_a_broken_answer_and_never_a_call() {
    let thought = |index| piece(index, &json!({"type": "thinking_delta", "thinking": "hm"}));
    for (case, blocks) in [
        ("input beside its call", vec![call(1), input(2, "{\"a\":1}"), end(1)]),
        ("input before its call", vec![input(0, "{}"), call(0), end(0)]),
        ("input of nothing at all", vec![input(7, "{\"command\":\"ls\"}")]),
        ("input for a text", [text(0, "hi"), vec![input(0, "{}")]].concat()),
        ("text for a call", vec![call(0), says(0, "hi"), end(0)]),
        ("text of nothing", vec![says(0, "hi")]),
        ("thinking beside its block", vec![begin(0, &json!({"type": "thinking", "thinking": ""})), thought(1)]),
        ("a call without input whose end did not come", [text(0, "hi"), vec![call(1), end(2)]].concat()),
        ("a call without a name", vec![begin(0, &json!({"type": "tool_use", "id": "t"})), input(0, "{}"), end(0)]),
    ] {
        let read = read_in_chunks(HttpDialect::Anthropic, &stream(&[blocks], "tool_use"));
        assert_eq!(read.class(), ErrorClass::Retry, "{case}");
    }
}
