//! A command that waits for a run ends as the run did; and which changes of an ended run are possible.

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Script, json, runs, says, turn};

fn submit(daemon: &Daemon, script: &Script, words: &[&str]) -> harness_tests::Output {
    let file = daemon.script_file(script);
    daemon.ctl(["submit", "--wait", "--script", &file].iter().chain(words))
}

#[test]
fn budgets_and_time_limits_have_their_own_codes() {
    let daemon = Daemon::start();
    let long = turn("").shell("exec sleep 600").turn("never");
    submit(&daemon, &turn("").shell("true").turn("never"), &["--max-steps", "1"]).exits(9).tells("--max-steps");
    submit(&daemon, &turn("").shell("true").turn("never"), &["--max-tokens", "1"]).exits(9).tells("--max-tokens");
    submit(&daemon, &long, &["--max-time", "0.3s"]).exits(124).tells("--max-time");
    submit(&daemon, &long, &["--deadline", "0.3s"]).exits(124).tells("--deadline");
    submit(&daemon, &says("slow").after(600.0), &["--deadline", "0.3s"]).exits(124);
    assert!(daemon.lane_is_idle());
}

#[test]
fn a_max_time_does_not_count_while_a_person_is_waited_for() {
    let daemon = Daemon::start();
    let script = turn("").ask("well?").turn("in time");
    let run = daemon.submit_with(&script, json!({"limits": {"max_time_seconds": 0.5}}));
    run.reach(RunState::Waiting);
    let reply = daemon.rpc("run.wait", json!({"run": run.id, "timeout_seconds": 0.8}));
    assert_eq!(reply["reached"], false);
    run.reply("yes");
    assert_eq!(run.answer(), "in time");
}

#[test]
fn a_wait_whose_own_time_is_up_is_8_and_a_cancelled_run_is_5() {
    let daemon = Daemon::start();
    let run = daemon.submit(&runs("exec sleep 600"));
    assert_eq!(daemon.ctl(["wait", &run.id, "--timeout", "0.2s"]).exits(8).stdout, "");
    daemon.ctl(["wait", &run.id, "--for", "acting"]).exits(0);
    run.cancel();
    daemon.ctl(["wait", &run.id]).exits(5);
    daemon.ctl(["show", &run.id]).exits(0);
    daemon.ctl(["show", "--answer", &run.id]).exits(6);
}

#[test]
fn an_answer_is_written_to_a_file_where_one_is_named() {
    let daemon = Daemon::start();
    assert_eq!(submit(&daemon, &says("the answer"), &["-o", "answer.txt"]).ok(), "");
    assert_eq!(daemon.written("answer.txt").trim_end(), "the answer");
}

#[test]
fn a_retry_is_a_new_run_with_the_same_specification() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("").shell("[ -e ready ]").turn("well").expect("Exit code: 0"));
    assert_eq!(run.wait().exit_code, Some(1));
    crate::lane::open(&daemon, "ready");
    assert_eq!(daemon.ctl(["retry", "--wait", &run.id]).ok(), "well\n");
    let retry = daemon.run("@last").view();
    assert_eq!(retry.retry_of.unwrap().to_string(), run.id);
    assert_eq!(run.view().state, RunState::Failed, "what was stays as it was");
}

#[test]
fn a_message_to_a_finished_run_goes_on_from_its_transcript() {
    let daemon = Daemon::start();
    let script = turn("First.").shell("echo one").turn("Answered.").turn("Answered again.");
    let run = daemon.submit(&script);
    assert_eq!(run.answer(), "Answered.");
    assert_eq!(daemon.ctl(["message", "--wait", &run.id, "and now?"]).ok(), "Answered again.\n");
    assert_eq!(daemon.run("@last").view().continues.unwrap().to_string(), run.id);
}

#[test]
fn a_pruned_run_is_gone() {
    let daemon = Daemon::start();
    let (ended, live) = (daemon.submit(&says("x")), daemon.submit(&runs("exec sleep 600")));
    ended.answer();
    assert_eq!(daemon.ctl(["prune", "--all", "--dry-run"]).line(), ended.id);
    assert_eq!(daemon.ctl(["prune", "--all"]).line(), ended.id);
    daemon.ctl(["show", &ended.id]).exits(6);
    daemon.ctl(["prune", &live.id]).exits(6);
    live.cancel();
}

#[test]
fn a_name_is_unique_among_live_runs_and_free_again_afterwards() {
    let daemon = Daemon::start();
    let first = daemon.submit_with(&runs("exec sleep 600"), json!({"name": "nightly"}));
    submit(&daemon, &says("second"), &["--name", "nightly"]).exits(2).tells(&first.id);
    daemon.ctl(["cancel", "nightly"]).ok();
    first.wait();
    assert_eq!(submit(&daemon, &says("second"), &["--name", "nightly"]).ok(), "second\n");
    assert_eq!(daemon.ctl(["show", "--answer", "nightly"]).ok(), "second\n");
}

#[test]
fn a_key_that_another_specification_has_is_refused_with_the_run_that_holds_it() {
    let daemon = Daemon::start();
    let keyed = ["--idempotency-key", "nightly"];
    submit(&daemon, &says("one"), &keyed).ok();
    let holder = daemon.run("@last").view().id.to_string();
    submit(&daemon, &says("one"), &keyed).ok();
    submit(&daemon, &says("two"), &keyed).exits(2).tells("\"nightly\"").tells(&format!("show {holder}"));
    let file = daemon.file("batch", "{\"script\":{\"turn\":[{\"text\":\"x\"}]},\"idempotency_key\":\"nightly\"}\n");
    daemon.ctl(["submit", "--batch", &file]).exits(2).tells("line 1").tells(&holder);
}
