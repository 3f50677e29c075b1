//! What a program reads of a refusal: its reason, and the thing that the reason is about.

use std::collections::BTreeSet;

use harness_protocol::rpc::{ErrorKind, Reason, RpcError, Subject, SubjectKind};
use harness_tests::{Daemon, Run, Script, Value, eventually, json, runs, says, turn};

use crate::lane::until_there_is;

/// What a run executes to send a line to the daemon.
const ADVERSARY: &str = env!("CARGO_BIN_EXE_adversary");
const CONFIG: &str = r#"
[share.batch]
weight = 1
[provider.bare]
dialect = "openai"
base_url = "http://127.0.0.1:9/v1"
[limits]
children = 1
requests_per_connection = 4
subscriptions_per_connection = 1
"#;
/// The reasons that no request of this file meets, each with the tests that do, or with why none can.
const ELSEWHERE: &[(Reason, &str)] = &[
    (Reason::UserNotAllowed, "harnessd control::socket::listener: it takes a second user"),
    (Reason::CallerUnknown, "adversary_daemons: a process that hides where it comes from"),
    (Reason::TooManyConnections, "harnessd control::socket::listener"),
    (Reason::NoMemory, "connections: frames that are not finished"),
    (Reason::AnswerTooLarge, "harnessd control::outgoing: no answer is made so large"),
    (Reason::WorkdirSilent, "workdirs_mounted: it takes a mount that hangs"),
    (Reason::TooManyKept, "harnessd world: finished children of a live tree"),
    (Reason::ParentEnded, "harnessd world: the process of a run that has ended"),
    (Reason::RunGone, "it was there when it was found, and left before it was read"),
    (Reason::JournalHeld, "full_disk, hanging_disk"),
    (Reason::JournalUnreadable, "it takes a damaged journal"),
    (Reason::OutputUnreadable, "it takes a damaged state directory"),
    (Reason::ConfigurationSilent, "reloading: a file that does not answer"),
    (Reason::Fault, "an internal error"),
];

/// The refusals that were met.
#[derive(Default)]
struct Seen(BTreeSet<Reason>);

impl Seen {
    /// Takes an error with this reason, about this thing.
    #[track_caller]
    fn take(&mut self, error: &Value, reason: &str, subject: Option<(&str, &str)>) {
        let data = &error["data"];
        let found = (data["reason"].as_str(), data["subject_kind"].as_str().zip(data["subject"].as_str()));
        assert_eq!(found, (Some(reason), subject), "{error}");
        let error: RpcError = serde_json::from_value(error.clone()).unwrap();
        let reason = error.data.reason.unwrap();
        assert!(reason != Reason::Other && error.data.subject_kind != Some(SubjectKind::Other), "{error:?}");
        assert_eq!(error.subject().map(|subject| subject.text()).as_deref(), subject.map(|(_, text)| text));
        assert_eq!(error.data.exit_code, error.kind().exit_code(), "{error:?}");
        // What may be tried again later says so by its kind.
        let is_for_now = matches!(error.kind(), ErrorKind::Busy | ErrorKind::Held);
        assert!(is_for_now || error.data.retry_after_seconds.is_none(), "{error:?}");
        self.0.insert(reason);
    }

    /// Asks for what is refused.
    #[track_caller]
    fn ask(&mut self, daemon: &Daemon, method: &str, params: Value, reason: &str, subject: Option<(&str, &str)>) {
        let error = daemon.connect().try_call(method, params).expect_err(reason);
        self.take(&error, reason, subject);
    }

    /// Submits what is refused.
    #[track_caller]
    fn submit(&mut self, daemon: &Daemon, more: Value, reason: &str, subject: (&str, &str)) {
        let spec = daemon.spec(&says("x"), more);
        self.ask(daemon, "run.submit", json!({ "spec": spec }), reason, Some(subject));
    }

