//! A waiting run holds no permit: waiting for a person, for other runs, for several of them at once.

use std::thread;

use harness_protocol::run::{RunState, WaitKind};
use harness_tests::{Daemon, eventually, json, runs, turn};

use crate::lane::{open, until_there_is};

#[test]
fn at_width_1_a_parent_waits_for_two_children_that_each_run_a_command() {
    let daemon = Daemon::of_width(1);
    let script = turn("Off you go.")
        .spawn("child")
        .spawn("child")
        .wait_for_all()
        .turn("Both are back.")
        .expect("succeeded")
        .child("child", &until_there_is("gate"));
    let parent = daemon.submit(&script);
    eventually("one child works, one is queued, the parent is parked", || {
        let lane = daemon.lane("tool");
        (lane.parked, lane.busy, lane.queued) == (1, 1, 1)
    });
    let view = parent.view();
    assert_eq!(view.state, RunState::Waiting);
    assert_eq!(view.waiting_for.unwrap().kind, WaitKind::Run);
    assert_eq!(daemon.ctl(["lane", "tool", "--json"]).json()["parked"], 1);
    open(&daemon, "gate");
    assert_eq!(parent.answer(), "Both are back.");
    assert!(daemon.lane_is_idle());
}

#[test]
fn two_questions_in_one_batch_are_both_asked_and_the_permits_come_back_once() {
    for width in [1, 2] {
        let daemon = Daemon::of_width(width);
        let script = turn("").ask("first?").ask("second?").shell("echo both").turn("${a}").capture("a", "(?s)(.*)");
        let run = daemon.submit(&script);
        eventually("a question is asked", || !run.questions().is_empty());
        while run.view().state == RunState::Waiting {
            let open = daemon.rpc("interaction.list", json!({}));
            for question in open["interactions"].as_array().unwrap() {
                let answer = format!("to {}", question["question"].as_str().unwrap());
                daemon.ctl(["reply", question["id"].as_str().unwrap(), &answer]).ok();
            }
        }
        run.answer();
        assert_eq!(run.envelopes(), ["to first?", "to second?", "Exit code: 0\nboth\n"], "width {width}");
        assert!(daemon.lane_is_idle(), "width {width}: {:?}", daemon.lane("tool"));
    }
}

#[test]
fn a_question_and_a_wait_for_a_child_in_one_batch_wedge_nothing() {
    for width in [1, 2] {
        let daemon = Daemon::of_width(width);
        let script = turn("").spawn("child").ask("well?").wait_for_all().shell("echo on").turn("done");
        let run = daemon.submit(&script.child("child", &runs("echo child")));
        eventually("the question is asked", || !run.questions().is_empty());
        run.reply("yes");
        assert_eq!(run.answer(), "done");
        let envelopes = run.envelopes();
        assert!(envelopes[1] == "yes" && envelopes[2].contains("succeeded"), "{envelopes:?}");
        assert!(daemon.lane_is_idle(), "width {width}");
    }
}

#[test]
fn of_two_replies_at_once_one_wins_and_the_other_is_told_who() {
    let daemon = Daemon::start();
    for _ in 0..10 {
        let run = daemon.submit(&turn("").ask("which?").turn("${it}").capture("it", "(.*)"));
        eventually("the question is asked", || !run.questions().is_empty());
        let [question] = run.questions().try_into().unwrap();
        let both = thread::scope(|scope| {
            let reply = |text| daemon.ctl(["reply", &question, text]);
            [scope.spawn(move || reply("left")), scope.spawn(move || reply("right"))]
                .map(|thread| thread.join().unwrap())
        });
        let winner = both.iter().position(|output| output.code == 0).unwrap();
        both[1 - winner].clone().exits(6).tells("first").tells(&format!("user {}", nix::unistd::geteuid()));
        assert_eq!(run.answer(), ["left", "right"][winner]);
    }
}

