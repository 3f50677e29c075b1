//! Faulty streams of real servers, played byte by byte by a server of the test: the run survives each, and nothing runs
//! twice.

use harness_protocol::event::EventBody;
use harness_protocol::run::RunState;
use harness_tests::chat::{call, delta, finish, says, shell, text, usage, wants};
use harness_tests::{Answer, Daemon, FaultServer, Gate, eventually, json};

use crate::provider_calls::{attempts, failures};

/// A daemon whose provider `local` is this server.
pub(crate) fn asking(server: &FaultServer, more: &str) -> Daemon {
    Daemon::configured(&config(server, "openai", more))
}

pub(crate) fn config(server: &FaultServer, dialect: &str, more: &str) -> String {
    let url = server.url();
    format!(
        "[provider.local]\ndialect = \"{dialect}\"\nbase_url = \"{url}\"\nmodel = \"m\"\n{more}\n\
         [run]\nprovider = \"local\"\n"
    )
}

const DONE: &str = "[DONE]";

#[test]
fn fault_1_comments_and_empty_events_are_passed_over_with_and_without_done() {
    let server = FaultServer::start();
    let begin = || {
        let noise = [": PROCESSING", "data: : keepalive", "data:", "event: ping\ndata: {}"];
        noise.iter().fold(Answer::stream(), |answer, event| answer.event(event)).event(&text("whole"))
    };
    server.answer(begin().chunk(": comment\n\n").event(&finish("stop")).end());
    server.answer(begin().event(&finish("stop")).event(DONE).event(&text(" and more")).event("garbage").end());
    let daemon = asking(&server, "");
    for _ in 0..2 {
        let run = daemon.ask("say it");
        assert_eq!(run.answer(), "whole");
        assert_eq!(attempts(&daemon, &run), 1);
    }
}

#[test]
fn fault_2_an_error_after_some_text_drops_that_text_and_a_page_of_html_is_no_answer() {
    let server = FaultServer::start();
    let error = json!({"error": {"message": "the engine is overloaded", "type": "overloaded_error"}}).to_string();
    server.answer(Answer::events([text("half of "), error.clone()]));
    server.answer(Answer::events([text("another half of "), format!("event: error\ndata: {error}")]));
    server.answer(Answer::whole(200, "text/html", &[], "<html><head><title>Sign in</title></head></html>"));
    server.answer(says("the answer"));
    let daemon = asking(&server, "");
    let run = daemon.ask("say it");
    assert_eq!(run.answer(), "the answer");
    let failures = failures(&daemon, &run);
    assert_eq!(failures.len(), 3, "{failures:?}");
    assert!(failures[0].contains("overloaded") && failures[1].contains("overloaded"), "{failures:?}");
    assert!(failures[2].contains("a page of HTML, \"Sign in\""), "{failures:?}");
    assert!(!format!("{:?}", run.transcript()).contains("half of"), "nothing of a broken stream is recorded");
}

#[test]
fn fault_3_usage_without_choices_and_a_finish_reason_before_the_last_delta() {
    let server = FaultServer::start();
    let null = json!({"choices": null, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}).to_string();
    server.answer(Answer::events([text("first "), finish("stop"), text("last"), usage(1, 1), null, DONE.to_owned()]));
    let daemon = asking(&server, "");
    let run = daemon.ask("say it");
    assert_eq!(run.answer(), "first last");
    assert_eq!((run.view().usage.input_tokens, run.view().usage.output_tokens), (7, 3));
}

