//! Questions of runs that a command waits for: told under `--wait`, asked and answered inline under `--follow` on a
//! terminal.

use std::collections::BTreeSet;
use std::time::Duration;

use harness_tests::{Daemon, OnTerminal, Run, Script, eventually, found_within, json, turn};

use crate::lane::until_there_is;

fn asks(question: &str) -> Script {
    turn("").ask(question).turn("${it} it is").capture("it", "(.*)")
}

fn parent_of(child: &Script) -> Script {
    turn("").spawn("child").wait_for_all().turn("the child is back").child("child", child)
}

/// The open question, once there is one.
#[track_caller]
fn question(daemon: &Daemon) -> String {
    eventually("something asks", || daemon.rpc("interaction.list", json!({}))["total"] == 1);
    daemon.rpc("interaction.list", json!({}))["interactions"][0]["id"].as_str().unwrap().to_owned()
}

fn follow(daemon: &Daemon, run: &Run) -> OnTerminal {
    daemon.ctl_on_terminal(["follow", &run.id])
}

/// Entry U12 in `tests/README.md`.
#[test]
fn a_wait_tells_of_questions_within_a_second_and_reads_no_answer() {
    let grandchild = parent_of(&parent_of(&asks("how deep?")));
    let cases: [(&str, Script); 5] = [
        ("one or two?", asks("one or two?")),
        ("what colour?", parent_of(&asks("what colour?"))),
        ("how deep?", grandchild),
        ("two lines", asks("two lines\nof a question")),
        ("\u{FFFD}", parent_of(&asks("a\u{9b}2Jb"))),
    ];
    for (words, script) in cases {
        let daemon = Daemon::start();
        let run = daemon.submit(&script);
        let id = question(&daemon);
        for command in [&["wait", "--timeout", "1s", &run.id][..], &["wait", "--timeout", "1s", &run.id, &run.id]] {
            let told = daemon.ctl(command).exits(8).tells(&format!("harnessctl reply {id} TEXT"));
            let line = told.stderr.lines().find(|line| line.contains(&id)).unwrap();
            assert!(line.contains(words.trim_matches('\u{FFFD}')), "{words:?}: {told}");
            assert_eq!(told.stderr.matches(&id[..]).count(), if line.contains("a person") { 2 } else { 1 }, "{told}");
        }
        let shown = daemon.ctl(["show", "--json", &run.id]).json();
        assert_eq!(shown["questions"][0]["id"], *id, "{shown}");
        daemon.ctl(["reply", &id, "blue"]).ok();
        run.wait();
        assert_eq!(daemon.ctl(["show", "--json", &run.id]).json()["questions"], json!(null));
    }
}

/// U12: also where the question comes while the wait is under way, on a terminal, and among others.
#[test]
fn a_question_that_comes_during_a_wait_is_told_and_nothing_that_is_typed_answers_it() {
    let daemon = Daemon::start();
    let script = daemon
        .script_file(&parent_of(&turn("").shell("until test -e gate; do sleep 0.02; done").ask("now?").turn("ok")));
    let mut waits = daemon.ctl_on_terminal(["submit", "--wait", "--on-interaction", "wait", "--script", &script]);
    let others: Vec<Run> = (0..100).map(|_| daemon.submit(&until_there_is("never"))).collect();
    eventually("the parent waits", || daemon.lane("tool").parked == 1);
    let parent = daemon.run("@last");
    let all = daemon.ctl(["list", "--json", "--state", "waiting"]).json()["id"].as_str().unwrap().to_owned();
    let ids: Vec<&str> = others.iter().map(|run| &*run.id).chain([all.as_str()]).collect();
    let many = daemon.spawn_ctl([&["wait", "--timeout", "2s"], &ids[..]].concat());
    crate::lane::open(&daemon, "gate");
    let id = question(&daemon);
    let within = Duration::from_secs(5);
    found_within(within, "it is told", || {
        waits.screen().contains(&format!("harnessctl reply {id} TEXT")).then_some(())
    });
    waits.types("yes\n");
    many.finish().exits(8).tells(&format!("now?\"; harnessctl reply {id} TEXT"));
    assert_eq!(daemon.rpc("interaction.list", json!({}))["total"], 1, "nothing was read");
    daemon.ctl(["reply", &id, "yes"]).ok();
    assert_eq!(waits.finish().0, 0);
    drop(parent);
}

/// Entry U12 in `tests/README.md`.
#[test]
fn under_follow_a_question_is_asked_and_answered_inline() {
    for (script, answer, ending) in [
        (asks("which colour?"), "blue", "blue it is"),
        (asks("which colour?"), "two words, and more", "two words, and more it is"),
        (asks("yes or no?"), "  y  ", "y it is"),
        (parent_of(&asks("which child?")), "this one", "the child is back"),
        (parent_of(&parent_of(&asks("how deep?"))), "three", "the child is back"),
        (asks("ÄÖ — 日本?"), "日本", "日本 it is"),
    ] {
        let daemon = Daemon::start();
        let file = daemon.script_file(&script);
        let mut follows = daemon.ctl_on_terminal(["submit", "--follow", "--script", &file]);
        follows.shows("(Ctrl-D: later): ");
        follows.types(&format!("{answer}\n"));
        let (code, screen) = follows.finish();
        assert!(code == 0 && screen.contains(ending), "{answer:?}: {code} {screen}");
        assert!(screen.contains('?'), "the question stands there: {screen}");
    }
}

