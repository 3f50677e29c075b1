//! Budgets: they are never overdrawn, and a request that could not keep them is refused before it starts.

use harness_protocol::run::{RunState, RunView};
use harness_tests::chat::{call, event, finish, messages_says, says, shell, text, usage, wants};
use harness_tests::{Answer, Daemon, FaultServer, Gate, Place, Run, eventually, json};

use crate::provider_faults::{asking, config};

/// 0.0001 USD for a token of input, 0.001 for one of output.
const PRICE: &str = "price = { input = 100, output = 1000, cached = 10 }";

/// Always the same command, and what the answer used.
fn works(input: u64, output: u64) -> Answer {
    Answer::events([shell(0, "true"), finish("tool_calls"), usage(input, output)])
}

fn ended_at_9(daemon: &Daemon, limits: harness_tests::Value, told: &str) -> harness_protocol::run::RunView {
    let view = daemon.ask_with("work", json!({"limits": limits})).wait();
    assert_eq!((view.state, view.exit_code), (RunState::Failed, Some(9)), "{:?}", view.error);
    assert!(view.error.as_deref().unwrap().contains(told), "{:?}", view.error);
    view
}

#[test]
fn a_budget_of_tokens_is_not_overdrawn() {
    let server = FaultServer::start();
    server.answer(works(700, 100)).answer(works(900, 100)).always(says("never asked"));
    let daemon = asking(&server, "");
    // After 800 and 1,000 there is no room for a prompt of more than 1,000.
    let view = ended_at_9(&daemon, json!({"max_tokens": 2000}), "--max-tokens");
    assert_eq!((view.usage.tokens(), server.count()), (1800, 2));
    // Each answer had what was left as its limit.
    let limits: Vec<u64> = server.requests().iter().map(|r| r.body["max_tokens"].as_u64().unwrap()).collect();
    assert!(limits[0] < 1600 && limits[0] > 900, "what the tools take is counted: {limits:?}");
    assert!(limits[1] <= 400 && limits[1] > 300, "{limits:?}");
}

#[test]
fn a_prompt_that_is_larger_than_the_budget_is_not_asked() {
    let server = FaultServer::start();
    let daemon = asking(&server, "");
    let view = daemon.ask_with(&"word ".repeat(1000), json!({"limits": {"max_tokens": 100}})).wait();
    assert_eq!((view.exit_code, server.count()), (Some(9), 0));
}

#[test]
fn a_budget_of_money_is_not_overdrawn_and_the_cost_is_told() {
    let server = FaultServer::start();
    // 0.08 + 0.02 USD, then 0.1 + 0.02.
    server.answer(works(800, 20)).answer(works(1000, 20)).always(says("never asked"));
    let daemon = asking(&server, PRICE);
    let view = ended_at_9(&daemon, json!({"max_cost_usd": 0.25}), "--max-cost");
    assert_eq!(server.count(), 2);
    assert!((view.usage.cost_usd.unwrap() - 0.22).abs() < 1e-9, "{:?}", view.usage);
    let most = server.requests()[1].body["max_tokens"].as_u64().unwrap();
    assert!(most <= 150 - 82, "what is left pays for no more: {most}");
}

#[test]
fn steps_end_at_their_limit() {
    let server = FaultServer::start();
    server.always(wants("true"));
    let daemon = asking(&server, "");
    let output = daemon.ctl(["submit", "--wait", "--max-steps", "3", "work"]).exits(9);
    output.tells("--max-steps");
    assert_eq!(server.count(), 3);
}

#[test]
fn a_budget_without_a_price_is_a_usage_error() {
    let server = FaultServer::start();
    server.always(says("hi"));
    let daemon = asking(&server, "");
    daemon.ctl(["submit", "--max-cost", "1", "hi"]).exits(2).tells("has no price");
    daemon.ctl(["submit", "--max-cost", "0", "hi"]).exits(2);
    let daemon = asking(&server, PRICE);
    daemon.ctl(["submit", "--max-cost", "1", "--model", "other", "hi"]).exits(2).tells("for the model \"other\"");
    daemon.ctl(["submit", "--max-cost", "1", "--wait", "hi"]).ok();
    assert_eq!(server.count(), 1);
}

/// The first answer of a run that starts five children and waits for them.
fn spawns_five((input, output): (u64, u64)) -> Answer {
    let spawn = |n| call(n, &format!("s{n}"), "spawn_agent", &json!({"prompt": format!("part {n}")}).to_string());
    let wait = call(5, "w", "wait_for_agent", "{}");
    Answer::events((0..5).map(spawn).chain([wait, finish("tool_calls"), usage(input, output)]))
}

fn children(daemon: &Daemon, run: &Run) -> Vec<RunView> {
    let runs = daemon.rpc("run.list", json!({"root": run.id, "limit": 100}));
    let runs: Vec<RunView> = serde_json::from_value(runs["runs"].clone()).unwrap();
    runs.into_iter().filter(|view| view.parent.is_some()).collect()
}