#[test]
fn fault_4_calls_in_every_disorder_execute_once_each() {
    let server = FaultServer::start();
    let piece = |index: u64, id: Id<'_>, name: &str, args: &str| {
        let mut call = json!({"index": index, "function": {"arguments": args}});
        if !name.is_empty() {
            call["function"]["name"] = name.into();
        }
        match id {
            Id::None => {}
            Id::Null => call["id"] = json!(null),
            Id::Text(id) => call["id"] = id.into(),
        }
        delta(&json!({"tool_calls": [call]}))
    };
    // Headers first, then arguments by index, in turns; ids once, empty and null.
    server.answer(Answer::events([
        piece(0, Id::Text("call_a"), "shell", ""),
        piece(1, Id::Text("call_b"), "sh", ""),
        piece(1, Id::Text(""), "ell", "{\"command\":\"echo "),
        piece(0, Id::Null, "", "{\"command\":"),
        piece(1, Id::None, "", "b >> log; echo b\"}"),
        piece(0, Id::Text(""), "", "\"echo a >> log; echo a\"}"),
        finish("tool_calls"),
        DONE.to_owned(),
    ]));
    // No index and no id at all.
    let bare = |command: &str| {
        let args = json!({"command": command}).to_string();
        delta(&json!({"tool_calls": [{"function": {"name": "shell", "arguments": args}}]}))
    };
    server.answer(Answer::events([bare("echo c >> log; echo c"), bare("echo d >> log; echo d"), finish("tool_calls")]));
    server.answer(says("done"));
    let daemon = asking(&server, "");
    let run = daemon.ask("call");
    assert_eq!(run.answer(), "done");
    let told = ["a", "b", "c", "d"].map(|letter| format!("Exit code: 0\n{letter}\n"));
    assert_eq!(run.envelopes(), told);
    assert_eq!(daemon.written("log"), "a\nb\nc\nd\n");
    // Each result went back under the id of its call.
    let last = &server.requests()[2].body["messages"];
    let ids = |key: &str| -> Vec<String> {
        let messages = last.as_array().unwrap().iter();
        messages.flat_map(|m| m[key].as_array().cloned().unwrap_or_default()).map(|c| c["id"].to_string()).collect()
    };
    let answered: Vec<String> = last
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "tool")
        .map(|m| m["tool_call_id"].to_string())
        .collect();
    assert_eq!((ids("tool_calls").len(), ids("tool_calls")), (4, answered));
}

/// Ids as servers give them.
enum Id<'a> {
    None,
    Null,
    Text(&'a str),
}

#[test]
fn fault_5_arguments_that_are_cut_never_execute_and_the_model_is_told() {
    let server = FaultServer::start();
    let whole = json!({"command": "echo ran >> log"}).to_string();
    let cuts = [0, 1, 12, whole.len() - 2, whole.len() - 1];
    for cut in cuts {
        server.answer(Answer::events([call(0, "x", "shell", &whole[..cut]), finish("length"), DONE.to_owned()]));
    }
    server.answer(says("told"));
    let daemon = asking(&server, "");
    let run = daemon.ask("call");
    assert_eq!(run.answer(), "told");
    assert_eq!(daemon.written("log"), "", "nothing of it executed");
    let envelopes = run.envelopes();
    assert_eq!(envelopes.len(), cuts.len());
    assert!(envelopes.iter().all(|text| text.contains("cut off by the limit of output tokens")), "{envelopes:?}");
    // Where the stream itself is cut in the middle of arguments, the answer is asked for again.
    server.answer(Answer::stream().event(&call(0, "x", "shell", &whole[..12])).cut());
    server.answer(says("again"));
    assert_eq!(daemon.ask("call").answer(), "again");
    assert_eq!(daemon.written("log"), "");
}

