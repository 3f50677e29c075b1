//! Tests the ends of answers: placeholders for a finish reason, signs of an incomplete answer, and ends that are
//! complete without a last event.

use serde_json::{Value, json};

use super::super::dialects::{Ended, HttpDialect, Quirks};
use super::{read_all, read_in_chunks, stream_of};
use crate::prompt::ErrorClass;

use HttpDialect::{Anthropic, OpenAi, Responses};

fn stream(events: &[Value]) -> String {
    stream_of(&events.iter().map(Value::to_string).collect::<Vec<_>>())
}

fn chunk(delta: &Value, reason: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
}

/// A placeholder in the field of the finish reason does not end an answer (entry P3).
#[test]
fn a_word_that_stands_for_no_reason_ends_no_answer() {
    let call = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "zz", "arguments": "{}"}}]});
    for reason in
        [json!("null"), json!("None"), json!("none"), json!(""), json!(" NULL "), json!("undefined"), json!(null)]
    {
        for delta in [json!({"content": "half an"}), call.clone()] {
            let half = read_in_chunks(OpenAi, &stream(&[chunk(&delta, &reason)]));
            assert_eq!(half.class(), ErrorClass::Retry, "{reason} {delta}");
        }
        let events = [
            chunk(&json!({"content": "one "}), &reason),
            chunk(&json!({"content": "two"}), &reason),
            chunk(&json!({}), &json!("stop")),
            chunk(&json!({}), &reason),
        ];
        assert_eq!(read_in_chunks(OpenAi, &stream(&events)).end.unwrap().text, "one two", "{reason}");
        let mut reader = OpenAi.reader(Quirks::default());
        reader.event("message", &events[0].to_string(), &mut |_| {}).unwrap();
        assert!(!reader.may_be_over(), "{reason}");
        let of_messages = [
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi"}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": reason}}),
        ];
        assert_eq!(read_in_chunks(Anthropic, &stream(&of_messages)).class(), ErrorClass::Retry, "{reason}");
    }
}

/// A finish reason that reports a failure of the server makes the answer incomplete (entry P3).
#[test]
fn a_server_that_gave_up_gave_half_an_answer() {
    for (reason, class) in [
        ("engine_overloaded", ErrorClass::Retry),
        ("timeout", ErrorClass::Retry),
        ("TIMED_OUT", ErrorClass::Retry),
        ("ERROR", ErrorClass::Retry),
        ("server_error", ErrorClass::Retry),
        ("USER_CANCEL", ErrorClass::Retry),
        ("service_unavailable", ErrorClass::Retry),
        ("generation_failed", ErrorClass::Retry),
        ("ERROR_TOXIC", ErrorClass::Never),
        ("content_moderation", ErrorClass::Never),
        ("ERROR_LIMIT", ErrorClass::ContextTooLong),
    ] {
        let events = [chunk(&json!({"content": "half"}), &json!(null)), chunk(&json!({}), &json!(reason))];
        assert_eq!(read_in_chunks(OpenAi, &stream(&events)).class(), class, "{reason}");
        let of_messages = [
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "half"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": reason}}),
            json!({"type": "message_stop"}),
        ];
        assert_eq!(read_in_chunks(Anthropic, &stream(&of_messages)).class(), class, "{reason}");
    }
}

