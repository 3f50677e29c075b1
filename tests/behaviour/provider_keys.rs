//! Keys of providers: where they come from, which parties never see them, and what happens when they are refused.

use std::fs;
use std::path::Path;

use harness_protocol::lane::Limiter;
use harness_protocol::run::RunState;
use harness_tests::chat::{says, wants};
use harness_tests::{Answer, Daemon, FaultServer, Place, eventually, json};

use crate::provider_faults::{asking, config};

const KEY: &str = "sk-planted-77f1c0de";

fn holds(path: &Path) -> bool {
    if path.is_dir() {
        return fs::read_dir(path).unwrap().any(|entry| holds(&entry.unwrap().path()));
    }
    fs::read(path).is_ok_and(|bytes| bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes()))
}

#[test]
fn a_key_of_the_environment_reaches_the_provider_alone() {
    let server = FaultServer::start();
    // Pieces, so that the search does not find itself.
    let (head, tail) = KEY.split_at(6);
    let look = format!(
        "env | grep -c {head}'{tail}'; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c {head}'{tail}'; \
         ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c harness-hande[d]; true"
    );
    server.answer(wants(&look));
    // A provider that shows the key it was given.
    server.answer(Answer::refusal(500, &[], &format!("what is {KEY} to me")));
    server.answer(says("looked"));
    let place = Place::configured(&config(&server, "openai", "api_key_env = \"LOCAL_KEY\""));
    let planted = format!("LOCAL_KEY={KEY}");
    let daemon = place.start_behind(&["env", &planted]);
    let run = daemon.ask("look");
    assert_eq!(run.answer(), "looked");
    assert_eq!(run.envelopes(), ["Exit code: 0\n0\n0\n0\n"]);
    assert_eq!(server.requests()[0].header("authorization"), Some(&*format!("Bearer {KEY}")));
    let told = crate::provider_calls::failures(&daemon, &run);
    assert!(told[0].contains("what is [key] to me"), "{told:?}");
    assert!(!holds(&place.path("home")) && !holds(&place.path("daemon.log")), "it is in no file");
    assert!(!holds(Path::new(&format!("/proc/{}/environ", daemon.process().0))));
    let list = daemon.ctl(["provider", "list", "--json"]).ok();
    assert!(list.contains("the environment's LOCAL_KEY") && !list.contains(KEY), "{list}");
}

#[test]
fn proxies_of_the_environment_are_used_and_exceptions_kept() {
    let (proxy, server) = (FaultServer::start(), FaultServer::start());
    proxy.always(says("by proxy"));
    server.always(says("directly"));
    let place = Place::configured(&config(&server, "openai", ""));
    let url = format!("http_proxy=http://127.0.0.1:{}", proxy.port());
    let daemon = place.start_behind(&["env", &url]);
    assert_eq!(daemon.ask("hi").answer(), "by proxy");
    assert!(proxy.requests()[0].path.starts_with(&server.url()), "{}", proxy.requests()[0].path);
    drop(daemon);
    let daemon = place.start_behind(&["env", &url, "NO_PROXY=localhost,127.0.0.1"]);
    assert_eq!(daemon.ask("hi").answer(), "directly");
}

#[test]
fn a_check_without_the_key_is_exit_4_and_says_where_it_should_be() {
    let server = FaultServer::start();
    let daemon = asking(&server, "api_key_env = \"NOT_THERE\"");
    let output = daemon.ctl(["provider", "check", "local"]).exits(4);
    assert!(output.stdout.contains("NOT_THERE was not in the environment"), "{output}");
    assert_eq!(server.count(), 0);
    assert!(daemon.ctl(["provider", "list"]).ok().contains("MISSING"));
}

#[test]
fn credentials_that_are_refused_at_once_end_the_run_and_later_hold_the_lane_until_a_good_check() {
    let server = FaultServer::start();
    let refused = || Answer::refusal(401, &[], "Incorrect API key provided");
    server.answer(refused());
    let place = Place::new();
    let key = place.file("home/key", "sk-old");
    place.configure(&config(&server, "openai", &format!("api_key_file = \"{key}\"")));
    let daemon = place.start();
    let view = daemon.ask("hi").wait();
    assert_eq!((view.state, view.exit_code), (RunState::Failed, Some(4)));
    assert_eq!(daemon.lane("local").limiter, Limiter::None, "the first refusal is the run's own affair");

    server.answer(wants("echo ran >> log")).answer(refused());
    let run = daemon.ask("go");
    eventually("the lane is held", || daemon.lane("local").limiter == Limiter::Credentials);
    let lane = daemon.lane("local");
    assert!(lane.held.as_ref().is_some_and(|held| held.until.is_none() && held.error.contains("Incorrect API key")));
    let text = daemon.ctl(["lane", "local"]).ok();
    assert!(text.contains("limiter: credentials") && text.contains("provider check"), "{text}");
    let other = daemon.ask("also");
    assert!(!run.view().state.is_terminal() && !other.view().state.is_terminal());
    assert_eq!(server.count(), 3, "no run asks while no person has mended it");

    server.answer(refused());
    daemon.ctl(["provider", "check", "local"]).exits(4);
    assert_eq!(daemon.lane("local").limiter, Limiter::Credentials);
    place.file("home/key", "sk-new");
    server.always(says("done"));
    daemon.ctl(["provider", "check", "local"]).ok();
    assert_eq!((run.answer(), other.answer()), ("done".to_owned(), "done".to_owned()));
    assert_eq!(daemon.written("log"), "ran\n");
    assert_eq!(server.requests().last().unwrap().header("authorization"), Some("Bearer sk-new"));
}

