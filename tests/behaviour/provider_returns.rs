//! An answer goes back to its server as the server gave it, and to no other server; an empty answer is no answer.

use harness_protocol::run::{Entry, RunState};
use harness_tests::chat::{call, delta, event, finish, says, text, usage};
use harness_tests::{Answer, Daemon, FaultServer, Value, json};

use crate::provider_calls::failures;
use crate::provider_faults::{asking, config};

/// A call of the shell under this id of the server's, in each dialect.
fn wants(dialect: &str, id: &str, command: &str) -> Answer {
    let args = json!({"command": command}).to_string();
    match dialect {
        "openai" => Answer::events([call(0, id, "shell", &args), finish("tool_calls"), "[DONE]".to_owned()]),
        "anthropic" => Answer::events([
            event("message_start", json!({"message": {"usage": {"input_tokens": 10, "output_tokens": 1}}})),
            event(
                "content_block_start",
                json!({"index": 0, "content_block": {"type": "tool_use", "id": id, "name": "shell", "input": {}}}),
            ),
            event(
                "content_block_delta",
                json!({"index": 0, "delta": {"type": "input_json_delta", "partial_json": args}}),
            ),
            event("content_block_stop", json!({"index": 0})),
            event("message_delta", json!({"delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}})),
            event("message_stop", json!({})),
        ]),
        _ => {
            let item =
                json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "shell", "arguments": args});
            Answer::events([
                event("response.output_item.done", json!({"output_index": 0, "item": item})),
                event("response.completed", json!({"response": {"id": "r", "status": "completed", "output": [item]}})),
            ])
        }
    }
}

fn ends(dialect: &str, words: &str) -> Answer {
    match dialect {
        "openai" => says(words),
        "anthropic" => harness_tests::chat::messages_says(words),
        _ => harness_tests::chat::responses_says(words),
    }
}

/// Every value of this key in a body, wherever it stands.
fn all(body: &Value, key: &str) -> Vec<String> {
    let mut found = Vec::new();
    match body {
        Value::Array(values) => values.iter().for_each(|value| found.extend(all(value, key))),
        Value::Object(map) => {
            for (name, value) in map {
                found.extend(value.as_str().filter(|_| name == key).map(str::to_owned));
                found.extend(all(value, key));
            }
        }
        _ => {}
    }
    found
}

/// Entry P2 in `tests/README.md`.
#[test]
fn ids_of_calls_go_back_to_the_server_that_gave_them_also_after_a_restart() {
    for (dialect, id, under) in [
        ("openai", "functions.shell:0", "tool_call_id"),
        ("openai", "call_1__thought__CiQBSIG+/==", "tool_call_id"),
        ("responses", "call_vhsRtW9flDhmdV7", "call_id"),
        ("anthropic", "toolu_01AbC-_x", "tool_use_id"),
    ] {
        let server = FaultServer::start();
        server.answer(wants(dialect, id, "echo ran >> log")).answer(ends(dialect, "done"));
        let daemon = Daemon::configured(&config(&server, dialect, ""));
        let run = daemon.ask("call");
        assert_eq!(run.answer(), "done", "{dialect}");
        let second = server.requests()[1].body.clone();
        assert!(all(&second, under).contains(&id.to_owned()), "{dialect}: {second}");
        let uses = second.to_string().matches(&json!(id).to_string()).count();
        assert_eq!(uses, 2, "once with the call, once with its result: {second}");
        // It is kept beside ours, and with the journal.
        let given = |entry: Entry| match entry {
            Entry::Assistant { calls, .. } => calls.into_iter().find_map(|call| call.given),
            _ => None,
        };
        let kept = run.transcript().into_iter().find_map(given).unwrap();
        assert_eq!((&*kept.id, &*kept.provider), (id, "local"));
        let daemon = daemon.crash().start();
        server.answer(ends(dialect, "again"));
        assert_eq!(run.tell("And now?").answer(), "again");
        assert_eq!(server.requests()[2].body.to_string().matches(&json!(id).to_string()).count(), 2, "{dialect}");
        assert_eq!(daemon.written("log"), "ran\n");
    }
}

/// P2 and rule 9.
#[test]
fn a_fallback_sees_nothing_that_the_other_server_wants_back() {
    let (server, other) = (FaultServer::start(), FaultServer::start());
    let signed = json!({"tool_calls": [{"index": 0, "id": "functions.shell:0", "type": "function",
        "extra_content": {"google": {"thought_signature": "c2lnbmVk"}},
        "function": {"name": "shell", "arguments": "{\"command\":\"echo ran >> log\"}"}}]});
    server.answer(Answer::events([delta(&signed), finish("tool_calls"), "[DONE]".to_owned()]));
    server.answer(Answer::refusal(401, &[], "the key has expired"));
    other.answer(wants("openai", "theirs_1", "echo too >> log")).answer(says("done"));
    let url = other.url();
    let text = config(&server, "openai", "fallback = \"other\"")
        + &format!("[provider.other]\ndialect = \"openai\"\nbase_url = \"{url}\"\nmodel = \"n\"\n");
    let daemon = Daemon::configured(&text);
    let run = daemon.ask("call");
    assert_eq!(run.answer(), "done");
    assert_eq!(daemon.written("log"), "ran\ntoo\n");
    let back = server.requests()[1].body.to_string();
    assert!(back.contains("functions.shell:0") && back.contains("c2lnbmVk"), "{back}");
    let (first, second) = (other.requests()[0].body.to_string(), other.requests()[1].body.to_string());
    for body in [&first, &second] {
        assert!(!body.contains("functions.shell:0") && !body.contains("c2lnbmVk"), "{body}");
    }
    assert!(second.contains("theirs_1"), "its own it gets: {second}");
}

/// P3 and rule 8.
#[test]
fn an_answer_that_says_nothing_is_asked_again_and_never_a_success() {
    let thought = || delta(&json!({"reasoning_content": "It is 4."}));
    let nothing: [Answer; 3] = [
        Answer::events([text(""), finish("stop"), usage(10, 5), "[DONE]".to_owned()]),
        Answer::events([thought(), finish("stop"), usage(10, 5), "[DONE]".to_owned()]),
        Answer::events([delta(&json!({"role": "assistant"})), finish("function_call_filter: MALFORMED_FUNCTION_CALL")]),
    ];
    let server = FaultServer::start();
    for answer in nothing.iter().cloned() {
        server.answer(answer);
    }
    server.answer(says("four"));
    let daemon = asking(&server, "");
    let run = daemon.ask("say it");
    assert_eq!((run.answer(), server.count()), ("four".to_owned(), 4));
    let told = failures(&daemon, &run);
    assert!(told[1].contains("the model thought") && told[2].contains("MALFORMED_FUNCTION_CALL"), "{told:?}");
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.body["messages"] == requests[0].body["messages"]));
    assert!(run.view().usage.tokens() >= 45, "what came of nothing is counted, too");
    // For ever the same: the run fails, and says why. Its provider is well, and no other run waits.
    server.always(nothing[1].clone());
    let view = daemon.ask("say it").wait();
    assert_eq!((view.state, view.exit_code), (RunState::Failed, Some(1)));
    assert!(view.error.as_deref().unwrap().contains("neither said nor called anything"), "{:?}", view.error);
    assert_eq!(server.count(), 4 + 4, "asked four times");
    assert!(daemon.lane("local").held.is_none());
    server.always(says("well"));
    assert_eq!(daemon.ask("say it").answer(), "well");
}

