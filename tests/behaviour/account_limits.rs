//! A limit of an account, such as quota, credit, a plan or a missing key, holds the provider's lane and never ends a
//! run.

use harness_protocol::lane::Limiter;
use harness_protocol::run::RunState;
use harness_tests::chat::{says, wants};
use harness_tests::{Answer, Daemon, FaultServer, Place, Run, eventually, json};

use crate::provider_calls::failures;
use crate::provider_faults::{asking, config};

fn refuses(status: u16, body: &str) -> Answer {
    Answer::whole(status, "application/json", &[], body)
}

/// A provider of the daemon's configuration.
fn provider(name: &str, server: &FaultServer, more: &str) -> String {
    format!("[provider.{name}]\ndialect = \"openai\"\nbase_url = \"{}\"\nmodel = \"m\"\n{more}\n", server.url())
}

fn ask(daemon: &Daemon, provider: &str) -> Run {
    daemon.ask_with("say it", json!({"provider": provider}))
}

/// C3: what servers say of it, at a run's first inference.
#[test]
fn however_a_server_says_it_a_used_up_account_holds_the_lane_and_fails_no_run() {
    let named = [
        (402, r#"{"error":{"message":"Insufficient Balance","type":"unknown_error"}}"#, false),
        (
            429,
            r#"{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached",
                "resets_in_seconds":18720}}"#,
            true,
        ),
        (429, r#"{"error":{"message":"You have hit your limit, resets in 5h 12m"}}"#, true),
        (429, r#"{"error":{"message":"Usage limit reached. Try again at 06:34"}}"#, true),
        (403, r#"{"error":{"message":"You've reached your usage limit for this billing cycle."}}"#, false),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error",
                "message":"You have reached your specified API usage limits."}}"#,
            false,
        ),
        (
            429,
            r#"{"error":{"code":"insufficient_quota","type":"insufficient_quota",
                "message":"You exceeded your current quota"}}"#,
            false,
        ),
    ];
    let servers: Vec<FaultServer> = named.iter().map(|_| FaultServer::start()).collect();
    let name = |index: usize| format!("p{index}");
    let text: String = servers.iter().enumerate().map(|(index, server)| provider(&name(index), server, "")).collect();
    let daemon = Daemon::configured(&text);
    for (index, ((status, body, has_time), server)) in named.iter().zip(&servers).enumerate() {
        server.answer(refuses(*status, body)).always(says("there is more"));
        let name = name(index);
        let run = ask(&daemon, &name);
        eventually("the lane is held", || daemon.lane(&name).limiter == Limiter::Quota);
        let later = ask(&daemon, &name);
        let held = daemon.lane(&name).held.expect("it is held");
        assert_eq!(held.until.is_some(), *has_time, "{body}");
        for run in [&run, &later] {
            let view = run.view();
            assert!(!view.state.is_terminal(), "{body}: {:?}", view.error);
        }
        assert_eq!(server.count(), 1, "no run asks meanwhile: {body}");
        daemon.ctl(["provider", "check", &name]).ok();
        assert_eq!((run.answer(), later.answer()), ("there is more".to_owned(), "there is more".to_owned()));
    }
}

/// C3: the true time, wherever it is looked for, and the command that helps.
#[test]
fn forty_one_runs_wait_for_a_time_that_everybody_is_told() {
    let server = FaultServer::start();
    let body = r#"{"error":{"type":"usage_limit_reached","message":"limit reached","resets_in_seconds":20000}}"#;
    server.answer(refuses(429, body)).always(says("in the morning"));
    let daemon = asking(&server, "width = 2");
    let first = daemon.ask("say it");
    eventually("the lane is held", || daemon.lane("local").limiter == Limiter::Quota);
    let runs: Vec<Run> = (0..40).map(|_| daemon.ask("say it")).collect();
    let lane = daemon.ctl(["lane", "local"]).ok();
    assert!(lane.contains("limiter: quota, until "), "{lane}");
    assert!(lane.contains(", 41 runs wait") && lane.contains("harnessctl provider check local"), "{lane}");
    let waited = daemon.ctl(["wait", "--timeout", "1s", &first.id]).exits(8);
    waited.clone().tells("quota, until ").tells(", 41 runs wait").tells("harnessctl lane pause local");
    // Nothing is counted against a run that waits.
    assert_eq!(first.view().inference.map(|inference| inference.attempt), Some(1));
    daemon.ctl(["provider", "check", "local"]).ok();
    assert!(runs.iter().chain([&first]).all(|run| run.answer() == "in the morning"));
    assert_eq!(daemon.lane("local").limiter, Limiter::None);
}

