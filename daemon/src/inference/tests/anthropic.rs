//! Tests faulty streams of the Messages API.

use super::super::dialects::{Ended, HttpDialect, Quirks};
use super::{Read, read, read_all};
use crate::prompt::ErrorClass;

const ANTHROPIC: HttpDialect = HttpDialect::Anthropic;
const BEGIN: &str = r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const TEXT: &str = r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}"#;
const STOP: &str = r#"{"type":"message_stop"}"#;

fn said(read: &Read) -> &str {
    &read.end.as_ref().unwrap().text
}

fn call(index: u64, args: &[&str]) -> Vec<String> {
    let block = r#"{"type":"tool_use","id":"t","name":"shell","input":{}}"#;
    let start = format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#);
    let delta = |args: &&str| {
        let args = serde_json::to_string(args).unwrap();
        let delta = format!(r#"{{"type":"input_json_delta","partial_json":{args}}}"#);
        format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
    };
    std::iter::once(start).chain(args.iter().map(delta)).collect()
}

fn reason(reason: &str) -> String {
    format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}"}},"usage":{{"output_tokens":5}}}}"#)
}

#[test]
fn nothing_but_the_stop_of_the_message_is_its_end() {
    let end = reason("end_turn");
    for events in [&[][..], &[BEGIN, TEXT], &[BEGIN, TEXT, &end], &[BEGIN, TEXT, &end, "[DONE]"]] {
        for ended in [Ended::Clean, Ended::Broken, Ended::Stalled] {
            let events = events.iter().map(|data| ("", *data));
            assert_eq!(read_all(ANTHROPIC, events, ended, Quirks::default()).class(), ErrorClass::Retry);
        }
    }
    assert_eq!(said(&read(ANTHROPIC, &[BEGIN, TEXT, &end, STOP, TEXT, "garbage"])), "hello");
}

#[test]
fn pings_and_unknown_events_and_blocks_say_nothing() {
    let events = [
        r#"{"type":"ping"}"#,
        "",
        ": keepalive",
        r#"{"type":"novelty","x":{}}"#,
        concat!(
            r#"{"type":"content_block_start","index":9,"content_block":{"type":"server_tool_use","id":"s","#,
            r#""name":"web_search","input":{}}}"#,
        ),
        BEGIN,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{}}}"#,
        TEXT,
        STOP,
    ];
    assert_eq!(said(&read(ANTHROPIC, &events)), "hello");
}

