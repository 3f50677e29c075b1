//! The reason why a run does not proceed: its page, the list, the log, the lane, a wait and JSON all give it in the
//! same words.

use harness_protocol::lane::Limiter;
use harness_protocol::run::{RunState, WaitKind};
use harness_tests::chat::{call, finish, says as answers, usage, wants};
use harness_tests::{Answer, Daemon, FaultServer, Gate, Place, Run, Script, eventually, json, turn};

use crate::lane::{open, until_there_is};

fn provider(name: &str, server: &FaultServer, more: &str) -> String {
    format!("[provider.{name}]\ndialect = \"openai\"\nbase_url = \"{}\"\nmodel = \"m\"\n{more}\n", server.url())
}

/// Looks everywhere for these words about a run. What holds a lane is told of the lane, too, and is a word of its own
/// in JSON.
#[track_caller]
fn told_everywhere(daemon: &Place, run: &Run, words: &str, lane: Option<(&str, &str)>) {
    let page = || daemon.ctl(["show", &run.id]).ok();
    eventually(&format!("show says {words:?}: {}", page()), || page().contains(words));
    let list = daemon.ctl(["list", &run.id]).ok();
    assert!(list.contains(words), "list says {words:?}: {list}");
    let logs = daemon.ctl(["logs", &run.id]).exits(0);
    assert!(logs.stderr.contains(words), "logs says {words:?}: {logs}");
    let waited = daemon.ctl(["wait", "--timeout", "1s", &run.id]).exits(8);
    assert!(waited.stderr.contains(words), "wait says {words:?} within a second: {waited}");
    let several = daemon.ctl(["wait", "--timeout", "1s", &run.id, &run.id]).exits(8);
    assert!(several.stderr.contains(words), "a wait for several says {words:?}: {several}");
    if let Some((lane, limiter)) = lane {
        let report = daemon.ctl(["lane", lane]).ok();
        assert!(report.contains(&format!("limiter: {limiter}")), "lane {lane} says {limiter:?}: {report}");
        let view = daemon.ctl(["show", "--json", &run.id]).json();
        assert_eq!(view["waiting_for"]["limiter"], limiter, "{view}");
    }
}

