//! Bytes that servers send around, before and instead of an answer, and connections that die.

use harness_protocol::run::RunState;
use harness_tests::chat::{finish, messages_says, says, text};
use harness_tests::{Answer, Daemon, FaultServer, json};

use crate::provider_calls::{attempts, failures};
use crate::provider_faults::{asking, config};

/// Entry P12 in `tests/README.md`.
#[test]
fn a_line_of_an_error_in_a_stream_ends_the_answer_with_what_it_says() {
    let oops = r#"{"code":500,"message":"the engine is lost","type":"server_error"}"#;
    let wrapped = format!(r#"{{"error":{oops}}}"#);
    for last in [
        format!("error: {oops}\n\n"),
        format!("error: {wrapped}\n\n"),
        format!("error:{oops}\r\n\r\n"),
        // Nothing comes after it, not even its blank line.
        format!("error: {oops}\n"),
        format!("error: {oops}"),
        format!("{wrapped}\n\n"),
        format!("error: {oops}\n\ndata: [DONE]\n\n"),
        "error: the engine is lost\n\n".to_owned(),
    ] {
        let server = FaultServer::start();
        server.answer(Answer::stream().event(&text("half of ")).chunk(&last).end());
        // Byte by byte, too.
        let stream = Answer::stream().event(&text("half of "));
        server.answer(last.as_bytes().iter().fold(stream, |answer, byte| answer.chunk([*byte])).end());
        server.answer(says("whole"));
        let daemon = asking(&server, "");
        let run = daemon.ask("say it");
        assert_eq!(run.answer(), "whole", "{last:?}");
        let told = failures(&daemon, &run);
        assert!(told.len() == 2 && told.iter().all(|error| error.contains("the engine is lost")), "{last:?}: {told:?}");
    }
}

/// Entry P13 in `tests/README.md`.
#[test]
fn json_behind_line_breaks_and_comments_is_read_as_json() {
    let body = json!({"choices": [{"message": {"content": "plain"}, "finish_reason": "stop"}]}).to_string();
    for ahead in [
        "\n \n",
        "\r\n\r\n",
        "\n\n\n\n\n\n\n\n",
        "\u{feff}",
        "\t",
        ": PROCESSING\n\n: PROCESSING\n\n",
        "\n: wait\n\n\n",
    ] {
        let server = FaultServer::start();
        // In one piece, and with what stands ahead of it in pieces of its own.
        server.answer(Answer::whole(200, "application/json", &[], format!("{ahead}{body}")));
        let pieces = ahead.as_bytes().iter().fold(Answer::stream(), |answer, byte| answer.chunk([*byte]));
        server.answer(pieces.chunk(&body).end());
        let refused = json!({"error": {"message": "a bad day", "code": 503}}).to_string();
        server.answer(Answer::whole(200, "text/event-stream", &[], format!("{ahead}{refused}")));
        server.answer(says("well"));
        let daemon = asking(&server, "");
        for expected in ["plain", "plain", "well"] {
            let run = daemon.ask("say it");
            assert_eq!(run.answer(), expected, "{ahead:?}");
            let told = failures(&daemon, &run);
            assert_eq!(told.iter().any(|error| error.contains("a bad day")), expected == "well", "{ahead:?}: {told:?}");
        }
    }
    let server = FaultServer::start();
    let bad_key = "\n \n{\"error\": {\"message\": \"bad key\", \"code\": 401}}\n";
    server.answer(Answer::whole(200, "application/json", &[], bad_key));
    let view = asking(&server, "").ask("say it").wait();
    assert_eq!((view.state, view.exit_code), (RunState::Failed, Some(4)), "{:?}", view.error);
}

/// Entry P14 in `tests/README.md`.
#[test]
fn thinking_is_asked_for_whatever_is_known_of_the_context() {
    let thinking = |more: &str| {
        let server = FaultServer::start();
        server.always(messages_says("well"));
        let daemon = Daemon::configured(&config(&server, "anthropic", more));
        assert_eq!(daemon.ask("say it").answer(), "well");
        let body = &server.requests()[0].body;
        (body["thinking"]["budget_tokens"].as_u64(), body["max_tokens"].as_u64().unwrap())
    };
    for own in [
        "thinking = 4096\nmax_output_tokens = 4096",
        "thinking = 4096\nmax_output_tokens = 4608",
        "thinking = 2000\nmax_output_tokens = 16000",
        "thinking = 8000",
        "thinking = 8000\nmax_output_tokens = 1024",
    ] {
        let known = thinking(&format!("{own}\ncontext_tokens = 200000"));
        assert_eq!(known, thinking(own), "{own}");
        assert!(known.0.is_some_and(|budget| budget < known.1), "{own}: {known:?}");
    }
    // Where there is less room than for all of it, it is less.
    let (budget, most) = thinking("thinking = 8000\nmax_output_tokens = 9000\ncontext_tokens = 8192");
    assert!(budget.is_some_and(|budget| (1024..8000).contains(&budget) && budget + 1024 <= most), "{budget:?} {most}");
}

/// Entry P17 in `tests/README.md`.
#[test]
fn a_kept_connection_that_dies_after_the_request_was_written_is_not_told_of() {
    let server = FaultServer::start();
    let daemon = asking(&server, "");
    for end in [Answer::default().cut(), Answer::default().reset()] {
        server.answer(says("one")).answer(end).answer(says("two"));
        assert_eq!(daemon.ask("say it").answer(), "one");
        let before = server.count();
        let run = daemon.ask("say it");
        assert_eq!((run.answer(), server.count() - before), ("two".to_owned(), 2));
        assert_eq!((attempts(&daemon, &run), failures(&daemon, &run).len()), (1, 0));
    }
    // A new connection that dies, too, is a failure like any other.
    server.answer(Answer::default().cut()).answer(Answer::default().cut()).answer(says("three"));
    let run = daemon.ask("say it");
    assert_eq!(run.answer(), "three");
    assert_eq!(failures(&daemon, &run).len(), 1);
    assert!(failures(&daemon, &run)[0].contains("the connection broke"), "{:?}", failures(&daemon, &run));
}

/// Entry P17 in `tests/README.md`.
#[test]
fn an_encoding_that_was_not_asked_for_is_named() {
    for (status, encoding) in [(200, "gzip"), (200, "br"), (200, "x-own"), (429, "zstd"), (503, "gzip")] {
        let server = FaultServer::start();
        let garbage = b"\x1f\x8b\x08\x00\x00\x00";
        server.answer(Answer::whole(status, "text/event-stream", &[("content-encoding", encoding)], garbage));
        server.answer(Answer::whole(
            200,
            "text/event-stream",
            &[("content-encoding", "identity")],
            format!("data: {}\n\ndata: {}\n\n", text("well"), finish("stop")),
        ));
        let daemon = asking(&server, "");
        let run = daemon.ask("say it");
        assert_eq!(run.answer(), "well");
        let told = failures(&daemon, &run);
        assert!(told[0].contains(&format!("the encoding {encoding}")), "{told:?}");
        assert_eq!(server.requests()[0].header("accept-encoding"), Some("identity"));
    }
}
