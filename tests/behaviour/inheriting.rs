//! A run inside another run has no more rights and limits than that run, and ends with it at its deadline.

use harness_protocol::run::{RunState, RunView};
use harness_tests::{Daemon, Run, Script, Value, eventually, found, json, runs, says, turn};

const SHARES: &str = "[share.batch]\nweight = 1\n[share.other]\nweight = 1\n";

/// What a run gives its children. Each of it is not what it would be without.
fn above() -> Value {
    json!({
        "name": "above",
        "share": "batch",
        "priority": "low",
        "limits": {"max_steps": 40, "max_tokens": 900_000, "max_time_seconds": 500, "deadline_seconds": 5_000,
        "open_files": 300},
    })
}

/// The children of a run.
fn children(daemon: &Daemon, of: &Run) -> Vec<RunView> {
    let listed = daemon.rpc("run.list", json!({"root": of.id}));
    let runs: Vec<RunView> = serde_json::from_value(listed["runs"].clone()).unwrap();
    runs.into_iter().filter(|run| run.parent.is_some()).collect()
}

/// A run whose command submits these specifications, a line each, and the results of that.
fn submits(daemon: &Daemon, specs: &[Value]) -> Run {
    let lines: Vec<String> = specs
        .iter()
        .map(|spec| {
            let mut spec = spec.clone();
            spec["script"] = says("below").json();
            format!("{}\n", json!(spec))
        })
        .collect();
    let batch = daemon.file("home/batch.jsonl", &lines.concat());
    let run = daemon.submit_with(&runs(&format!("harnessctl submit --batch {batch} --wait -q")), above());
    run.wait();
    run
}

/// Entry A14 in `tests/README.md`.
#[test]
fn a_child_gets_what_it_asks_for_as_far_as_its_parent_has_it() {
    let daemon = Daemon::configured(SHARES);
    let cases = [
        (
            "more of everything",
            json!({"priority": "high", "limits": {"max_steps": 1_000, "max_tokens": 2_000_000,
            "max_time_seconds": 9_999, "deadline_seconds": 90_000, "open_files": 10_000}}),
        ),
        ("nothing", json!({})),
        (
            "no more than half",
            json!({"limits": {"max_steps": 20, "max_tokens": 100, "max_time_seconds": 60,
            "deadline_seconds": 60, "open_files": 64}}),
        ),
        ("an absolute deadline after the one above", json!({"limits": {"deadline_at": "2999-01-01T00:00:00Z"}})),
        ("the share that it has anyway", json!({"share": "batch", "priority": "normal"})),
        ("some steps more", json!({"limits": {"max_steps": 41}})),
    ];
    let specs: Vec<Value> = cases
        .iter()
        .map(|(what, spec)| {
            let mut spec = spec.clone();
            spec["labels"] = json!({"asks-for": what});
            spec
        })
        .collect();
    let run = submits(&daemon, &specs);
    let parent = run.view();
    let below = children(&daemon, &run);
    assert_eq!(below.len(), cases.len(), "{:?}", run.envelopes());
    for child in &below {
        let what = &child.labels["asks-for"];
        assert_eq!((&*child.share, child.priority), ("batch", parent.priority), "{what}");
        let (mine, theirs) = (&child.limits, &parent.limits);
        assert!(mine.max_steps <= theirs.max_steps && mine.max_steps.is_some(), "{what}");
        assert!(mine.max_tokens <= theirs.max_tokens && mine.max_tokens.is_some(), "{what}");
        assert!(mine.max_time_seconds <= theirs.max_time_seconds && mine.max_time_seconds.is_some(), "{what}");
        assert!(mine.open_files <= theirs.open_files && mine.open_files.is_some(), "{what}");
        let ends = |run: &RunView| {
            let relative = run.limits.deadline_seconds.map(|span| run.submitted_at + span);
            relative.into_iter().chain(run.limits.deadline_at).min()
        };
        assert!(ends(child).is_some() && ends(child) <= ends(&parent), "{what}: {:?}", child.limits);
        assert_eq!(mine.max_steps, Some(if what == "no more than half" { 20 } else { 40 }));
    }
}

/// Entry A14 in `tests/README.md`.
#[test]
fn a_share_other_than_the_one_above_is_refused_from_inside_a_run() {
    let daemon = Daemon::configured(SHARES);
    for share in ["other", "default", "no-such-share"] {
        let run = submits(&daemon, &[json!({"share": share})]);
        assert!(run.envelopes()[0].contains("is of that one's share, \"batch\""), "{share}: {:?}", run.envelopes());
        assert!(children(&daemon, &run).is_empty());
    }
    // Outside of a run any share is free to be named.
    assert_eq!(daemon.submit_with(&says("x"), json!({"share": "other"})).answer(), "x");
}

/// Entry A14 in `tests/README.md`.
#[test]
fn a_run_of_spawn_agent_inherits_like_a_run_of_a_command() {
    let daemon = Daemon::configured(SHARES);
    let script = turn("").spawn("a").spawn("b").turn("").wait_for_all().turn("done");
    let script = script
        .child("a", &turn("").spawn("c").turn("").wait_for_all().turn("a").child("c", &says("c")))
        .child("b", &says("b"));
    let run = daemon.submit_with(&script, above());
    assert_eq!(run.answer(), "done");
    let below = children(&daemon, &run);
    assert_eq!(below.len(), 3);
    let top = run.view();
    for child in below {
        assert_eq!((&*child.share, child.priority, child.limits.max_steps), ("batch", top.priority, Some(40)));
        assert_eq!((child.limits.max_tokens, child.limits.open_files), (top.limits.max_tokens, top.limits.open_files));
        assert_eq!(child.limits.deadline_at, Some(top.submitted_at + top.limits.deadline_seconds.unwrap()));
    }
}

