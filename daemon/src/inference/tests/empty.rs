//! Tests that answers without text and calls never count as answers, and finish reasons that leave no answer.

use harness_protocol::run::Usage;
use serde_json::{Value, json};

use super::super::dialects::{HttpDialect, Quirks};
use super::{read_in_chunks, stream_of};
use crate::prompt::ErrorClass;

use HttpDialect::{Anthropic, OpenAi, Responses};

fn stream(events: &[Value]) -> String {
    stream_of(&events.iter().map(Value::to_string).collect::<Vec<_>>())
}

fn chat(delta: &Value, reason: &str) -> String {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}});
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
    stream(&[json!({"choices": [{"index": 0, "delta": delta}]}), end, usage])
}

fn messages(block: &Value, reason: &str) -> String {
    stream(&[
        json!({"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 6}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": reason}}),
        json!({"type": "message_stop"}),
    ])
}

fn responses(item: &Value, status: &str, reason: &str) -> String {
    let details = if reason.is_empty() { Value::Null } else { json!({"reason": reason}) };
    let usage = json!({"input_tokens": 5, "output_tokens": 6});
    let end = json!({"status": status, "incomplete_details": details, "output": [], "usage": usage});
    stream(&[
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": format!("response.{status}"), "response": end}),
    ])
}

fn said(texts: &[&str]) -> Value {
    let parts: Vec<Value> = texts.iter().map(|text| json!({"type": "output_text", "text": text})).collect();
    json!({"type": "message", "id": "m", "role": "assistant", "content": parts})
}

/// P3 and rule 8.
#[test]
fn an_answer_without_text_and_calls_is_asked_again_with_the_reason_in_each_dialect() {
    const NOTHING: &str = "the model neither said nor called anything";
    const THOUGHT: &str = "the model thought, and then neither said nor called anything";
    const CUT: &str = "the limit of output tokens ended the answer before the model said anything";
    for (dialect, stream, told) in [
        (OpenAi, chat(&json!({"content": " \n\t"}), "stop"), NOTHING),
        (OpenAi, chat(&json!({"content": null, "tool_calls": []}), "tool_calls"), NOTHING),
        (OpenAi, chat(&json!({"role": "assistant"}), "OTHER"), "called anything (OTHER)"),
        (OpenAi, chat(&json!({"reasoning": "It is 4."}), "stop"), THOUGHT),
        (OpenAi, chat(&json!({"reasoning_content": "It is", "content": ""}), "length"), CUT),
        (OpenAi, stream_of(&[r#"{"choices":[{"delta":{"content":""}}]}"#, "[DONE]"]), NOTHING),
        (Anthropic, messages(&json!({"type": "text", "text": " "}), "end_turn"), NOTHING),
        (Anthropic, messages(&json!({"type": "thinking", "thinking": "It is 4."}), "end_turn"), THOUGHT),
        (Anthropic, messages(&json!({"type": "redacted_thinking", "data": "x"}), "stop_sequence"), THOUGHT),
        (
            Anthropic,
            messages(&json!({"type": "server_tool_use", "name": "web_search", "input": {}}), "end_turn"),
            NOTHING,
        ),
        (Anthropic, messages(&json!({"type": "thinking", "thinking": "It"}), "max_tokens"), CUT),
        (Responses, responses(&said(&[""]), "completed", ""), NOTHING),
        (Responses, responses(&said(&[]), "incomplete", "max_output_tokens"), CUT),
        (
            Responses,
            responses(
                &json!({"type": "reasoning", "id": "r", "encrypted_content": "x", "summary": []}),
                "completed",
                "",
            ),
            THOUGHT,
        ),
        (Responses, responses(&json!({"type": "web_search_call", "id": "w"}), "completed", ""), NOTHING),
    ] {
        let error = read_in_chunks(dialect, &stream).end.expect_err(&stream);
        assert_eq!(error.class, ErrorClass::Unusable, "{stream}");
        assert!(error.message.contains(told), "{}: {stream}", error.message);
        let used = error.usage.map(|usage| usage.tokens());
        assert!(used == Some(11) || stream.contains("[DONE]"), "it is paid for: {used:?} {stream}");
    }
    for (dialect, body) in [
        (
            OpenAi,
            json!({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5}}),
        ),
        (Anthropic, json!({"content": [], "stop_reason": "end_turn", "usage": {"input_tokens": 5}})),
        (Responses, json!({"status": "completed", "output": [], "usage": {"input_tokens": 5}})),
    ] {
        let error = dialect.plain(&body.to_string(), Quirks::default()).unwrap_err();
        let usage = Usage { input_tokens: 5, ..Usage::default() };
        assert_eq!((error.class, error.usage), (ErrorClass::Unusable, Some(usage)), "{body}");
    }
}

/// A call that the server could not parse leads to a retry, whatever text came before (entry P3).
#[test]
fn a_call_that_its_server_could_not_read_is_asked_again_whatever_was_said_before() {
    for reason in [
        "MALFORMED_FUNCTION_CALL",
        "function_call_filter: MALFORMED_FUNCTION_CALL",
        "malformed_tool_call",
        "UNEXPECTED_TOOL_CALL",
        "tool_use_failed",
        "Malformed_Response",
    ] {
        for said in ["", "Let me look."] {
            let error = read_in_chunks(OpenAi, &chat(&json!({"content": said}), reason)).end.unwrap_err();
            assert_eq!(error.class, ErrorClass::Unusable, "{reason}");
            assert!(error.message.contains(reason), "{}", error.message);
        }
        let error =
            read_in_chunks(Anthropic, &messages(&json!({"type": "text", "text": "hm"}), reason)).end.unwrap_err();
        assert_eq!(error.class, ErrorClass::Unusable, "{reason}");
    }
}

/// An answer that filled the model's context is an error of the class "too long" (entry P3).
#[test]
fn what_filled_the_models_context_is_too_long_and_no_answer() {
    let text = json!({"type": "text", "text": "half an"});
    let call = json!({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "shell", "arguments": "{}"}}]});
    for reason in [
        "model_context_window_exceeded",
        "context_length_exceeded",
        "MODEL_CONTEXT_WINDOW_EXCEEDED",
        "context_window",
        "max_context_length",
        "prompt_too_long",
    ] {
        for (dialect, stream) in [
            (OpenAi, chat(&json!({"content": "half an"}), reason)),
            (OpenAi, chat(&call, reason)),
            (Anthropic, messages(&text, reason)),
            (Responses, responses(&said(&["half an"]), "incomplete", reason)),
        ] {
            let error = read_in_chunks(dialect, &stream).end.unwrap_err();
            assert_eq!(error.class, ErrorClass::ContextTooLong, "{dialect:?} {reason}");
            assert!(error.message.contains(reason), "{}", error.message);
        }
    }
}

