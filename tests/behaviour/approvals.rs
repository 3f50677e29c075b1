//! Calls that a person has to allow, and calls that ask a person while they execute.

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Run, Script, Value, eventually, json, turn};

fn guarded(command: &str) -> Script {
    turn("").shell(command).asking(json!({"kind": "approval"})).turn("${all}").capture("all", "(?s)(.*)")
}

fn form(command: &str) -> Script {
    let ask = json!({"kind": "form", "text": "which colour?"});
    turn("").shell(command).asking(ask).turn("${all}").capture("all", "(?s)(.*)")
}

/// What the run asks, once it does.
#[track_caller]
fn asked(daemon: &Daemon, run: &Run) -> Value {
    eventually("a person is asked", || !run.questions().is_empty());
    let open = daemon.rpc("interaction.list", json!({}));
    open["interactions"].as_array().unwrap().iter().find(|open| open["run"] == run.id.as_str()).unwrap().clone()
}

fn id(asked: &Value) -> &str {
    asked["id"].as_str().unwrap()
}

#[test]
fn an_approval_is_told_as_one_everywhere_and_the_call_begins_once_it_is_allowed() {
    let daemon = Daemon::of_width(1);
    let run = daemon.submit(&guarded("echo made | tee -a made"));
    let approval = asked(&daemon, &run);
    assert_eq!((&approval["kind"], &approval["subject"]), (&json!("approval"), &json!("echo made | tee -a made")));
    let (words, how) = ("approval: allow shell: echo made", format!("harnessctl reply {} --allow", id(&approval)));
    assert!(daemon.ctl(["pending"]).ok().contains(words));
    let shown = daemon.ctl(["show", &run.id]).ok();
    assert!(shown.contains(words) && shown.contains(&how), "{shown}");
    for command in [&["wait", "--timeout", "1s", &run.id][..], &["wait", "--timeout", "1s", &run.id, &run.id]] {
        daemon.ctl(command).exits(8).tells(words).tells(&how);
    }
    assert_eq!((run.view().state, daemon.lane("tool").permits), (RunState::Waiting, 0));
    daemon.ctl(["reply", id(&approval), "yes"]).exits(2).tells("not settled as answered").tells(&how);
    assert!(!daemon.work().join("made").exists());
    daemon.ctl(["reply", id(&approval), "--allow"]).ok();
    assert_eq!(run.answer(), "made\n");
    daemon.ctl(["reply", id(&approval), "--allow"]).exits(6).tells("first");
    assert_eq!(daemon.written("made"), "made\n");
    let followed = daemon.ctl(["follow", &run.id]).exits(0);
    assert!(followed.stdout.contains(words) && followed.stderr.contains("allowed"), "{followed}");
}

#[test]
fn what_a_person_is_to_allow_is_shown_whole_and_a_single_line_says_that_there_is_more() {
    let daemon = Daemon::start();
    let run = daemon.submit(&guarded("echo made\ntouch second"));
    let (approval, line) = (asked(&daemon, &run), "allow shell: echo made… (+1 line)");
    assert_eq!((&approval["question"], &approval["subject"]), (&json!(line), &json!("echo made\ntouch second")));
    let whole = "\n| echo made\n| touch second\n";
    let pending = daemon.ctl(["pending"]).ok();
    assert!(pending.contains(line) && pending.contains(whole), "{pending}");
    assert!(daemon.ctl(["show", &run.id]).ok().contains(line));
    daemon.ctl(["wait", "--timeout", "1s", &run.id]).exits(8).tells(line);
    daemon.ctl(["reply", id(&approval), "--deny"]).ok();
    run.wait();
    let followed = daemon.ctl(["follow", &run.id]).exits(0).stdout;
    assert!(followed.contains(line) && followed.contains(whole), "{followed}");
    let worded = json!({"kind": "approval", "text": "may it?"});
    let worded = daemon.submit(&turn("").shell("echo made\ntouch second").asking(worded).turn("on"));
    assert_eq!(asked(&daemon, &worded)["question"], json!(format!("{line} (may it?)")));
    // The question of a child is the prompt's to show.
    let child = guarded("echo made\ntouch second");
    let file = daemon.script_file(&turn("").spawn("child").wait_for_all().turn("on").child("child", &child));
    let mut follows = daemon.ctl_on_terminal(["submit", "--follow", "--script", &file]);
    follows.shows("touch second");
    follows.shows("(Ctrl-D: later): ");
    follows.types("n\n");
    assert_eq!(follows.finish().0, 0);
    assert!(!daemon.work().join("second").exists());
}

