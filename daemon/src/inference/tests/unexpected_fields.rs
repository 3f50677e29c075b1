//! Tests that an answer is read although some of its fields have unexpected types, are at unexpected places, or are
//! repeated.

use harness_protocol::run::Usage;
use serde_json::{Value, json};

use super::super::dialects::{HttpDialect, Quirks};
use super::{read_in_chunks, stream_of};
use crate::prompt::ErrorClass;

use HttpDialect::{Anthropic, OpenAi, Responses};

fn stream(events: &[Value]) -> String {
    stream_of(&events.iter().map(Value::to_string).collect::<Vec<_>>())
}

/// A stream of chat completions with these chunks and a normal end.
fn chat(chunks: &[Value]) -> String {
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    stream(&chunks.iter().cloned().chain([end]).collect::<Vec<_>>()) + "data: [DONE]\n\n"
}

fn delta(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

fn hi() -> Value {
    delta(&json!({"content": "hi"}))
}

fn messages(more: &[Value]) -> String {
    let begin = [
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}),
        json!({"type": "content_block_stop", "index": 0}),
    ];
    let events: Vec<Value> =
        begin.into_iter().chain(more.iter().cloned()).chain([json!({"type": "message_stop"})]).collect();
    stream(&events)
}

fn responses(more: &Value) -> String {
    let mut response = json!({"status": "completed", "output": []});
    response.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    stream(&[
        json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": "hi"}),
        json!({"type": "response.completed", "response": response}),
    ])
}

fn tokens(usage: Usage) -> (u64, u64) {
    (usage.input_tokens, usage.output_tokens)
}

