//! Tests that content counts once if it comes twice: in pieces and whole, under the same ids or under others.
#![allow(clippy::needless_pass_by_value)] // a table of events reads better without signs of borrowing

use serde_json::{Value, json};

use super::super::dialects::HttpDialect;
use super::{Read, read_in_chunks, stream_of};

use HttpDialect::{Anthropic, OpenAi, Responses};

fn stream(events: &[Value]) -> String {
    stream_of(&events.iter().map(Value::to_string).collect::<Vec<_>>())
}

/// An item of a call by these ids.
fn item(id: Value, call_id: &str, args: &str) -> Value {
    json!({"type": "function_call", "id": id, "call_id": call_id, "name": "zz", "arguments": args})
}

fn added(index: Value, item: Value) -> Value {
    json!({"type": "response.output_item.added", "output_index": index, "item": item})
}

fn done(index: Value, item: Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": index, "item": item})
}

fn args(id: &str, index: u64, piece: &str) -> Value {
    json!({"type": "response.function_call_arguments.delta", "item_id": id, "output_index": index, "delta": piece})
}

fn completed(output: Value) -> Value {
    json!({"type": "response.completed", "response": {"status": "completed", "output": output}})
}

fn call_args(read: &Read) -> Vec<String> {
    let calls = read.calls().into_iter();
    calls.map(|(_, args, unusable)| unusable.unwrap_or(args)).collect()
}

