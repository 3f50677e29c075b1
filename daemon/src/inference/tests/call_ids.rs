//! Tests the ids under which calls and results go back to a provider.

use std::collections::BTreeSet;

use harness_protocol::id::CallId;
use harness_protocol::run::{CallRequest, Entry, GivenId};
use serde_json::{Value, json};

use super::super::dialects::{HttpDialect, Quirks, Settings};
use super::requests::{recorded, result, sent, settings, user};
use super::{read_in_chunks, stream_of};
use crate::prompt::Prompt;

const ALL: [HttpDialect; 3] = [HttpDialect::OpenAi, HttpDialect::Responses, HttpDialect::Anthropic];

/// The ids of the calls in a request, and those of the results, in their order.
fn ids(dialect: HttpDialect, body: &Value) -> (Vec<String>, Vec<String>) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let parts = |key: &str, inside: &str| -> Vec<Value> {
        let messages = body[key].as_array().unwrap().iter();
        if inside.is_empty() {
            return messages.cloned().collect();
        }
        messages.flat_map(|message| message[inside].as_array().cloned().unwrap_or_default()).collect()
    };
    let of = |parts: &[Value], kind: &str, id: &str| -> Vec<String> {
        parts.iter().filter(|part| part["type"] == kind).map(|part| text(&part[id])).collect()
    };
    match dialect {
        HttpDialect::OpenAi => {
            let results = parts("messages", "").into_iter().filter(|message| message["role"] == "tool");
            let calls = parts("messages", "tool_calls");
            (of(&calls, "function", "id"), results.map(|message| text(&message["tool_call_id"])).collect())
        }
        HttpDialect::Responses => {
            let items = parts("input", "");
            (of(&items, "function_call", "call_id"), of(&items, "function_call_output", "call_id"))
        }
        HttpDialect::Anthropic => {
            let blocks = parts("messages", "content");
            (of(&blocks, "tool_use", "id"), of(&blocks, "tool_result", "tool_use_id"))
        }
    }
}

/// A conversation in which the provider `p` gave the calls of each turn these ids.
fn conversation(turns: &[&[&str]]) -> Prompt {
    let mut entries = vec![user("go")];
    let mut number = 0;
    for turn in turns {
        let calls: Vec<CallRequest> = turn.iter().zip(number + 1..).map(|(id, call)| given(call, id)).collect();
        let results = calls.iter().map(|call| result(call.call.as_u64(), "ok", false));
        number += calls.len() as u64;
        let results: Vec<Entry> = results.collect();
        entries.push(Entry::assistant("", calls));
        entries.extend(results);
    }
    Prompt::from_transcript(&entries)
}

fn given(call: u64, id: &str) -> CallRequest {
    let given = (!id.is_empty()).then(|| Box::new(GivenId { id: id.into(), provider: "p".into() }));
    CallRequest { given, ..CallRequest::new(CallId::from_u64(call), "shell", "{}") }
}

fn ours(call: u64) -> String {
    CallId::from_u64(call).to_string()
}

/// An id goes back to the provider that gave it, if it is unique and of a legal form (entry P2).
#[test]
fn an_id_goes_back_to_who_gave_it_where_it_is_there_unique_and_of_legal_form() {
    use HttpDialect::{Anthropic, OpenAi, Responses};
    let (one, two) = (ours(1), ours(2));
    let signed = format!("call_1__thought__{}==", "Ab+/".repeat(2_000));
    for (dialects, turns, expected) in [
        (&ALL[..], &[&["toolu_01A", "toolu_01B"][..]][..], &["toolu_01A", "toolu_01B"][..]),
        (
            &[OpenAi, Responses],
            &[&["functions.shell:0"], &["functions.shell:1"]],
            &["functions.shell:0", "functions.shell:1"],
        ),
        (&[OpenAi, Responses], &[&[&signed]], &[&signed]),
        // What the API of messages takes has no other signs.
        (&[Anthropic], &[&["functions.shell:0"], &["a-b_C9"]], &[&one, "a-b_C9"]),
        (&ALL, &[&[""], &["x"]], &[&one, "x"]),
        // Said twice, in one answer and in two: the first keeps it.
        (&ALL, &[&["call_0", "call_0"]], &["call_0", &two]),
        (&ALL, &[&["call_0"], &["call_0"]], &["call_0", &two]),
        (&ALL, &[&["has blank"], &["tab\t"]], &[&one, &two]),
        (&ALL, &[&["\u{e9}"], &["x\u{0}"]], &[&one, &two]),
        // The daemon's own id of another call.
        (&ALL, &[&[&two], &["x"]], &[&one, "x"]),
        (&ALL, &[&[&"x".repeat(65 * 1024)]], &[&one]),
    ] {
        for &dialect in dialects {
            let body = sent(dialect, &settings(), &conversation(turns).of_provider("p"));
            let (calls, results) = ids(dialect, &body);
            assert_eq!(calls, expected, "{dialect:?} {turns:?}");
            assert_eq!(calls, results, "{dialect:?}: each result has the id of its call");
            assert_eq!(calls.iter().collect::<BTreeSet<_>>().len(), calls.len());
        }
    }
}