/// Usage of an unexpected type does not invalidate an answer, and its readable parts count (entry P8).
#[test]
fn usage_of_odd_types_costs_no_answer_and_what_can_be_read_of_it_counts() {
    for (input, output, expected) in [
        (json!(5.0), json!(6.0), (5, 6)),
        (json!("5"), json!("6"), (5, 6)),
        (json!(" 5 "), json!("6.0"), (5, 6)),
        (json!(-1), json!(6), (0, 6)),
        (json!(null), json!(6), (0, 6)),
        (json!({"text": 5}), json!(6), (0, 6)),
        (json!([5]), json!(true), (0, 0)),
        (json!("many"), json!(1e300), (0, 0)),
        (json!(u64::MAX), json!(6), (0, 6)),
        (json!(5e0), json!(6.9), (5, 6)),
    ] {
        let of_chat = json!({"prompt_tokens": input, "completion_tokens": output});
        let of_others = json!({"input_tokens": input, "output_tokens": output});
        for (dialect, stream) in [
            (OpenAi, chat(&[hi(), json!({"choices": [], "usage": of_chat})])),
            (
                Anthropic,
                messages(&[json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": of_others})]),
            ),
            (Responses, responses(&json!({"usage": of_others}))),
        ] {
            let completion = read_in_chunks(dialect, &stream).end.unwrap();
            assert_eq!(
                (completion.text.as_str(), tokens(completion.usage)),
                ("hi", expected),
                "{dialect:?} {input} {output}"
            );
        }
    }
    for usage in [json!("none"), json!(7), json!([]), json!([1]), json!(false), json!({"prompt_tokens_details": 7})] {
        for (dialect, stream) in [
            (OpenAi, chat(&[hi(), json!({"choices": [], "usage": usage})])),
            (Anthropic, messages(&[json!({"type": "message_delta", "delta": {}, "usage": usage})])),
            (Responses, responses(&json!({"usage": usage}))),
        ] {
            assert_eq!(read_in_chunks(dialect, &stream).end.unwrap().text, "hi", "{dialect:?} {usage}");
        }
    }
}

/// Side fields of unexpected types do not invalidate an answer (entry P8).
#[test]
fn side_fields_of_odd_types_cost_no_answer() {
    for chunk in [
        json!({"choices": null}),
        json!({"choices": [null]}),
        json!({"choices": [7, "x"]}),
        json!({"choices": "none"}),
        json!({"choices": {}}),
        json!({"choices": [{"index": 0.0, "delta": null}]}),
        json!({"choices": [{"index": "0", "delta": [], "finish_reason": false}]}),
        json!({"choices": [{"index": {}, "delta": {"content": null, "tool_calls": null, "refusal": false}}]}),
        json!({"choices": [{"delta": {"content": false, "reasoning": 7, "tool_calls": [null, "x"],
            "function_call": []}}]}),
        json!({"id": 7, "object": 7, "choices": [{"delta": {"role": 7}, "logprobs": "x"}], "x_groq": "x"}),
        json!({"choices": [{"delta": {"tool_calls": {}}}], "object": {"a": 1}}),
    ] {
        let first = chat(&[chunk.clone(), hi()]);
        let read = read_in_chunks(OpenAi, &first);
        assert!(read.end.is_ok() || chunk.to_string().contains("tool_calls\":{}"), "{chunk}: {:?}", read.end);
    }
    for event in [
        json!({"type": "ping", "index": "x", "usage": 7}),
        json!({"type": "message_start", "message": "x"}),
        json!({"type": "message_start", "message": {"content": null, "usage": "x"}}),
        json!({"type": "message_delta", "delta": "x", "usage": []}),
        json!({"type": "content_block_delta", "index": 0.0, "delta": {"type": 7}}),
        json!({"type": "content_block_stop", "index": null}),
    ] {
        assert_eq!(
            read_in_chunks(Anthropic, &messages(std::slice::from_ref(&event))).end.unwrap().text,
            "hi",
            "{event}"
        );
    }
    for more in [
        json!({"incomplete_details": "x"}),
        json!({"output": "x"}),
        json!({"output": [null, 7, "x"]}),
        json!({"output": [{"type": 7}, {"type": "message", "content": "x"}, {"type": "message", "content": [null]}]}),
        json!({"usage": {"output_tokens_details": [], "input_tokens_details": "x"}}),
    ] {
        assert_eq!(read_in_chunks(Responses, &responses(&more)).end.unwrap().text, "hi", "{more}");
    }
}

/// Content, reasoning and ids are read in every form in which servers send them (entry P8).
#[test]
fn content_reasoning_and_ids_are_read_in_whatever_form_they_come() {
    for (delta, text, reasoning) in [
        (json!({"content": {"type": "text", "text": "hi"}}), "hi", ""),
        (json!({"content": ["hi", " you"]}), "hi you", ""),
        (json!({"content": [{"text": "hi"}, null, {"type": "image_url", "text": "no"}, " you"]}), "hi you", ""),
        (json!({"content": [{"type": "output_text", "text": ["h", "i"]}]}), "hi", ""),
        (json!({"content": 7}), "7", ""),
        (json!({"content": "hi", "reasoning": {"content": "hm"}}), "hi", "hm"),
        (json!({"content": "hi", "reasoning": [{"type": "text", "text": "h"}, "m"]}), "hi", "hm"),
        (json!({"content": "hi", "reasoning_content": {"text": "hm"}}), "hi", "hm"),
    ] {
        let read = read_in_chunks(OpenAi, &chat(&[self::delta(&delta)]));
        assert_eq!((read.text.as_str(), read.reasoning.as_str()), (text, reasoning), "{delta}");
        assert_eq!(read.end.unwrap().text, text, "{delta}");
    }
    for (index, id, given) in [
        (json!(0.0), json!("c"), "c"),
        (json!("0"), json!(123), "123"),
        (json!(null), json!(null), ""),
        (json!(-1), json!(1.5), "1.5"),
        (json!("x"), json!(true), ""),
        (json!([]), json!({}), ""),
    ] {
        let call = |args: &str| json!({"index": index, "id": id, "function": {"name": "zz", "arguments": args}});
        let more = json!({"index": index, "function": {"arguments": "1}"}});
        let chunks = [delta(&json!({"tool_calls": [call("{\"a\":")]})), delta(&json!({"tool_calls": [more]}))];
        let read = read_in_chunks(OpenAi, &chat(&chunks));
        assert_eq!(read.calls(), [("zz".to_owned(), "{\"a\":1}".to_owned(), None)], "{index} {id}");
        assert_eq!(read.end.unwrap().calls[0].given, given, "{index} {id}");
    }
}

/// Reasoning parts of a content are shown as reasoning, and go back with the calls (entry P15).
#[test]
fn parts_of_a_content_that_were_thought_are_shown_as_thinking_and_go_back_beside_calls() {
    let thought = |inside: Value| json!({"type": "thinking", "thinking": inside});
    let words = |words: &str| json!([{"type": "text", "text": words}]);
    let call = json!([{"index": 0, "id": "D681PevKs", "function": {"name": "shell", "arguments": "{}"}}]);
    for (contents, reasoning, text) in [
        (vec![json!([thought(words("hm"))]), json!("hi")], "hm", "hi"),
        (
            vec![json!([thought(words("h"))]), json!([thought(words("m"))]), json!([{"type": "text", "text": "hi"}])],
            "hm",
            "hi",
        ),
        (vec![json!([thought(words("hm")), {"type": "text", "text": "hi"}])], "hm", "hi"),
        (vec![json!([thought(json!("hm"))]), json!("h"), json!("i")], "hm", "hi"),
        (vec![thought(json!([{"type": "text", "text": "h"}, "m"])), json!("hi")], "hm", "hi"),
        (vec![json!([{"type": "reasoning", "text": "hm"}]), json!(["hi"])], "hm", "hi"),
    ] {
        let chunks: Vec<Value> = contents.iter().map(|content| delta(&json!({"content": content}))).collect();
        let read = read_in_chunks(OpenAi, &chat(&chunks));
        assert_eq!((read.reasoning.as_str(), read.text.as_str()), (reasoning, text), "{contents:?}");
        let completion = read.end.unwrap();
        assert_eq!((completion.text.as_str(), completion.carried), (text, None), "{contents:?}");
        let with_call: Vec<Value> = chunks.into_iter().chain([delta(&json!({"tool_calls": call}))]).collect();
        let completion = read_in_chunks(OpenAi, &chat(&with_call)).end.unwrap();
        let sent = super::returned_fields::sent_back(&completion, Quirks::default());
        let expected = json!([thought(words("hm")), {"type": "text", "text": "hi"}]);
        assert_eq!(sent["content"], expected, "{contents:?}");
    }
    // Thought and nothing said is no answer.
    let error = read_in_chunks(OpenAi, &chat(&[delta(&json!({"content": [thought(words("hm"))]}))])).end.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unusable);
}

/// The last count that is not empty or zero is used, wherever it stands (entry P16).
#[test]
fn the_last_count_that_says_something_counts_wherever_it_stands() {
    let (five, six) =
        (json!({"prompt_tokens": 5, "completion_tokens": 6}), json!({"input_tokens": 5, "output_tokens": 6}));
    let in_choice = json!({"choices": [{"index": 0, "delta": {}, "usage": five}]});
    let beside = json!({"choices": [{"index": 0, "delta": {"content": "!"}}], "usage": five});
    let zeros = json!({"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}});
    for chunks in [
        vec![in_choice.clone()],
        vec![in_choice, json!({"choices": [], "usage": {}})],
        vec![json!({"choices": [], "usage": six})],
        vec![json!({"choices": [], "x_groq": {"id": "r", "usage": five}})],
        vec![json!({"choices": [], "x_groq": {"usage": five}, "usage": null})],
        vec![beside.clone(), json!({"choices": [], "usage": {}})],
        vec![beside.clone(), zeros.clone()],
        vec![beside, json!({"choices": [], "usage": {"completion_tokens": 0}}), json!({"choices": [], "usage": null})],
        vec![zeros, json!({"choices": [], "usage": five})],
        vec![
            json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}),
            json!({"choices": [], "usage": five}),
        ],
        vec![
            json!({"choices": [], "usage": {"prompt_tokens": 5}}),
            json!({"choices": [], "usage": {"completion_tokens": 6}}),
        ],
        vec![json!({"choices": [], "usage": {"prompt_tokens": 0, "input_tokens": 5, "output_tokens": 6}})],
    ] {
        let stream = chat(&[vec![hi()], chunks.clone()].concat());
        assert_eq!(tokens(read_in_chunks(OpenAi, &stream).end.unwrap().usage), (5, 6), "{chunks:?}");
    }
    // The counts of messages are cumulative.
    let start = |usage: Value| json!({"type": "message_start", "message": {"usage": usage}});
    let last = |usage: Value| json!({"type": "message_delta", "delta": {}, "usage": usage});
    for events in [
        [start(json!({"input_tokens": 5, "output_tokens": 1})), last(json!({"output_tokens": 6}))],
        [start(json!({"input_tokens": 9, "output_tokens": 9})), last(json!({"input_tokens": 5, "output_tokens": 6}))],
        [start(json!({"input_tokens": 0, "output_tokens": 0})), last(json!({"input_tokens": 5, "output_tokens": 6}))],
        [start(json!({"input_tokens": 5, "output_tokens": 6})), last(json!({"input_tokens": 0, "output_tokens": 0}))],
        [start(json!({"input_tokens": 5, "output_tokens": 6})), last(json!({}))],
        [start(json!({"input_tokens": 5, "output_tokens": 6})), last(json!(null))],
    ] {
        assert_eq!(tokens(read_in_chunks(Anthropic, &messages(&events)).end.unwrap().usage), (5, 6), "{events:?}");
    }
}

/// An empty object ahead of the arguments is dropped, and repeated arguments count once (entry P10).
#[test]
fn an_empty_object_ahead_of_arguments_and_arguments_said_twice_are_the_arguments() {
    for (pieces, expected) in [
        (&["{}", "{\"a\":1}"][..], Some("{\"a\":1}")),
        (&["{}", "{\"a\":", "1}"], Some("{\"a\":1}")),
        (&["{ }", " {\"a\":1}"], Some("{\"a\":1}")),
        (&["{\"a\":1}", "{\"a\":1}"], Some("{\"a\":1}")),
        (&["{\"a\"", ":1}", "{\"a\"", ":1}"], Some("{\"a\":1}")),
        (&["{\"a\":1}", "{\"a\": 1}"], Some("{\"a\":1}")),
        (&["{}", "{\"a\":1}", "{\"a\":1}"], Some("{\"a\":1}")),
        (&["{\"a\":1}", "{}"], Some("{\"a\":1}")),
        (&["{}", "{}"], Some("{}")),
        (&["{\"a\":1}", "{\"a\":2}"], None),
        (&["{}", "{\"a\":"], None),
        (&["{\"a\":1}", "{\"a\":"], None),
        (&["{}", "[1]"], None),
    ] {
        let piece = |args: &&str| delta(&json!({"tool_calls": [{"index": 0, "function": {"arguments": args}}]}));
        let begin = delta(&json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "zz"}}]}));
        let of_chat = chat(&std::iter::once(begin).chain(pieces.iter().map(piece)).collect::<Vec<_>>());
        let block = json!({"type": "tool_use", "id": "t", "name": "zz", "input": {}});
        let start = json!({"type": "content_block_start", "index": 1, "content_block": block});
        let piece = |args: &&str| {
            let delta = json!({"type": "input_json_delta", "partial_json": args});
            json!({"type": "content_block_delta", "index": 1, "delta": delta})
        };
        let of_messages = messages(&std::iter::once(start).chain(pieces.iter().map(piece)).collect::<Vec<_>>());
        let item = json!({"id": "f", "type": "function_call", "call_id": "c", "name": "zz", "arguments": pieces[0]});
        let begin = json!({"type": "response.output_item.added", "output_index": 0, "item": item});
        let piece =
            |args: &&str| json!({"type": "response.function_call_arguments.delta", "item_id": "f", "delta": args});
        let end = json!({"type": "response.completed", "response": {"status": "completed"}});
        let events: Vec<Value> = std::iter::once(begin).chain(pieces[1..].iter().map(piece)).chain([end]).collect();
        for (dialect, stream) in [(OpenAi, of_chat), (Anthropic, of_messages), (Responses, stream(&events))] {
            let (_, args, unusable) = read_in_chunks(dialect, &stream).calls().remove(0);
            assert_eq!(unusable.is_none().then_some(args.as_str()), expected, "{dialect:?} {pieces:?}");
        }
    }
}