#[test]
fn an_error_after_some_text_ends_the_answer_in_any_family_s_form() {
    for (name, error, class) in [
        ("error", r#"{"type":"error","error":{"type":"overloaded_error","message":"oops"}}"#, ErrorClass::Retry),
        ("", r#"{"type":"error","error":{"type":"invalid_request_error","message":"oops"}}"#, ErrorClass::Never),
        ("", r#"{"error":{"code":401,"message":"oops","type":"authentication_error"}}"#, ErrorClass::Credentials),
        ("error", "oops", ErrorClass::Retry),
    ] {
        let events = [("", BEGIN), ("", TEXT), (name, error), ("", STOP)];
        let read = read_all(ANTHROPIC, events, Ended::Clean, Quirks::default());
        assert_eq!((read.class(), read.text.as_str()), (class, "hello"), "{error}");
        assert_eq!(read.end.unwrap_err().message, "the provider broke off: oops");
    }
}

#[test]
fn the_type_may_stand_in_the_name_of_the_event_alone() {
    let text = r#"{"index":0,"delta":{"type":"text_delta","text":"hello"}}"#;
    let begin = r#"{"index":0,"content_block":{"type":"text","text":""}}"#;
    let events = [("content_block_start", begin), ("content_block_delta", text), ("message_stop", "{}")];
    assert_eq!(said(&read_all(ANTHROPIC, events, Ended::Clean, Quirks::default())), "hello");
}

#[test]
fn a_call_may_begin_without_input_or_with_all_of_it() {
    for (input, args) in [
        ("", "{}"),
        (r#","input":{}"#, "{}"),
        (r#","input":null"#, "{}"),
        (r#","input":{"command": "ls"}"#, r#"{"command": "ls"}"#),
    ] {
        let block = format!(r#"{{"type":"tool_use","id":"t","name":"shell"{input}}}"#);
        let start = format!(r#"{{"type":"content_block_start","index":0,"content_block":{block}}}"#);
        let end = r#"{"type":"content_block_stop","index":0}"#;
        let read = read(ANTHROPIC, &[start, end.to_owned(), STOP.to_owned()]);
        assert_eq!(read.calls(), [("shell".to_owned(), args.to_owned(), None)]);
    }
}

#[test]
fn calls_are_told_apart_by_the_index_even_when_interleaved_or_reused() {
    let (a, b) = (call(1, &[r#"{"x""#, ":1}"]), call(2, &[r#"{"y""#, ":2}"]));
    let events = [&a[0], &b[0], &b[1], &a[1], &a[2], &b[2]].map(String::as_str);
    let args = |read: &Read| read.calls().into_iter().map(|(_, args, _)| args).collect::<Vec<_>>();
    assert_eq!(args(&read(ANTHROPIC, &[&events[..], &[STOP]].concat())), [r#"{"x":1}"#, r#"{"y":2}"#]);
    let reused: Vec<String> = [call(0, &[r#"{"x":1}"#]), call(0, &[r#"{"y":2}"#]), vec![STOP.to_owned()]].concat();
    assert_eq!(args(&read(ANTHROPIC, &reused)), [r#"{"x":1}"#, r#"{"y":2}"#]);
}

#[test]
fn calls_are_wanted_whatever_the_stop_reason_says() {
    for word in ["end_turn", "tool_use", "stop_sequence", "pause_turn", "whatever"] {
        let events = [call(0, &[r#"{"x":1}"#]), vec![reason(word), STOP.to_owned()]].concat();
        assert_eq!(read(ANTHROPIC, &events).calls()[0].2, None, "{word}");
    }
}

#[test]
fn arguments_cut_by_the_limit_of_tokens_at_any_byte_are_not_run_and_the_model_is_told() {
    let args = r#"{"command":"rm -rf /tmp/x"}"#;
    for at in 0..args.len() {
        let events = [call(0, &[&args[..at]]), vec![reason("max_tokens"), STOP.to_owned()]].concat();
        let (_, _, unusable) = read(ANTHROPIC, &events).calls().remove(0);
        assert!(unusable.unwrap().contains("were cut off by the limit of output tokens"), "{at}");
    }
}

#[test]
fn a_refusal_is_an_error_and_nothing_of_it_is_run() {
    let events =
        [vec![BEGIN.to_owned(), TEXT.to_owned()], call(1, &["{}"]), vec![reason("refusal"), STOP.to_owned()]].concat();
    let error = read(ANTHROPIC, &events).end.unwrap_err();
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Never, "the model refused: hello"));
}

#[test]
fn halves_of_pairs_never_fail_the_stream() {
    let raw = concat!(
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","#,
        r#""partial_json":"{\"a\":\"\ud800\"}"}}"#,
    );
    let events = [call(0, &[]), vec![raw.to_owned(), STOP.to_owned()]].concat();
    assert!(read(ANTHROPIC, &events).calls()[0].2.as_ref().unwrap().contains("half of a UTF-16 surrogate pair"));
}

#[test]
fn a_server_that_does_not_stream_is_understood() {
    let body = r#"{"type":"message","role":"assistant",
        "content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"so"},
        {"type":"tool_use","id":"t","name":"shell","input":{"command":"ls"}}],"stop_reason":"tool_use",
        "usage":{"input_tokens":7,"output_tokens":3,"cache_read_input_tokens":10}}"#;
    let completion = ANTHROPIC.plain(body, Quirks::default()).unwrap();
    assert_eq!((completion.text.as_str(), completion.calls[0].args.as_str()), ("so", r#"{"command":"ls"}"#));
    assert_eq!((completion.usage.input_tokens, completion.usage.cache_read_input_tokens), (17, 10));
    assert!(completion.carried.unwrap().parts.contains(r#""signature":"s""#));
    for body in [r#"{"error":{"code":500,"message":"oops"}}"#, "<html>", "", "{}"] {
        assert_eq!(ANTHROPIC.plain(body, Quirks::default()).unwrap_err().class, ErrorClass::Retry, "{body}");
    }
}