#[test]
fn a_reload_lets_go_of_a_lane_that_waits_for_credentials() {
    let server = FaultServer::start();
    server.answer(wants("true")).answer(Answer::refusal(403, &[], "disabled")).answer(says("done"));
    let daemon = asking(&server, "");
    let run = daemon.ask("go");
    eventually("the lane is held", || daemon.lane("local").limiter == Limiter::Credentials);
    daemon.ctl(["daemon", "reload"]).ok();
    assert_eq!(run.answer(), "done");
}

#[test]
fn doctor_asks_each_provider_for_a_word() {
    let server = FaultServer::start();
    server.answer(says("ok")).answer(Answer::refusal(404, &[], "no such model"));
    let daemon = asking(&server, "");
    let text = daemon.ctl(["doctor"]).ok();
    assert!(text.contains("daemon: version") && text.contains("local m: answered in"), "{text}");
    let request = &server.requests()[0];
    assert!(request.body["max_tokens"].as_u64().unwrap() <= 16 && request.body.get("tools").is_none(), "it is cheap");
    let report = daemon.ctl(["doctor", "--json"]).exits(1).stdout;
    assert!(report.contains("no such model") && report.contains("\"ok\":false"), "{report}");
    daemon.ctl(["provider", "check", "nobody"]).exits(6);
    let error = Daemon::start().refused("provider.check", json!({"provider": "nobody"}));
    assert!(error["message"].as_str().unwrap().contains("there are: scripted"), "{error}");
}

/// Entry A19 in `tests/README.md`.
#[test]
fn a_key_in_an_answer_is_neither_shown_nor_kept_in_whatever_form_it_comes() {
    let base64 = "c2stcGxhbnRlZC03N2YxYzBkZQ";
    let server = FaultServer::start();
    let (head, tail) = KEY.split_at(7);
    let pieces = |pieces: &[&str]| {
        let events = pieces.iter().map(|piece| harness_tests::chat::text(piece));
        Answer::events(events.chain([harness_tests::chat::finish("stop"), "[DONE]".to_owned()]))
    };
    let answers: [(&[&str], &str); 6] = [
        (&["The key is ", KEY, "."], "The key is [key]."),
        (&["The key is ", head, tail, "."], "The key is [key]."),
        (&["The key is ", head, "\n", tail, "."], "The key is [key]."),
        (&["It is c2stcGxh", "bnRlZC03N2YxYzBkZQ=="], "It is [key]Q=="),
        (&["It is c2stcGxh\n", "bnRlZC03N2YxYzBkZQ=="], "It is [key]Q=="),
        (&["The key is ", &KEY[..12]], "The key is [key]"),
    ];
    for (answer, _) in &answers {
        server.answer(pieces(answer));
    }
    let place = Place::configured(&config(&server, "openai", "api_key_env = \"LOCAL_KEY\""));
    let daemon = place.start_behind(&["env", &format!("LOCAL_KEY={KEY}")]);
    for (answer, told) in &answers {
        let followed = daemon.ctl(["submit", "--follow", "say it"]).exits(0);
        assert!(followed.stdout.contains(told), "{answer:?}: {}", followed.stdout);
        assert!(!followed.stdout.contains(KEY) && !followed.stdout.contains(base64), "{}", followed.stdout);
    }
    // Neither what is thought nor the arguments of a call have it.
    let thought = harness_tests::chat::delta(&json!({"reasoning_content": format!("I know {KEY}")}));
    server.answer(Answer::events([
        thought,
        harness_tests::chat::shell(0, &format!("echo '{KEY}' | wc -c")),
        harness_tests::chat::finish("tool_calls"),
    ]));
    server.answer(says("done"));
    let run = daemon.ask("call");
    assert_eq!(run.answer(), "done");
    assert_eq!(run.envelopes(), ["Exit code: 0\n6\n"]);
    assert!(!holds(&place.path("home")) && !holds(&place.path("daemon.log")), "it is in no file");
}