/// P10: an empty object that stands ahead of arguments is none of its own where the limit of tokens came in between.
#[test]
fn an_empty_object_before_a_cut_is_not_run() {
    let call = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "zz", "arguments": "{}"}}]});
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]});
    let (_, _, unusable) = read_in_chunks(OpenAi, &stream(&[delta(&call), end])).calls().remove(0);
    assert!(unusable.unwrap().contains("cut off"));
}

/// Items of a response are distinguished even if their indexes or ids agree (entry P9).
#[test]
fn items_of_a_response_are_told_apart_whatever_their_index_and_ids() {
    let call = |id: &str, call_id: &str, name: &str, args: &str| {
        json!({"id": id, "type": "function_call",
            "call_id": call_id, "name": name, "arguments": args})
    };
    let added =
        |index: Value, item: Value| json!({"type": "response.output_item.added", "output_index": index, "item": item});
    let done =
        |index: Value, item: Value| json!({"type": "response.output_item.done", "output_index": index, "item": item});
    let args = |id: &str, index: Value, args: &str| {
        json!({"type": "response.function_call_arguments.delta",
            "item_id": id, "output_index": index, "delta": args})
    };
    let (x, y) = ("{\"x\":1}", "{\"y\":2}");
    let begin = |index: Value, id: &str, call_id: &str, name: &str| added(index, call(id, call_id, name, ""));
    for (case, events) in [
        (
            "one index for both, one after the other",
            vec![
                begin(json!(0), "f0", "c0", "a"),
                args("f0", json!(0), x),
                done(json!(0), call("f0", "c0", "a", x)),
                begin(json!(0), "f1", "c1", "b"),
                args("f1", json!(0), y),
                done(json!(0), call("f1", "c1", "b", y)),
            ],
        ),
        (
            "one index, interleaved, by id",
            vec![
                begin(json!(0), "f0", "c0", "a"),
                begin(json!(0), "f1", "c1", "b"),
                args("f1", json!(0), y),
                args("f0", json!(0), x),
                done(json!(0), call("f0", "c0", "a", "")),
                done(json!(0), call("f1", "c1", "b", "")),
            ],
        ),
        (
            "one index, and only whole items",
            vec![done(json!(0), call("f0", "c0", "a", x)), done(json!(0), call("f1", "c1", "b", y))],
        ),
        (
            "no ids at all",
            vec![
                begin(json!(1), "", "", "a"),
                args("", json!(1), x),
                done(json!(1), call("", "", "a", x)),
                begin(json!(1), "", "", "b"),
                args("", json!(1), y),
                done(json!(1), call("", "", "b", y)),
            ],
        ),
        (
            "no index at all",
            vec![
                begin(json!(null), "f0", "c0", "a"),
                done(json!(null), call("f0", "c0", "a", x)),
                begin(json!(null), "f1", "c1", "b"),
                done(json!(null), call("f1", "c1", "b", y)),
            ],
        ),
        (
            "other ids at the end",
            vec![
                begin(json!(0), "f0", "c0", "a"),
                begin(json!(1), "f1", "c1", "b"),
                args("z", json!(0), x),
                args("w", json!(1), y),
                done(json!(0), call("g0", "c0", "a", x)),
                done(json!(1), call("g1", "c1", "b", y)),
            ],
        ),
        (
            "one id for both",
            vec![
                begin(json!(0), "f", "c0", "a"),
                done(json!(0), call("f", "c0", "a", x)),
                begin(json!(1), "f", "c1", "b"),
                done(json!(1), call("f", "c1", "b", y)),
            ],
        ),
        (
            "an index of an odd type",
            vec![
                begin(json!(0.0), "f0", "c0", "a"),
                args("f0", json!("0"), x),
                begin(json!("1"), "f1", "c1", "b"),
                args("f1", json!(1.0), y),
            ],
        ),
        (
            "a call that the server executes between them",
            vec![
                begin(json!(0), "f0", "c0", "a"),
                args("f0", json!(0), x),
                added(json!(1), json!({"type": "mcp_call", "id": "m", "name": "echo"})),
                args("m", json!(1), "{\"z\":3}"),
                begin(json!(2), "f1", "c1", "b"),
                args("f1", json!(2), y),
            ],
        ),
        (
            "one that names itself by its index alone",
            vec![
                begin(json!(0), "f0", "c0", "a"),
                args("f0", json!(0), x),
                added(json!(1), json!({"type": "web_search_call"})),
                args("", json!(1), "{\"z\":3}"),
                begin(json!(2), "f1", "c1", "b"),
                args("f1", json!(2), y),
            ],
        ),
    ] {
        let end = json!({"type": "response.completed", "response": {"status": "completed", "output": []}});
        let stream = stream(&[events, vec![end]].concat());
        let expected = [("a".to_owned(), x.to_owned(), None), ("b".to_owned(), y.to_owned(), None)];
        assert_eq!(read_in_chunks(Responses, &stream).calls(), expected, "{case}");
    }
    // Text of an item that is not known is not said.
    let item = added(json!(0), json!({"type": "novelty", "id": "n"}));
    let secret = json!({"type": "response.output_text.delta", "item_id": "n", "output_index": 0, "delta": "SECRET"});
    let hi = json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 1, "delta": "hi"});
    let begin = added(json!(1), json!({"type": "message", "id": "m", "content": []}));
    let end = json!({"type": "response.completed", "response": {"status": "completed"}});
    let read = read_in_chunks(Responses, &stream(&[item, secret, begin, hi, end]));
    assert_eq!((read.text.as_str(), read.end.unwrap().text.as_str()), ("hi", "hi"));
    // Arguments of a call that was never announced are no call.
    let end = json!({"type": "response.completed", "response": {"status": "completed"}});
    assert_eq!(read_in_chunks(Responses, &stream(&[args("f", json!(0), x), end])).class(), ErrorClass::Retry);
}

/// Special tokens of a model's own format are removed from tool names (entry P17).
#[test]
fn names_of_tools_are_without_signs_of_a_models_own_format() {
    for name in
        ["shell<|channel|>commentary", "functions.shell", " shell ", "functions.shell:0", "shell<|constrain|>json"]
    {
        let call = json!([{"index": 0, "id": "c", "function": {"name": name, "arguments": "{}"}}]);
        let block = json!({"type": "tool_use", "id": "t", "name": name, "input": {}});
        let item = json!({"type": "function_call", "id": "f", "call_id": "c", "name": name, "arguments": "{}"});
        for (dialect, stream) in [
            (OpenAi, chat(&[delta(&json!({"tool_calls": call}))])),
            (
                Anthropic,
                messages(&[
                    json!({"type": "content_block_start", "index": 1, "content_block": block}),
                    json!({"type": "content_block_stop", "index": 1}),
                ]),
            ),
            (Responses, responses(&json!({"output": [item]}))),
        ] {
            assert_eq!(read_in_chunks(dialect, &stream).calls()[0].0, "shell", "{dialect:?} {name}");
        }
    }
}
