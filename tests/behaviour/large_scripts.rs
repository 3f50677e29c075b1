//! A script can neither block the daemon with its patterns nor fill its memory with expanded texts.

use harness_tests::{Daemon, Script, Value, eventually, json, says, turn};

/// What a run fails with where a turn of its script comes to too much.
const TOO_LARGE: &str = "comes to more than 4194304 bytes with what it captured";

fn mib(daemon: &Daemon) -> u64 {
    daemon.rpc("daemon.status", json!({}))["rss_bytes"].as_u64().unwrap() >> 20
}

/// A script whose turn puts together what an earlier command has printed.
fn expands(script: Script, unit: &str, times: usize) -> Script {
    script.turn(&unit.repeat(times)).capture("a", "(?s)([ab\u{1}]+)")
}

fn prints(what: &str) -> Script {
    turn("").shell(&format!("head -c 30000 /dev/zero | tr '\\0' '{what}'"))
}

/// Entry B5 in `tests/README.md`.
#[test]
fn texts_that_a_script_puts_together_are_bounded_and_the_run_fails_with_the_reason() {
    let daemon = Daemon::start();
    let before = mib(&daemon);
    let in_args = |times: usize| {
        prints("a")
            .turn("")
            .capture("a", "(a+)")
            .call("ask_user", json!({"question": ["x", {"deep": "${a}".repeat(times)}]}))
    };
    let for_child = prints("a")
        .turn("")
        .capture("a", "(a+)")
        .call("spawn_agent", json!({"prompt": "${a}".repeat(100), "labels": {"x": "${a}".repeat(100)}}));
    let of_child =
        prints("a").turn("").spawn("child").turn("").wait_for_all().turn("${seen}").capture("seen", "(?s)(.*)");
    let of_child = of_child.child("child", &expands(prints("b"), "${a}", 20_000));
    let twice = prints("a")
        .turn("")
        .capture("a", "(a+)")
        .shell("printf %s '${a}${a}'")
        .turn("")
        .capture("b", "(a+)")
        .shell("printf %s '${b}${b}'")
        .turn(&"${a}${b}${c}".repeat(5_000))
        .capture("c", "(a+)");
    for (script, fails) in [
        (expands(prints("a"), "${a}", 150_000), true),
        (expands(prints("\\001"), "${a}", 24), true),
        (expands(prints("a"), "${a}", 100), false),
        (in_args(50_000), true),
        (for_child, true),
        (twice, true),
    ] {
        let run = daemon.submit(&script).wait();
        assert_eq!(run.error.as_deref().is_some_and(|error| error.contains(TOO_LARGE)), fails, "{:?}", run.error);
    }
    let failed = daemon.submit(&expands(prints("a"), "${a}", 1_000));
    failed.wait();
    let faults: Vec<Value> = daemon
        .events(&failed)
        .iter()
        .map(|event| serde_json::to_value(event).unwrap())
        .filter(|event| event["kind"] == "inference-failed")
        .map(|event| event["fault"].clone())
        .collect();
    assert_eq!(faults, [json!("answer-too-large")]);
    // The child fails, and the run above it goes on.
    let run = daemon.submit(&of_child);
    assert!(run.answer().contains(TOO_LARGE), "{}", run.answer());
    assert!(mib(&daemon) < before + 150, "{before} MiB became {}", mib(&daemon));
}

/// Entry B5 in `tests/README.md`.
#[test]
fn a_daemon_starts_beside_a_run_with_a_script_that_is_too_large() {
    let daemon = Daemon::start();
    // It waits for its first answer, and then expands.
    let script = turn("").ask("go on?").shell("head -c 30000 /dev/zero | tr '\\0' a");
    let run = daemon.submit(&expands(script, "${a}", 150_000));
    eventually("it asks", || !run.questions().is_empty());
    let place = daemon.crash();
    let daemon = place.start();
    daemon.run(&run.id).reply("yes");
    let ended = daemon.run(&run.id).wait();
    assert!(ended.error.unwrap().contains(TOO_LARGE));
    assert_eq!(daemon.submit(&says("the daemon is well")).answer(), "the daemon is well");
}

/// Entry B4 in `tests/README.md`.
#[test]
fn patterns_that_would_hold_the_daemon_up_are_refused_with_a_reason() {
    let daemon = Daemon::start();
    let refused = |script: &Script| {
        let error = daemon.refused("run.submit", json!({"spec": daemon.spec(script, json!({}))}));
        assert_eq!(error["data"]["kind"], "invalid");
        (error["data"]["reason"].clone(), error["data"]["subject"].clone())
    };
    let expects = |pattern: &str, times: usize| {
        let script = json!({"turn": [{"text": "x", "expect_regex": vec![pattern; times]}]});
        let error = daemon.refused("run.submit", json!({"spec": {"workdir": "/", "script": script}}));
        error["data"]["reason"].clone()
    };
    for pattern in [r"\w{200}", r"((\d{20}){20}){20}", r"(?i)\pL{100}", r"(.{500}){50}", r"[\w\pL]{64}[\d\pN]{64}"] {
        assert_eq!(expects(pattern, 60), "pattern-too-large", "{pattern}");
    }
    let deep = turn("").child("a", &turn("").child("b", &turn("").turn("").capture("x", r"\w{99}")));
    assert_eq!(refused(&deep), (json!("pattern-too-large"), json!("script a.b, turn 2")));
    assert_eq!(refused(&turn("").turn("").capture("x", "(")), (json!("bad-pattern"), json!("script, turn 2")));
    assert_eq!(refused(&turn("${y}")).0, "bad-script");
    // Usual patterns are accepted, and work.
    let usual = turn("")
        .shell("echo 'the size is 42 KiB'")
        .turn("${n} ${u}")
        .capture("n", r"(\d+) \w+")
        .capture("u", r"\d+ (\w+)");
    assert_eq!(daemon.submit(&usual).answer(), "42 KiB");
}