#[test]
fn fault_6_finish_reasons_that_say_nothing_a_filter_and_a_refusal() {
    let server = FaultServer::start();
    server.answer(Answer::events([shell(0, "echo ran"), finish("stop"), DONE.to_owned()]));
    server.answer(Answer::events([text("done"), finish("eos_of_some_kind"), DONE.to_owned()]));
    let daemon = asking(&server, "");
    let run = daemon.ask("call");
    assert_eq!((run.answer(), run.envelopes()), ("done".to_owned(), vec!["Exit code: 0\nran\n".to_owned()]));
    for (answer, told) in [
        (Answer::events([text("no"), finish("content_filter"), DONE.to_owned()]), "content filter"),
        (
            Answer::events([delta(&json!({"refusal": "I will not"})), finish("stop"), DONE.to_owned()]),
            "the model refused: I will not",
        ),
    ] {
        server.answer(answer);
        let view = daemon.ask("say it").wait();
        assert_eq!((view.state, view.exit_code), (RunState::Failed, Some(1)));
        assert!(view.error.as_deref().unwrap().contains(told), "{:?}", view.error);
    }
    assert_eq!(server.count(), 4, "a refusal is not asked for again");
}

#[test]
fn fault_7_silence_a_cut_in_the_middle_of_a_character_and_an_end_that_does_not_come() {
    let server = FaultServer::start();
    server.answer(Answer::stream().event(&text("one delta")).hang());
    let snowman = text("snow\u{2603}");
    let at = snowman.find('\u{2603}').unwrap() + 1;
    server.answer(Answer::stream().chunk([b"data: ", &snowman.as_bytes()[..at]].concat()).cut());
    server.answer(Answer::stream().event(&text("reset")).reset());
    server.answer(Answer::bytes("HTTP/1.1 200 OK\r\n").cut());
    // Chunked encoding that never ends, after an end that counts.
    server.answer(Answer::stream().event(&text("the answer")).event(&finish("stop")).event(DONE).hang());
    let daemon = asking(&server, "idle_timeout_seconds = 0.3");
    let run = daemon.ask("say it");
    assert_eq!(run.answer(), "the answer");
    let failures = failures(&daemon, &run);
    assert_eq!(failures.len(), 4, "{failures:?}");
    assert!(failures[0].contains("said nothing more"), "{failures:?}");
    assert!(failures[1].contains("broke in the middle") && failures[2].contains("broke in the middle"), "{failures:?}");
    assert_eq!(attempts(&daemon, &run), 5);
}

#[test]
fn fault_7_a_server_that_never_begins_is_given_up_after_its_time() {
    let server = FaultServer::start();
    server.answer(Answer::default().hang()).answer(says("late"));
    let daemon = asking(&server, "first_byte_timeout_seconds = 0.3");
    let run = daemon.ask("say it");
    assert_eq!(run.answer(), "late");
    assert!(failures(&daemon, &run)[0].contains("said nothing for 0.3 s"));
}

#[test]
fn fault_8_retry_after_in_every_form_is_kept_and_garbage_is_not_believed() {
    for (header, value, least) in [
        ("retry-after", "1", 1.0),
        ("retry-after-ms", "400", 0.4),
        ("x-ratelimit-reset-requests", "600ms", 0.6),
        ("retry-after", "soon\u{2603}", 0.0),
        ("retry-after", "-7", 0.0),
        ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
    ] {
        let server = FaultServer::start();
        server.answer(Answer::refusal(429, &[(header, value)], "slow down")).answer(says("well"));
        let daemon = asking(&server, "");
        let run = daemon.ask("say it");
        assert_eq!(run.answer(), "well", "{header}: {value}");
        let requests = server.requests();
        let waited = requests[1].at.duration_since(requests[0].at).as_secs_f64();
        assert!(waited >= least && waited < least + 4.0, "{header}: {value}: waited {waited} s");
    }
}

#[test]
fn fault_8_retry_after_as_a_date_is_kept() {
    let server = FaultServer::start();
    let daemon = asking(&server, "");
    let began = harness_tests::now();
    // As HTTP writes it; without its fraction of a second.
    let date = daemon.sh("date -u -d '+4 seconds' '+%a, %d %b %Y %H:%M:%S GMT'").line();
    server.answer(Answer::refusal(429, &[("retry-after", &date)], "slow down")).answer(says("well"));
    assert_eq!(daemon.ask("say it").answer(), "well");
    let waited = server.requests()[1].at.duration_since(began).as_secs_f64();
    assert!((3.0..9.0).contains(&waited), "{date}: {waited} s");
}

