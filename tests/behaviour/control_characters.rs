//! Names and labels contain no characters that control a terminal or change how text reads; the output of runs may.

use harness_protocol::terminal_safe;
use harness_tests::{Daemon, Value, eventually, json, says, turn};

/// Entry A17 in `tests/README.md`.
#[test]
fn a_submit_with_characters_that_cannot_be_read_is_refused_with_the_field() {
    let daemon = Daemon::configured("[share.batch]\nweight = 1\n");
    let refused = |params: Value| {
        let error = daemon.refused("run.submit", params);
        assert_eq!(
            (&error["data"]["kind"], &error["data"]["reason"]),
            (&json!("invalid"), &json!("control-characters"))
        );
        let told = error["message"].as_str().unwrap();
        assert!(
            !told.contains(|c: char| c.is_control() || terminal_safe::is_bidi(c) || terminal_safe::is_invisible(c)),
            "{told:?}"
        );
        error["data"]["subject"].clone()
    };
    let spec = |more: Value| json!({"spec": daemon.spec(&says("x"), more)});
    let driving =
        ["a\x1b[2Jb", "a\nb", "a\u{9b}b", "a\u{202E}b", "a\u{2066}b", "a\u{2028}b", "a\u{7f}b", "\u{200F}a", "a\0b"];
    let unseen =
        ["a\u{200B}b", "\u{FEFF}ab", "ab\u{2060}", "a\u{AD}b", "a\u{200D}b", "a\u{FE0F}b", "a\u{3164}", "a\u{E0041}"];
    for bad in driving.into_iter().chain(unseen) {
        assert_eq!(refused(spec(json!({"labels": {"team": bad}}))), "labels");
        assert_eq!(refused(spec(json!({"labels": {bad: "red"}}))), "labels");
        assert_eq!(refused(spec(json!({"model": bad}))), "model");
        assert_eq!(refused(spec(json!({"name": bad}))), "name");
        assert_eq!(refused(spec(json!({"share": bad}))), "share");
        assert_eq!(refused(spec(json!({"workdir": format!("/{bad}")}))), "workdir");
        let mut keyed = spec(json!({}));
        keyed["idempotency_key"] = bad.into();
        assert_eq!(refused(keyed), "idempotency_key");
    }
    for good in ["l'été", "日本語", "a b", "\u{1F469}\u{200D}\u{1F680}", "ab-c_d.e/f"] {
        daemon.submit_with(&says("x"), json!({"labels": {"team": good}})).wait();
    }
}

/// Entry A17 in `tests/README.md`.
#[test]
fn a_model_that_labels_its_children_with_escapes_is_told_that_it_may_not() {
    let daemon = Daemon::start();
    let script = turn("").call("spawn_agent", json!({"prompt": "x", "labels": {"team": "\x1b[31mred"}})).turn("done");
    let run = daemon.submit(&script);
    assert_eq!(run.answer(), "done");
    assert!(run.envelopes()[0].starts_with("Not started: the value of the label \"team\" has the character U+001B"));
}

/// A17: what a program reads is exact, whatever it is.
#[test]
fn a_program_reads_answers_exactly_as_they_are() {
    let daemon = Daemon::start();
    for answer in ["\x1b[2J\u{9b}x", "a\u{202E}b\u{2069}", "\u{200B}\u{FEFF}x", "a\r\nb\rc", "\u{2028}x\u{7f}"] {
        let run = daemon.submit(&says(answer));
        assert_eq!(run.answer(), answer);
        assert_eq!(daemon.ctl(["show", "--answer", &run.id]).ok(), format!("{answer}\n"));
        assert_eq!(daemon.ctl(["show", "--json", &run.id]).json()["answer"], answer);
    }
}

/// A17: whatever shows what a run has said on a terminal, nothing of it drives that terminal.
#[test]
fn no_command_passes_on_to_a_terminal_what_drives_it() {
    let daemon = Daemon::start();
    let script = turn("a\u{9b}2Jb\u{202E}c\u{9d}0;t\u{9c}")
        .shell("printf 'o\\033]0;x\\007p\\302\\2332Jq'")
        .turn("d\u{9b}5ne\u{2067}f");
    let run = daemon.submit_with(&script, json!({"prompt": "g\u{9b}h\u{202E}i"}));
    run.wait();
    let id = run.id.as_str();
    for words in [
        vec!["events"],
        vec!["events", "--run", id],
        vec!["events", "--run", id, "--tree"],
        vec!["show", id],
        vec!["show", "--json", id],
        vec!["show", "--answer", id],
        vec!["logs", id],
        vec!["logs", "--json", id],
        vec!["list", "--all"],
        vec!["list", "--all", "--json"],
        vec!["follow", id],
        vec!["wait", id],
        vec!["usage"],
        vec!["lane"],
    ] {
        let (code, screen) = daemon.ctl_on_terminal([&words[..], &["--color", "never"]].concat()).finish();
        assert_eq!(code, 0, "{words:?}: {screen:?}");
        let drives = |c: char| (c.is_control() && !"\r\n\t".contains(c)) || ('\u{202A}'..='\u{2069}').contains(&c);
        assert!(!screen.contains(drives), "{words:?}: {screen:?}");
    }
}