/// An error beside the choices counts, and an empty error field does not (entry P3).
#[test]
fn an_error_beside_the_choices_counts_and_an_empty_one_does_not() {
    let half = chunk(&json!({"content": "half"}), &json!(null));
    for (beside, told) in [
        (json!({"x_groq": {"id": "r", "error": "Service over capacity"}}), "over capacity"),
        (json!({"x_groq": {"error": {"message": "Over capacity", "code": 503}}}), "Over capacity"),
        (json!({"error": "overloaded"}), "overloaded"),
        (json!({"error": {"message": "gone"}}), "gone"),
        (json!({"base_resp": {"status_code": 1000, "status_msg": "unknown error"}}), "unknown error"),
    ] {
        let mut chunk = chunk(&json!({}), &json!("stop"));
        chunk.as_object_mut().unwrap().extend(beside.as_object().unwrap().clone());
        let error = read_in_chunks(OpenAi, &stream(&[half.clone(), chunk])).end.unwrap_err();
        assert_eq!(error.class, ErrorClass::Retry, "{beside}");
        assert!(error.message.contains(told), "{}: {beside}", error.message);
    }
    for empty in [json!(""), json!(false), json!({}), json!([]), json!(null), json!(0)] {
        let mut first = half.clone();
        first["error"] = empty.clone();
        let mut last = chunk(&json!({}), &json!("stop"));
        last["error"] = empty.clone();
        last["choices"][0]["error"] = empty.clone();
        last["x_groq"] = json!({"error": empty});
        last["base_resp"] = json!({"status_code": 0, "status_msg": ""});
        assert_eq!(read_in_chunks(OpenAi, &stream(&[first, last])).end.unwrap().text, "half", "{empty}");
        let body = json!({"content": "hi", "stop_reason": "end_turn", "error": empty});
        assert_eq!(Anthropic.plain(&body.to_string(), Quirks::default()).unwrap().text, "hi", "{empty}");
        let output = json!([{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]);
        let body = json!({"status": "completed", "output": output, "error": empty});
        assert_eq!(Responses.plain(&body.to_string(), Quirks::default()).unwrap().text, "hi", "{empty}");
    }
}

/// An error in the envelope of an answer is reported in each dialect (entry C3).
#[test]
fn an_error_in_the_envelope_of_an_answer_is_told_in_each_dialect() {
    let quota = ErrorClass::Quota(None);
    for (body, class, told) in [
        (
            json!({"choices": null, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
            quota,
            "balance",
        ),
        (
            json!({"base_resp": {"status_code": 1004, "status_msg": "login fail"}}),
            ErrorClass::Credentials,
            "login fail",
        ),
        (json!({"base_resp": {"status_code": 1002, "status_msg": "RPM"}}), ErrorClass::RateLimit(None), "RPM"),
        (json!({"code": 500, "msg": "404 NOT_FOUND", "success": false}), ErrorClass::Retry, "404 NOT_FOUND"),
        (json!({"code": 429, "message": "Too fast", "data": null}), ErrorClass::RateLimit(None), "Too fast"),
        (json!({"title": "Unauthorized", "status": 401}), ErrorClass::Credentials, "Unauthorized"),
        (json!({"code": 1113, "msg": "Insufficient balance", "success": false}), quota, "balance"),
    ] {
        for dialect in [OpenAi, Anthropic, Responses] {
            let error = dialect.plain(&body.to_string(), Quirks::default()).unwrap_err();
            assert_eq!(error.class, class, "{dialect:?} {body}: {}", error.message);
            assert!(error.message.contains(told), "{}: {body}", error.message);
            let error = read_in_chunks(dialect, &stream(std::slice::from_ref(&body))).end.unwrap_err();
            assert_eq!(error.class, class, "{dialect:?} {body}: {}", error.message);
        }
    }
}

/// A turn that ends in order to call a tool, but has no call, is asked for once more (entry P3).
#[test]
fn a_turn_that_ends_to_call_a_tool_and_calls_none_is_doubted() {
    let call = json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "zz", "arguments": "{}"}}]});
    for reason in ["tool_calls", "tool_use", "function_call", "TOOL_CALLS", "tool_call"] {
        let says = [chunk(&json!({"content": "Let me look."}), &json!(null)), chunk(&json!({}), &json!(reason))];
        let doubted = read_in_chunks(OpenAi, &stream(&says)).end.unwrap();
        assert_eq!(doubted.text, "Let me look.", "{reason}");
        assert!(doubted.doubt.is_some_and(|why| why.contains(reason)), "{reason}");
        let calls = [chunk(&call, &json!(null)), chunk(&json!({}), &json!(reason))];
        let called = read_in_chunks(OpenAi, &stream(&calls)).end.unwrap();
        assert_eq!((called.calls.len(), called.doubt), (1, None), "{reason}");
        let of_messages = [
            json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "text", "text": "Let me look."}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": reason}}),
            json!({"type": "message_stop"}),
        ];
        assert!(read_in_chunks(Anthropic, &stream(&of_messages)).end.unwrap().doubt.is_some(), "{reason}");
    }
}

