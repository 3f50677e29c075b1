//! What servers of chat completions send beside text and calls, and want back with the results.

use std::sync::Arc;

use harness_protocol::id::CallId;
use harness_protocol::run::{CallRequest, CallResult, Entry};
use serde_json::{Value, json};

use super::super::dialect::{HttpDialect, Quirks, Settings};
use super::read;
use crate::prompt::{Completion, Prompt};

const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

fn answered(events: &[Value]) -> Completion {
    let events: Vec<String> = events.iter().map(Value::to_string).chain([STOP.to_owned()]).collect();
    read(HttpDialect::OpenAi, &events.iter().map(String::as_str).collect::<Vec<_>>()).end.unwrap()
}

/// The model's turn, as it goes back with the results of its calls.
pub(super) fn sent_back(completion: &Completion, quirks: Quirks) -> Value {
    let ids = (1..).map(CallId::from_u64);
    let calls: Vec<CallRequest> =
        ids.zip(&completion.calls).map(|(id, call)| CallRequest::new(id, &*call.tool, &*call.args)).collect();
    let result = |call: &CallRequest| Entry::Result {
        result: Arc::new(CallResult::plain(call.call, Arc::clone(&call.tool), "ok", false)),
    };
    let results: Vec<Entry> = calls.iter().map(result).collect();
    let carried = completion.carried.clone().map(Arc::new);
    let said = Entry::Assistant { text: completion.text.as_str().into(), calls, carried, cut: false };
    let transcript: Vec<Entry> = [Entry::User { text: "go".into() }, said].into_iter().chain(results).collect();
    let settings = Settings { model: "m".into(), quirks, ..Settings::default() };
    let body = HttpDialect::OpenAi.body(&settings, &Prompt::from_transcript(&transcript), &[]).unwrap();
    serde_json::from_slice::<Value>(&body).unwrap()["messages"][1].clone()
}

fn delta(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

#[test]
fn what_a_call_carries_goes_back_with_that_call() {
    // As Gemini sends calls: whole, without an index, the first with a signature.
    let call = |name: &str| json!({"id": format!("id-{name}"), "type": "function", "function": {"name": name, "arguments": "{}"}});
    let mut first = call("one");
    first["extra_content"] = json!({"google": {"thought_signature": "c2lnbmVk"}});
    let mut third = call("three");
    third["extra_content"] = json!({"google": {"thought_signature": "dG9v"}});
    let completion =
        answered(&[delta(&json!({"tool_calls": [first, call("two")]})), delta(&json!({"tool_calls": [third]}))]);
    let sent = sent_back(&completion, Quirks::default());
    let extras: Vec<&Value> =
        sent["tool_calls"].as_array().unwrap().iter().map(|call| &call["extra_content"]).collect();
    assert_eq!(
        extras,
        [
            &json!({"google": {"thought_signature": "c2lnbmVk"}}),
            &Value::Null,
            &json!({"google": {"thought_signature": "dG9v"}})
        ]
    );
}

#[test]
fn reasoning_in_parts_goes_back_put_together() {
    let part = |more: &Value| {
        let mut part = json!({"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0});
        part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        delta(&json!({"content": "", "reasoning": more["text"], "reasoning_details": [part]}))
    };
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "shell", "arguments": "{}"}}]});
    let completion = answered(&[
        part(&json!({"text": "Let me"})),
        part(&json!({"text": " look."})),
        part(&json!({"signature": "sig"})),
        delta(&call),
    ]);
    let sent = sent_back(&completion, Quirks::default());
    let whole = json!([{"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, "text": "Let me look.", "signature": "sig"}]);
    assert_eq!((&sent["reasoning_details"], &sent["reasoning_content"]), (&whole, &Value::Null));
    let quirks = Quirks { return_reasoning: true, ..Quirks::default() };
    assert_eq!(sent_back(&completion, quirks)["reasoning_details"], whole);
}

#[test]
fn without_calls_and_where_nothing_was_sent_nothing_goes_back() {
    let details = json!({"content": "hi", "reasoning_details": [{"type": "reasoning.text", "text": "x"}]});
    assert_eq!(answered(&[delta(&details)]).carried, None);
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "extra_content": null, "function": {"name": "shell", "arguments": "{}"}}]});
    let completion = answered(&[delta(&call)]);
    assert_eq!(completion.carried, None);
    let sent = sent_back(&completion, Quirks::default());
    assert!(sent.get("reasoning_details").is_none() && sent["tool_calls"][0].get("extra_content").is_none(), "{sent}");
}
