//! Tests faulty streams of the Responses API.

use super::super::dialects::{Ended, HttpDialect, Quirks};
use super::{Read, read, read_all};
use crate::prompt::ErrorClass;

const RESPONSES: HttpDialect = HttpDialect::Responses;
const TEXT: &str = r#"{"type":"response.output_text.delta","item_id":"m","output_index":0,"delta":"hello"}"#;
const COMPLETED: &str = r#"{"type":"response.completed","response":{"status":"completed","output":[]}}"#;

fn said(read: &Read) -> &str {
    &read.end.as_ref().unwrap().text
}

fn begun(id: &str, tool: &str) -> String {
    let item = format!(r#"{{"id":"{id}","type":"function_call","call_id":"c{id}","name":"{tool}","arguments":""}}"#);
    format!(r#"{{"type":"response.output_item.added","item":{item}}}"#)
}

fn args(id: &str, args: &str) -> String {
    let args = serde_json::to_string(args).unwrap();
    format!(r#"{{"type":"response.function_call_arguments.delta","item_id":"{id}","delta":{args}}}"#)
}

fn listed(status: &str, details: &str, output: &str) -> String {
    let response = format!(r#"{{"status":"{status}","incomplete_details":{details},"output":[{output}]}}"#);
    format!(r#"{{"type":"response.{status}","response":{response}}}"#)
}

#[test]
fn nothing_but_the_end_of_the_response_is_its_end() {
    for events in [&[][..], &[TEXT], &[TEXT, "[DONE]"]] {
        for ended in [Ended::Clean, Ended::Broken, Ended::Stalled] {
            let events = events.iter().map(|data| ("", *data));
            assert_eq!(read_all(RESPONSES, events, ended, Quirks::default()).class(), ErrorClass::Retry);
        }
    }
    assert_eq!(said(&read(RESPONSES, &[TEXT, COMPLETED, TEXT, "garbage", "[DONE]"])), "hello");
}

#[test]
fn keep_alives_and_unknown_events_say_nothing() {
    let events = [
        "",
        ": keepalive",
        r#"{"type":"response.novelty.delta","delta":{"x":1}}"#,
        TEXT,
        r#"{"type":"keepalive"}"#,
        COMPLETED,
    ];
    assert_eq!(said(&read(RESPONSES, &events)), "hello");
}

#[test]
fn an_error_after_some_text_ends_the_answer() {
    for (name, error, class) in [
        ("", r#"{"type":"error","code":"server_error","message":"oops"}"#, ErrorClass::Retry),
        (
            "error",
            r#"{"type":"error","error":{"code":"rate_limit_exceeded","message":"oops"}}"#,
            ErrorClass::RateLimit(None),
        ),
        (
            "",
            concat!(
                r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"invalid_prompt","#,
                r#""message":"oops"}}}"#,
            ),
            ErrorClass::Never,
        ),
        (
            "",
            r#"{"error":{"message":"oops","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            ErrorClass::ContextTooLong,
        ),
    ] {
        let read = read_all(RESPONSES, [("", TEXT), (name, error), ("", COMPLETED)], Ended::Clean, Quirks::default());
        assert_eq!((read.class(), read.text.as_str()), (class, "hello"), "{error}");
        assert_eq!(read.end.unwrap_err().message, "the provider broke off: oops");
    }
}

#[test]
fn interleaved_calls_are_told_apart_by_their_ids() {
    let events = [
        begun("1", "a"),
        begun("2", "b"),
        args("2", r#"{"y""#),
        args("1", r#"{"x":1}"#),
        args("2", ":2}"),
        COMPLETED.to_owned(),
    ];
    let expected = [("a".to_owned(), r#"{"x":1}"#.to_owned(), None), ("b".to_owned(), r#"{"y":2}"#.to_owned(), None)];
    assert_eq!(read(RESPONSES, &events).calls(), expected);
}

#[test]
fn an_item_that_ends_under_another_id_is_not_a_second_one() {
    let done = concat!(
        r#"{"type":"response.output_item.done","item":{"id":"other","type":"function_call","call_id":"c1","name":"a","#,
        r#""arguments":"{\"x\":1}"}}"#,
    );
    let events = [begun("1", "a"), args("1", r#"{"x":1}"#), done.to_owned(), COMPLETED.to_owned()];
    assert_eq!(read(RESPONSES, &events).calls().len(), 1);
}

#[test]
fn pieces_that_name_no_item_belong_to_the_last() {
    let bare = r#"{"type":"response.function_call_arguments.delta","delta":"{\"x\":1}"}"#.to_owned();
    let read = read(RESPONSES, &[begun("1", "a"), bare, COMPLETED.to_owned()]);
    assert_eq!(read.calls(), [("a".to_owned(), r#"{"x":1}"#.to_owned(), None)]);
}

#[test]
fn the_list_at_the_end_counts_where_nothing_or_less_was_streamed() {
    let call = r#"{"id":"1","type":"function_call","call_id":"c","name":"a","arguments":"{}"}"#;
    let text = r#"{"id":"m","type":"message","content":[{"type":"output_text","text":"hello"}]}"#;
    let end = listed("completed", "null", &format!("{text},{call}"));
    for events in [vec![end.clone()], vec![TEXT.to_owned(), end]] {
        let read = read(RESPONSES, &events);
        assert_eq!((said(&read), read.calls().len()), ("hello", 1));
    }
}

#[test]
fn arguments_cut_by_the_limit_of_tokens_at_any_byte_are_not_run_and_the_model_is_told() {
    let whole = r#"{"command":"rm -rf /tmp/x"}"#;
    let end = listed("incomplete", r#"{"reason":"max_output_tokens"}"#, "");
    for at in 0..whole.len() {
        let read = read(RESPONSES, &[begun("1", "shell"), args("1", &whole[..at]), end.clone()]);
        assert!(read.calls()[0].2.as_ref().unwrap().contains("were cut off by the limit of output tokens"), "{at}");
        assert!(read.end.unwrap().cut);
    }
}

#[test]
fn refusals_and_filters_are_errors_and_nothing_of_them_is_run() {
    let refusal = r#"{"type":"response.refusal.delta","item_id":"m","output_index":0,"delta":"I cannot."}"#;
    let error = read(RESPONSES, &[refusal, &begun("1", "a"), COMPLETED]).end.unwrap_err();
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Never, "the model refused: I cannot."));
    let end = listed("incomplete", r#"{"reason":"content_filter"}"#, "");
    let error = read(RESPONSES, &[TEXT, &end]).end.unwrap_err();
    assert_eq!(
        (error.class, error.message.as_str()),
        (ErrorClass::Never, "the provider's content filter ended the answer: hello")
    );
}

#[test]
fn only_reasoning_that_the_provider_would_know_again_is_carried() {
    let item = |inside: &str| {
        let item = format!(r#"{{"type":"reasoning","id":"r","summary":[]{inside}}}"#);
        format!(r#"{{"type":"response.output_item.done","output_index":9,"item":{item}}}"#)
    };
    for (inside, carried) in [
        ("", false),
        (r#","encrypted_content":null"#, false),
        (r#","encrypted_content":"x""#, true),
        (r#","content":[{"type":"reasoning_text","text":"hm"}]"#, true),
    ] {
        let read = read(RESPONSES, &[item(inside), TEXT.to_owned(), COMPLETED.to_owned()]);
        assert_eq!(read.end.unwrap().carried.is_some(), carried, "{inside}");
    }
}

#[test]
fn a_server_that_does_not_stream_is_understood() {
    let body = r#"{"object":"response","status":"completed","error":null,
        "output":[{"id":"m","type":"message","content":[{"type":"output_text","text":"so"}]},
        {"id":"1","type":"function_call","call_id":"c","name":"shell","arguments":"{\"command\":\"ls\"}"}],
        "usage":{"input_tokens":7,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}}"#;
    let completion = RESPONSES.plain(body, Quirks::default()).unwrap();
    assert_eq!((completion.text.as_str(), completion.calls.len()), ("so", 1));
    assert_eq!((completion.usage.input_tokens, completion.usage.cache_read_input_tokens), (7, 4));
    for body in [r#"{"error":{"code":500,"message":"oops"}}"#, "<html>", "", "{}", r#"{"status":"failed"}"#] {
        assert_eq!(RESPONSES.plain(body, Quirks::default()).unwrap_err().class, ErrorClass::Retry, "{body}");
    }
}