#[test]
fn fault_8_fifty_runs_that_are_refused_at_once_come_back_one_after_the_other() {
    let server = FaultServer::start();
    let gate = Gate::new();
    for _ in 0..50 {
        let refusal = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
        let refusal = Answer::default().wait(&gate).then(format!(
            "HTTP/1.1 529 X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{refusal}",
            refusal.to_string().len()
        ));
        server.answer(refusal);
    }
    server.always(says("in the end"));
    let daemon = asking(&server, "");
    let runs: Vec<_> = (0..50).map(|_| daemon.ask("say it")).collect();
    server.asked(50);
    gate.open();
    runs.iter().for_each(|run| assert_eq!(run.answer(), "in the end"));
    let requests = server.requests();
    assert_eq!(requests.len(), 100, "each was asked once more, and none twice");
    // They failed within a moment. They do not come back in one.
    let mut back: Vec<f64> =
        requests[50..].iter().map(|r| r.at.duration_since(requests[49].at).as_secs_f64()).collect();
    back.sort_by(f64::total_cmp);
    let busiest = (0..50).map(|from| back[from..].iter().take_while(|&&at| at < back[from] + 0.02).count()).max();
    assert!(busiest.unwrap() <= 25, "{busiest:?} came within 20 ms: {back:?}");
    assert!(back[49] - back[0] > 0.5, "they are spread: {back:?}");
}

#[test]
fn fault_9_halves_of_characters_huge_and_odd_arguments_tiny_deltas_and_unknown_tools() {
    let server = FaultServer::start();
    let huge = format!("{{\"command\":\"echo {}\"}}", "x".repeat(10 << 20));
    let odd = [
        ("shell", "{\"command\":\"echo \\ud83d >> log\"}", "half of a UTF-16 surrogate pair"),
        ("shell", "[\"echo ran >> log\"]", "must be a JSON object"),
        ("shell", "\"echo ran >> log\"", "must be a JSON object"),
        ("teleport", "{}", "There is no tool \"teleport\""),
    ];
    let calls =
        odd.iter().enumerate().map(|(index, (tool, args, _))| call(index as u64, &format!("c{index}"), tool, args));
    let calls: Vec<String> = calls.chain([call(9, "c9", "shell", &huge), call(10, "c10", "shell", "")]).collect();
    server.answer(Answer::events(calls.into_iter().chain([finish("tool_calls"), DONE.to_owned()])));
    // Ten thousand deltas of a character each, in one chunk.
    let tiny: String = (0..10_000).map(|_| format!("data: {}\n\n", text("x"))).collect();
    server.answer(Answer::stream().chunk(tiny).event(&finish("stop")).event(DONE).end());
    let daemon = asking(&server, "");
    let run = daemon.ask("call");
    assert_eq!(run.answer(), "x".repeat(10_000));
    assert_eq!(daemon.written("log"), "");
    let envelopes = run.envelopes();
    for ((_, args, told), envelope) in odd.iter().zip(&envelopes) {
        assert!(envelope.contains(told), "{args}: {envelope}");
    }
    assert!(envelopes[4].contains("write less at once") && envelopes[4].len() < 500, "{}", envelopes[4]);
    assert!(envelopes[5].contains("command"), "an empty text is an empty object: {}", envelopes[5]);
}

