//! A model server that is not ours, over each of the three APIs: text as it comes, parallel calls, reasoning, and
//! faults.

use harness_protocol::event::{Event, EventBody};
use harness_protocol::run::Entry;
use harness_tests::chat::responses_says;
use harness_tests::{Aimock, Client, Daemon, FaultServer, Run, Value, json};

use crate::provider_calls::{attempts, failures};
use crate::provider_faults::config;

pub(crate) const DIALECTS: [&str; 3] = ["openai", "responses", "anthropic"];

/// A daemon with a provider for each dialect, and the server that it asks.
fn beside(fixtures: &Value, more: &[&str]) -> (Daemon, Aimock) {
    let server = Aimock::start(fixtures, more);
    let provider = |dialect| {
        let url = server.url();
        format!("[provider.{dialect}]\ndialect = \"{dialect}\"\nbase_url = \"{url}\"\nmodel = \"m\"\n")
    };
    let config: String = DIALECTS.map(provider).concat();
    (Daemon::configured(&config), server)
}

fn ask(daemon: &Daemon, dialect: &str, prompt: &str) -> Run {
    daemon.ask_with(prompt, json!({"provider": dialect}))
}

fn call(command: &str) -> Value {
    json!({"name": "shell", "arguments": json!({"command": command}).to_string()})
}

/// The live output of a run until its end, by stream: pieces in order.
pub(crate) fn streamed(client: &mut Client, run: &Run) -> Vec<(String, String)> {
    let mut pieces = Vec::new();
    loop {
        let note = client.note();
        let (delta, event) = (&note["params"]["delta"], &note["params"]["event"]);
        if delta["run"] == run.id.as_str() {
            pieces.push((delta["stream"].as_str().unwrap().to_owned(), delta["text"].as_str().unwrap().to_owned()));
        }
        if event["run"] == run.id.as_str() && event["kind"] == "run-finished" {
            return pieces;
        }
    }
}

pub(crate) fn of_stream(pieces: &[(String, String)], stream: &str) -> Vec<String> {
    pieces.iter().filter(|(name, _)| name == stream).map(|(_, text)| text.clone()).collect()
}

#[test]
#[ignore = "needs aimock: tests/models/run aimock"]
fn text_streams_over_each_api() {
    let told = "Text that comes in many small pieces, one after the other, ends as one answer: żółw 🐢.";
    let fixtures = json!([{"match": {"userMessage": "tell"}, "response": {"content": told}, "chunkSize": 7}]);
    let (daemon, _server) = beside(&fixtures, &[]);
    for dialect in DIALECTS {
        let mut client = daemon.connect();
        client.subscribe(json!({"deltas": true}));
        let run = ask(&daemon, dialect, "tell me");
        let pieces = of_stream(&streamed(&mut client, &run), "text");
        assert!(pieces.len() > 3, "{dialect}: {pieces:?}");
        assert_eq!((pieces.concat(), run.answer()), (told.to_owned(), told.to_owned()), "{dialect}");
        assert_eq!(attempts(&daemon, &run), 1, "{dialect}");
    }
}

#[test]
#[ignore = "needs aimock: tests/models/run aimock"]
fn parallel_calls_execute_and_their_results_go_back_over_each_api() {
    let fixtures = json!([
        {"match": {"userMessage": "both", "toolResultContains": "second"}, "response": {"content": "Both ran."}},
        {"match": {"userMessage": "both", "hasToolResult": false}, "chunkSize": 3,
         "response": {"content": "Two at once.", "toolCalls": [call("echo the first"),
         call("echo the second; exit 3")]}},
    ]);
    let (daemon, server) = beside(&fixtures, &[]);
    for dialect in DIALECTS {
        let run = ask(&daemon, dialect, "both");
        assert_eq!(run.answer(), "Both ran.", "{dialect}");
        assert_eq!(run.envelopes(), ["Exit code: 0\nthe first\n", "Exit code: 3\nthe second\n"], "{dialect}");
        let Entry::Assistant { text, calls, .. } = &run.transcript()[1] else { panic!("{:?}", run.transcript()) };
        assert_eq!((&**text, calls.len()), ("Two at once.", 2), "{dialect}");
        // As that server understood it: each result under the id of its call.
        let asked = server.journal().pop().unwrap();
        let messages = asked["body"]["messages"].as_array().unwrap();
        let ids: Vec<&Value> = messages
            .iter()
            .flat_map(|message| message["tool_calls"].as_array().into_iter().flatten())
            .map(|call| &call["id"])
            .collect();
        let answered: Vec<&Value> = messages
            .iter()
            .filter(|message| message["role"] == "tool")
            .map(|message| &message["tool_call_id"])
            .collect();
        assert_eq!((ids.len(), &ids), (2, &answered), "{dialect}: {messages:?}");
    }
}