/// Entry U12 in `tests/README.md`.
#[test]
fn a_question_that_is_left_open_stays_open_and_it_is_said_how_it_is_answered() {
    let daemon = Daemon::start();
    for (gives_up, code) in [("\u{4}", None), ("\n\u{4}", None), ("half\u{3}", None), ("ctrl-c", Some(130))] {
        let run = daemon.submit(&asks("well?"));
        let id = question(&daemon);
        let mut follows = follow(&daemon, &run);
        follows.shows("(Ctrl-D: later): ");
        match (gives_up, code) {
            (_, Some(_)) => follows.interrupts(),
            // Without its end, the line is no answer yet.
            ("half\u{3}", _) => follows.types("half"),
            (keys, _) => follows.types(keys),
        }
        if gives_up.starts_with("half") {
            follows.interrupts();
        }
        follows.shows(&format!("harnessctl reply {id} TEXT"));
        follows.shows(&format!("question {id} stays open"));
        assert_eq!(daemon.rpc("interaction.list", json!({}))["total"], 1, "{gives_up:?}");
        run.reply("later");
        let (ended, screen) = follows.finish();
        let expected = if code.is_some() || gives_up.starts_with("half") { 130 } else { 0 };
        assert_eq!(ended, expected, "{gives_up:?}: {screen}");
        assert_eq!(run.answer(), "later it is");
    }
}

/// Entry U12 in `tests/README.md`.
#[test]
fn an_answer_from_elsewhere_withdraws_the_prompt_and_what_was_typed_is_forgotten() {
    let daemon = Daemon::start();
    let script = turn("").ask("first?").turn("").ask("second?").turn("${b}").capture("b", "(.*)");
    let run = daemon.submit(&script);
    let first = question(&daemon);
    let mut follows = follow(&daemon, &run);
    follows.shows("(Ctrl-D: later): ");
    follows.types("to the wro");
    daemon.ctl(["reply", &first, "from elsewhere"]).ok();
    follows.shows(&format!("question {first} needs no answer any more"));
    follows.shows_often("(Ctrl-D: later): ", 2);
    follows.types("right\n");
    let (code, screen) = follows.finish();
    assert_eq!((code, run.answer().as_str()), (0, "right"), "{screen}");
    // Of a run below it, and by an end in place of an answer.
    for ends in [true, false] {
        let run = daemon.submit(&parent_of(&asks("child?")));
        let id = question(&daemon);
        let child = daemon.rpc("interaction.list", json!({}))["interactions"][0]["run"].as_str().unwrap().to_owned();
        let follows = follow(&daemon, &run);
        follows.shows("asks: child?");
        follows.shows("(Ctrl-D: later): ");
        if ends {
            daemon.ctl(["cancel", &child]).ok()
        } else {
            daemon.ctl(["reply", &id, "x"]).ok()
        };
        follows.shows(&format!("question {id} needs no answer any more"));
        assert_eq!(follows.finish().0, 0);
    }
}

/// U12: where no person is there, nothing is read, and the question is told as it is under `--wait`.
#[test]
fn without_a_terminal_a_follow_tells_of_questions_and_reads_nothing() {
    let daemon = Daemon::start();
    for script in [asks("own?"), parent_of(&asks("below?"))] {
        let run = daemon.submit(&script);
        let id = question(&daemon);
        let mut command = daemon.command(harness_tests::program("harnessctl"));
        command.args(["follow", &run.id]);
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, b"not an answer\n").unwrap();
        let follows = harness_tests::Running::start_reading(command, reader);
        let again = daemon.ctl(["wait", "--timeout", "1s", &run.id]).exits(8);
        assert!(again.stderr.contains(&id), "{again}");
        assert_eq!(daemon.rpc("interaction.list", json!({}))["total"], 1);
        daemon.ctl(["reply", &id, "done"]).ok();
        let output = follows.finish().exits(0);
        assert!(
            format!("{}{}", output.stdout, output.stderr).contains(&format!("harnessctl reply {id} TEXT")),
            "{output}"
        );
        drop(writer);
    }
}

/// U12: several that are followed ask one after the other.
#[test]
fn questions_of_several_that_are_followed_are_asked_one_after_the_other() {
    let daemon = Daemon::start();
    let runs: Vec<Run> = (0..3).map(|n| daemon.submit(&asks(&format!("number {n}?")))).collect();
    eventually("all ask", || daemon.rpc("interaction.list", json!({}))["total"] == 3);
    let ids: Vec<&str> = runs.iter().map(|run| &*run.id).collect();
    let mut follows = daemon.ctl_on_terminal([&["follow"], &ids[..]].concat());
    let mut answered = BTreeSet::new();
    for n in 1..=3 {
        // The prompt of one question is shown again behind what else is shown.
        let asks = harness_tests::found("the prompt of another run", || {
            let screen = follows.screen();
            let (_, prompt) = screen.rsplit_once("answer run ")?;
            let (run, _) = prompt.split_once(" (Ctrl-D: later): ")?;
            (!answered.contains(run)).then(|| run.to_owned())
        });
        answered.insert(asks);
        follows.types(&format!("answer {n}\n"));
        eventually("it is taken", || daemon.rpc("interaction.list", json!({}))["total"] == 3 - n);
    }
    assert_eq!(follows.finish().0, 0);
}

/// Any process of the user may type into such a terminal, one of a run as well.
#[test]
fn on_a_terminal_that_controls_nothing_a_question_is_told_and_no_answer_is_read() {
    let daemon = Daemon::start();
    for typed in ["yes\n", "\n", "y\ny\ny\n"] {
        let run = daemon.submit(&asks("really?"));
        let id = question(&daemon);
        let mut follows = daemon.ctl_on_uncontrolled_terminal(["follow", &run.id]);
        follows.shows(&format!("harnessctl reply {id}"));
        follows.types(typed);
        daemon.ctl(["reply", &id, "blue"]).ok();
        assert_eq!(run.answer(), "blue it is", "{typed:?}");
        follows.shows("blue it is");
    }
}