#[test]
fn fault_10_plain_json_in_place_of_a_stream_is_taken_in_each_dialect() {
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 2});
    let chat =
        json!({"choices": [{"index": 0, "message": {"content": "plain"}, "finish_reason": "stop"}], "usage": usage});
    let item = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "plain"}]});
    let responses = json!({"id": "r", "object": "response", "status": "completed", "output": [item],
        "usage": {"input_tokens": 3, "output_tokens": 2}});
    let messages = json!({"type": "message", "role": "assistant", "content": [{"type": "text", "text": "plain"}],
        "stop_reason": "end_turn", "usage": {"input_tokens": 3, "output_tokens": 2}});
    for (dialect, body, kind) in [
        ("openai", chat, "application/json"),
        // Mislabelled, too.
        ("responses", responses, "text/event-stream"),
        ("anthropic", messages, "application/json"),
    ] {
        let server = FaultServer::start();
        server.answer(Answer::whole(200, kind, &[], body.to_string()));
        let daemon = Daemon::configured(&config(&server, dialect, ""));
        let run = daemon.ask("say it");
        assert_eq!(run.answer(), "plain", "{dialect}");
        assert_eq!(run.view().usage.tokens(), 5, "{dialect}");
    }
}

#[test]
fn a_server_that_dies_in_mid_stream_and_comes_back_gives_one_answer_and_no_tool_runs_twice() {
    let server = FaultServer::start();
    let port = server.port();
    let gate = Gate::new();
    server.answer(wants("echo ran >> log; echo ran"));
    server.answer(Answer::stream().event(&text("The command")).wait(&gate).hang());
    let daemon = asking(&server, "");
    let run = daemon.ask("call, then say");
    server.asked(2);
    drop(server);
    gate.open();
    // No server is there for a while: the run waits, and says for which one.
    eventually("it failed more than once", || failures(&daemon, &run).len() >= 2);
    assert!(!run.view().state.is_terminal());
    let server = FaultServer::on_port(port);
    server.always(says("The command ran."));
    assert_eq!(run.answer(), "The command ran.");
    assert_eq!(daemon.written("log"), "ran\n");
    let finished =
        daemon.events(&run).into_iter().filter(|event| matches!(event.body, EventBody::InferenceFinished { .. }));
    assert_eq!(finished.count(), 2);
    assert_eq!(run.envelopes(), ["Exit code: 0\nran\n"]);
}

#[test]
fn a_follower_sees_text_as_it_arrives_and_the_start_over() {
    let server = FaultServer::start();
    let (first, second) = (Gate::new(), Gate::new());
    server.answer(Answer::stream().event(&text("Half ")).wait(&first).cut());
    server.answer(
        Answer::stream()
            .event(&delta(&json!({"reasoning_content": "hm"})))
            .event(&text("Whole "))
            .wait(&second)
            .event(&text("answer"))
            .event(&finish("stop"))
            .end(),
    );
    let daemon = asking(&server, "");
    let mut client = daemon.connect();
    client.subscribe(json!({"deltas": true}));
    let run = daemon.ask("say it");
    let mut next = || loop {
        let mut note = client.note();
        if note["method"] == "delta" {
            let delta = note["params"]["delta"].take();
            return (
                delta["stream"].as_str().unwrap().to_owned(),
                delta["offset"].as_u64().unwrap(),
                delta["text"].as_str().unwrap().to_owned(),
            );
        }
    };
    let told = |stream: &str, offset, text: &str| (stream.to_owned(), offset, text.to_owned());
    // Each comes before the server has said more.
    assert_eq!(next(), told("text", 0, "Half "));
    first.open();
    assert_eq!(next(), told("reasoning", 0, "hm"));
    assert_eq!(next(), told("text", 0, "Whole "));
    second.open();
    assert_eq!(next(), told("text", 6, "answer"));
    assert_eq!(run.answer(), "Whole answer");
}

#[test]
fn a_cancel_ends_the_request_at_once() {
    let server = FaultServer::start();
    server.answer(Answer::stream().event(&text("Well")).hang());
    server.answer(says("next"));
    let daemon = asking(&server, "width = 1");
    let run = daemon.ask("say it");
    server.asked(1);
    run.cancel();
    assert_eq!(run.wait().state, RunState::Cancelled);
    // The lane is free again, and nothing is held against the provider.
    assert_eq!(daemon.ask("say it").answer(), "next");
}