/// A turn that the server paused is no answer, unless it has calls (entry P17).
#[test]
fn half_a_turn_is_no_answer_unless_something_is_to_be_called() {
    let text = json!({"type": "text", "text": "working"});
    for stream in [
        messages(&text, "pause_turn"),
        messages(&json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}), "pause_turn"),
        messages(&json!({"type": "thinking", "thinking": "hm"}), "pause_turn"),
        messages(&text, "PAUSE_TURN"),
    ] {
        let error = read_in_chunks(Anthropic, &stream).end.unwrap_err();
        assert_eq!(error.class, ErrorClass::Unusable, "{stream}");
        assert!(error.message.contains("pause_turn") && error.usage.is_some(), "{}", error.message);
    }
    let error = read_in_chunks(OpenAi, &chat(&json!({"content": "working"}), "pause_turn")).end.unwrap_err();
    assert_eq!(error.class, ErrorClass::Unusable);
    let call = json!({"type": "tool_use", "id": "t", "name": "shell", "input": {"command": "ls"}});
    assert_eq!(read_in_chunks(Anthropic, &messages(&call, "pause_turn")).calls().len(), 1);
}

/// A finish reason means the same in each dialect (entry P3).
#[test]
fn an_end_means_the_same_in_each_dialect() {
    let text = json!({"type": "text", "text": "so"});
    for (reason, class) in [
        ("content_filter", Some(ErrorClass::Never)),
        ("SAFETY", Some(ErrorClass::Never)),
        ("RECITATION", Some(ErrorClass::Never)),
        ("sensitive", Some(ErrorClass::Never)),
        ("refusal", Some(ErrorClass::Never)),
        ("network_error", Some(ErrorClass::Retry)),
        ("abort", Some(ErrorClass::Retry)),
        ("insufficient_system_resource", Some(ErrorClass::Retry)),
        ("stop", None),
        ("end_turn", None),
        ("eos", None),
        ("stop_sequence", None),
        ("max_tokens", None),
        ("length", None),
    ] {
        for (dialect, stream) in
            [(OpenAi, chat(&json!({"content": "so"}), reason)), (Anthropic, messages(&text, reason))]
        {
            let read = read_in_chunks(dialect, &stream);
            assert_eq!(read.end.as_ref().err().map(|error| error.class), class, "{dialect:?} {reason}");
            if let Ok(completion) = read.end {
                assert_eq!(completion.cut, ["max_tokens", "length"].contains(&reason), "{reason}");
            }
        }
    }
}