/// C3: a client that waits or follows is told within a second what holds the run and what helps; its own limits hold.
#[test]
fn waiters_and_followers_are_told_the_hold_and_what_helps_and_time_limits_hold() {
    let server = FaultServer::start();
    let body = r#"{"error":{"type":"usage_limit_reached","message":"limit reached","resets_in_seconds":20000}}"#;
    server.always(refuses(429, body));
    let daemon = asking(&server, "");
    for words in [
        "submit --wait hi",
        "submit --follow hi",
        "submit --wait --json hi",
        "submit --wait --deadline 1h hi",
        "follow @last",
    ] {
        let output = daemon.sh(&format!("timeout 3 harnessctl {words}"));
        assert!(
            output.stderr.contains("provider local") && output.stderr.contains("quota, until "),
            "{words}: {output}"
        );
        assert!(output.stderr.contains("harnessctl provider check local"), "{words}: {output}");
    }
    // Many are told of once for each thing that holds them.
    let batch = daemon.file(
        "home/batch",
        &r#"{"prompt":"hi"}
"#
        .repeat(20),
    );
    let output = daemon.sh(&format!("timeout 4 harnessctl submit --batch {batch} --wait"));
    assert_eq!(output.stderr.matches("quota, until ").count(), 1, "{output}");
    daemon.ctl(["submit", "--wait", "--deadline", "1s", "hi"]).exits(124).tells("quota, until ");
    daemon.ctl(["submit", "-q", "--wait", "--deadline", "1s", "hi"]).exits(124);
    assert_eq!(server.count(), 1, "no run asked again");
}

/// C3: half open.
#[test]
fn when_the_time_is_over_one_run_asks_first() {
    let server = FaultServer::start();
    let body = r#"{"error":{"type":"usage_limit_reached","message":"limit reached","resets_in_seconds":3}}"#;
    server.answer(refuses(402, body));
    let daemon = asking(&server, "");
    let first = daemon.ask("say it");
    eventually("the lane is held", || daemon.lane("local").limiter == Limiter::Quota);
    let runs: Vec<Run> = (0..6).map(|_| daemon.ask("say it")).collect();
    let gate = harness_tests::Gate::new();
    server.answer(Answer::default().wait(&gate).append(says("more"))).always(says("more"));
    server.asked(2);
    // The others see that it is out, and wait for what it finds.
    eventually("they still wait", || {
        daemon.lane("local").queued == 6 && daemon.lane("local").limiter == Limiter::Quota
    });
    assert_eq!(server.count(), 2);
    gate.open();
    assert!(runs.iter().chain([&first]).all(|run| run.answer() == "more"));
}

/// C3: a 429 that names no time, however often.
#[test]
fn a_rate_limit_without_a_time_ends_no_run() {
    let server = FaultServer::start();
    server.answer(Answer::refusal(429, &[], "slow down")).answer(Answer::refusal(429, &[], "slow down"));
    server.always(says("well"));
    let daemon = asking(&server, "");
    let run = daemon.ask("say it");
    eventually("the lane is held", || daemon.lane("local").limiter == Limiter::RateLimit);
    assert_eq!(run.answer(), "well");
    assert_eq!((failures(&daemon, &run).len(), server.count()), (2, 3));
}

/// C3: what would go on by itself at night.
#[test]
fn a_pause_of_the_lane_or_a_cancel_by_label_keeps_it_from_going_on_by_itself() {
    let server = FaultServer::start();
    let body = r#"{"error":{"type":"usage_limit_reached","message":"limit reached","resets_in_seconds":2}}"#;
    server.answer(refuses(402, body)).always(says("more"));
    let daemon = asking(&server, "");
    let night = daemon.ask_with("say it", json!({"labels": {"when": "night"}}));
    eventually("the lane is held", || daemon.lane("local").held.is_some());
    let other = daemon.ask("say it");
    daemon.ctl(["lane", "pause", "local"]).ok();
    eventually("the time is over", || daemon.lane("local").held.is_none());
    let asked = server.count();
    daemon.ctl(["cancel", "-l", "when=night"]).ok();
    assert_eq!(night.wait().state, RunState::Cancelled);
    assert_eq!(server.count(), asked, "no run asked");
    daemon.ctl(["lane", "resume", "local"]).ok();
    assert_eq!(other.answer(), "more");
}

