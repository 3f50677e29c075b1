//! Tests further fields that servers of chat completions send, and want back together with the results.

use std::sync::Arc;

use harness_protocol::id::CallId;
use harness_protocol::run::{CallRequest, CallResult, Entry};
use serde_json::{Value, json};

use super::super::dialects::{HttpDialect, Quirks, Settings};
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
    let call = |name: &str| {
        let function = json!({"name": name, "arguments": "{}"});
        json!({"id": format!("id-{name}"), "type": "function", "function": function})
    };
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
    let whole = json!([{"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, "text": "Let me look.",
        "signature": "sig"}]);
    assert_eq!((&sent["reasoning_details"], &sent["reasoning_content"]), (&whole, &Value::Null));
    let quirks = Quirks { return_reasoning: true, ..Quirks::default() };
    assert_eq!(sent_back(&completion, quirks)["reasoning_details"], whole);
}

#[test]
fn without_calls_and_where_nothing_was_sent_nothing_goes_back() {
    let details = json!({"content": "hi", "reasoning_details": [{"type": "reasoning.text", "text": "x"}]});
    assert_eq!(answered(&[delta(&details)]).carried, None);
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "extra_content": null,
        "function": {"name": "shell", "arguments": "{}"}}]});
    let completion = answered(&[delta(&call)]);
    assert_eq!(completion.carried, None);
    let sent = sent_back(&completion, Quirks::default());
    assert!(sent.get("reasoning_details").is_none() && sent["tool_calls"][0].get("extra_content").is_none(), "{sent}");
}

fn call(more: &Value) -> Value {
    let mut call = json!({"index": 0, "id": "a", "type": "function", "function": {"name": "shell", "arguments": "{}"}});
    call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"tool_calls": [call]})
}

/// Extra fields of a call go back with that call and no other (rule 9).
#[test]
fn whatever_a_call_carries_goes_back_with_it_and_with_no_other() {
    for more in [
        json!({"thought_signature": "AY89a19LGc+/=="}),
        json!({"provider_specific_fields": {"thought_signature": "PSF+SIG=="}}),
        json!({"signature": "c2ln", "extra_content": {"google": {"thought_signature": "c2ln"}}}),
        json!({"caller": {"type": "direct"}, "n": 7}),
        json!({"\u{e9}": [1, {"a": null}]}),
    ] {
        let mut second = call(&json!({}))["tool_calls"][0].clone();
        second["index"] = json!(1);
        second["id"] = json!("b");
        let completion = answered(&[delta(&call(&more)), delta(&json!({"tool_calls": [second]}))]);
        let sent = sent_back(&completion, Quirks::default());
        for (name, value) in more.as_object().unwrap() {
            assert_eq!(&sent["tool_calls"][0][name], value, "{sent}");
            assert_eq!(sent["tool_calls"][1].get(name), None, "{sent}");
        }
    }
    // Said later than the call itself, or without anything in it.
    let late = json!({"tool_calls": [{"index": 0, "function": {"arguments": ""}, "thought_signature": "late"}]});
    let completion = answered(&[delta(&call(&json!({"thought_signature": null, "custom": null}))), delta(&late)]);
    let sent = sent_back(&completion, Quirks::default());
    assert_eq!(
        (&sent["tool_calls"][0]["thought_signature"], sent["tool_calls"][0].get("custom")),
        (&json!("late"), None)
    );
}

/// Reasoning goes back under the field name in which it came (rule 9).
#[test]
fn reasoning_goes_back_under_the_name_that_it_came_by() {
    let blocks = |pieces: Value| json!({"thinking_blocks": pieces});
    let thought = |text: &str| json!({"type": "thinking", "thinking": text});
    for (deltas, name, value) in [
        (vec![json!({"reasoning": "I "}), json!({"reasoning": "see."})], "reasoning", json!("I see.")),
        (
            vec![json!({"reasoning_text": "**Loo"}), json!({"reasoning_text": "king**"})],
            "reasoning_text",
            json!("**Looking**"),
        ),
        (
            vec![json!({"reasoning_opaque": "opq/Zz9"}), json!({"reasoning_opaque": "+=="})],
            "reasoning_opaque",
            json!("opq/Zz9+=="),
        ),
        (vec![json!({"reasoning_content": ""})], "reasoning_content", json!("")),
        (
            vec![json!({"reasoning_content": "", "content": ""}), json!({"reasoning_content": "hm"})],
            "reasoning_content",
            json!("hm"),
        ),
        (
            vec![
                blocks(json!([{"type": "thinking", "thinking": "Let me", "signature": null}])),
                blocks(json!([thought(" see.")])),
                blocks(json!([{"type": "thinking", "thinking": "", "signature": "S=="}])),
            ],
            "thinking_blocks",
            json!([{"type": "thinking", "thinking": "Let me see.", "signature": "S=="}]),
        ),
        (
            vec![
                blocks(json!([{"type": "thinking", "thinking": "one", "signature": "1"}])),
                blocks(json!([thought("two")])),
                blocks(json!([{"type": "thinking", "thinking": "", "signature": "2"}])),
                blocks(json!([{"type": "redacted_thinking", "data": "x"}])),
            ],
            "thinking_blocks",
            json!([
                {"type": "thinking", "thinking": "one", "signature": "1"},
                {"type": "thinking", "thinking": "two", "signature": "2"},
                {"type": "redacted_thinking", "data": "x"},
            ]),
        ),
    ] {
        let events: Vec<Value> = deltas.iter().map(delta).chain([delta(&call(&json!({})))]).collect();
        let completion = answered(&events);
        let sent = sent_back(&completion, Quirks::default());
        assert_eq!(sent[name], value, "{deltas:?}");
        let others = ["reasoning", "reasoning_text", "reasoning_opaque", "reasoning_content", "thinking_blocks"];
        assert_eq!(others.iter().filter(|other| sent.get(**other).is_some()).count(), 1, "{sent}");
        let quirks = Quirks { drop_reasoning: true, ..Quirks::default() };
        let is_dropped = ["reasoning", "reasoning_text", "reasoning_content"].contains(&name);
        assert_eq!(sent_back(&completion, quirks).get(name).is_none(), is_dropped, "{name}");
        // Reasoning that led to no call is not kept.
        let said: Vec<Value> = deltas.iter().map(delta).chain([delta(&json!({"content": "hi"}))]).collect();
        assert_eq!(answered(&said).carried, None, "{deltas:?}");
    }
}
