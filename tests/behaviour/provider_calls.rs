//! Runs that talk to a model server, in each dialect: correct requests, results that go back, keys and headers.

use harness_protocol::event::{Event, EventBody};
use harness_tests::chat::{messages_says, responses_says, says, wants};
use harness_tests::{Daemon, FaultServer, Run, Value, json};

use crate::provider_faults::config;

/// Attempts that were made in a run.
pub(crate) fn attempts(daemon: &Daemon, run: &Run) -> usize {
    let started = |event: &Event| matches!(event.body, EventBody::InferenceStarted { .. });
    daemon.events(run).iter().filter(|event| started(event)).count()
}

/// The notes about failed attempts.
pub(crate) fn failures(daemon: &Daemon, run: &Run) -> Vec<String> {
    let failed = |event: Event| match event.body {
        EventBody::InferenceFailed { error, .. } => Some(error.to_string()),
        _ => None,
    };
    daemon.events(run).into_iter().filter_map(failed).collect()
}

#[test]
fn each_dialect_asks_as_its_servers_want_to_be_asked() {
    for (dialect, path, answer, auth) in [
        ("openai", "/v1/chat/completions", says("hi"), ("authorization", "Bearer sk-file")),
        ("responses", "/v1/responses", responses_says("hi"), ("authorization", "Bearer sk-file")),
        ("anthropic", "/v1/messages", messages_says("hi"), ("x-api-key", "sk-file")),
    ] {
        let server = FaultServer::start();
        server.answer(answer);
        let place = harness_tests::Place::new();
        let key = place.file("home/key", "sk-file\n");
        let more = format!("api_key_file = \"{key}\"\nmax_output_tokens = 77\nheaders = {{ X-Team = \"a\" }}");
        place.configure(&config(&server, dialect, &more));
        let daemon = place.start();
        let run = daemon.ask("Say hi.");
        assert_eq!(run.answer(), "hi", "{dialect}");
        let usage = run.view().usage;
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.cost_usd), (10, 5, None), "{dialect}");
        let request = &server.requests()[0];
        assert_eq!(request.path, path);
        assert_eq!(request.header(auth.0), Some(auth.1));
        assert_eq!((request.header("x-team"), request.header("content-type")), (Some("a"), Some("application/json")));
        assert_eq!((&request.body["model"], &request.body["stream"]), (&json!("m"), &json!(true)));
        let limit = if dialect == "responses" { "max_output_tokens" } else { "max_tokens" };
        assert_eq!(request.body[limit], 77, "{dialect}: {}", request.body);
        let tools: Vec<Value> = request.body["tools"].as_array().unwrap().clone();
        assert!(tools.iter().any(|tool| tool.to_string().contains("\"shell\"")), "{tools:?}");
        assert!(request.body.to_string().contains("Say hi."));
    }
}

#[test]
fn a_call_executes_and_its_result_goes_back() {
    let server = FaultServer::start();
    server.answer(wants("echo hello; exit 3")).answer(says("It said hello and failed."));
    let daemon = Daemon::configured(&config(&server, "openai", ""));
    let run = daemon.ask("run it");
    assert_eq!(run.answer(), "It said hello and failed.");
    let messages = server.requests()[1].body["messages"].clone();
    let last = messages.as_array().unwrap().last().unwrap();
    assert_eq!((&last["role"], &last["content"]), (&json!("tool"), &json!("Exit code: 3\nhello\n")));
    assert_eq!(run.view().usage.tokens(), 30);
}

#[test]
fn another_model_can_be_named_and_none_is_a_mistake() {
    let server = FaultServer::start();
    server.always(says("hi"));
    let daemon = Daemon::configured(&config(&server, "openai", "").replace("model = \"m\"\n", ""));
    daemon.ask_with("hi", json!({"model": "other"})).wait();
    assert_eq!(server.requests()[0].body["model"], "other");
    daemon.ctl(["submit", "hi"]).exits(2).tells("no model is named");
}

#[test]
fn two_runs_of_a_provider_share_its_connections() {
    let server = FaultServer::start();
    server.always(says("hi"));
    let daemon = Daemon::configured(&config(&server, "openai", ""));
    for _ in 0..5 {
        assert_eq!(daemon.ask("hi").answer(), "hi");
    }
    assert!(server.connections() < 5, "{} connections for 5 requests", server.connections());
}

#[test]
fn a_provider_that_is_configured_while_the_daemon_runs_is_there_after_a_reload() {
    let (server, other) = (FaultServer::start(), FaultServer::start());
    server.always(says("hi"));
    other.always(says("new"));
    let text = config(&server, "openai", "");
    let daemon = Daemon::configured(&text);
    let added =
        format!("[provider.new]\ndialect = \"openai\"\nbase_url = \"{}\"\nmodel = \"n\"\nwidth = 3\n", other.url());
    daemon.configure(&format!("{text}{added}"));
    daemon.ctl(["submit", "-p", "new", "hi"]).exits(2).tells("no provider \"new\" is configured");
    let told = daemon.ctl(["daemon", "reload"]);
    assert!(format!("{told}").contains("lane new: width 3"), "{told}");
    assert_eq!(daemon.ask_with("hi", json!({"provider": "new"})).answer(), "new");
    assert_eq!(daemon.lane("new").width, 3);
    // What else became of it is told, too.
    daemon.configure(&format!("{text}{added}max_output_tokens = 99\n[limits]\ndepth = 3\n"));
    let told = format!("{}", daemon.ctl(["daemon", "reload"]));
    assert!(
        told.contains("provider new: changed") && told.contains("[limits]: changed; that takes a restart"),
        "{told}"
    );
    // What cannot be used changes nothing.
    daemon.configure(&format!("{text}{added}ca_file = \"/no/such.pem\"\n"));
    daemon.ctl(["daemon", "reload"]).exits(2).tells("cannot read /no/such.pem");
    assert_eq!(daemon.ask_with("hi", json!({"provider": "new"})).answer(), "new");
    // And after a crash the lane is there as well.
    daemon.configure(&format!("{text}{added}"));
    let place = daemon.crash();
    assert_eq!(place.start().ask_with("hi", json!({"provider": "new"})).answer(), "new");
}