/// P2 and rule 9.
#[test]
fn no_other_provider_sees_an_id_and_the_one_that_gave_it_sees_it_again() {
    let turns: &[&[&str]] = &[&["toolu_1"], &["toolu_2", "toolu_3"]];
    for dialect in ALL {
        let elsewhere = sent(dialect, &settings(), &conversation(turns).of_provider("q"));
        assert!(!elsewhere.to_string().contains("toolu"), "{dialect:?}");
        assert_eq!(ids(dialect, &elsewhere).0, [ours(1), ours(2), ours(3)]);
        let back = sent(dialect, &settings(), &conversation(turns).of_provider("p"));
        assert_eq!(ids(dialect, &back).0, ["toolu_1", "toolu_2", "toolu_3"]);
    }
}

/// A provider that needs short ids gets back only short ones (entry P2).
#[test]
fn where_ids_must_be_short_only_such_go_back() {
    let settings = Settings { quirks: Quirks { short_call_ids: true, ..Quirks::default() }, ..settings() };
    for (id, expected) in [
        ("D681PevKs", "D681PevKs"),
        ("123456789", "123456789"),
        ("call_1234", "000000001"),
        ("12345678", "000000001"),
        ("1234567890", "000000001"),
        ("", "000000001"),
    ] {
        let body = sent(HttpDialect::OpenAi, &settings, &conversation(&[&[id]]));
        assert_eq!(ids(HttpDialect::OpenAi, &body), (vec![expected.to_owned()], vec![expected.to_owned()]), "{id}");
    }
}

/// The id of a call is read in each dialect, wherever the stream is cut (entry P2).
#[test]
fn the_id_of_a_call_is_read_in_each_dialect_however_the_stream_is_cut() {
    let chat = |id: &str| {
        let call = json!({"index": 0, "id": id, "function": {"name": "shell", "arguments": "{}"}});
        stream_of(&[json!({"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}).to_string()])
    };
    let messages = |id: &str| {
        let block = json!({"type": "tool_use", "id": id, "name": "shell", "input": {"a": 1}});
        let start = json!({"type": "content_block_start", "index": 0, "content_block": block});
        stream_of(&[start.to_string(), json!({"type": "message_stop"}).to_string()])
    };
    let responses = |id: &str| {
        let item = json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "shell", "arguments": "{}"});
        let done = json!({"type": "response.output_item.done", "output_index": 0, "item": item});
        let end = json!({"type": "response.completed", "response": {"status": "completed"}});
        stream_of(&[done.to_string(), end.to_string()])
    };
    for id in ["toolu_01", "functions.shell:0", "call_1__thought__CiQBSIG==", "D681PevKs", "", "\u{2603} x"] {
        for (dialect, stream) in [(ALL[0], chat(id)), (ALL[1], responses(id)), (ALL[2], messages(id))] {
            let completion = read_in_chunks(dialect, &stream).end.unwrap();
            assert_eq!(completion.calls[0].given, id, "{dialect:?}");
            // As it goes back to its provider, with its result.
            let entries = [user("go"), recorded(&completion), result(1, "ok", false)];
            let body = sent(dialect, &settings(), &Prompt::from_transcript(&entries).of_provider("p"));
            let (calls, results) = ids(dialect, &body);
            assert_eq!(calls, results);
        }
    }
    // It comes once, or in every piece; a later one is not that of the call.
    let piece = |id: &str, args: &str| {
        let call = json!({"index": 0, "id": id, "function": {"arguments": args}});
        json!({"choices": [{"delta": {"tool_calls": [call]}}]}).to_string()
    };
    let name =
        json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "first", "function": {"name": "shell"}}]}}]});
    let stream = stream_of(&[name.to_string(), piece("second", "{"), piece("third", "}"), "[DONE]".to_owned()]);
    assert_eq!(read_in_chunks(ALL[0], &stream).end.unwrap().calls[0].given, "first");
}

/// P2: journals from before ids were kept.
#[test]
fn a_call_of_an_older_journal_has_no_given_id_and_goes_under_ours() {
    let old = json!({"role": "assistant", "text": "", "calls": [{"call": CallId::from_u64(1), "tool": "shell",
        "args": "{}"}]});
    let said: Entry = serde_json::from_value(old).unwrap();
    let Entry::Assistant { calls, .. } = &said else { panic!("{said:?}") };
    assert_eq!(calls[0].given, None);
    assert!(!serde_json::to_string(&said).unwrap().contains("given"));
    let prompt = Prompt::from_transcript(&[user("go"), said, result(1, "ok", false)]);
    for dialect in ALL {
        assert_eq!(ids(dialect, &sent(dialect, &settings(), &prompt)).0, [ours(1)]);
    }
    let kept = serde_json::to_value(given(1, "toolu_1")).unwrap();
    assert_eq!(kept["given"], json!({"id": "toolu_1", "provider": "p"}));
    assert_eq!(serde_json::from_value::<CallRequest>(kept).unwrap(), given(1, "toolu_1"));
}