    /// The last of these requests, sent by a process of a run, is refused.
    #[track_caller]
    fn ask_inside(&mut self, daemon: &Daemon, requests: &[(&str, Value)], reason: &str, subject: &str) -> Run {
        let lines = requests.iter().map(|(method, params)| {
            let line = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
            format!("{ADVERSARY} ask '{line}'")
        });
        let run = daemon.submit(&lines.fold(turn(""), |script, line| script.shell(&line)).turn("asked"));
        assert_eq!(run.answer(), "asked");
        let told = run.envelopes().pop().unwrap();
        let reply = told.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{told}"));
        let error = serde_json::from_str::<Value>(reply).unwrap()["error"].clone();
        let text = if subject.is_empty() { run.id.as_str() } else { subject };
        let kind = error["data"]["subject_kind"].as_str().unwrap_or_default().to_owned();
        self.take(&error, reason, Some((&kind, text)));
        run
    }
}

#[test]
fn each_refusal_that_a_client_can_meet_has_its_reason_and_subject() {
    let daemon = Daemon::configured(CONFIG);
    let mut seen = Seen::default();
    lines_that_are_refused(&daemon, &mut seen);
    names_that_mean_nothing_or_much(&daemon, &mut seen);
    specifications_that_cannot_be_taken(&daemon, &mut seen);
    scripts_that_cannot_be_played(&daemon, &mut seen);
    keys_and_names_that_are_taken(&daemon, &mut seen);
    runs_whose_state_does_not_allow_it(&daemon, &mut seen);
    trees_that_are_not_removed(&daemon, &mut seen);
    questions_that_are_not_asked(&daemon, &mut seen);
    lanes_that_cannot_be_so(&daemon, &mut seen);
    subscriptions_that_cannot_be(&daemon, &mut seen);
    processes_of_runs(&daemon, &mut seen);
    other_bounds(&mut seen);
    daemons_that_end(daemon, &mut seen);
    let elsewhere: BTreeSet<Reason> = ELSEWHERE.iter().map(|(reason, _)| *reason).collect();
    assert!(seen.0.is_disjoint(&elsewhere), "{:?}", seen.0.intersection(&elsewhere));
    seen.0.extend(elsewhere);
    let missing: Vec<_> = Reason::ALL.iter().filter(|reason| !seen.0.contains(*reason)).collect();
    assert!(missing.is_empty(), "no request met {missing:?}");
}