/// P3: its call may be lost; a server that says so of each answer has given one all the same.
#[test]
fn a_text_that_ends_to_call_a_tool_and_calls_none_counts_the_second_time() {
    let server = FaultServer::start();
    server.always(Answer::events([text("It is 4."), finish("tool_calls"), usage(10, 5), "[DONE]".to_owned()]));
    let daemon = asking(&server, "");
    let run = daemon.ask("say it");
    assert_eq!((run.answer(), server.count()), ("It is 4.".to_owned(), 2));
    let told = failures(&daemon, &run);
    assert!(told.len() == 1 && told[0].contains("called none (tool_calls)"), "{told:?}");
    assert_eq!(run.view().usage.tokens(), 30, "both are paid for");
}

/// Entry P3 in `tests/README.md`.
#[test]
fn so_it_is_in_the_other_dialects() {
    let empty = |dialect: &str| match dialect {
        "anthropic" => Answer::events([
            event("message_start", json!({"message": {"usage": {"input_tokens": 10, "output_tokens": 1}}})),
            event("message_delta", json!({"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}})),
            event("message_stop", json!({})),
        ]),
        _ => Answer::events([event(
            "response.completed",
            json!({"response": {"id": "r", "status": "completed", "output": [],
                "usage": {"input_tokens": 10, "output_tokens": 5}}}),
        )]),
    };
    for dialect in ["anthropic", "responses"] {
        let server = FaultServer::start();
        server.answer(empty(dialect)).answer(ends(dialect, "well"));
        let daemon = Daemon::configured(&config(&server, dialect, ""));
        let run = daemon.ask("say it");
        assert_eq!((run.answer(), server.count()), ("well".to_owned(), 2), "{dialect}");
        server.always(empty(dialect));
        let view = daemon.ask("say it").wait();
        assert_eq!((view.state, view.exit_code), (RunState::Failed, Some(1)), "{dialect}");
    }
}

/// Entry P4 in `tests/README.md`.
#[test]
fn a_models_text_goes_back_to_strict_servers_of_responses_as_role_and_content_with_its_phase() {
    let item = |id: &str, words: &str, phase: Value| {
        let content = json!([{"type": "output_text", "text": words, "annotations": []}]);
        let mut item =
            json!({"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content});
        if !phase.is_null() {
            item["phase"] = phase;
        }
        item
    };
    let args = json!({"command": "true"}).to_string();
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "shell", "arguments": args});
    let done =
        |index: u64, item: &Value| event("response.output_item.done", json!({"output_index": index, "item": item}));
    let end = |output: Value| {
        let usage = json!({"input_tokens": 10, "output_tokens": 5});
        event(
            "response.completed",
            json!({"response": {"id": "r", "status": "completed", "output": output, "usage": usage}}),
        )
    };
    let server = FaultServer::start();
    let first = item("m1", "I look.", json!("commentary"));
    server.answer(Answer::events([done(0, &first), done(1, &call), end(json!([first, call]))]));
    let last = item("m2", "Done.", json!("final_answer"));
    server.answer(Answer::events([done(0, &last), end(json!([last]))]));
    server.answer(Answer::events([done(0, &item("m3", "Yes.", Value::Null)), end(json!([]))]));
    server.answer(Answer::events([done(0, &item("m4", "Bye.", Value::Null)), end(json!([]))]));
    let daemon = Daemon::configured(&config(&server, "responses", ""));
    let run = daemon.ask("look");
    assert_eq!(run.answer(), "Done.");
    let run = run.tell("Sure?");
    assert_eq!(run.answer(), "Yes.");
    assert_eq!(run.tell("Good.").answer(), "Bye.");
    let requests = server.requests();
    let said = |index: usize| -> Vec<Value> {
        let input = requests[index].body["input"].as_array().unwrap().iter();
        input.filter(|item| item["role"] == "assistant").cloned().collect()
    };
    let commentary = json!({"role": "assistant", "content": "I look.", "phase": "commentary"});
    let answer = json!({"role": "assistant", "content": "Done.", "phase": "final_answer"});
    assert_eq!(said(1), std::slice::from_ref(&commentary));
    assert_eq!(said(2), [commentary.clone(), answer.clone()]);
    assert_eq!(said(3), [commentary, answer, json!({"role": "assistant", "content": "Yes."})]);
    for request in &requests {
        let body = request.body.to_string();
        assert!(!body.contains("output_text") && !body.contains("annotations") && !body.contains("\"m1\""), "{body}");
    }
}