#[test]
fn a_call_that_is_denied_or_not_settled_in_time_is_not_executed_and_the_model_reads_why() {
    let daemon = Daemon::start();
    let denied = |reply: &[&str]| {
        let run = daemon.submit(&guarded("touch made"));
        let approval = asked(&daemon, &run);
        daemon.ctl([&["reply", id(&approval)], reply].concat()).ok();
        run.answer()
    };
    assert_eq!(denied(&["--deny"]), "Denied by a person. Not run.");
    assert_eq!(denied(&["--deny", "not on Fridays"]), "Denied: not on Fridays");
    let expiring = json!({"kind": "approval", "expires_seconds": 0.2});
    let run = daemon.submit(&turn("").shell("touch made").asking(expiring).turn("on").expect("in time"));
    assert_eq!(run.answer(), "on");
    let run = daemon.submit_with(&guarded("touch made"), json!({"on_interaction": "deny"}));
    assert!(run.answer().starts_with("Denied: no person is there to allow this."));
    let run = daemon.submit_with(&guarded("touch made"), json!({"on_interaction": "fail"}));
    assert_eq!(run.wait().exit_code, Some(3));
    assert!(!daemon.work().join("made").exists());
    let question = daemon.submit(&turn("").ask("well?").turn("on").expect("Denied: ask the other one"));
    asked(&daemon, &question);
    daemon.ctl(["reply", &question.id, "--allow"]).exits(2).tells("TEXT");
    daemon.ctl(["reply", &question.id, "--deny", "ask the other one"]).ok();
    assert_eq!(question.answer(), "on");
}

#[test]
fn a_killed_daemon_neither_asks_nor_executes_twice() {
    let daemon = Daemon::start();
    let run = daemon.submit(&guarded("echo made | tee -a made"));
    let before = asked(&daemon, &run);
    let daemon = daemon.crash().start();
    assert_eq!(asked(&daemon, &run), before, "it is still asked");
    daemon.ctl(["lane", "pause"]).ok();
    daemon.ctl(["reply", id(&before), "--allow"]).ok();
    eventually("it wants a permit", || daemon.lane("tool").queued + daemon.lane("tool").resuming == 1);
    let daemon = daemon.crash().start();
    assert_eq!((run.questions().len(), daemon.written("made").len()), (0, 0), "it is allowed, and has not begun");
    daemon.ctl(["lane", "resume"]).ok();
    assert_eq!(run.answer(), "made\n");
    assert_eq!(daemon.written("made"), "made\n");
}

#[test]
fn a_call_that_asks_holds_no_permit_and_its_process_reads_the_answer() {
    let daemon = Daemon::of_width(1);
    let run = daemon.submit(&form("cat"));
    let open = asked(&daemon, &run);
    assert_eq!((&open["kind"], &open["question"]), (&json!("form"), &json!("which colour?")));
    assert_eq!(daemon.lane("tool").permits, 0);
    assert_eq!(daemon.submit(&turn("").shell("echo other").turn("other")).answer(), "other");
    daemon.ctl(["reply", id(&open), r#"{"colour":"blue"}"#]).ok();
    assert_eq!(run.answer(), r#"{"colour":"blue"}"#);
    let denied = daemon.submit(&form("touch made"));
    let open = asked(&daemon, &denied);
    daemon.ctl(["reply", id(&open), "--deny", "no colour"]).ok();
    assert_eq!(denied.answer(), "Denied: no colour");
    assert!(!daemon.work().join("made").exists());
}

#[test]
fn what_a_call_asked_before_a_kill_is_answered_once_and_the_call_is_interrupted() {
    let daemon = Daemon::start();
    let run = daemon.submit(&form("touch made"));
    let before = asked(&daemon, &run);
    let daemon = daemon.crash().start();
    assert_eq!(asked(&daemon, &run), before);
    daemon.ctl(["reply", id(&before), "blue"]).ok();
    let answer = run.answer();
    assert!(answer.starts_with("Interrupted: ") && answer.ends_with("The answer was: blue"), "{answer}");
    assert!(run.results()[0].interrupted && !daemon.work().join("made").exists());
    daemon.ctl(["reply", id(&before), "green"]).exits(6).tells("first");
}

#[test]
fn under_follow_an_approval_takes_y_or_n_and_nothing_else() {
    for (typed, answer) in [("maybe\ny\n", "made\n"), ("N\n", "Denied by a person. Not run.")] {
        let daemon = Daemon::start();
        let file = daemon.script_file(&guarded("echo made"));
        let mut follows = daemon.ctl_on_terminal(["submit", "--follow", "--script", &file]);
        follows.shows("approval: allow shell: echo made");
        for (line, times) in typed.lines().zip(1..) {
            follows.shows_often("(Ctrl-D: later): ", times);
            follows.types(&format!("{line}\n"));
        }
        let (code, screen) = follows.finish();
        assert_eq!(code, 0, "{screen}");
        assert_eq!(daemon.run("@last").answer(), answer);
    }
}

#[test]
fn an_exported_script_asks_again() {
    let daemon = Daemon::start();
    let run = daemon.submit(&guarded("echo made"));
    daemon.ctl(["reply", id(&asked(&daemon, &run)), "--allow"]).ok();
    run.wait();
    let to = daemon.path("exported");
    daemon.ctl(["export", &run.id, "--dir", to.to_str().unwrap()]).ok();
    let script = to.join("script.toml");
    let submit = ["submit", "-q", "--on-interaction", "wait", "--script", script.to_str().unwrap()];
    let again = daemon.run(&daemon.ctl(submit).line());
    assert_eq!(asked(&daemon, &again)["kind"], "approval");
}