#[test]
#[ignore = "needs aimock: tests/models/run aimock"]
fn reasoning_is_told_apart_from_the_answer_over_each_api() {
    let fixtures = json!([
        {"match": {"userMessage": "think", "hasToolResult": true},
         "response": {"content": "It is 42.", "reasoning": "So that is what came out."}},
        {"match": {"userMessage": "think", "hasToolResult": false},
         "response": {"content": "", "toolCalls": [call("echo $((6 * 7))")], "reasoning": "The shell can multiply.",
                      "reasoningSignature": "signed-by-somebody"}},
    ]);
    let (daemon, _server) = beside(&fixtures, &["--chunk-size", "5"]);
    for dialect in DIALECTS {
        let mut client = daemon.connect();
        client.subscribe(json!({"deltas": true}));
        let run = ask(&daemon, dialect, "think");
        let pieces = streamed(&mut client, &run);
        let reasoning = of_stream(&pieces, "reasoning").concat();
        assert_eq!(reasoning, "The shell can multiply.So that is what came out.", "{dialect}: {pieces:?}");
        assert_eq!((run.answer(), run.envelopes()), ("It is 42.".to_owned(), vec!["Exit code: 0\n42\n".to_owned()]));
        let Entry::Assistant { carried, .. } = &run.transcript()[1] else { panic!("{:?}", run.transcript()) };
        if dialect == "anthropic" {
            assert!(
                carried.as_ref().is_some_and(|carried| carried.parts.contains("signed-by-somebody")),
                "{carried:?}"
            );
        }
    }
}

#[test]
#[ignore = "needs aimock: tests/models/run aimock"]
fn a_check_finds_each_api_well() {
    let fixtures = json!([{"match": {"endpoint": "chat"}, "response": {"content": "Well."}}]);
    let (daemon, server) = beside(&fixtures, &[]);
    daemon.ctl(["provider", "check"]).ok();
    let mut paths: Vec<String> =
        server.journal().iter().map(|asked| asked["path"].as_str().unwrap().to_owned()).collect();
    paths.sort();
    assert_eq!(paths, ["/v1/chat/completions", "/v1/messages", "/v1/responses"]);
}

#[test]
fn an_answer_that_reached_the_limit_is_cut_also_where_the_server_calls_it_complete() {
    let server = FaultServer::start();
    server.always(responses_says("Once upon a time"));
    for (limit, told) in [(5, "Once upon a time\n[cut off by the limit of output tokens]"), (6, "Once upon a time")] {
        let daemon = Daemon::configured(&config(&server, "responses", &format!("max_output_tokens = {limit}")));
        assert_eq!(daemon.ask("tell me").answer(), told);
    }
}

/// Two answers that no good server gives, and then a good one, to a prompt in this state.
fn after(bad: [Value; 2], state: &Value, good: &Value) -> Vec<Value> {
    let answers = bad.into_iter().chain([json!({})]).enumerate().map(|(index, mut answer)| {
        answer["match"] = state.clone();
        answer["match"]["sequenceIndex"] = index.into();
        answer["chunkSize"] = 4.into();
        if answer["response"].is_null() {
            answer["response"] = good.clone();
        }
        answer
    });
    answers.collect()
}