/// Entry A14 in `tests/README.md`.
#[test]
fn a_child_may_call_no_tool_that_its_parent_may_not() {
    let daemon = Daemon::start();
    let calls = turn("").shell("true").ask("?").call("wait_for_agent", json!({})).turn("tried");
    let script = turn("").spawn("child").turn("").wait_for_all().turn("done").child("child", &calls);
    let tools = json!({"tools": ["spawn_agent", "wait_for_agent"], "on_interaction": "deny"});
    let run = daemon.submit_with(&script, tools);
    assert_eq!(run.answer(), "done");
    let child = daemon.run(&children(&daemon, &run)[0].id.to_string());
    let told = child.envelopes();
    assert!(told[0].starts_with("There is no tool \"shell\". There are: spawn_agent, wait_for_agent."), "{told:?}");
    assert!(
        told[1].starts_with("There is no tool \"ask_user\"") && told[2].starts_with("There is nothing to wait for"),
        "{told:?}"
    );
    let error = daemon.refused("run.submit", json!({"spec": daemon.spec(&says("x"), json!({"tools": ["rm"]}))}));
    assert_eq!((&error["data"]["reason"], &error["data"]["subject"]), (&json!("unknown-tool"), &json!("tools")));
    let none = daemon.submit_with(&turn("").shell("true").turn("none"), json!({"tools": []}));
    assert_eq!(none.answer(), "none");
    assert!(none.envelopes()[0].starts_with("There is no tool"), "{:?}", none.envelopes());
}

/// A tree of which each run waits in another way.
fn busy_tree() -> Script {
    let (executes, asks) = (runs("sleep 600"), turn("").ask("?").turn("never"));
    let (thinks, spawns) = (turn("late").after(600.0), turn("").spawn("deep").turn("").wait_for_all().turn("never"));
    let spawns = spawns.child("deep", &runs("sleep 600"));
    turn("")
        .spawn_as("executes", "executes")
        .spawn_as("asks", "asks")
        .spawn_as("thinks", "thinks")
        .spawn_as("spawns", "spawns")
        .turn("")
        .wait_for_all()
        .turn("never")
        .child("executes", &executes)
        .child("asks", &asks)
        .child("thinks", &thinks)
        .child("spawns", &spawns)
}

/// Entry A14 in `tests/README.md`.
#[test]
fn a_deadline_ends_all_that_is_below_a_run_whatever_it_does() {
    let daemon = Daemon::of_width(1);
    let run = daemon.submit_with(&busy_tree(), json!({"limits": {"deadline_seconds": 3}}));
    let all = found("all of the tree is there", || {
        let below = children(&daemon, &run);
        (below.len() == 5).then_some(below)
    });
    run.child("thinks").pause();
    for child in all.iter().map(|child| daemon.run(&child.id.to_string())).chain([run]) {
        let ended = child.wait();
        assert_eq!(
            (ended.state, ended.exit_code),
            (RunState::Failed, Some(124)),
            "{:?}: {:?}",
            ended.name,
            ended.error
        );
        assert!(ended.error.unwrap().starts_with("its deadline has passed"), "{:?}", ended.name);
    }
    eventually("nothing is left in the lane", || daemon.lane_is_idle());
}

/// Entry A14 in `tests/README.md`.
#[test]
fn a_deadline_that_comes_while_the_daemon_is_away_ends_the_whole_tree_at_the_start() {
    let daemon = Daemon::start();
    let run = daemon.submit_with(&busy_tree(), json!({"limits": {"deadline_seconds": 4}}));
    let below = found("all of the tree is there", || {
        let below = children(&daemon, &run);
        (below.len() == 5).then_some(below)
    });
    let ends = below[0].limits.deadline_at.unwrap();
    let place = daemon.crash();
    let clock = || {
        harness_protocol::time::Timestamp::from_micros(
            std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros().try_into().unwrap(),
        )
    };
    eventually("the deadline has passed", || clock() > ends);
    let daemon = place.start();
    for child in below {
        assert_eq!(daemon.run(&child.id.to_string()).wait().exit_code, Some(124), "{:?}", child.name);
    }
}

/// Entry A14 in `tests/README.md`.
#[test]
fn a_child_that_is_tried_again_or_told_more_keeps_its_limits_and_not_the_deadline_of_its_tree() {
    let daemon = Daemon::configured(SHARES);
    let script = turn("").spawn("a").turn("").wait_for_all().turn("done").child("a", &says("a").turn("again"));
    let run = daemon.submit_with(
        &script,
        json!({"share": "batch", "priority": "low", "limits": {"max_steps": 7, "deadline_seconds": 2}}),
    );
    assert_eq!(run.answer(), "done");
    let child = children(&daemon, &run).remove(0);
    let ends = child.limits.deadline_at.unwrap();
    let clock = || daemon.submit(&says("x")).wait().submitted_at;
    eventually("the deadline of the tree has passed", || clock() > ends);
    let retried = daemon.rpc("run.retry", json!({"run": child.id}));
    let retried = daemon.run(retried["id"].as_str().unwrap()).wait();
    let told = daemon.run(&child.id.to_string()).tell("more").wait();
    for again in [retried, told] {
        assert_eq!(again.state, RunState::Succeeded, "{:?}", again.error);
        assert_eq!((&*again.share, again.priority, again.limits.max_steps), ("batch", child.priority, Some(7)));
        assert_eq!(again.limits.deadline_at, None);
    }
}