/// A text that is only reasoning is no answer (entry P3).
#[test]
fn a_text_that_is_all_thought_is_no_answer() {
    for (text, is_answer) in [
        ("<think>\nI should look now.\n</think>\n\n", false),
        ("<think></think>", false),
        ("<think>It never ends", false),
        ("<thinking>a</thinking> <thinking>b</thinking>", false),
        ("<thought>hm</thought>", false),
        ("I should look now.\n</think>\n\n", false),
        ("<think>hm</think>\n\nIt is 4.", true),
        ("hm\n</think>\n\nIt is 4.", true),
        ("The tag is <think>", true),
        ("It ends with </think>", true),
        ("`<think>` begins it, and this ends it:\n</think>", true),
    ] {
        let read = read_in_chunks(OpenAi, &stream(&[chunk(&json!({"content": text}), &json!("stop"))]));
        assert_eq!(read.end.as_ref().is_ok(), is_answer, "{text:?}");
        let call = json!({"content": text, "tool_calls": [{"id": "c", "function": {"name": "zz", "arguments": "{}"}}]});
        let read = read_in_chunks(OpenAi, &stream(&[chunk(&call, &json!("tool_calls"))]));
        assert_eq!(read.end.unwrap().text, text);
    }
}

/// A message with a stop reason and only complete blocks needs no last event (entry P3).
#[test]
fn a_message_that_names_its_reason_and_has_all_its_blocks_needs_no_more() {
    let block = |index: u64, block: Value| {
        vec![
            json!({"type": "content_block_start", "index": index, "content_block": block}),
            json!({"type": "content_block_stop", "index": index}),
        ]
    };
    let text = block(0, json!({"type": "text", "text": "hi"}));
    let call = block(1, json!({"type": "tool_use", "id": "t", "name": "zz", "input": {"a": 1}}));
    let reason = |reason: &str| json!({"type": "message_delta", "delta": {"stop_reason": reason}});
    let open = vec![json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "h"}})];
    for (events, is_whole) in [
        ([text.clone(), vec![reason("end_turn")]].concat(), true),
        ([text.clone(), call.clone(), vec![reason("tool_use")]].concat(), true),
        ([call.clone(), vec![reason("tool_use")]].concat(), true),
        ([text.clone(), vec![reason("max_tokens")]].concat(), true),
        ([text.clone(), vec![reason("null")]].concat(), false),
        ([text.clone(), call].concat(), false),
        ([text.clone(), open.clone(), vec![reason("end_turn")]].concat(), false),
        ([text, vec![reason("end_turn")], open].concat(), false),
    ] {
        let events: Vec<String> = events.iter().map(Value::to_string).collect();
        for done in [None, Some("[DONE]")] {
            for ended in [Ended::Clean, Ended::Broken, Ended::Stalled] {
                let events = events.iter().map(String::as_str).chain(done).map(|data| ("message", data));
                let read = read_all(Anthropic, events, ended, Quirks::default());
                let expected = is_whole && (done.is_some() || ended == Ended::Clean);
                assert_eq!(read.end.is_ok(), expected, "{done:?} {ended:?} {:?}", read.end);
            }
        }
    }
}

/// A refusal without a text is reported with the explanation of the server (entry P3).
#[test]
fn a_refusal_that_says_nothing_is_told_in_the_words_that_explain_it() {
    for (said, details, told) in [
        ("", json!({"type": "refusal", "explanation": "Against the policy"}), "the model refused: Against the policy"),
        ("I cannot", json!({"explanation": "Against the policy"}), "the model refused: I cannot"),
        ("", json!({"explanation": null}), "the model refused"),
        ("", json!(null), "the model refused"),
        ("", json!("policy"), "the model refused"),
    ] {
        let events = [
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": said}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": details}}),
            json!({"type": "message_stop"}),
        ];
        let error = read_in_chunks(Anthropic, &stream(&events)).end.unwrap_err();
        assert_eq!((error.class, error.message.as_str()), (ErrorClass::Never, told), "{details}");
    }
}