fn refusal(status: u16, kind: &str) -> Value {
    json!({"response": {"error": {"message": "not now", "type": kind}, "status": status, "retryAfter": 1}})
}

#[test]
#[ignore = "needs aimock: tests/models/run aimock"]
fn whatever_a_server_does_in_between_there_is_one_answer_and_no_call_executes_twice() {
    let steps = |dialect: &str| {
        let prompt = format!("a bad day of {dialect}");
        let run = |word: &str| call(&format!("echo {word} >> log.{dialect}; echo {word}"));
        let cut = |chunks: u32| json!({"truncateAfterChunks": chunks});
        [
            after(
                [refusal(429, "rate_limit_error"), cut(3)],
                &json!({"userMessage": prompt, "hasToolResult": false}),
                &json!({"content": "Two at once.", "toolCalls": [run("one"), run("two")]}),
            ),
            after(
                [refusal(529, "overloaded_error"), json!({"chaos": {"disconnectRate": 1}})],
                &json!({"userMessage": prompt, "toolResultContains": "two"}),
                &json!({"content": "", "toolCalls": [run("three")]}),
            ),
            after(
                [json!({"chaos": {"malformedRate": 1}}), cut(8)],
                &json!({"userMessage": prompt, "toolResultContains": "three"}),
                &json!({"content": "All three are done, whatever happened in between."}),
            ),
        ]
        .concat()
    };
    let fixtures: Vec<Value> = DIALECTS.into_iter().flat_map(steps).collect();
    let (daemon, server) = beside(&json!(fixtures), &[]);
    let runs = DIALECTS.map(|dialect| ask(&daemon, dialect, &format!("a bad day of {dialect}")));
    for (dialect, run) in DIALECTS.iter().zip(&runs) {
        assert_eq!(run.answer(), "All three are done, whatever happened in between.", "{dialect}");
        let log = daemon.written(&format!("log.{dialect}"));
        let mut lines: Vec<&str> = log.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["one", "three", "two"], "{dialect}");
        let failures = failures(&daemon, run);
        // A kept connection that is dropped before an answer begins is replaced without a word.
        let told = (failures.len(), attempts(&daemon, run));
        assert!(matches!(told, (5, 8) | (6, 9)), "{dialect}: {told:?} {failures:#?}");
        assert!(failures[0].contains("429") && failures[2].contains("529"), "{dialect}: {failures:#?}");
        let answers = |event: &Event| matches!(event.body, EventBody::InferenceFinished { .. });
        assert_eq!(daemon.events(run).iter().filter(|event| answers(event)).count(), 3, "{dialect}");
    }
    assert_eq!(server.journal().len(), 3 * 9);
}

#[test]
#[ignore = "needs aimock: tests/models/run aimock"]
fn many_runs_get_through_disturbances_that_come_by_chance() {
    let fixtures = json!([
        {"match": {"userMessage": "go", "hasToolResult": true}, "response": {"content": "It ran."}},
        {"match": {"userMessage": "go", "hasToolResult": false}, "response": {"toolCalls": [call("echo ran >> log")]}},
    ]);
    let chaos = [
        "--chaos-drop",
        "0.05",
        "--chaos-disconnect",
        "0.05",
        "--chaos-malformed",
        "0.05",
        "--chaos-ratelimit",
        "0.02",
    ];
    let (daemon, server) = beside(&fixtures, &chaos);
    let runs: Vec<Run> = (0..15).map(|number| ask(&daemon, DIALECTS[number % 3], "go")).collect();
    for run in &runs {
        assert_eq!((run.answer(), run.envelopes()), ("It ran.".to_owned(), vec!["Exit code: 0\n".to_owned()]));
    }
    assert_eq!(daemon.written("log").lines().count(), runs.len(), "each call executed once");
    let asked: usize = runs.iter().map(|run| attempts(&daemon, run)).sum();
    let requests = server.journal().len();
    assert!(
        (asked..=2 * asked).contains(&requests),
        "an attempt replaces a dead connection once: {requests} of {asked}"
    );
}