/// A16: a daemon that was started from a shell without the key.
#[test]
fn a_daemon_without_the_key_says_which_one_is_missing_and_goes_on_once_it_is_there() {
    let server = FaultServer::start();
    server.always(says("hello"));
    let file = |place: &Place| place.path("home/key").display().to_string();
    for way in ["variable", "file", "empty file", "variable and restart on a queue"] {
        let place = Place::new();
        let (source, told) = match way {
            "file" | "empty file" => (format!("api_key_file = \"{}\"", file(&place)), "home/key"),
            _ => ("api_key_env = \"QUITE_ABSENT\"".to_owned(), "QUITE_ABSENT"),
        };
        if way == "empty file" {
            place.file("home/key", "\n");
        }
        place.configure(&config(&server, "openai", &source));
        let asked = server.count();
        let daemon = place.start();
        let runs: Vec<Run> = (0..3).map(|_| daemon.ask("hi")).collect();
        eventually("the lane is held", || daemon.lane("local").limiter == Limiter::Key);
        assert!(daemon.lane("local").held.is_some_and(|held| held.error.contains(told)), "{way}");
        daemon.ctl(["wait", "--timeout", "1s", &runs[0].id]).exits(8).tells("key, until").tells(told);
        daemon.ctl(["provider", "check", "local"]).exits(4);
        assert!(runs.iter().all(|run| !run.view().state.is_terminal()), "{way}");
        assert_eq!(server.count(), asked, "{way}: nothing is asked without a key");
        // It is put where it should be.
        let daemon = match way {
            "file" => {
                place.file("home/key", "sk-there");
                daemon.ctl(["daemon", "reload"]).ok();
                daemon
            }
            "empty file" => {
                place.file("home/key", "sk-there");
                daemon.ctl(["provider", "check", "local"]).ok();
                daemon
            }
            _ => {
                drop(daemon);
                place.start_behind(&["env", "QUITE_ABSENT=sk-there"])
            }
        };
        for run in &runs {
            assert_eq!(daemon.run(&run.id).answer(), "hello", "{way}");
        }
    }
}

/// C4: what one server said goes back only to it, across a list of fallbacks.
#[test]
fn each_of_a_list_stands_in_and_gets_back_only_what_it_said_itself() {
    let servers: Vec<FaultServer> = (0..3).map(|_| FaultServer::start()).collect();
    let [own, second, third] = &servers[..] else { unreachable!() };
    let thinks = |who: &str| {
        let detail = json!([{"type": "reasoning.encrypted", "data": format!("thought of {who}"), "index": 0}]);
        let shell = harness_tests::chat::shell(0, "true");
        Answer::events([
            harness_tests::chat::delta(&json!({"content": format!("by {who}"), "reasoning_details": detail})),
            shell,
            harness_tests::chat::finish("tool_calls"),
        ])
    };
    own.answer(thinks("own")).always(refuses(402, "{}"));
    second.answer(thinks("second")).always(refuses(402, "{}"));
    third.always(says("by third"));
    let text = config(own, "openai", "fallback = [\"second\", \"third\"]\nprice = { input = 1, output = 2 }");
    let more = provider("second", second, "fallback = \"local\"\nprice = { input = 3, output = 4.5 }");
    let daemon = Daemon::configured(&format!("{text}{more}{}", provider("third", third, "")));
    let listed = daemon.ctl(["provider", "list"]).ok();
    let told = "local: fallback second (USD per million tokens: 3 in, 4.5 out), then third (no price)";
    assert!(listed.contains(told), "{listed}");
    let run = daemon.ask("go");
    assert_eq!(run.answer(), "by third");
    assert_eq!((own.count(), second.count(), third.count()), (2, 2, 1));
    let sent = |server: &FaultServer| server.requests().last().unwrap().body.to_string();
    assert!(sent(own).contains("thought of own") && !sent(own).contains("thought of second"));
    assert!(sent(second).contains("thought of second") && !sent(second).contains("thought of own"), "{}", sent(second));
    assert!(!sent(third).contains("thought of") && sent(third).contains("by second"), "{}", sent(third));
    let view = daemon.ctl(["provider", "list", "--json"]).ok();
    assert!(view.contains(r#""fallbacks":[{"provider":"second""#), "{view}");
    // While it waits, its page says who stands in and who else could.
    third.always(Answer::default().hang());
    let run = daemon.ask("go");
    eventually("the third is asked", || run.view().stand_in.as_deref() == Some("third"));
    let page = daemon.ctl(["show", &run.id]).ok();
    assert!(page.contains("third, while local is left alone") && page.contains("then third (no price)"), "{page}");
    run.cancel();
}

/// Rule 10: refused credentials are no limit of the account.
#[test]
fn refused_credentials_at_the_first_inference_still_fail_the_run() {
    for (status, message) in [
        (401, "Incorrect API key provided"),
        (401, "invalid x-api-key"),
        (403, "Country, region, or territory not supported"),
        (403, "Your key lacks the scope for this model"),
        (401, "User not found."),
    ] {
        let server = FaultServer::start();
        server.answer(Answer::refusal(status, &[], message)).always(wants("true"));
        let daemon = asking(&server, "");
        let view = daemon.ask("hi").wait();
        assert_eq!((view.state, view.exit_code), (RunState::Failed, Some(4)), "{message}");
    }
}
