//! Tests unknown blocks of messages, and pieces that belong to no block.

use serde_json::{Value, json};

use harness_protocol::run::Usage;

use super::super::dialects::{Ended, HttpDialect, Piece, Quirks};
use super::{events, read_in_chunks, stream_of};
use crate::prompt::{Completion, ErrorClass};

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

/// P17: wherever an answer is paused, and however often, it is the answer that it would have been; what is sent back
/// to have the rest is what came.
#[test]
fn an_answer_that_is_paused_anywhere_is_the_same_answer() {
    let search = |id: &str| json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": "x"}});
    let found = |id: &str| json!({"type": "web_search_tool_result", "tool_use_id": id, "content": [{"title": "t"}]});
    let blocks = [
        json!({"type": "thinking", "thinking": "hm", "signature": "SIG"}),
        json!({"type": "text", "text": "Let me look. "}),
        search("s1"),
        found("s1"),
        json!({"type": "redacted_thinking", "data": "x"}),
        search("s2"),
        found("s2"),
        json!({"type": "text", "text": "It is 4."}),
        json!({"type": "tool_use", "id": "t", "name": "shell", "input": {"command": "ls"}}),
    ];
    let part = |blocks: &[Value], reason: &str| {
        let usage = json!({"input_tokens": 5, "output_tokens": 6});
        let start = json!({"type": "message_start", "message": {"usage": usage}});
        let whole = (0..).zip(blocks).map(|(index, block)| vec![begin(index, block), end(index)]);
        let all: Vec<Vec<Value>> = std::iter::once(vec![start]).chain(whole).collect();
        events(&stream(&all, reason))
    };
    let read = |cuts: &[usize]| {
        let mut reader = HttpDialect::Anthropic.reader(Quirks::default());
        let (mut from, mut shown) = (0, String::new());
        for (at, to) in cuts.iter().copied().chain([blocks.len()]).enumerate() {
            let reason = if to == blocks.len() { "tool_use" } else { "pause_turn" };
            for (name, data) in part(&blocks[from..to], reason) {
                let mut show = |piece: Piece<'_>| match piece {
                    Piece::Text(text) | Piece::Reasoning(text) => shown.push_str(text),
                };
                reader.event(&name, &data, &mut show).unwrap();
            }
            assert_eq!(reader.is_paused(), at < cuts.len(), "{cuts:?}");
            if reader.is_paused() {
                let said: Vec<Value> =
                    reader.as_said().iter().map(|block| serde_json::from_str(block.get()).unwrap()).collect();
                let mut came = blocks[..to].to_vec();
                // The last text is sent without its blanks.
                if let Some(text) = came.last_mut().filter(|block| block["type"] == "text") {
                    text["text"] = json!(text["text"].as_str().unwrap().trim_end());
                }
                assert_eq!(said, came, "{cuts:?}");
                reader.go_on();
            }
            from = to;
        }
        let completion = reader.finish(Ended::Clean).unwrap();
        assert_eq!(completion.usage.tokens(), 11 * (cuts.len() as u64 + 1), "{cuts:?}");
        (Completion { usage: Usage::default(), ..completion }, shown)
    };
    let whole = read(&[]);
    assert_eq!((whole.0.text.as_str(), whole.0.calls.len()), ("Let me look. It is 4.", 1));
    for first in 1..blocks.len() {
        assert_eq!(read(&[first]), whole, "paused at {first}");
        for second in first + 1..blocks.len() {
            assert_eq!(read(&[first, second]), whole, "paused at {first} and {second}");
        }
    }
}

/// The pieces of an unknown block become neither a call nor text (entry P1).
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
        // Beside one of the daemon's calls it is no call either, and the daemon's call is complete.
        let ours = vec![call(1), input(1, "{\"a\""), input(1, ":1}"), end(1)];
        let read = read_in_chunks(HttpDialect::Anthropic, &stream(&[blocks, ours], "tool_use"));
        assert_eq!(read.calls(), [("shell".to_owned(), "{\"a\":1}".to_owned(), None)], "{case}");
    }
}

/// A piece without its block makes a broken answer, and never a call (entry P1).
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

/// P1 and rule 9.
#[test]
fn calls_of_the_servers_own_go_back_with_their_results_and_never_without() {
    let start =
        |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let theirs = |kind: &str, id: &str| json!({"type": kind, "id": id, "name": "web_search", "input": {}});
    let result =
        |kind: &str, of: &str| json!({"type": kind, "tool_use_id": of, "content": [{"encrypted_content": "ENC=="}]});
    let args = json!({"type": "content_block_delta", "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": "{\"q\":\"x\"}"}});
    let ours = json!({"type": "tool_use", "id": "toolu_9", "name": "zz", "input": {"a": 1}});
    let search = "web_search_tool_result";
    for (blocks, goes_back) in [
        (vec![start(0, theirs("server_tool_use", "s")), args.clone(), start(1, result(search, "s"))], true),
        (vec![start(0, theirs("mcp_tool_use", "s")), args.clone(), start(1, result("mcp_tool_result", "s"))], true),
        (
            vec![
                start(0, theirs("server_tool_use", "s")),
                args.clone(),
                start(1, result("bash_code_execution_tool_result", "s")),
            ],
            true,
        ),
        (vec![start(0, theirs("server_tool_use", "s")), args.clone()], false),
        (vec![start(0, theirs("server_tool_use", "s")), args, start(1, result(search, "other"))], false),
        (vec![start(0, result(search, "s"))], false),
        (vec![start(0, json!({"type": "made_up", "id": "s"}))], false),
    ] {
        let stop = |index: u64| json!({"type": "content_block_stop", "index": index});
        let end = [start(2, ours.clone()), stop(2), json!({"type": "message_stop"})];
        let events: Vec<String> = blocks.iter().chain(&end).map(Value::to_string).collect();
        let read = read_in_chunks(HttpDialect::Anthropic, &stream_of(&events));
        assert_eq!(read.calls(), [("zz".to_owned(), "{\"a\":1}".to_owned(), None)], "{blocks:?}");
        let carried = read.end.unwrap().carried;
        assert_eq!(carried.is_some(), goes_back, "{blocks:?}");
        let Some(carried) = carried else { continue };
        let parts: Value = serde_json::from_str(&carried.parts).unwrap();
        assert_eq!(parts[0]["block"]["input"], json!({"q": "x"}), "{parts}");
        assert_eq!((&parts[1]["block"]["tool_use_id"], &parts[2]), (&json!("s"), &json!("call")), "{parts}");
        assert_eq!(parts[1]["block"]["content"][0]["encrypted_content"], "ENC==", "{parts}");
    }
}