/// Entry U3 in `tests/README.md`.
#[test]
fn the_state_of_a_provider_is_told_in_the_same_words_everywhere() {
    let servers: Vec<FaultServer> = (0..5).map(|_| FaultServer::start()).collect();
    let [quota, limit, down, refused, paused] = &servers[..] else { unreachable!() };
    quota.always(Answer::whole(402, "application/json", &[], r#"{"error":{"message":"no money left"}}"#));
    limit.always(Answer::refusal(429, &[("retry-after", "120")], "slow down"));
    down.always(Answer::refusal(503, &[("retry-after", "120")], "in pieces"));
    refused.answer(wants("true")).always(Answer::refusal(401, &[], "Incorrect API key provided"));
    let text: String = [
        provider("quota", quota, ""),
        provider("limit", limit, ""),
        provider("down", down, ""),
        provider("refused", refused, ""),
        provider("paused", paused, ""),
        provider("key", paused, "api_key_env = \"QUITE_ABSENT\""),
        provider("full", paused, "width = 1"),
    ]
    .concat();
    let place = Place::configured(&text);
    let daemon = place.start();
    daemon.ctl(["lane", "pause", "paused"]).ok();
    paused.answer(Answer::default().hang());
    for (name, words, said) in [
        ("quota", "provider quota (place 1): quota", "no money left"),
        ("key", "provider key (place 1): key", "QUITE_ABSENT"),
        ("refused", "provider refused (place 1): credentials", "Incorrect API key"),
        ("paused", "provider paused (place 1): paused", ""),
    ] {
        let run = daemon.ask_with("say it", json!({"provider": name}));
        let limiter = words.rsplit(' ').next().unwrap();
        told_everywhere(&daemon, &run, words, Some((name, limiter)));
        let page = daemon.ctl(["show", &run.id]).ok();
        assert!(page.contains(said) && page.contains("harnessctl "), "{name}: {page}");
    }
    // Between two tries it stands in no lane; the next one is told with its time.
    for (name, limiter, attempt, said) in [("limit", "rate-limit", 1, "slow down"), ("down", "failing", 2, "in pieces")]
    {
        let run = daemon.ask_with("say it", json!({"provider": name}));
        told_everywhere(&daemon, &run, &format!("provider {name}: {limiter}, until "), Some((name, limiter)));
        let view = daemon.ctl(["show", "--json", &run.id]).json();
        assert!(view["inference"]["error"].as_str().unwrap().contains(said), "{view}");
        assert_eq!(view["inference"]["attempt"], attempt, "a limit is no failure of the run: {view}");
        assert!(view["inference"]["next_at"].is_string() && view["timing"]["retry"].as_f64().unwrap() > 0.0, "{view}");
    }
    let executing = daemon.ask_with("say it", json!({"provider": "full"}));
    eventually("it is asked", || executing.view().state == RunState::Thinking && daemon.lane("full").permits == 1);
    let behind = daemon.ask_with("say it", json!({"provider": "full"}));
    told_everywhere(&daemon, &behind, "provider full (place 1): width", Some(("full", "width")));
    // The log says when a provider goes, with its error, and in the same words.
    let log = std::fs::read_to_string(place.path("daemon.log")).unwrap();
    for told in [
        "provider quota is left alone: quota",
        "no money left",
        "provider key is left alone: key",
        "left alone: credentials",
    ] {
        assert!(log.contains(told), "{told:?}: {log}");
    }
    daemon.ctl(["daemon", "drain", "--timeout", "0s"]);
    told_everywhere(&daemon, &behind, "provider full (place 1): draining", Some(("full", "draining")));
    executing.cancel();
}

/// Entries U3 and U14 in `tests/README.md`.
#[test]
fn a_wait_for_a_lane_a_person_or_a_run_is_told_in_the_same_words_everywhere() {
    let daemon = Daemon::configured("[lane.tool]\nwidth = 2\n[share.batch]\nweight = 1\nmax = 1\n");
    let batch = json!({"share": "batch"});
    let first = daemon.submit_with(&until_there_is("gate"), batch.clone());
    eventually("it executes", || daemon.lane("tool").busy == 1);
    let share = daemon.submit_with(&until_there_is("gate"), batch);
    told_everywhere(&daemon, &share, "lane tool (place 1): share", Some(("tool", "share")));
    let page = daemon.ctl(["show", &share.id]).ok();
    assert!(page.contains("share batch is at its max; no command changes that"), "{page}");
    let second = daemon.submit(&until_there_is("gate"));
    eventually("the lane is full", || daemon.lane("tool").busy == 2);
    let width = daemon.submit(&until_there_is("gate"));
    told_everywhere(&daemon, &width, "lane tool (place 1): width", Some(("tool", "width")));
    let person = daemon.submit(&turn("").ask("which?").turn("done"));
    eventually("it asks", || !person.questions().is_empty());
    told_everywhere(&daemon, &person, &format!("a person ({})", person.questions()[0]), None);
    let script = turn("").spawn("child").wait_for_all().turn("done").child("child", &turn("").ask("what?").turn("ok"));
    let parent = daemon.submit(&script);
    eventually("it waits", || parent.view().waiting_for.is_some_and(|wait| wait.kind == WaitKind::Run));
    let child = parent.view().waiting_for.unwrap().id;
    told_everywhere(&daemon, &parent, &format!("run {}", &child[..8]), None);
    width.pause();
    told_everywhere(&daemon, &width, "paused", None);
    assert_eq!(daemon.ctl(["show", "--json", &width.id]).json()["waiting_for"]["kind"], "paused");
    assert_eq!(daemon.ctl(["list", "--json", "--waiting-for", "paused"]).json()["id"], *width.id);
    width.resume();
    daemon.ctl(["lane", "pause"]).ok();
    told_everywhere(&daemon, &width, "lane tool (place 1): paused", Some(("tool", "paused")));
    // A drain goes first, for it stays when the lane is resumed.
    daemon.ctl(["daemon", "drain", "--timeout", "0s"]);
    told_everywhere(&daemon, &width, "lane tool (place 1): draining", Some(("tool", "draining")));
    let resumed = daemon.ctl(["lane", "resume"]).exits(0).tells("daemon undrain");
    assert!(!resumed.stdout.contains("grants again"), "{resumed}");
    daemon.ctl(["daemon", "undrain"]).ok();
    open(&daemon, "gate");
    for run in [&first, &share, &second, &width] {
        assert_eq!(run.answer(), "done");
    }
}

/// Entry "rule 7" in `tests/README.md`.
#[test]
fn the_wait_of_a_run_is_told_of_the_runs_that_wait_for_it() {
    let daemon = Daemon::of_width(1);
    let waits_for = |child: &Script| turn("").spawn("child").wait_for_all().turn("done").child("child", child);
    let gate = daemon.submit(&until_there_is("gate"));
    eventually("the lane is full", || daemon.lane("tool").busy == 1);
    let child_of = |run: &Run| {
        eventually("it waits", || run.view().waiting_for.is_some_and(|wait| wait.kind == WaitKind::Run));
        daemon.run(&run.view().waiting_for.unwrap().id)
    };
    // A lane, from a run two above; a person; a pause.
    let top = daemon.submit(&waits_for(&waits_for(&turn("").shell("true").turn("ok"))));
    let (middle, asks) = (child_of(&top), daemon.submit(&waits_for(&turn("").ask("which?").turn("ok"))));
    let (bottom, asked) = (child_of(&middle), child_of(&asks));
    eventually("it wants a permit", || daemon.lane("tool").queued == 1);
    let held = "lane tool: width, 1 run waits";
    told_everywhere(&daemon, &middle, &format!("run {}: {held}", &bottom.id[..8]), None);
    let by_way = format!("run {}: run {}: {held}", &middle.id[..8], &bottom.id[..8]);
    told_everywhere(&daemon, &top, &by_way, None);
    let view = daemon.ctl(["show", "--json", &top.id]).json();
    assert_eq!(view["waiting_for"]["because"]["run"], *bottom.id, "{view}");
    assert_eq!(view["waiting_for"]["because"]["waiting_for"]["limiter"], "width", "{view}");
    eventually("it asks", || !asked.questions().is_empty());
    let question = asked.questions()[0].clone();
    told_everywhere(&daemon, &asks, &format!("run {}: a person ({question})", &asked.id[..8]), None);
    let page = daemon.ctl(["show", &asks.id]).ok();
    assert!(page.contains(&format!("harnessctl reply {question} TEXT")), "{page}");
    bottom.pause();
    let paused = format!("run {}: run {}: paused", &middle.id[..8], &bottom.id[..8]);
    told_everywhere(&daemon, &top, &paused, None);
    let page = daemon.ctl(["show", &top.id]).ok();
    assert!(page.contains(&format!("harnessctl resume {}", bottom.id)), "{page}");
    bottom.resume();
    open(&daemon, "gate");
    asked.reply("this");
    for run in [&gate, &top, &asks] {
        assert_eq!(run.answer(), "done");
    }
}

/// U3: a budget that others hold.
#[test]
fn a_budget_that_others_hold_is_told_in_the_same_words_everywhere() {
    let server = FaultServer::start();
    let gate = Gate::new();
    let spawn = |n| call(n, &format!("s{n}"), "spawn_agent", &json!({"prompt": format!("part {n}")}).to_string());
    let spawns = [spawn(0), spawn(1), call(2, "w", "wait_for_agent", "{}"), finish("tool_calls"), usage(10, 5)];
    server
        .answer(Answer::events(spawns))
        .answer(Answer::default().wait(&gate).append(answers("a part")))
        .always(answers("done"));
    let daemon = Daemon::configured(&format!("{}\n[run]\nprovider = \"local\"\n", provider("local", &server, "")));
    let run = daemon.ask_with("work", json!({"limits": {"max_tokens": 4_000}}));
    server.asked(2);
    let waits = || {
        let runs = daemon.rpc("run.list", json!({"root": run.id}));
        let runs = runs["runs"].as_array().unwrap().clone();
        runs.iter().find(|run| run["waiting_for"]["kind"] == "budget").map(|run| run["id"].as_str().unwrap().to_owned())
    };
    let child = harness_tests::found("one waits for the budget", waits);
    let words = format!("what others hold of the budget of run {}", &run.id[..8]);
    told_everywhere(&daemon, &daemon.run(&child), &words, None);
    gate.open();
    assert_eq!(run.answer(), "done");
}

/// Entry U14 in `tests/README.md`.
#[test]
fn the_time_without_a_daemon_is_told_as_that() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("").ask("which?").turn("done"));
    eventually("it asks", || !run.questions().is_empty());
    let place = daemon.crash();
    let daemon = place.start();
    let why = daemon.ctl(["show", "--why", &run.id]).ok();
    assert!(why.contains("the daemon was not there"), "{why}");
    let view = daemon.run(&run.id).view();
    assert!(view.timing.down > harness_protocol::time::Span::ZERO, "{:?}", view.timing);
}

