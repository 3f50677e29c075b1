//! Tests the requests that are sent, and the return of opaque blocks to their provider.

use std::sync::Arc;

use harness_protocol::id::CallId;
use harness_protocol::run::{CallRequest, CallResult, Carried, Entry, GivenId};
use serde_json::{Value, json};

use super::super::dialects::{Ended, HttpDialect, Quirks, Settings, Thinking};
use super::{assert_snapshot, read_stream};
use crate::prompt::{Completion, ErrorClass, Prompt};
use crate::tools::ToolSpec;

const ALL: [HttpDialect; 3] = [HttpDialect::OpenAi, HttpDialect::Responses, HttpDialect::Anthropic];

fn tools() -> [ToolSpec; 2] {
    let tool = |name: &str| ToolSpec {
        name: name.into(),
        description: "Does it.".into(),
        parameters: r#"{"type":"object","properties":{}}"#.into(),
    };
    [tool("shell"), tool("wait_for_agent")]
}

pub(super) fn settings() -> Settings {
    Settings { model: "m".into(), ..Settings::default() }
}

pub(super) fn user(text: &str) -> Entry {
    Entry::User { text: text.into() }
}

pub(super) fn result(call: u64, text: &str, is_error: bool) -> Entry {
    Entry::Result { result: Arc::new(CallResult::plain(CallId::from_u64(call), "shell".into(), text, is_error)) }
}

/// As the world records a completion.
pub(super) fn recorded(completion: &Completion) -> Entry {
    let call = |(id, call): (u64, &crate::prompt::RequestedCall)| CallRequest {
        unusable: call.unusable.as_deref().map(Into::into),
        given: (!call.given.is_empty())
            .then(|| Box::new(GivenId { id: call.given.as_str().into(), provider: "p".into() })),
        ..CallRequest::new(CallId::from_u64(id), call.tool.as_str(), call.args.as_str())
    };
    Entry::Assistant {
        text: completion.text.as_str().into(),
        calls: (1..).zip(&completion.calls).map(call).collect(),
        carried: completion.carried.clone().map(Arc::new),
        cut: completion.cut,
    }
}