/// What a model, a tool or a prompt says in several lines, between the lines of a command, passes for none of these.
#[test]
fn no_text_of_a_run_passes_for_a_line_of_a_command() {
    const FORGED: &str = "FORGED";
    let daemon = Daemon::start();
    let lines =
        |what: &str| format!("{what}\n{FORGED}\n\n{FORGED}\n  {FORGED} answer it: harnessctl reply 1 TEXT\n$ {FORGED}");
    let says = lines("I look.").replace(&format!("$ {FORGED}"), FORGED);
    let shell = format!("printf '{FORGED}\\n{FORGED} Exit code: 0\\n'; printf '{FORGED}\\n' >&2\necho {FORGED}");
    let asks = |text: &str| turn(&says).shell(&shell).ask(text).turn(&says);
    let with = json!({"prompt": lines("go"), "labels": {"label": FORGED}});
    let ended = daemon.submit_with(&turn(&says).shell(&shell).turn(&says), with.clone());
    ended.wait();
    let failed = daemon.submit_with(&turn(&says).shell("true").turn("never").expect("nothing"), with.clone());
    failed.wait();
    let asking = daemon.submit_with(&asks(&says), with.clone());
    let parent = turn(&says).spawn("child").wait_for_all().turn("done").child("child", &asks(&says));
    let parent = daemon.submit_with(&parent, with);
    eventually("both ask", || daemon.rpc("interaction.list", json!({}))["total"] == 2);
    let file = daemon.script_file(&asks(&says));
    let script = file.as_str();
    let (ended, failed, asking, parent) = (&*ended.id, &*failed.id, &*asking.id, &*parent.id);
    let commands: Vec<(Vec<&str>, bool)> = [
        (vec!["show", ended], true),
        (vec!["show", failed], true),
        (vec!["show", asking, parent], true),
        (vec!["show", "--why", ended], true),
        (vec!["logs", ended], true),
        (vec!["logs", "--tail", "4", ended], true),
        (vec!["logs", failed, ended], true),
        (vec!["logs", parent], true),
        (vec!["follow", ended], true),
        (vec!["follow", failed], true),
        (vec!["follow", ended, failed], true),
        (vec!["list", "--all"], true),
        (vec!["list", "--tree"], true),
        (vec!["pending"], true),
        (vec!["wait", failed, ended], true),
        (vec!["wait", failed], true),
        (vec!["wait", "--timeout", "1s", asking], true),
        (vec!["wait", "--timeout", "1s", parent], true),
        (vec!["wait", "--timeout", "1s", asking, parent], true),
        (vec!["submit", "--wait", "--on-interaction", "wait", "--script", script], false),
        (vec!["submit", "--follow", "--on-interaction", "wait", "--script", script], false),
        (vec!["follow", asking], false),
        (vec!["follow", parent], false),
        (vec!["logs", "-f", asking], false),
        (vec!["lane"], true),
        (vec!["retry", "--wait", "--yes", failed], true),
    ]
    .into();
    for (words, ends) in commands {
        let all = [&words[..], &["--color", "never"]].concat();
        let mut shown = Vec::new();
        if ends {
            let output = daemon.ctl(&all);
            shown.extend([output.stdout, output.stderr]);
        }
        let terminal = daemon.ctl_on_terminal(&all);
        if !ends {
            // It has shown the last that there is: the question.
            terminal.shows("harnessctl reply");
        }
        shown.push(if ends { terminal.finish().1 } else { terminal.screen() });
        for text in shown {
            let row = text.lines().find(|row| row.trim_start().starts_with(FORGED));
            assert!(row.is_none(), "{words:?}: {row:?} in\n{text}");
        }
    }
}

/// A17: a run may call a file as it likes, where an operator's daemon, restore or salvage finds it, and tells of it.
#[test]
fn no_name_of_a_file_drives_the_terminal_that_it_is_shown_on() {
    let harmful = |c: char| terminal_safe::is_harmful(c) && c != '\n' && c != '\t';
    for name in ["x\x1b]0;OWNED\x07\x1b[2J", "x\u{9b}2J", "x\u{202e}txt", "x\ry", "x\u{7f}\u{200b}"] {
        let daemon = Daemon::start();
        let backup = daemon.path("backup.db").display().to_string();
        let named = daemon.path(&format!("{name}.db")).display().to_string();
        daemon.ctl(["daemon", "backup", &backup]).ok();
        daemon.ctl(["daemon", "stop", "--yes"]).ok();
        let pipe = daemon.state(name);
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let place = daemon.place();
        let pipe = pipe.display().to_string();
        let ways: [&[&str]; 9] = [
            &["harnessctl", "daemon", "restore", &backup],
            &["harnessctl", "daemon", "restore", &pipe],
            &["harnessctl", "list"],
            &["harnessctl", "--socket", &pipe, "list"],
            &["harnessd", "restore", &named],
            &["harnessd", "restore", "--check", &pipe],
            &["harnessd", "salvage", &pipe, &named],
            &["harnessd", "--state-dir", &pipe],
            &["harnessd", "--config", &pipe],
        ];
        let mut named_it = 0;
        for way in ways {
            let mut command = place.command(harness_tests::program(way[0]));
            command.args(&way[1..]);
            let output = harness_tests::Running::start(command).finish();
            assert_ne!(output.code, 0, "{way:?}: {output}");
            for text in [&output.stdout, &output.stderr] {
                assert!(!text.contains(harmful), "{way:?}: {text:?}");
            }
            named_it += usize::from(output.stderr.contains("/x"));
        }
        assert!(named_it >= 5, "most of them tell the name: {named_it}");
    }
}
