//! Odd environments: variables that are not UTF-8 or too large; and errors that say each cause once.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use harness_tests::{Daemon, Output, Place, Running, json, says, turn};

fn odd() -> OsString {
    OsString::from_vec(b"/tmp/x\xff".to_vec())
}

#[track_caller]
fn ctl_in(place: &Place, name: &str, words: &[&str]) -> Output {
    let mut command = place.command(harness_tests::program("harnessctl"));
    command.args(words).env(name, odd());
    Running::start_reading(command, Stdio::null()).finish()
}

/// Entry B12 in `tests/README.md`.
#[test]
fn a_variable_that_is_not_utf_8_is_told_and_not_taken_for_unset() {
    let place = Place::new();
    for name in ["HARNESS_SOCKET", "HARNESS_STATE_DIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"] {
        ctl_in(&place, name, &["list"]).exits(2).tells(&format!("{name} is set, but its value is not UTF-8"));
    }
    // What the daemon reads, it tells; nothing is started beside the one that was meant.
    for name in ["HARNESS_CONFIG", "XDG_CONFIG_HOME", "HARNESS_LOG", "HARNESS_STATE_DIR", "HARNESS_SOCKET"] {
        let mut command = place.command(harness_tests::program("harnessd"));
        command.env(name, odd());
        Running::start(command).finish().exits(2).tells(&format!("{name} is set, but its value is not UTF-8"));
    }
    assert!(place.daemon_process().is_none());
    let file = place.script_file(&says("done"));
    for (name, words) in [("TOKEN", &["--env", "TOKEN"][..]), ("PATH_OF_X", &["--env", "PATH_OF_X"])] {
        let told = ctl_in(&place, name, &[&["submit", "--script", &file], words].concat());
        told.exits(2).tells(&format!("{name} is set here, but its value is not UTF-8"));
    }
    ctl_in(&place, "TOKEN", &["submit", "--wait", "--script", &file, "--env", "TOKEN=mine"]).exits(0);
    ctl_in(&place, "TOKEN", &["submit", "--script", &file, "--env", "UNSET"]).exits(2).tells("UNSET is not set here");
}

/// Entry B12 in `tests/README.md`.
#[test]
fn a_key_or_a_proxy_that_is_not_utf_8_is_named() {
    let config = "[provider.local]\ndialect = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\n\
                  model = \"m\"\napi_key_env = \"ODD_KEY\"\n";
    let place = Place::configured(config);
    let mut command = place.command(harness_tests::program("harnessctl"));
    command.args(["daemon", "start"]).env("ODD_KEY", odd());
    Running::start_reading(command, Stdio::null()).finish().exits(0);
    let checked = place.ctl(["provider", "check", "local"]);
    let said = format!("{}{}", checked.stdout, checked.stderr);
    assert!(said.contains("ODD_KEY is set, but its value is not UTF-8"), "{said}");
    for name in ["http_proxy", "HTTPS_PROXY", "all_proxy", "no_proxy"] {
        let place = Place::configured(config);
        let mut command = place.command(harness_tests::program("harnessd"));
        command.env(name, odd());
        Running::start(command).finish().exits(2).tells(&format!("{name} is set, but its value is not UTF-8"));
    }
}

/// Entry B12 in `tests/README.md`.
#[test]
fn the_part_of_a_call_that_is_too_large_is_named() {
    let daemon = Daemon::start();
    for (env, command, told) in [
        (json!({"BIG": "x".repeat(140_000)}), "true", "the variable BIG of the environment is too long"),
        (json!({"EDGE": "x".repeat(131_072 - 5)}), "true", "the variable EDGE of the environment is too long"),
        (json!({"SMALL": "x"}), &*format!(": {}", "y".repeat(140_000)), "the command is too long"),
        (
            json!(
                (0..40).map(|n| (format!("V{n}"), "x".repeat(120_000))).collect::<std::collections::BTreeMap<_, _>>()
            ),
            "true",
            "the environment is too large",
        ),
    ] {
        let run = daemon.submit_with(&turn("").shell(command).turn("done"), json!({"env": env}));
        assert_eq!(run.answer(), "done");
        assert!(run.envelopes()[0].contains(told), "{told}: {:?}", run.envelopes());
    }
}

/// Entry B12 in `tests/README.md`.
#[test]
fn no_error_of_a_start_says_its_cause_twice() {
    let said = |prepare: &dyn Fn(&Place)| {
        let place = Place::new();
        prepare(&place);
        let mut command = place.command(harness_tests::program("harnessd"));
        command.args(["--state-dir".into(), place.path("state")]).args(["--socket".into(), place.path("s")]);
        let output = Running::start(command).finish();
        assert_ne!(output.code, 0);
        output.stderr.lines().find(|line| line.starts_with("harnessd: ")).unwrap_or_default().to_owned()
    };
    let file = |path: &str| {
        let path = path.to_owned();
        move |place: &Place| std::fs::write(place.path(&path), "x").unwrap()
    };
    let directory = |path: &str| {
        let path = path.to_owned();
        move |place: &Place| {
            std::fs::create_dir_all(place.path(&path)).unwrap();
            std::fs::set_permissions(place.path("state"), std::fs::Permissions::from_mode(0o700)).unwrap();
        }
    };
    let cases: [&dyn Fn(&Place); 5] = [
        &file("state"),
        &directory("state/harnessd.lock"),
        &directory("state/keepers.lock"),
        &directory("state/harness.db"),
        &|place: &Place| place.configure("[lane.tool]\nwidth = \"wide\"\n"),
    ];
    for prepare in cases {
        let line = said(prepare);
        let parts: Vec<&str> = line.split(": ").collect();
        let mut once = parts.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(parts.len(), once.len(), "{line}");
        assert!(parts.len() > 1, "it says why: {line}");
    }
}

/// Entry B12 in `tests/README.md`.
#[test]
fn json_on_a_terminal_is_the_same_json_and_drives_nothing() {
    let daemon = Daemon::start();
    let odd = "a\u{9b}2J\u{85}b\u{202e}c\u{2066}d\u{200b}e\u{7f}";
    let run = daemon.submit(&says(odd));
    run.wait();
    for words in
        [&["show", "--json"][..], &["logs", "--json"], &["wait", "--json"], &["list", "--json"], &["follow", "--json"]]
    {
        let words = [words, &[&*run.id]].concat();
        let (code, screen) = daemon.ctl_on_terminal(&words).finish();
        assert_eq!(code, 0);
        assert!(
            !screen
                .chars()
                .any(|c| c != '\n' && c != '\r' && harness_protocol::terminal_safe::refused(&c.to_string()).is_some()),
            "{screen:?}"
        );
        assert!(screen.contains("a\\u009b2J\\u0085b\\u202ec\\u2066d\\u200be\\u007f"), "{words:?}: {screen}");
        let piped = daemon.ctl(&words).ok();
        let read = |text: &str| -> Vec<harness_tests::Value> {
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        assert!(piped.contains('\u{9b}') && read(&piped).len() == read(&screen).len());
    }
}