fn conversation() -> Vec<Entry> {
    let mut calls = vec![
        CallRequest::new(CallId::from_u64(1), "shell", r#"{"command": "ls"}"#),
        CallRequest::new(CallId::from_u64(2), "no such.tool", "not json"),
    ];
    calls.push(CallRequest {
        unusable: Some("cut".into()),
        ..CallRequest::new(CallId::from_u64(3), "shell", r#"{"comm"#)
    });
    vec![
        user("look"),
        Entry::assistant("Let me see.", calls),
        result(1, "Exit code: 0\n", false),
        result(2, "There is no such tool.", true),
        result(3, "Not run.", true),
        user("and hurry"),
    ]
}

pub(super) fn sent(dialect: HttpDialect, settings: &Settings, prompt: &Prompt) -> Value {
    serde_json::from_slice(&dialect.body(settings, prompt, &tools()).unwrap()).unwrap()
}

#[test]
fn each_dialect_says_the_same_in_its_own_words() {
    let prompt = Prompt { system: Some("Be brief.".into()), ..Prompt::from_transcript(&conversation()) };
    for dialect in ALL {
        let body = sent(dialect, &settings(), &prompt);
        assert_snapshot(dialect.name(), &serde_json::to_string_pretty(&body).unwrap());
    }
}

#[test]
fn settings_go_where_each_api_wants_them() {
    let prompt = Prompt::from_transcript(&[user("hi")]);
    let settings = Settings {
        max_output_tokens: Some(100),
        temperature: Some(0.5),
        effort: Some("low".into()),
        extra: [("top_k".to_owned(), json!(3))].into_iter().collect(),
        ..settings()
    };
    let chat = sent(HttpDialect::OpenAi, &settings, &prompt);
    assert_eq!(
        (&chat["max_tokens"], &chat["reasoning_effort"], &chat["top_k"]),
        (&json!(100), &json!("low"), &json!(3))
    );
    assert_eq!(chat["stream_options"]["include_usage"], true);
    let quirks = Quirks { max_completion_tokens: true, no_stream_options: true, ..Quirks::default() };
    let odd = sent(HttpDialect::OpenAi, &Settings { quirks, ..settings.clone() }, &prompt);
    assert_eq!(
        (&odd["max_tokens"], &odd["max_completion_tokens"], &odd["stream_options"]),
        (&Value::Null, &json!(100), &Value::Null)
    );
    let responses = sent(HttpDialect::Responses, &settings, &prompt);
    assert_eq!((&responses["max_output_tokens"], &responses["reasoning"]["effort"]), (&json!(100), &json!("low")));
    let anthropic = sent(HttpDialect::Anthropic, &settings, &prompt);
    assert_eq!((&anthropic["max_tokens"], &anthropic["output_config"]["effort"]), (&json!(100), &json!("low")));
    for body in [chat, responses, anthropic] {
        assert_eq!((&body["stream"], &body["temperature"], &body["top_k"]), (&json!(true), &json!(0.5), &json!(3)));
    }
}

#[test]
fn what_a_dialect_writes_itself_nobody_can_configure_beside_it() {
    let prompt = Prompt { system: Some("Be brief.".into()), ..Prompt::from_transcript(&[user("hi")]) };
    for dialect in ALL {
        let mut written = std::collections::BTreeSet::new();
        for quirks in [Quirks::default(), Quirks { max_completion_tokens: true, ..Quirks::default() }] {
            for thinking in [None, Some(Thinking::Budget(2_000))] {
                let settings = Settings {
                    max_output_tokens: Some(9_000),
                    temperature: Some(0.5),
                    effort: Some("low".into()),
                    thinking,
                    quirks,
                    ..settings()
                };
                let body = sent(dialect, &settings, &prompt);
                written.extend(body.as_object().unwrap().keys().cloned());
            }
        }
        let own: std::collections::BTreeSet<String> =
            dialect.rules().own_fields.iter().map(|&field| field.to_owned()).collect();
        assert_eq!(written, own, "{dialect:?}");
    }
}

#[test]
fn ids_of_calls_are_ours_and_short_where_they_must_be() {
    let prompt = Prompt::from_transcript(&conversation());
    let ids = |body: &Value| {
        let text = body.to_string();
        (1..4).all(|id| text.matches(&CallId::from_u64(id).to_string()).count() == 2)
    };
    for dialect in ALL {
        assert!(ids(&sent(dialect, &settings(), &prompt)), "{dialect:?}");
    }
    let quirks = Quirks { short_call_ids: true, ..Quirks::default() };
    let body = sent(HttpDialect::OpenAi, &Settings { quirks, ..settings() }, &prompt);
    assert_eq!(body["messages"][1]["tool_calls"][0]["id"], "000000001");
    assert_eq!(body["messages"][2]["tool_call_id"], "000000001");
}

#[test]
fn thinking_goes_back_where_it_stood_and_as_it_was() {
    let stream = include_str!("../../../tests/dialects/fixtures/own-anthropic-thinking-tools.sse");
    let completion = read_stream(HttpDialect::Anthropic, stream, Ended::Clean).end.unwrap();
    let entries = [user("go"), recorded(&completion), result(1, "ok", false), result(2, "ok", false)];
    let body = sent(HttpDialect::Anthropic, &settings(), &Prompt::from_transcript(&entries));
    let content = body["messages"][1]["content"].as_array().unwrap();
    let kinds: Vec<&str> = content.iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "redacted_thinking", "text", "tool_use", "thinking", "tool_use"]);
    let first = json!({"type": "thinking", "thinking": "I should look.", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA=="});
    assert_eq!(content[0], first);
    assert_eq!(content[1], json!({"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4a"}));
    for other in [HttpDialect::OpenAi, HttpDialect::Responses] {
        let body = sent(other, &settings(), &Prompt::from_transcript(&entries)).to_string();
        assert!(!body.contains("I should look") && !body.contains("EmwKAhgBEgy3"), "{body}");
    }
}

#[test]
fn reasoning_goes_back_before_what_it_led_to() {
    let stream = include_str!("../../../tests/dialects/fixtures/own-responses-reasoning-tools.sse");
    let completion = read_stream(HttpDialect::Responses, stream, Ended::Clean).end.unwrap();
    let entries = [user("go"), recorded(&completion), result(1, "ok", false), result(2, "ok", false)];
    let body = sent(HttpDialect::Responses, &settings(), &Prompt::from_transcript(&entries));
    let kinds: Vec<&str> =
        body["input"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap_or("said")).collect();
    assert_eq!(
        kinds,
        [
            "message",
            "reasoning",
            "said",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output"
        ]
    );
    assert_eq!(body["input"][1]["encrypted_content"], "gAAAAABk");
    assert_eq!((&body["store"], &body["include"][0]), (&json!(false), &json!("reasoning.encrypted_content")));
}

/// P11 and rule 9.
#[test]
fn reasoning_goes_back_in_chat_beside_calls_to_who_sent_it_as_reasoning_content() {
    let piece = |name: &str, text: &str| json!({"choices": [{"delta": {name: text}}]});
    let call = json!({"index": 0, "id": "c", "function": {"name": "shell", "arguments": "{}"}});
    let call = json!({"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
    let says = json!({"choices": [{"delta": {"content": "so"}, "finish_reason": "stop"}]});
    let (back, drop) =
        (Quirks { return_reasoning: true, ..Quirks::default() }, Quirks { drop_reasoning: true, ..Quirks::default() });
    let (content, plain) = ("reasoning_content", "reasoning");
    for (quirks, names, last, expected) in [
        (Quirks::default(), [content, content], &call, json!("We need the size.")),
        (Quirks::default(), [plain, plain], &call, Value::Null),
        (Quirks::default(), [content, content], &says, Value::Null),
        (back, [content, content], &call, json!("We need the size.")),
        (back, [plain, plain], &call, json!("We need the size.")),
        (back, [plain, plain], &says, Value::Null),
        (drop, [content, content], &call, Value::Null),
    ] {
        let pieces =
            [piece(names[0], "We need"), piece(names[1], " the size."), (*last).clone()].map(|event| event.to_string());
        for size in [usize::MAX, 1, 7] {
            let completion =
                super::read_chunks(HttpDialect::OpenAi, &super::stream_of(&pieces), size, quirks).end.unwrap();
            let results = completion.calls.iter().map(|_| result(1, "ok", false));
            let entries: Vec<Entry> = [user("go"), recorded(&completion)].into_iter().chain(results).collect();
            let settings = Settings { quirks, ..settings() };
            let body = sent(HttpDialect::OpenAi, &settings, &Prompt::from_transcript(&entries));
            assert_eq!(body["messages"][1]["reasoning_content"], expected, "{quirks:?} {names:?}");
        }
    }
    // The reasoning is not sent in another dialect or to another provider.
    let pieces = [piece(content, "We need the size."), call].map(|event| event.to_string());
    let mut completion = super::read_in_chunks(HttpDialect::OpenAi, &super::stream_of(&pieces)).end.unwrap();
    completion.carried = completion.carried.map(|carried| Carried { provider: Some("p".into()), ..carried });
    let entries = [user("go"), recorded(&completion), result(1, "ok", false)];
    let prompt = || Prompt::from_transcript(&entries);
    for (dialect, provider, goes) in [
        (HttpDialect::OpenAi, "p", true),
        (HttpDialect::OpenAi, "q", false),
        (HttpDialect::Responses, "p", false),
        (HttpDialect::Anthropic, "p", false),
    ] {
        let body = sent(dialect, &settings(), &prompt().of_provider(provider)).to_string();
        assert_eq!(body.contains("We need the size."), goes, "{dialect:?} {provider}");
    }
}

#[test]
fn caches_may_keep_tools_system_and_the_last_two_turns_of_the_user() {
    let prompt = Prompt { system: Some("Be brief.".into()), ..Prompt::from_transcript(&conversation()) };
    let plain = sent(HttpDialect::Anthropic, &settings(), &prompt);
    assert!(!plain.to_string().contains("cache_control"));
    let body = sent(HttpDialect::Anthropic, &Settings { cache: true, ..settings() }, &prompt);
    let mark = json!({"type": "ephemeral"});
    assert_eq!(body["tools"][1]["cache_control"], mark);
    assert_eq!(body["system"][0]["cache_control"], mark);
    assert_eq!(body["messages"][0]["content"][0]["cache_control"], mark);
    assert_eq!(body["messages"][2]["content"][3]["cache_control"], mark);
    assert_eq!(body.to_string().matches("cache_control").count(), 4);
}

#[test]
fn a_budget_for_thinking_leaves_room_for_an_answer_and_needs_thinking_to_follow() {
    let prompt = Prompt::from_transcript(&[user("hi")]);
    let thinking = |thinking| Settings { thinking: Some(thinking), temperature: Some(0.5), ..settings() };
    let body = sent(HttpDialect::Anthropic, &thinking(Thinking::Budget(10_000)), &prompt);
    assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 10_000}));
    assert!(body["max_tokens"].as_u64().unwrap() > 10_000 && body["temperature"].is_null());
    let body = sent(HttpDialect::Anthropic, &thinking(Thinking::Adaptive), &prompt);
    assert_eq!(body["thinking"], json!({"type": "adaptive"}));
    // The calls at hand are another model's: the API would miss the thinking before them.
    let body = sent(HttpDialect::Anthropic, &thinking(Thinking::Adaptive), &Prompt::from_transcript(&conversation()));
    assert!(body["thinking"].is_null());
}

#[test]
fn turns_without_a_word_are_such_as_every_server_takes() {
    let entries = [Entry::assistant("", vec![]), user(" ")];
    let prompt = Prompt::from_transcript(&entries);
    let body = sent(HttpDialect::Anthropic, &settings(), &prompt);
    for message in body["messages"].as_array().unwrap() {
        assert_eq!(message["content"], json!([{"type": "text", "text": "(no text)"}]));
    }
    let body = sent(HttpDialect::OpenAi, &settings(), &prompt);
    let roles: Vec<&str> = body["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    assert!(body["messages"].as_array().unwrap().iter().all(|message| message["content"] == "(no text)"));
    // Beside calls there need be no text.
    let called = Entry::assistant(" \n", vec![CallRequest::new(CallId::from_u64(1), "shell", "{}")]);
    let prompt = Prompt::from_transcript(&[user("go"), called, result(1, "ok", false)]);
    let body = sent(HttpDialect::OpenAi, &settings(), &prompt);
    assert_eq!(body["messages"][1]["content"], Value::Null);
    for text in ["", " ", "\n\t", "\u{a0}"] {
        let prompt = Prompt::from_transcript(&[user(text), Entry::assistant(text, vec![]), user(text)]);
        for dialect in ALL {
            let body = sent(dialect, &settings(), &prompt).to_string();
            assert!(!body.contains(r#""content":"""#) && !body.contains(r#""text":"""#), "{body}");
        }
    }
}

#[test]
fn without_tools_none_are_mentioned_and_a_broken_prompt_is_a_fault_of_ours() {
    let prompt = Prompt::from_transcript(&[user("hi")]);
    for dialect in ALL {
        let body: Value = serde_json::from_slice(&dialect.body(&settings(), &prompt, &[]).unwrap()).unwrap();
        assert!(body.get("tools").is_none());
        let error = dialect.body(&settings(), &Prompt::default(), &[]).unwrap_err();
        assert_eq!(error.class, ErrorClass::Never);
        assert!(error.message.starts_with("a fault of the harness: "));
    }
}

#[test]
fn what_is_carried_in_an_unknown_form_is_left_out() {
    let carried =
        Some(Arc::new(Carried { dialect: "anthropic".into(), provider: None, parts: r#"[{"novel":1}]"#.into() }));
    let entries = [user("a"), Entry::Assistant { text: "b".into(), calls: vec![], carried, cut: false }, user("c")];
    let body = sent(HttpDialect::Anthropic, &settings(), &Prompt::from_transcript(&entries));
    assert_eq!(body["messages"][1]["content"], json!([{"type": "text", "text": "b"}]));
}

#[test]
fn paths_and_headers_are_those_of_each_api() {
    let all = ALL.map(|dialect| (dialect.path(), dialect.auth("k"), dialect.headers().len()));
    assert_eq!(all[0], ("/chat/completions", ("authorization", "Bearer k".to_owned()), 0));
    assert_eq!(all[1], ("/responses", ("authorization", "Bearer k".to_owned()), 0));
    assert_eq!(all[2], ("/messages", ("x-api-key", "k".to_owned()), 1));
    assert!(ALL.iter().all(|dialect| HttpDialect::named(dialect.name()) == Some(*dialect)));
    assert_eq!(ALL, HttpDialect::ALL);
}