fn lines_that_are_refused(daemon: &Daemon, seen: &mut Seen) {
    let mut client = daemon.connect();
    for (line, reason, subject) in [
        ("7", "bad-request", None),
        ("{", "bad-request", None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no.such"}"#, "unknown-method", Some(("method", "no.such"))),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"run.show","params":{"rum":1}}"#,
            "bad-params",
            Some(("method", "run.show")),
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":"daemon.hello","params":{"protocol_major":9}}"#, "other-version", None),
    ] {
        client.write_line(line);
        seen.take(&client.read().unwrap()["error"], reason, subject);
    }
    let live = daemon.submit(&until_there_is("never"));
    let mut client = daemon.connect();
    let waits: Vec<u64> = (0..4).map(|_| client.send("run.wait", json!({"run": live.id}))).collect();
    seen.take(&client.reply(waits[3])["error"], "too-many-waits", None);
    live.cancel();
}

fn names_that_mean_nothing_or_much(daemon: &Daemon, seen: &mut Seen) {
    let run = daemon.submit(&says("x"));
    run.answer();
    let unknown = "zzzzz-none";
    let named = Some(("name", unknown));
    seen.ask(daemon, "run.show", json!({"run": unknown}), "unknown-run", named);
    seen.ask(daemon, "run.cancel", json!({"select": {}}), "nothing-selected", None);
    seen.ask(daemon, "run.prune", json!({"select": {}}), "nothing-selected", None);
    let answer = json!({"interaction": unknown, "answer": "x"});
    seen.ask(daemon, "interaction.answer", answer, "unknown-interaction", named);
    let call = "0000000000000";
    let output = json!({"run": run.id, "call": call, "stream": "stdout", "offset": 0});
    seen.ask(daemon, "run.output", output, "unknown-call", Some(("call", call)));
    let hash = "ab".repeat(32);
    seen.ask(daemon, "blob.get", json!({"hash": hash}), "unknown-text", Some(("text", &hash)));
    seen.ask(daemon, "provider.check", json!({"provider": "p"}), "unknown-provider", Some(("provider", "p")));
    // Of seventeen ids two begin with the same of sixteen characters.
    let firsts: Vec<String> = daemon.submit_many(17, &says("x")).iter().map(|run| run.id[..1].to_owned()).collect();
    let twice = firsts.iter().find(|first| firsts.iter().filter(|other| other == first).count() > 1).unwrap();
    seen.ask(daemon, "run.show", json!({"run": twice}), "ambiguous-name", Some(("name", twice)));
    // A name of a child means it to its own tree alone.
    let family = turn("").spawn_as("kid", "kid").wait_for("kid").turn("done").child("kid", &says("x"));
    assert_eq!(daemon.submit(&family).answer(), "done");
    seen.ask(daemon, "run.show", json!({"run": "kid"}), "unknown-run", Some(("name", "kid")));
}

fn specifications_that_cannot_be_taken(daemon: &Daemon, seen: &mut Seen) {
    let field = |name| ("field", name);
    for (more, reason, subject) in [
        (json!({"model": "m".repeat(600)}), "too-large", field("model")),
        (json!({"labels": {"a": "\u{7}"}}), "control-characters", field("labels")),
        (json!({"prompt": ""}), "text-missing", field("prompt")),
        (json!({"name": "-x"}), "bad-name", ("name", "-x")),
        (json!({"labels": {"a=b": "c"}}), "bad-label", ("label", "a=b")),
        (json!({"limits": {"max_tokens": 0}}), "bad-limit", field("max_tokens")),
        (json!({"limits": {"deadline_at": "2001-01-01T00:00:00Z"}}), "deadline-passed", field("deadline_at")),
        (json!({"share": "none"}), "unknown-share", ("share", "none")),
        (json!({"provider": "none"}), "unknown-provider", ("provider", "none")),
        (json!({"tools": ["none"]}), "unknown-tool", field("tools")),
        (json!({"env": {"=": "x"}}), "bad-variable", field("env")),
        (json!({"workdir": "here"}), "bad-workdir", ("path", "here")),
        (json!({"workdir": "/no/such/folder"}), "no-workdir", field("workdir")),
        (json!({"workdir": "/", "workdir_id": {"device": 0, "inode": 0}}), "other-folder", field("workdir")),
    ] {
        seen.submit(daemon, more, reason, subject);
    }
    for (spec, reason, provider) in [
        (json!({"prompt": "x"}), "script-missing", "scripted"),
        (json!({"prompt": "x", "provider": "bare"}), "model-missing", "bare"),
        (
            json!({"prompt": "x", "provider": "bare", "model": "m", "limits": {"max_cost_usd": 1.0}}),
            "price-missing",
            "bare",
        ),
    ] {
        seen.ask(daemon, "run.submit", json!({ "spec": spec }), reason, Some(("provider", provider)));
    }
    let passes = json!({"spec": daemon.spec(&says("x"), json!({})), "passes_workdir": true});
    seen.ask(daemon, "run.submit", passes, "no-descriptor", Some(field("workdir")));
}

fn scripts_that_cannot_be_played(daemon: &Daemon, seen: &mut Seen) {
    let expects = |pattern: &str| json!({"turn": [{"text": "x", "expect_regex": [pattern]}]});
    for (script, reason) in
        [(expects("("), "bad-pattern"), (expects(r"\w{200}"), "pattern-too-large"), (json!({"turn": []}), "bad-script")]
    {
        let error = daemon.refused("run.submit", json!({"spec": {"script": script}}));
        let place = error["data"]["subject"].as_str().unwrap().to_owned();
        assert!(!place.is_empty(), "{error}");
        seen.take(&error, reason, Some(("script-place", &place)));
    }
}

fn keys_and_names_that_are_taken(daemon: &Daemon, seen: &mut Seen) {
    let keyed = |script: &Script, key: &str| json!({"spec": daemon.spec(script, json!({})), "idempotency_key": key});
    let first = daemon.rpc("run.submit", keyed(&says("one"), "nightly"))["id"].as_str().unwrap().to_owned();
    seen.ask(daemon, "run.submit", keyed(&says("two"), "nightly"), "key-taken", Some(("run", &first)));
    seen.ask(daemon, "run.submit", keyed(&says("two"), ""), "bad-key", Some(("field", "idempotency_key")));
    // The command says the same, with what to do next.
    let script = daemon.script_file(&says("three"));
    let words = ["submit", "--idempotency-key", "nightly", "--script", &script];
    daemon.ctl(words).exits(2).tells(&format!("harnessctl show {first}"));
    let named = daemon.submit_with(&until_there_is("never"), json!({"name": "mine"}));
    seen.submit(daemon, json!({"name": "mine"}), "name-taken", ("run", &named.id));
    named.cancel();
}

fn runs_whose_state_does_not_allow_it(daemon: &Daemon, seen: &mut Seen) {
    let live = daemon.submit(&until_there_is("never"));
    let run = |run: &Run| json!({"run": run.id});
    seen.ask(daemon, "run.retry", run(&live), "not-ended", Some(("run", &live.id)));
    let text = "x".repeat(4 << 20);
    let message = json!({"run": live.id, "text": text});
    daemon.rpc("run.message", message.clone());
    seen.ask(daemon, "run.message", message, "too-many-messages", Some(("run", &live.id)));
    live.cancel();
    let stubborn = daemon.submit(&runs("trap '' TERM; touch deaf; sleep 600"));
    eventually("it is deaf", || daemon.work().join("deaf").exists());
    stubborn.cancel();
    let message = json!({"run": stubborn.id, "text": "x"});
    seen.ask(daemon, "run.message", message, "being-ended", Some(("run", &stubborn.id)));
    daemon.rpc("lane.pause", json!({"lane": "scripted"}));
    let mute = daemon.submit(&says("x"));
    mute.cancel();
    mute.wait();
    daemon.rpc("lane.resume", json!({"lane": "scripted"}));
    let message = json!({"run": mute.id, "text": "x"});
    seen.ask(daemon, "run.message", message, "no-transcript", Some(("run", &mute.id)));
}

fn trees_that_are_not_removed(daemon: &Daemon, seen: &mut Seen) {
    let script = turn("").spawn_as("kid", "kid").wait_for_all().ask("go on?").turn("done").child("kid", &says("x"));
    let parent = daemon.submit(&script);
    eventually("it asks", || !parent.questions().is_empty());
    let kid = parent.child("kid").wait().id.to_string();
    let prune = json!({"select": {"runs": [kid]}});
    seen.ask(daemon, "run.prune", prune.clone(), "tree-live", Some(("run", &kid)));
    seen.ask(daemon, "run.retry", json!({"run": &kid[..12]}), "child-run", Some(("run", &kid)));
    parent.reply("yes");
    assert_eq!(parent.answer(), "done");
    seen.ask(daemon, "run.prune", prune, "part-of-tree", Some(("run", &parent.id)));
}

fn questions_that_are_not_asked(daemon: &Daemon, seen: &mut Seen) {
    let answer = |interaction: &str| json!({"interaction": interaction, "answer": "x"});
    let quiet = daemon.submit(&until_there_is("never"));
    seen.ask(daemon, "interaction.answer", answer(&quiet.id), "asks-nothing", Some(("run", &quiet.id)));
    quiet.cancel();
    let asks = || {
        let run = daemon.submit(&turn("").ask("well?").turn("done"));
        eventually("it asks", || !run.questions().is_empty());
        let question = run.questions()[0].clone();
        (run, question)
    };
    let (run, question) = asks();
    let allowed = json!({"interaction": question, "answer": "", "resolution": "allowed"});
    let unfit = Some(("interaction", question.as_str()));
    seen.ask(daemon, "interaction.answer", allowed, "resolution-unfit", unfit);
    let scoped = json!({"interaction": question, "answer": "x", "scope": "run"});
    seen.ask(daemon, "interaction.answer", scoped, "resolution-unfit", unfit);
    run.reply("first");
    run.answer();
    let subject = Some(("interaction", question.as_str()));
    seen.ask(daemon, "interaction.answer", answer(&question), "already-answered", subject);
    let (run, question) = asks();
    run.cancel();
    run.wait();
    let subject = Some(("interaction", question.as_str()));
    seen.ask(daemon, "interaction.answer", answer(&question), "no-longer-asked", subject);
}

fn lanes_that_cannot_be_so(daemon: &Daemon, seen: &mut Seen) {
    let tool = Some(("lane", "tool"));
    seen.ask(daemon, "lane.resize", json!({"lane": "none", "width": 2}), "unknown-lane", Some(("lane", "none")));
    seen.ask(daemon, "lane.resize", json!({"width": 0}), "bad-width", tool);
    seen.ask(daemon, "lane.relieve", json!({"by": 1, "for_seconds": 0.0}), "bad-relief", tool);
    let relief = "0000000000000";
    seen.ask(daemon, "lane.relieve", json!({"undo": relief, "by": 0}), "unknown-relief", Some(("relief", relief)));
    (0..64).for_each(|_| drop(daemon.rpc("lane.relieve", json!({"by": 1}))));
    seen.ask(daemon, "lane.relieve", json!({"by": 1}), "too-many-reliefs", tool);
}

fn subscriptions_that_cannot_be(daemon: &Daemon, seen: &mut Seen) {
    let ids: Vec<&str> = vec!["0000000000000"; 100_001];
    for (params, reason, subject) in [
        (json!({"kinds": ["none"]}), "unknown-event-kind", Some(("event-kind", "none"))),
        (json!({"after": u64::MAX >> 1}), "event-not-happened", Some(("event", "9223372036854775807"))),
        (json!({"runs": ["0000000000000"], "tree": true}), "bad-subscription", None),
        (json!({ "runs": ids }), "tree-too-large", None),
    ] {
        seen.ask(daemon, "event.subscribe", params, reason, subject);
    }
    let gone = json!({"subscription": 17});
    seen.ask(daemon, "event.unsubscribe", gone, "unknown-subscription", Some(("subscription", "17")));
    let mut client = daemon.connect();
    client.subscribe(json!({}));
    let error = client.try_call("event.subscribe", json!({})).unwrap_err();
    let setting = Some(("setting", "limits.subscriptions_per_connection"));
    seen.take(&error, "too-many-subscriptions", setting);
}

fn processes_of_runs(daemon: &Daemon, seen: &mut Seen) {
    let spec = |more: Value| json!({"spec": daemon.spec(&says("x"), more)});
    seen.ask_inside(daemon, &[("lane.pause", json!({}))], "own-tree-only", "");
    seen.ask_inside(daemon, &[("run.submit", spec(json!({"share": "batch"})))], "other-share", "share");
    let one_more = [("run.submit", spec(json!({}))), ("run.submit", spec(json!({})))];
    seen.ask_inside(daemon, &one_more, "too-many-children", "limits.children");
    let mut keyed = spec(json!({}));
    keyed["submit_key"] = "0123456789abcdef0123456789abcdef".into();
    daemon.rpc("run.submit", keyed.clone());
    seen.ask_inside(daemon, &[("run.submit", keyed)], "submit-key-taken", "submit_key");
}

fn other_bounds(seen: &mut Seen) {
    let daemon = Daemon::configured("[limits]\nlive_runs = 1\n[tool.shell]\npass = [\"A\", \"B\"]\n");
    let spec = || json!({"spec": daemon.spec(&says("x"), json!({}))});
    let mut asks = spec();
    asks["asks_variables"] = true.into();
    seen.ask(&daemon, "run.submit", asks, "pass-variables", Some(("variables", "A,B")));
    daemon.submit(&until_there_is("never"));
    let setting = Some(("setting", "limits.live_runs"));
    seen.ask(&daemon, "run.submit", spec(), "too-many-runs", setting);
    let daemon = Daemon::configured("[limits]\ndepth = 1\n");
    let spec = json!({"spec": daemon.spec(&says("x"), json!({}))});
    seen.ask_inside(&daemon, &[("run.submit", spec)], "too-many-levels", "limits.depth");
}

fn daemons_that_end(daemon: Daemon, seen: &mut Seen) {
    let backup = json!({"to": "here"});
    seen.ask(&daemon, "daemon.backup", backup, "backup-failed", Some(("path", "here")));
    daemon.place().configure("[limits]\nlive_runs = -1\n");
    let error = daemon.refused("daemon.reload", json!({}));
    let file = error["data"]["subject"].as_str().unwrap_or_default().to_owned();
    assert!(file.ends_with("config.toml"), "{error}");
    seen.take(&error, "bad-configuration", Some(("path", &file)));
    daemon.rpc("daemon.drain", json!({"timeout_seconds": 0.0}));
    let spec = json!({"spec": daemon.spec(&says("x"), json!({}))});
    seen.ask(&daemon, "run.submit", spec, "draining", None);
    daemon.rpc("daemon.undrain", json!({}));
    let live = daemon.submit(&until_there_is("never"));
    let mut client = daemon.connect();
    let wait = client.send("run.wait", json!({"run": live.id}));
    let last = client.send("daemon.stop", json!({}));
    let replies = [client.read().unwrap(), client.read().unwrap()];
    let of = |id: u64| replies.iter().find(|reply| reply["id"] == id).unwrap();
    assert!(of(last)["result"].is_object(), "{replies:?}");
    seen.take(&of(wait)["error"], "stopping", None);
    assert_eq!(of(wait)["error"]["data"]["undecided"], true);
}

#[test]
fn an_unchanged_run_has_its_reason_and_the_same_in_words() {
    let daemon = Daemon::start();
    let (ended, failed) = (daemon.submit(&says("x")), daemon.submit(&turn("").turn("never").expect("nothing")));
    let live = daemon.submit(&until_there_is("never"));
    ended.wait();
    failed.wait();
    let unchanged = |method: &str, run: &Run| {
        let changed = daemon.rpc(method, json!({"select": {"runs": [run.id]}}));
        let one = &changed["unchanged"][0];
        assert_eq!(one["run"], json!(run.id), "{changed}");
        (one["reason"].as_str().unwrap().to_owned(), one["why"].as_str().unwrap().to_owned())
    };
    let told = |reason: &str, why: &str| (reason.to_owned(), why.to_owned());
    assert_eq!(unchanged("run.resume", &live), told("not-paused", "it is not paused"));
    live.pause();
    assert_eq!(unchanged("run.pause", &live), told("already-paused", "it is paused already"));
    live.cancel();
    live.wait();
    for method in ["run.cancel", "run.pause", "run.resume"] {
        assert_eq!(unchanged(method, &ended), told("has-succeeded", "it has succeeded already"));
        assert_eq!(unchanged(method, &live), told("was-cancelled", "it was cancelled already"));
        assert_eq!(unchanged(method, &failed), told("has-failed", "it has failed already"));
    }
    daemon.ctl(["pause", &live.id]).exits(6).tells("it was cancelled already");
}

#[test]
fn the_schema_names_every_reason_and_every_kind_of_subject() {
    let schema = Daemon::start().ctl(["schema"]).json().to_string();
    for reason in Reason::ALL {
        let name = serde_json::to_string(reason).unwrap();
        assert!(schema.contains(&name), "{name}");
    }
    for subject in [Subject::Name(String::new()), Subject::User(0), Subject::ScriptPlace(String::new())] {
        let kind = serde_json::to_string(&subject.kind()).unwrap();
        assert!(schema.contains(&kind), "{kind}");
    }
    assert!(schema.contains("\"subject_kind\"") && schema.contains("\"was-cancelled\""));
}