#[test]
fn runs_that_draw_from_one_budget_wait_for_what_the_others_may_give_back() {
    let server = FaultServer::start();
    let gate = Gate::new();
    server
        .answer(spawns_five((10, 5)))
        .answer(Answer::default().wait(&gate).append(says("a part")))
        .always(says("done"));
    let daemon = asking(&server, "");
    let run = daemon.ask_with("work", json!({"limits": {"max_tokens": 4_000}}));
    server.asked(2);
    // The first child may use most of what is left, so the others wait, and it is seen for what.
    let waits = |view: &RunView| view.waiting_for.as_ref().is_some_and(|wait| wait.id == run.id);
    eventually("four wait", || children(&daemon, &run).iter().filter(|view| waits(view)).count() == 4);
    assert_eq!(server.count(), 2);
    gate.open();
    assert_eq!(run.answer(), "done");
    let children = children(&daemon, &run);
    assert!(children.len() == 5 && children.iter().all(|view| view.state == RunState::Succeeded), "{children:?}");
    assert_eq!(run.view().usage_tree.tokens(), 7 * 15);
}

#[test]
fn a_budget_is_of_a_run_and_all_below_it() {
    let server = FaultServer::start();
    let part = Answer::events([text("a part"), finish("stop"), usage(700, 200)]);
    server.answer(spawns_five((700, 100))).always(part);
    let daemon = asking(&server, "");
    let run = daemon.ask_with("work", json!({"limits": {"max_tokens": 3_900}}));
    let view = run.wait();
    // Three children have had their part; nothing is left for the two others, and for the answer.
    assert_eq!((view.exit_code, view.usage_tree.tokens(), server.count()), (Some(9), 800 + 3 * 900, 4));
    let children = children(&daemon, &run);
    let failed: Vec<_> = children.iter().filter(|view| view.state == RunState::Failed).collect();
    assert_eq!(failed.len(), 2, "{children:?}");
    for view in failed {
        let error = view.error.as_deref().unwrap();
        assert!(view.exit_code == Some(9) && error.contains(&format!("the budget of {}", run.id)), "{error}");
    }
}

#[test]
fn below_a_budget_of_money_nothing_is_asked_that_has_no_price() {
    let server = FaultServer::start();
    server.answer(wants("harnessctl submit --provider plain hi; echo code $?")).always(says("done"));
    let url = server.url();
    let plain = format!("{PRICE}\n[provider.plain]\ndialect = \"openai\"\nbase_url = \"{url}\"\nmodel = \"m\"");
    let daemon = asking(&server, &plain);
    let run = daemon.ask_with("work", json!({"limits": {"max_cost_usd": 5}}));
    assert_eq!(run.answer(), "done");
    assert!(
        run.envelopes()[0].contains("has no price") && run.envelopes()[0].contains("code 2"),
        "{:?}",
        run.envelopes()
    );
}

#[test]
fn the_cost_of_unusable_answers_is_counted() {
    let server = FaultServer::start();
    let begun = event("message_start", json!({"message": {"usage": {"input_tokens": 300, "output_tokens": 1}}}));
    server.answer(Answer::stream().event(&begun).cut()).answer(messages_says("done"));
    let place = Place::new();
    place.configure(&config(&server, "anthropic", PRICE));
    let daemon = place.start();
    let run = daemon.ask("work");
    assert_eq!(run.answer(), "done");
    let usage = run.view().usage;
    assert_eq!((usage.input_tokens, usage.output_tokens), (310, 6));
    assert!((usage.cost_usd.unwrap() - 0.037).abs() < 1e-9, "{usage:?}");
}

#[test]
fn a_budget_holds_where_the_server_does_not_say_what_was_used() {
    let server = FaultServer::start();
    // The second breaks off, and the third says nothing of what it used either.
    server.answer(Answer::events([shell(0, "seq 300"), finish("tool_calls")]));
    server.answer(Answer::stream().event(&text("half")).event(&text(" of it")).cut());
    server.always(Answer::events([shell(0, "seq 300"), finish("tool_calls")]));
    let daemon = asking(&server, PRICE);
    let view = ended_at_9(&daemon, json!({"max_tokens": 6_000}), "--max-tokens");
    assert!(server.count() < 8, "{} requests", server.count());
    assert!(view.usage.tokens() > 2_000 && view.usage.tokens() <= 6_000, "{:?}", view.usage);
    assert!(view.usage.cost_usd.is_some_and(|cost| cost > 0.2), "{:?}", view.usage);
}

#[test]
fn nothing_of_a_budget_is_held_in_a_lane_that_stands_still() {
    let server = FaultServer::start();
    let url = server.url();
    server.answer(wants("harnessctl submit -q -p other one; harnessctl submit --wait two")).always(says("a part"));
    let other = format!("[provider.other]\ndialect = \"openai\"\nbase_url = \"{url}\"\nmodel = \"m\"");
    let daemon = asking(&server, &other);
    daemon.ctl(["lane", "pause", "other"]).ok();
    let run = daemon.ask_with("work", json!({"limits": {"max_tokens": 4_000}}));
    assert_eq!(run.answer(), "a part");
    assert!(run.envelopes()[0].ends_with("a part\n"), "{:?}", run.envelopes());
    let views = children(&daemon, &run);
    let one = views.iter().find(|view| view.title == "one").unwrap();
    let waits_for = one.waiting_for.as_ref().map(|wait| &*wait.id);
    assert_eq!((one.state, waits_for), (RunState::Queued, Some("other")), "{one:?}");
    daemon.ctl(["lane", "resume", "other"]).ok();
    eventually("it goes on", || children(&daemon, &run).iter().all(|view| view.state == RunState::Succeeded));
}