#[test]
fn pending_lists_open_questions_and_reply_settles_them_from_anywhere() {
    let daemon = Daemon::start();
    let run = daemon
        .submit_with(&turn("").ask("what colour?").turn("${c} it is").capture("c", "(.*)"), json!({"name": "painter"}));
    eventually("the question is asked", || !run.questions().is_empty());
    let pending = daemon.ctl(["pending"]).ok();
    assert!(pending.contains("what colour?") && pending.contains("painter"), "{pending}");
    daemon.ctl(["reply", "painter", "blue"]).ok();
    assert_eq!(run.answer(), "blue it is");
    assert_eq!(daemon.rpc("interaction.list", json!({}))["total"], 0);
    daemon.ctl(["reply", "painter", "red"]).exits(6);
    daemon.ctl(["reply", "0000000000000", "red"]).exits(6);
}

#[test]
fn a_ring_of_waits_is_refused_with_the_ring_named() {
    let daemon = Daemon::start();
    // The child waits for its parent, which waits for the child.
    let child = turn("").wait_for("parent").turn("child saw: ${it}").capture("it", "(?s)(.*)");
    let script = turn("").spawn_as("kid", "child").turn("").wait_for("kid").turn("${it}").capture("it", "(?s)(.*)");
    let run = daemon.submit_with(&script.child("child", &child), json!({"name": "parent"}));
    let answer = run.answer();
    assert!(answer.contains("Refused") && answer.contains("parent (") && answer.contains("kid ("), "{answer}");
    assert!(answer.contains(" -> ") && daemon.lane_is_idle(), "{answer}");
}

#[test]
fn to_wait_for_itself_or_for_a_stranger_is_refused() {
    let daemon = Daemon::start();
    let stranger = daemon.submit_with(&until_there_is("gate"), json!({"name": "stranger"}));
    let script = turn("").wait_for("me").wait_for("stranger").wait_for("nobody").wait_for_all().turn("refused");
    let run = daemon.submit_with(&script, json!({"name": "me"}));
    assert_eq!(run.answer(), "refused");
    assert!(run.results().iter().all(|result| result.is_error), "{:?}", run.envelopes());
    open(&daemon, "gate");
    stranger.answer();
}

#[test]
fn a_wait_for_any_ends_with_the_first() {
    let daemon = Daemon::start();
    let script = turn("")
        .spawn_as("quick", "quick")
        .spawn_as("slow", "slow")
        .call("wait_for_agent", json!({"agents": ["slow", "quick"], "mode": "any"}))
        .turn("one is enough")
        .expect("still at work")
        .child("quick", &runs("true"))
        .child("slow", &until_there_is("gate"));
    let parent = daemon.submit(&script);
    assert_eq!(parent.answer(), "one is enough");
    open(&daemon, "gate");
    parent.child("slow").answer();
}

#[test]
fn a_run_that_asks_fails_with_3_if_no_person_may_answer() {
    let daemon = Daemon::start();
    let script = daemon.script_file(&turn("").ask("may I?").shell("touch asked").turn("never"));
    let run = ["submit", "--wait", "--script", &script];
    // Neither stdin nor stderr is a terminal here, so that is the default, too.
    daemon.ctl(run).exits(3).tells("nobody may answer");
    daemon.ctl(run.into_iter().chain(["--on-interaction", "fail"])).exits(3);
    assert!(!daemon.work().join("asked").exists());
    let view = daemon.run("@last").view();
    assert_eq!((view.state, view.exit_code, view.denials.len()), (RunState::Failed, Some(3), 1));
}

#[test]
fn denied_the_run_goes_on_and_says_what_was_denied() {
    let daemon = Daemon::start();
    let script = daemon.script_file(&turn("").ask("may I?").turn("Went on.").expect("Denied"));
    let output = daemon.ctl(["submit", "--wait", "--script", &script, "--on-interaction=deny"]).exits(0);
    assert_eq!(output.stdout, "Went on.\n");
    output.tells("may I?");
    assert_eq!(daemon.ctl(["show", "@last", "--json"]).json()["denials"], json!(["question: may I?"]));
}
