//! Circuit breakers of providers: a provider that keeps failing is not asked, `lane` shows it, a fallback is used, and
//! the provider is probed step by step.

use harness_protocol::event::EventBody;
use harness_protocol::lane::Limiter;
use harness_protocol::run::RunState;
use harness_tests::chat::says;
use harness_tests::{Answer, Daemon, FaultServer, eventually, json};

use crate::provider_calls::{attempts, failures};
use crate::provider_faults::{asking, config};

fn broken() -> Answer {
    Answer::refusal(503, &[], "down for a while")
}

#[test]
fn a_provider_that_keeps_failing_is_left_alone_and_then_asked_once() {
    let server = FaultServer::start();
    server.always(broken());
    let daemon = asking(&server, "");
    let runs: Vec<_> = (0..8).map(|_| daemon.ask("say it")).collect();
    eventually("the lane is held", || {
        daemon.lane("local").limiter == Limiter::Failing && daemon.lane("local").permits == 0
    });
    let lane = daemon.lane("local");
    assert!(lane.held.as_ref().is_some_and(|held| held.until.is_some() && held.error.contains("down for a while")));
    let asked = server.count();
    // The breaker is open for 2 s at first, and runs that come meanwhile wait.
    let late = daemon.ask("me too");
    eventually("one is let through", || server.count() > asked);
    eventually("it is held again", || daemon.lane("local").held.is_some());
    assert_eq!(server.count(), asked + 1, "a probe is one request");
    assert_eq!(attempts(&daemon, &late) + runs.iter().map(|run| attempts(&daemon, run)).sum::<usize>(), asked + 1);
    server.always(says("up again"));
    assert!(runs.iter().chain([&late]).all(|run| run.answer() == "up again"));
    eventually("nothing is held against it", || daemon.lane("local").limiter == Limiter::None);
}

/// A daemon whose provider fails, which six runs have seen, and the one that stands in for it.
fn failing_with_a_fallback() -> (Daemon, FaultServer, FaultServer) {
    let (server, other) = (FaultServer::start(), FaultServer::start());
    server.always(broken());
    other.always(says("from the other"));
    let text = config(&server, "openai", "fallback = \"other\"");
    let more = format!("[provider.other]\ndialect = \"openai\"\nbase_url = \"{}\"\nmodel = \"n\"\n", other.url());
    let daemon = Daemon::configured(&format!("{text}{more}"));
    let runs: Vec<_> = (0..6).map(|_| daemon.ask("say it")).collect();
    assert!(runs.iter().all(|run| run.answer() == "from the other"));
    (daemon, server, other)
}

#[test]
fn another_provider_stands_in_while_one_fails() {
    let (daemon, server, other) = failing_with_a_fallback();
    assert_eq!(other.requests()[0].body["model"], "n", "it is asked for its own model");
    let asked = server.count();
    assert_eq!(daemon.lane("local").limiter, Limiter::Failing);
    let run = daemon.ask("say it");
    assert_eq!(
        (run.answer(), server.count()),
        ("from the other".to_owned(), asked),
        "who comes later goes there at once"
    );
    let begun = daemon.events(&run).into_iter().find_map(|event| match event.body {
        EventBody::StepBegun { provider, .. } => provider,
        _ => None,
    });
    assert_eq!(begun.as_deref(), Some("other"));
}

#[test]
fn while_one_run_probes_the_others_use_the_fallback() {
    let (daemon, server, _other) = failing_with_a_fallback();
    let gate = harness_tests::Gate::new();
    let asked = server.count();
    server.always(Answer::stream().wait(&gate).event(&text_and_end("late")).end());
    eventually("its rest is over", || daemon.lane("local").held.is_none());
    let probe = daemon.ask("say it");
    server.asked(asked + 1);
    assert_eq!(daemon.ask("say it").answer(), "from the other", "it does not wait for the probe");
    gate.open();
    assert_eq!(probe.answer(), "late");
    eventually("it is well again", || daemon.lane("local").limiter == Limiter::None);
}

fn text_and_end(words: &str) -> String {
    json!({"choices": [{"index": 0, "delta": {"content": words}, "finish_reason": "stop"}]}).to_string()
}

#[test]
fn a_rate_limit_holds_the_lane_for_as_long_as_it_says() {
    let server = FaultServer::start();
    server.answer(Answer::refusal(429, &[("retry-after", "2")], "slow down")).always(says("well"));
    let daemon = asking(&server, "");
    let first = daemon.ask("say it");
    eventually("the lane is held", || daemon.lane("local").limiter == Limiter::RateLimit);
    let second = daemon.ask("say it");
    assert_eq!((first.answer(), second.answer()), ("well".to_owned(), "well".to_owned()));
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests[1].at.duration_since(requests[0].at).as_secs_f64() >= 1.9, "nobody asked before the time");
}

#[test]
fn attempts_are_bounded_and_the_last_error_is_told() {
    let server = FaultServer::start();
    server.always(Answer::refusal(503, &[("retry-after-ms", "1")], "down for good"));
    let daemon = asking(&server, "");
    // With a wait that the server names, the provider is not left alone; jitter adds up to seconds.
    let run = daemon.ask("say it");
    eventually("it was tried more than once", || failures(&daemon, &run).len() >= 3);
    run.cancel();
    assert_eq!(run.wait().state, RunState::Cancelled);
    // A wrong request is reported at once.
    server.always(Answer::refusal(400, &[], "messages: at least one is required"));
    let view = daemon.ask("say it").wait();
    assert!(view.error.as_deref().unwrap().contains("at least one is required"), "{:?}", view.error);
    assert_eq!(view.exit_code, Some(1));
}

#[test]
fn a_held_lane_is_the_same_after_a_crash_but_for_what_a_restart_forgives() {
    let server = FaultServer::start();
    server.always(broken());
    let daemon = asking(&server, "");
    let run = daemon.ask("say it");
    eventually("the lane is held", || daemon.lane("local").limiter == Limiter::Failing);
    let place = daemon.crash();
    server.always(says("up again"));
    let daemon = place.start();
    assert_eq!(daemon.run(&run.id).answer(), "up again");
    assert!(
        daemon.refused("provider.check", json!({"colour": 1}))["message"].as_str().unwrap().contains("unknown field")
    );
}
