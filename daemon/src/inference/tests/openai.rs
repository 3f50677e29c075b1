//! Tests faulty streams of chat completions.

use super::super::dialects::{Ended, HttpDialect, Quirks};
use super::{Read, read, read_all};
use crate::prompt::ErrorClass;
use harness_protocol::run::Usage;

const OPENAI: HttpDialect = HttpDialect::OpenAi;
const HELLO: &str = r#"{"choices":[{"index":0,"delta":{"content":"hello"}}]}"#;
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const DONE: &str = "[DONE]";

fn said(read: &Read) -> &str {
    &read.end.as_ref().unwrap().text
}

fn ends(events: &[&str], ended: Ended) -> Read {
    read_all(OPENAI, events.iter().map(|data| ("", *data)), ended, Quirks::default())
}

/// A chunk with a call of these arguments.
fn call(args: &str) -> String {
    let args = serde_json::to_string(args).unwrap();
    let call = format!(r#"{{"index":0,"id":"1","function":{{"name":"shell","arguments":{args}}}}}"#);
    format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{call}]}}}}]}}"#)
}

#[test]
fn keep_alives_and_empty_events_say_nothing() {
    let events = ["", " ", ": keepalive", ":", "ping", "null", "{}", HELLO, "", STOP, ": PROCESSING", DONE];
    assert_eq!(said(&read(OPENAI, &events)), "hello");
    let named = [("ping", "whatever"), ("", HELLO), ("keepalive", "{"), ("", STOP), ("heartbeat", "")];
    assert_eq!(said(&read_all(OPENAI, named, Ended::Clean, Quirks::default())), "hello");
}

#[test]
fn done_may_be_missing_where_there_is_a_finish_reason() {
    assert_eq!(said(&ends(&[HELLO, STOP], Ended::Clean)), "hello");
    assert_eq!(said(&ends(&[HELLO, STOP], Ended::Stalled)), "hello");
    // The last delta may come after the finish reason, so a connection that broke may have had more.
    assert_eq!(ends(&[HELLO, STOP], Ended::Broken).class(), ErrorClass::Retry);
    assert_eq!(said(&ends(&[HELLO, STOP, DONE], Ended::Broken)), "hello");
    assert_eq!(said(&ends(&[HELLO, DONE], Ended::Clean)), "hello");
}

#[test]
fn an_end_without_either_is_no_end() {
    for events in [&[][..], &[HELLO], &["{}"]] {
        for ended in [Ended::Clean, Ended::Broken, Ended::Stalled] {
            assert_eq!(ends(events, ended).class(), ErrorClass::Retry);
        }
    }
    assert_eq!(ends(&[DONE], Ended::Clean).class(), ErrorClass::Retry);
}

#[test]
fn data_after_done_is_not_looked_at() {
    let mut reader = OPENAI.reader(Quirks::default());
    for data in [HELLO, STOP, DONE] {
        assert!(!reader.is_over());
        reader.event("", data, &mut |_| {}).unwrap();
    }
    assert!(reader.is_over());
    for data in [HELLO, "garbage", r#"{"error":"late"}"#, DONE] {
        reader.event("", data, &mut |_| panic!("shown")).unwrap();
    }
    assert_eq!(reader.finish(Ended::Broken).unwrap().text, "hello");
}

