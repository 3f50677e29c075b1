//! A server that pauses in its turn gets back what it said, and continues: the run sees one answer.

use harness_protocol::run::RunState;
use harness_tests::chat::event;
use harness_tests::{Answer, Daemon, FaultServer, Value, json};

use crate::provider_faults::config;

/// An answer of messages with these blocks, each whole, that ends for this reason.
fn answer(blocks: &[Value], reason: &str) -> Answer {
    answer_of(blocks, reason, 10)
}

/// The same, to a prompt of so many tokens.
fn answer_of(blocks: &[Value], reason: &str, input: u64) -> Answer {
    let mut events =
        vec![event("message_start", json!({"message": {"usage": {"input_tokens": input, "output_tokens": 1}}}))];
    for (index, block) in blocks.iter().enumerate() {
        events.push(event("content_block_start", json!({"index": index, "content_block": block})));
        events.push(event("content_block_stop", json!({"index": index})));
    }
    events.push(event("message_delta", json!({"delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}})));
    events.push(event("message_stop", json!({})));
    Answer::events(events)
}

fn said(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// What a server says before it pauses: it has thought, and calls a tool of its own.
fn first_part() -> [Value; 3] {
    [
        json!({"type": "thinking", "thinking": "hm", "signature": "SIG"}),
        said("Let me look. "),
        json!({"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}),
    ]
}

fn second_part() -> [Value; 2] {
    [json!({"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"title": "t"}]}), said("It is 4.")]
}

fn messages(server: &FaultServer, request: usize) -> Vec<Value> {
    server.requests()[request].body["messages"].as_array().unwrap().clone()
}

/// Entry P17 in `tests/README.md`.
#[test]
fn an_answer_that_is_paused_goes_on_and_is_one_answer() {
    let server = FaultServer::start();
    server.answer(answer(&first_part(), "pause_turn")).answer(answer(&second_part(), "end_turn"));
    let daemon = Daemon::configured(&config(&server, "anthropic", ""));
    let run = daemon.ask("say it");
    assert_eq!((run.answer(), server.count()), ("Let me look. It is 4.".to_owned(), 2));
    let (asked, rest) = (messages(&server, 0), messages(&server, 1));
    assert_eq!(rest[..asked.len()], asked, "the prompt is the same");
    assert_eq!(rest[asked.len()..], [json!({"role": "assistant", "content": first_part()})], "as it was said");
    let view = run.view();
    assert_eq!((view.usage.input_tokens, view.usage.output_tokens, view.steps), (20, 10, 1), "both are paid for");
    // Later it goes back as one turn.
    server.answer(answer(&[said("well")], "end_turn"));
    assert_eq!(run.tell("and now?").answer(), "well");
    let turn = messages(&server, 2).into_iter().find(|message| message["role"] == "assistant").unwrap();
    assert_eq!(turn["content"], json!([first_part().as_slice(), second_part().as_slice()].concat()));
}

/// P17: a crash between the parts: the answer is asked for from its beginning, and nothing of it counts twice.
#[test]
fn a_daemon_that_dies_between_the_parts_asks_from_the_beginning() {
    let server = FaultServer::start();
    server.answer(answer(&first_part(), "pause_turn")).answer(Answer::stream().hang());
    let daemon = Daemon::configured(&config(&server, "anthropic", ""));
    let run = daemon.ask("say it");
    harness_tests::eventually("the rest is asked for", || server.count() == 2);
    server.answer(answer(&first_part(), "pause_turn")).answer(answer(&second_part(), "end_turn"));
    let daemon = daemon.crash().start();
    let run = daemon.run(&run.id);
    assert_eq!((run.answer(), server.count()), ("Let me look. It is 4.".to_owned(), 4));
    assert_eq!(messages(&server, 2), messages(&server, 0));
}

/// P17: a server that pauses for ever gets no end of requests.
#[test]
fn a_server_that_pauses_again_and_again_is_given_up() {
    let server = FaultServer::start();
    server.always(answer(&[said("wait")], "pause_turn"));
    let daemon = Daemon::configured(&config(&server, "anthropic", ""));
    let view = daemon.ask("say it").wait();
    assert_eq!((view.state, view.exit_code), (RunState::Failed, Some(1)));
    assert!(view.error.as_deref().unwrap().contains("pause_turn"), "{:?}", view.error);
    assert_eq!(server.count(), 4 * 11, "asked four times, each time with ten rests");
}

/// P17: the bound of an answer is one of what is said, however long the prompt is; where a budget holds no more than
/// one prompt and its answer, the rest is not asked for.
#[test]
fn a_paused_answer_goes_on_within_what_its_model_takes_and_a_budget_holds() {
    let long = "word ".repeat(3_000);
    for (more, limits, requests) in [
        ("context_tokens = 60000\nmax_output_tokens = 200", json!({}), 2),
        ("max_output_tokens = 4000", json!({"max_tokens": 100_000}), 2),
        ("max_output_tokens = 200", json!({"max_tokens": 100_000}), 4),
    ] {
        let server = FaultServer::start();
        let tokens = if requests == 2 { 10 } else { 3_000 };
        if requests == 2 {
            server.answer(answer_of(&first_part(), "pause_turn", tokens));
            server.answer(answer_of(&second_part(), "end_turn", tokens));
        }
        server.always(answer_of(&first_part(), "pause_turn", tokens));
        let daemon = Daemon::configured(&config(&server, "anthropic", more));
        let run = daemon.ask_with(&long, json!({"limits": limits}));
        match requests {
            2 => assert_eq!(run.answer(), "Let me look. It is 4.", "{more} {limits}"),
            _ => assert_eq!(run.wait().state, RunState::Failed, "{more} {limits}"),
        }
        assert_eq!(server.count(), requests, "{more} {limits}");
    }
}