/// A call that ends under other ids than it began is made once (entry P9).
#[test]
fn a_call_that_ends_by_other_ids_than_it_began_by_is_made_once() {
    let one = r#"{"a":1}"#;
    let begin = |args: &str| added(json!(0), item(json!("fc_1"), "call_1", args));
    for (events, expected) in [
        // The item's id says which one it is, whatever the call is called.
        (vec![begin(""), args("fc_1", 0, one), done(json!(0), item(json!("fc_1"), "call_2", one))], vec![one]),
        (vec![begin(""), done(json!(7), item(json!("fc_1"), "call_2", one))], vec![one]),
        // No id is known: the place, the name and the arguments say it.
        (vec![begin(""), args("fc_1", 0, one), done(json!(0), item(json!(null), "fc_2", one))], vec![one]),
        (vec![begin(""), args("fc_1", 0, one), done(json!(0), item(json!("fc_2"), "call_2", one))], vec![one]),
        (
            vec![begin(""), args("fc_1", 0, one), done(json!(0), item(json!("x"), "y", "{ \"a\": 1 }"))],
            vec!["{ \"a\": 1 }"],
        ),
        (vec![begin(""), done(json!(0), item(json!("fc_2"), "call_2", one))], vec![one]),
        (vec![begin(""), args("fc_1", 0, "{\"a\""), done(json!(0), item(json!("fc_2"), "call_2", one))], vec![one]),
        (vec![begin(one), done(json!(0), item(json!(""), "call_2", one))], vec![one]),
        // Two calls stay two.
        (
            vec![
                begin(one),
                done(json!(0), item(json!("fc_1"), "call_1", one)),
                done(json!(0), item(json!("f"), "c", one)),
            ],
            vec![one, one],
        ),
        (
            vec![begin(""), args("fc_1", 0, one), done(json!(0), item(json!("f"), "c", r#"{"a":2}"#))],
            vec![one, r#"{"a":2}"#],
        ),
        (vec![begin(one), done(json!(1), item(json!("f"), "c", one))], vec![one, one]),
        (
            vec![
                begin(""),
                added(json!(0), item(json!("fc_2"), "call_2", "")),
                done(json!(0), item(json!("fc_2"), "call_2", r#"{"a":2}"#)),
                done(json!(0), item(json!("fc_1"), "call_1", one)),
            ],
            vec![one, r#"{"a":2}"#],
        ),
    ] {
        for last in [json!([]), json!([item(json!("fc_Q"), "call_Q", one)])] {
            let events: Vec<Value> = events.iter().cloned().chain([completed(last)]).collect();
            assert_eq!(call_args(&read_in_chunks(Responses, &stream(&events))), expected, "{events:?}");
        }
    }
}

/// Items that only the list at the end contains count, and streamed items stay (entry P3).
#[test]
fn what_only_the_list_at_the_end_has_counts_and_takes_nothing_away() {
    let one = r#"{"a":1}"#;
    let text =
        |id: &str, text: &str| json!({"type": "message", "id": id, "content": [{"type": "output_text", "text": text}]});
    let delta =
        |piece: &str| json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": piece});
    for (events, output, said, calls) in [
        (vec![delta("Hel")], json!([text("m", "Hello")]), "Hello", vec![]),
        (vec![delta("Hel")], json!([text("other", "Hello")]), "Hello", vec![]),
        (vec![delta("Hello")], json!([text("m", "Hel")]), "Hello", vec![]),
        (vec![delta("Hello")], json!([]), "Hello", vec![]),
        (vec![delta("Hello")], json!([text("m", "Goodbye, all")]), "Hello", vec![]),
        (vec![added(json!(0), text("m", ""))], json!([text("m", "Hello")]), "Hello", vec![]),
        (vec![], json!([text("m", "Hello")]), "Hello", vec![]),
        (
            vec![added(json!(0), item(json!("f"), "c", "")), args("f", 0, "{\"a\"")],
            json!([item(json!("f"), "c", one)]),
            "",
            vec![one],
        ),
        (vec![added(json!(0), item(json!("f"), "c", ""))], json!([item(json!("g"), "d", one)]), "", vec![one]),
        (
            vec![added(json!(1), item(json!("f"), "c", one)), done(json!(1), item(json!("f"), "c", one))],
            json!([text("m", "Hello"), item(json!("f"), "c", r#"{"a":2}"#)]),
            "Hello",
            vec![one],
        ),
        (
            vec![json!({"type": "response.output_text.done", "item_id": "m", "output_index": 0, "text": "Hello"})],
            json!([]),
            "Hello",
            vec![],
        ),
        (
            vec![
                delta("Hel"),
                json!({"type": "response.content_part.done", "item_id": "m", "output_index": 0,
                    "part": {"type": "output_text", "text": "Hello"}}),
            ],
            json!([]),
            "Hello",
            vec![],
        ),
    ] {
        let events: Vec<Value> = events.iter().cloned().chain([completed(output)]).collect();
        let read = read_in_chunks(Responses, &stream(&events));
        assert_eq!(read.text, said, "shown: {events:?}");
        assert_eq!(call_args(&read), calls, "{events:?}");
        assert_eq!(read.end.unwrap().text, said, "{events:?}");
    }
}

/// A text that is announced and then streamed appears once (entry P10).
#[test]
fn a_text_that_is_announced_is_not_said_twice() {
    for (announced, pieces, expected) in [
        ("Hello", &["Hello"][..], "Hello"),
        ("Hel", &["Hello"], "Hello"),
        ("Hello", &["Hel", "lo"], "Hello"),
        ("Hello", &["Hel", "lo", " there"], "Hello there"),
        ("Hel", &["lo"], "Hello"),
        ("Hello", &[], "Hello"),
        ("", &["Hel", "lo"], "Hello"),
    ] {
        let start = |kind: &str| {
            let block = json!({"type": kind, kind: announced});
            json!({"type": "content_block_start", "index": 0, "content_block": block})
        };
        let pieces_of = |kind: &str| -> Vec<Value> {
            let delta = |piece: &&str| json!({"type": format!("{kind}_delta"), kind: piece});
            let event = |piece| json!({"type": "content_block_delta", "index": 0, "delta": delta(piece)});
            pieces.iter().map(event).collect()
        };
        let end = [json!({"type": "content_block_stop", "index": 0}), json!({"type": "message_stop"})];
        let of_text = [vec![start("text")], pieces_of("text"), end.to_vec()].concat();
        let read = read_in_chunks(Anthropic, &stream(&of_text));
        assert_eq!((read.text.as_str(), read.end.unwrap().text.as_str()), (expected, expected), "{of_text:?}");
        let of_thinking = [vec![start("thinking")], pieces_of("thinking"), end.to_vec()].concat();
        assert_eq!(read_in_chunks(Anthropic, &stream(&of_thinking)).reasoning, expected, "{of_thinking:?}");
        let message =
            |text: &str| json!({"type": "message", "id": "m", "content": [{"type": "output_text", "text": text}]});
        let piece = |piece: &&str| {
            json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 0,
                "delta": piece})
        };
        let events: Vec<Value> = std::iter::once(added(json!(0), message(announced)))
            .chain(pieces.iter().map(piece))
            .chain([completed(json!([]))])
            .collect();
        let read = read_in_chunks(Responses, &stream(&events));
        assert_eq!((read.text.as_str(), read.end.unwrap().text.as_str()), (expected, expected), "{events:?}");
        // A message that has no place, and ends by another id.
        let whole = json!({"type": "message", "id": "other", "content": [{"type": "output_text", "text": expected}]});
        let events: Vec<Value> = std::iter::once(added(json!(null), message(announced)))
            .chain(
                pieces
                    .iter()
                    .map(|piece| json!({"type": "response.output_text.delta", "item_id": "m", "delta": piece})),
            )
            .chain([done(json!(null), whole), completed(json!([]))])
            .collect();
        assert_eq!(read_in_chunks(Responses, &stream(&events)).end.unwrap().text, expected, "{events:?}");
    }
}

/// A whole message at the end replaces the streamed pieces (entry P10).
#[test]
fn a_message_at_the_end_takes_the_place_of_what_came_in_pieces() {
    let call = |id: &str, args: &str| json!({"id": id, "function": {"name": "zz", "arguments": args}});
    let at = |index: u64, mut call: Value| {
        call["index"] = json!(index);
        call
    };
    let one = r#"{"a":1}"#;
    for (pieces, message, text, reasoning, calls) in [
        (vec![json!({"content": "Hel"}), json!({"content": "lo"})], json!({"content": "Hello"}), "Hello", "", vec![]),
        (vec![json!({"content": "Hel"})], json!({"content": "Hello"}), "Hello", "", vec![]),
        (vec![json!({"content": "Hello"})], json!({"content": ""}), "Hello", "", vec![]),
        (vec![json!({"content": "Hello"})], json!({"role": "assistant"}), "Hello", "", vec![]),
        (vec![], json!({"content": "Hello", "reasoning": "hm"}), "Hello", "hm", vec![]),
        (
            vec![json!({"reasoning_content": "h"}), json!({"reasoning_content": "m", "content": "Hi"})],
            json!({"content": "Hi", "reasoning_content": "hm"}),
            "Hi",
            "hm",
            vec![],
        ),
        (
            vec![json!({"tool_calls": [at(0, call("A", one))]})],
            json!({"tool_calls": [call("Z", one)]}),
            "",
            "",
            vec![one],
        ),
        (
            vec![json!({"tool_calls": [at(0, call("A", one))]})],
            json!({"tool_calls": [call("A", one)]}),
            "",
            "",
            vec![one],
        ),
        (
            vec![json!({"tool_calls": [at(0, call("A", one))]})],
            json!({"tool_calls": [call("", one)]}),
            "",
            "",
            vec![one],
        ),
        (
            vec![json!({"tool_calls": [at(0, call("A", one))]})],
            json!({"tool_calls": [call("A", "")]}),
            "",
            "",
            vec![one],
        ),
        (vec![json!({"tool_calls": [at(0, call("A", one))]})], json!({"content": null}), "", "", vec![one]),
        (
            vec![json!({"tool_calls": [at(0, call("A", one)), at(1, call("B", one))]})],
            json!({"content": "", "tool_calls": [call("X", one), call("Y", one)]}),
            "",
            "",
            vec![one, one],
        ),
    ] {
        let piece =
            |delta: &Value| json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]});
        let end = json!({"object": "chat.completion", "choices": [{"index": 0, "message": message,
            "finish_reason": "stop"}]});
        let events: Vec<Value> = pieces.iter().map(piece).chain([end]).collect();
        let read = read_in_chunks(OpenAi, &stream(&events));
        assert_eq!((read.text.as_str(), read.reasoning.as_str()), (text, reasoning), "{events:?}");
        assert_eq!(call_args(&read), calls, "{events:?}");
        assert_eq!(read.end.unwrap().text, text, "{events:?}");
    }
}

/// A block that begins a second time is the same block (entry P10).
#[test]
fn blocks_of_a_message_that_begin_once_more_are_the_same() {
    let call = |input: Value| json!({"type": "tool_use", "id": "t", "name": "zz", "input": input});
    let text = |text: &str| json!({"type": "text", "text": text});
    let begin = |block: Value| json!({"type": "content_block_start", "index": 0, "content_block": block});
    let args = json!({"type": "content_block_delta", "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": "{\"a\":1}"}});
    let hi = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}});
    for (content, events, said, calls) in [
        (json!([call(json!({"a": 1}))]), vec![begin(call(json!({"a": 1})))], "", vec![r#"{"a":1}"#]),
        (json!([call(json!({"a": 1}))]), vec![begin(call(json!({})))], "", vec![r#"{"a":1}"#]),
        (json!([call(json!({}))]), vec![begin(call(json!({}))), args.clone()], "", vec![r#"{"a":1}"#]),
        (json!([]), vec![begin(call(json!({}))), begin(call(json!({}))), args], "", vec![r#"{"a":1}"#]),
        (json!([text("")]), vec![begin(text("")), hi.clone()], "hi", vec![]),
        (json!([text("hi")]), vec![begin(text("hi"))], "hi", vec![]),
        (json!(""), vec![begin(text("")), hi.clone()], "hi", vec![]),
        (json!(null), vec![begin(text("")), hi], "hi", vec![]),
    ] {
        let start = json!({"type": "message_start", "message": {"content": content}});
        let end = [json!({"type": "content_block_stop", "index": 0}), json!({"type": "message_stop"})];
        let events = [vec![start], events, end.to_vec()].concat();
        let read = read_in_chunks(Anthropic, &stream(&events));
        assert_eq!(call_args(&read), calls, "{events:?}");
        assert_eq!(read.end.unwrap().text, said, "{events:?}");
    }
}