#[test]
fn an_error_after_some_text_ends_the_answer() {
    for (error, class) in [
        (r#"{"error":{"message":"oops","type":"server_error"}}"#, ErrorClass::Retry),
        (r#"{"error":{"message":"oops","code":401}}"#, ErrorClass::Credentials),
        (r#"{"error":"oops"}"#, ErrorClass::Retry),
        (r#"{"object":"error","message":"oops","code":400}"#, ErrorClass::Never),
        (r#"{"detail":"oops"}"#, ErrorClass::Retry),
        (r#"{"choices":[{"index":0,"delta":{},"error":{"code":502,"message":"oops"}}]}"#, ErrorClass::Retry),
    ] {
        let read = read(OPENAI, &[HELLO, error, STOP, DONE]);
        assert_eq!((read.class(), read.text.as_str()), (class, "hello"), "{error}");
        assert_eq!(read.end.unwrap_err().message, "the provider broke off: oops");
    }
    let named = read_all(OPENAI, [("", HELLO), ("error", "out of memory")], Ended::Clean, Quirks::default());
    assert_eq!(named.end.unwrap_err().message, "the provider broke off: out of memory");
    assert_eq!(said(&read(OPENAI, &[HELLO, r#"{"error":null,"choices":[]}"#, STOP, DONE])), "hello");
}

#[test]
fn what_is_no_json_is_told_and_asked_again() {
    for data in ["{\"choices\":[{", "oops", "<html><title>Bad gateway</title></html>"] {
        let error = read(OPENAI, &[HELLO, data]).end.unwrap_err();
        assert_eq!(error.class, ErrorClass::Retry);
        assert!(error.message.starts_with("the provider sent an event that cannot be read"), "{}", error.message);
    }
}

#[test]
fn usage_comes_with_empty_choices_or_none_or_in_every_chunk() {
    for choices in ["[]", "null"] {
        let usage =
            format!(r#"{{"choices":{choices},"usage":{{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}}}"#);
        let read = read(OPENAI, &[HELLO, STOP, &usage, DONE]);
        assert_eq!(read.end.unwrap().usage, Usage { input_tokens: 7, output_tokens: 3, ..Usage::default() });
    }
    let running = r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":7,"completion_tokens":1}}"#;
    let last = r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":2}}"#;
    assert_eq!(read(OPENAI, &[running, last, DONE]).end.unwrap().usage.output_tokens, 2);
}

#[test]
fn usage_is_understood_as_each_family_counts_it() {
    let usage = |json: &str| {
        let chunk = format!(r#"{{"choices":[],"usage":{json}}}"#);
        read(OPENAI, &[HELLO, STOP, &chunk]).end.unwrap().usage
    };
    let openai = usage(concat!(
        r#"{"prompt_tokens":100,"completion_tokens":50,"total_tokens":150,"#,
        r#""prompt_tokens_details":{"cached_tokens":64},"completion_tokens_details":{"reasoning_tokens":20}}"#,
    ));
    let all = Usage {
        input_tokens: 100,
        output_tokens: 50,
        cache_read_input_tokens: 64,
        reasoning_output_tokens: 20,
        ..Usage::default()
    };
    assert_eq!(openai, all);
    let deepseek = usage(
        r#"{"prompt_tokens":100,"completion_tokens":50,"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":36}"#,
    );
    assert_eq!(deepseek.cache_read_input_tokens, 64);
    let xai = usage(concat!(
        r#"{"prompt_tokens":100,"completion_tokens":30,"total_tokens":150,"#,
        r#""completion_tokens_details":{"reasoning_tokens":20}}"#,
    ));
    assert_eq!((xai.output_tokens, xai.reasoning_output_tokens), (50, 20));
    let nulls = usage(r#"{"prompt_tokens":null,"completion_tokens":5,"prompt_tokens_details":null}"#);
    assert_eq!(nulls, Usage { output_tokens: 5, ..Usage::default() });
}

#[test]
fn a_finish_reason_may_come_before_the_last_delta() {
    assert_eq!(said(&read(OPENAI, &[STOP, HELLO, DONE])), "hello");
    let read = read(OPENAI, &[call(r#"{"comm"#), STOP.to_owned(), call(r#"and":"ls"}"#)]);
    assert_eq!(read.calls()[0], ("shell".to_owned(), r#"{"command":"ls"}"#.to_owned(), None));
}

#[test]
fn calls_are_wanted_whatever_the_finish_reason_says() {
    for reason in ["stop", "tool_calls", "function_call", "eos", "end_turn", "whatever", ""] {
        let end = format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{reason}"}}]}}"#);
        let read = read(OPENAI, &[call("{}"), end, DONE.to_owned()]);
        assert_eq!(read.calls().len(), 1, "{reason}");
        assert!(!read.end.unwrap().cut);
    }
}

#[test]
fn arguments_cut_by_the_limit_of_tokens_at_any_byte_are_not_run_and_the_model_is_told() {
    let args = r#"{"command":"rm -rf \"/tmp/x\"","timeout":10}"#;
    for reason in ["length", "max_tokens", "MAX_TOKENS"] {
        let end = format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{reason}"}}]}}"#);
        for at in 0..args.len() {
            let read = read(OPENAI, &[call(&args[..at]), end.clone(), DONE.to_owned()]);
            let (_, _, unusable) = read.calls().remove(0);
            let unusable = unusable.unwrap();
            assert!(
                unusable.starts_with("Not run: the arguments of shell were cut off by the limit of output"),
                "{unusable}"
            );
            assert!(read.end.unwrap().cut);
        }
        let whole = read(OPENAI, &[call(args), end, DONE.to_owned()]);
        assert_eq!(whole.calls()[0].2, None);
    }
}

#[test]
fn refusals_and_filters_are_errors_and_nothing_of_them_is_run() {
    let refusal = r#"{"choices":[{"delta":{"refusal":"I cannot help with that."}}]}"#;
    let error = read(OPENAI, &[refusal, &call("{}"), STOP, DONE]).end.unwrap_err();
    assert_eq!(
        (error.class, error.message.as_str()),
        (ErrorClass::Never, "the model refused: I cannot help with that.")
    );
    let filtered = r#"{"choices":[{"delta":{},"finish_reason":"content_filter"}]}"#;
    let error = read(OPENAI, &[HELLO, &call("{}"), filtered, DONE]).end.unwrap_err();
    assert_eq!(error.class, ErrorClass::Never);
    assert_eq!(error.message, "the provider's content filter ended the answer: hello");
    let failed = r#"{"choices":[{"delta":{},"finish_reason":"error"}]}"#;
    assert_eq!(read(OPENAI, &[HELLO, failed, DONE]).class(), ErrorClass::Retry);
    assert_eq!(said(&read(OPENAI, &[r#"{"choices":[{"delta":{"refusal":null,"content":"hello"}}]}"#, STOP])), "hello");
}

#[test]
fn halves_of_pairs_never_fail_the_stream() {
    let text = [r#"{"choices":[{"delta":{"content":"a\ud83d"}}]}"#, r#"{"choices":[{"delta":{"content":"\ude00"}}]}"#];
    assert_eq!(said(&read(OPENAI, &[text[0], text[1], STOP])), "a\u{1F600}");
    assert_eq!(said(&read(OPENAI, &[text[0], HELLO, STOP])), "a\u{FFFD}hello");
    let raw = concat!(
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"shell","#,
        r#""arguments":"{\"command\":\"\ud800\"}"}}]}}]}"#,
    );
    for chunk in [raw.to_owned(), call(r#"{"command":"\ud800"}"#)] {
        let (_, _, unusable) = read(OPENAI, &[chunk, STOP.to_owned()]).calls().remove(0);
        assert!(unusable.unwrap().contains("half of a UTF-16 surrogate pair"));
    }
}

#[test]
fn ten_megabytes_of_arguments_in_small_pieces_are_read_in_one_go_and_not_run() {
    let piece = call(&"x".repeat(1 << 10));
    let events = std::iter::once(call("{\"command\":\"")).chain(std::iter::repeat_n(piece, 10 << 10));
    let events: Vec<String> = events.chain([call("\"}"), STOP.to_owned(), DONE.to_owned()]).collect();
    let (_, args, unusable) = read(OPENAI, &events).calls().remove(0);
    assert!(unusable.unwrap().contains("have 10485774 bytes"));
    assert!(args.len() < 100_000);
}

#[test]
fn an_answer_without_end_is_given_up() {
    let piece = format!(r#"{{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "x".repeat(1 << 20));
    let events: Vec<&str> = std::iter::repeat_n(piece.as_str(), 40).collect();
    let error = read(OPENAI, &events).end.unwrap_err();
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Never, "the model's answer has more than 32 MiB"));
}

#[test]
fn ten_thousand_tiny_deltas_are_their_text() {
    let deltas: Vec<String> = (0..10_000)
        .map(|n| format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{}"}},"finish_reason":null}}]}}"#, n % 10))
        .chain([STOP.to_owned()])
        .collect();
    let read = read(OPENAI, &deltas);
    assert_eq!(read.text.len(), 10_000);
    assert_eq!(said(&read), read.text);
}

#[test]
fn a_server_that_does_not_stream_is_understood() {
    let body = r#"{"id":"x","object":"chat.completion",
        "choices":[{"index":0,"message":{"role":"assistant","content":"hm",
        "tool_calls":[{"id":"1","type":"function","function":{"name":"shell","arguments":"{\"command\":\"ls\"}"}}]},
        "finish_reason":"tool_calls"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#;
    let completion = OPENAI.plain(body, Quirks::default()).unwrap();
    assert_eq!((completion.text.as_str(), completion.calls.len(), completion.usage.input_tokens), ("hm", 1, 7));
    for (body, class) in [
        (r#"{"error":{"message":"oops","code":400}}"#, ErrorClass::Never),
        ("<!DOCTYPE html><html><head><title>Maintenance</title></head></html>", ErrorClass::Retry),
        ("", ErrorClass::Retry),
        ("{}", ErrorClass::Retry),
        ("oops", ErrorClass::Retry),
    ] {
        assert_eq!(OPENAI.plain(body, Quirks::default()).unwrap_err().class, class, "{body}");
    }
    let html = OPENAI.plain("<html><title>Maintenance</title>", Quirks::default()).unwrap_err().message;
    assert_eq!(html, "the provider broke off: a page of HTML, \"Maintenance\"");
}

#[test]
fn only_the_first_choice_is_looked_at() {
    let other = r#"{"choices":[{"index":1,"delta":{"content":"other"},"finish_reason":"stop"}]}"#;
    assert_eq!(said(&read(OPENAI, &[HELLO, other, STOP])), "hello");
    assert_eq!(ends(&[HELLO, other], Ended::Clean).class(), ErrorClass::Retry);
}