/// Entry U14 in `tests/README.md`.
#[test]
fn a_width_of_0_is_refused_for_every_lane() {
    let daemon = Daemon::of_width(3);
    for words in [
        &["lane", "resize", "0"][..],
        &["lane", "resize", "tool", "0"],
        &["lane", "resize", "0", "tool"],
        &["lane", "resize", "--width", "0"],
        &["lane", "resize", "scripted", "--to", "0"],
    ] {
        let refused = daemon.ctl(words).exits(2);
        assert!(refused.stderr.contains("at least 1 wide") || refused.stderr.contains("1 is the least"), "{refused}");
    }
    let error = daemon.refused("lane.resize", json!({"width": 0}));
    assert!(error["message"].as_str().unwrap().contains("at least 1 wide"), "{error}");
    assert_eq!((daemon.lane("tool").width, daemon.lane("tool").limiter), (3, Limiter::None));
}

/// Entry U4 in `tests/README.md`.
#[test]
fn the_log_says_what_an_operator_has_to_know_and_by_whom() {
    let place = Place::new();
    let daemon = place.start_behind(&["sh", "-c", "exec \"$0\" --log debug"]);
    let uid = nix::unistd::geteuid();
    let failing = daemon.submit(&turn("").ask("never?").turn("x").expect("something that is not there"));
    eventually("it asks", || !failing.questions().is_empty());
    failing.reply("this");
    assert_eq!(failing.wait().state, RunState::Failed);
    let cancelled = daemon.submit(&turn("").ask("never?").turn("x"));
    eventually("it asks", || !cancelled.questions().is_empty());
    daemon.ctl(["pause", &cancelled.id]).ok();
    daemon.ctl(["resume", &cancelled.id]).ok();
    daemon.ctl(["cancel", &cancelled.id]).ok();
    daemon.ctl(["lane", "pause", "tool"]).ok();
    daemon.ctl(["lane", "resume", "tool"]).ok();
    daemon.ctl(["lane", "resize", "5"]).ok();
    daemon.ctl(["relieve", "--by", "2"]).ok();
    daemon.ctl(["daemon", "reload"]).ok();
    cancelled.wait();
    daemon.ctl(["prune", &failing.id]).ok();
    daemon.ctl(["daemon", "drain", "--timeout", "0s"]);
    daemon.ctl(["daemon", "undrain"]).ok();
    let log = || std::fs::read_to_string(place.path("daemon.log")).unwrap();
    // It is written by a thread of its own.
    eventually("the last of it is written", || log().contains("no longer draining"));
    let log = log();
    let line = |told: &str| {
        let line = log.lines().find(|line| line.contains(told)).unwrap_or_else(|| panic!("{told:?} is not in {log}"));
        line.to_owned()
    };
    assert!(line(&format!("run {} failed: ", failing.id)).contains("exit_code=1"));
    for told in [
        "questions answered",
        "runs paused",
        "runs resumed",
        "runs cancelled",
        "lane tool paused",
        "lane tool resumed",
        "lane tool resized to 5",
        "lane tool relieved by 2",
        "a reload was asked for",
        "a prune was asked for",
        "draining: nothing new starts",
        "no longer draining",
    ] {
        assert!(line(told).contains(&format!("uid={uid}")), "{}", line(told));
    }
    assert!(line("runs pruned").contains("runs=1"));
    assert!(line("inference-started").contains("DEBUG"));
}
