//! Tests parts of an answer at unexpected places: an id of its own for every piece of a call, choices in parts,
//! reasoning inside contents, counts.

use serde_json::{Value, json};

use super::super::dialects::{HttpDialect, Quirks};
use super::{read_in_chunks, stream_of};

use HttpDialect::OpenAi;

fn chat(choices: &[Value]) -> String {
    let chunks = choices.iter().map(|choices| json!({"choices": choices}).to_string());
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).to_string();
    stream_of(&chunks.chain([end]).collect::<Vec<_>>())
}

fn delta(delta: &Value) -> Value {
    json!([{"index": 0, "delta": delta}])
}

/// A server that gives every piece of a call a new id still makes one call (entry P9).
#[test]
fn an_id_for_every_piece_makes_no_calls_of_the_pieces() {
    let call = |index: Value, id: &str, args: &str| {
        let function = json!({"name": "zz", "arguments": args});
        json!({"index": index, "id": id, "function": function})
    };
    let zero = |id: &str, args: &str| call(json!(0), id, args);
    for (pieces, expected) in [
        (vec![zero("a", "{\"a\""), zero("b", ":1"), zero("c", "}")], vec![r#"{"a":1}"#]),
        (vec![zero("a", ""), zero("a", "{\"a\""), zero("b", ":1}")], vec![r#"{"a":1}"#]),
        (vec![zero("a", "{\"a\":{"), zero("b", "}}")], vec![r#"{"a":{}}"#]),
        (vec![zero("a", "null"), zero("a", "{\"a\":1}")], vec![r#"{"a":1}"#]),
        (vec![zero("a", "\"\""), zero("a", "{\"a\":1}")], vec![r#"{"a":1}"#]),
        (vec![zero("a", r#"{"a":1}"#), zero("a", "\n")], vec![r#"{"a":1}"#]),
        // Whole ones are calls of their own, and so is what is whole by itself.
        (vec![zero("a", r#"{"a":1}"#), zero("b", r#"{"a":1}"#)], vec![r#"{"a":1}"#, r#"{"a":1}"#]),
        (vec![zero("a", r#"{"a":1}"#), zero("b", "{\"a\""), zero("c", ":2}")], vec![r#"{"a":1}"#, r#"{"a":2}"#]),
        (
            vec![call(json!(0), "a", r#"{"a":1}"#), call(json!(1), "b", "{\"a\""), call(json!(1), "c", ":2}")],
            vec![r#"{"a":1}"#, r#"{"a":2}"#],
        ),
        (vec![zero("a", ""), zero("b", r#"{"a":2}"#)], vec!["{}", r#"{"a":2}"#]),
    ] {
        let chunks: Vec<Value> = pieces.iter().map(|piece| delta(&json!({"tool_calls": [piece]}))).collect();
        let calls = read_in_chunks(OpenAi, &chat(&chunks)).calls();
        let args: Vec<&str> = calls.iter().map(|(_, args, _)| args.as_str()).collect();
        assert_eq!(args, expected, "{pieces:?}");
    }
    // What was cut is run with nothing that came later.
    let cut = [zero("a", "{\"a\""), zero("b", r#"{"a":2}"#)];
    let chunks = cut.map(|piece| delta(&json!({"tool_calls": [piece]})));
    let calls = read_in_chunks(OpenAi, &chat(&chunks)).calls();
    let usable: Vec<_> =
        calls.iter().filter(|(.., unusable)| unusable.is_none()).map(|(_, args, _)| args.as_str()).collect();
    assert_eq!((calls.len(), usable), (2, vec![r#"{"a":2}"#]));
}

/// An empty or null value ahead of the arguments is not a part of them (entry P10).
#[test]
fn nothing_ahead_of_arguments_is_none_of_them() {
    for (args, expected) in [
        (r#""" {"a":1}"#, Some(r#"{"a":1}"#)),
        (r#"null{"a":1}"#, Some(r#"{"a":1}"#)),
        (r#"""{}{"a":1}"#, Some(r#"{"a":1}"#)),
        (r#"null null {"a":1}{"a":1}"#, Some(r#"{"a":1}"#)),
        (r#""""#, Some("{}")),
        ("null", Some("{}")),
        (r#"{"a":1}null"#, None),
        (r#""x"{"a":1}"#, None),
        (r#"""{"a":"#, None),
        (r#"""[1]"#, None),
    ] {
        for pieces in [vec![args], args.split_inclusive(['"', 'l']).collect()] {
            let begin = delta(&json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "zz"}}]}));
            let piece = |args: &&str| delta(&json!({"tool_calls": [{"index": 0, "function": {"arguments": args}}]}));
            let chunks: Vec<Value> = std::iter::once(begin).chain(pieces.iter().map(piece)).collect();
            let (_, read, unusable) = read_in_chunks(OpenAi, &chat(&chunks)).calls().remove(0);
            assert_eq!(unusable.is_none().then_some(read.as_str()), expected, "{pieces:?}");
        }
    }
}

/// A call without a name, an id and arguments is no call (entry P9).
#[test]
fn what_says_nothing_is_no_call() {
    for calls in [
        json!({}),
        json!([{}]),
        json!([]),
        json!([null]),
        json!([{"index": 0}]),
        json!([{"type": "function", "function": {}}]),
    ] {
        let chunks = [delta(&json!({"content": "a"})), delta(&json!({"content": "b", "tool_calls": calls}))];
        let read = read_in_chunks(OpenAi, &chat(&chunks));
        assert_eq!(read.calls(), [], "{calls}");
        assert_eq!(read.end.unwrap().text, "ab", "{calls}");
    }
}

/// Several parts of the first choice are joined, and other choices are ignored (entry P9).
#[test]
fn parts_of_a_choice_are_one_and_other_choices_are_none() {
    let call = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "zz", "arguments": "{}"}}]});
    let says = json!({"content": "I will"});
    for (indexes, calls) in [
        ([json!(0), json!(0)], 1),
        ([json!("0"), json!(0.0)], 1),
        ([json!(null), json!(null)], 1),
        ([json!(0), json!(1)], 0),
        ([json!(0), json!(null)], 0),
    ] {
        let [first, second] = &indexes;
        let choices = json!([{"index": first, "delta": says}, {"index": second, "delta": call}]);
        let read = read_in_chunks(OpenAi, &chat(&[choices]));
        assert_eq!((read.calls().len(), read.end.unwrap().text.as_str()), (calls, "I will"), "{indexes:?}");
        let message =
            |index: &Value, message: &Value| json!({"index": index, "message": message, "finish_reason": "stop"});
        let body = json!({"choices": [message(first, &says), message(second, &call)]});
        let completion = OpenAi.plain(&body.to_string(), Quirks::default()).unwrap();
        assert_eq!((completion.calls.len(), completion.text.as_str()), (calls, "I will"), "{indexes:?}");
    }
    let choices = json!([{"index": 1, "delta": call}, {"index": 0, "delta": call}]);
    assert_eq!(read_in_chunks(OpenAi, &chat(&[delta(&says), choices])).calls(), []);
}

/// Contents that Google marks as thought are reasoning, not text (entry P15).
#[test]
fn a_content_that_google_marks_as_thought_is_thinking() {
    let thought = |text: &str| json!({"content": text, "extra_content": {"google": {"thought": true}}});
    let said = |text: &str| json!({"content": text});
    let signed = json!({"content": "</thought>The answer", "extra_content": {"google": {"thought_signature": "S"}}});
    for (deltas, reasoning, text) in [
        (vec![thought("<thought>I think so"), signed], "I think so", "The answer"),
        (
            vec![thought("<thought>I think"), thought(" so"), said("</thought>The"), said(" answer")],
            "I think so",
            "The answer",
        ),
        (vec![thought("I think so"), said("The answer")], "I think so", "The answer"),
        (vec![said("The"), said(" answer")], "", "The answer"),
        (vec![json!({"content": "The answer", "extra_content": {"google": {"thought": false}}})], "", "The answer"),
        (vec![json!({"content": "The answer", "extra_content": {"google": "x"}})], "", "The answer"),
    ] {
        let read = read_in_chunks(OpenAi, &chat(&deltas.iter().map(delta).collect::<Vec<_>>()));
        assert_eq!((read.reasoning.as_str(), read.text.as_str()), (reasoning, text), "{deltas:?}");
        assert_eq!(read.end.unwrap().text, text, "{deltas:?}");
    }
}

/// Tokens that only the total contains count as output, and cached tokens are counted (entry P16).
#[test]
fn what_the_sum_has_more_than_the_parts_was_answered_and_what_was_cached_is_counted() {
    for (usage, expected) in [
        (json!({"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 144}), (4, 140, 0)),
        (json!({"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}), (4, 8, 0)),
        (json!({"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 4}), (4, 8, 0)),
        (json!({"prompt_tokens": 4, "completion_tokens": 8}), (4, 8, 0)),
        (json!({"prompt_tokens": 4, "total_tokens": 144}), (4, 140, 0)),
        (json!({"completion_tokens": 8, "total_tokens": 144}), (0, 8, 0)),
        (
            json!({"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 20,
                "completion_tokens_details": {"reasoning_tokens": 8}}),
            (4, 16, 0),
        ),
        (
            json!({"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 112, "cache_read_input_tokens": 100}),
            (4, 8, 100),
        ),
        (json!({"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, "cached_tokens": 80}), (100, 5, 80)),
        (json!({"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": "80"}), (100, 5, 80)),
        (
            json!({"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 80}}),
            (100, 5, 80),
        ),
    ] {
        let end =
            json!({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}], "usage": usage});
        let used = read_in_chunks(OpenAi, &stream_of(&[end.to_string()])).end.unwrap().usage;
        assert_eq!((used.input_tokens, used.output_tokens, used.cache_read_input_tokens), expected, "{usage}");
    }
}
