//! Wrong and hostile calls of a model: a clear message each time, and no change outside the state directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use harness_tests::{Daemon, json, now, turn};

fn files_below(dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            files_below(&path, found);
        } else {
            found.insert(path);
        }
    }
}

#[test]
fn hostile_arguments_are_each_told_clearly_and_the_run_goes_on() {
    let daemon = Daemon::start();
    let cases = [
        ("shell", json!({"command": "true\0; touch esc"}), "NUL"),
        ("shell", json!({"argv": ["touch", "esc\0"]}), "NUL"),
        ("shell", json!({"command": "touch esc", "cwd": "a\0b"}), "NUL"),
        ("shell", json!({"command": format!(": {}; touch esc", "x".repeat(3 << 20))}), "too long"),
        ("shell", json!({"argv": vec!["x"; 70_000]}), "too long"),
        ("shell", json!({"command": "touch esc", "sandbox": false}), "unknown field `sandbox`"),
        ("shell", json!({"command": "touch esc", "argv": ["touch", "esc"]}), "both command and argv"),
        ("shell", json!({"command": ["touch", "esc"]}), "invalid type"),
        ("shell", json!({"command": "touch esc", "timeout": -1}), "not negative"),
        ("shell", json!({"command": "touch esc", "timeout": 1e300}), "timeout"),
        ("shell", json!({"command": "touch esc", "cwd": "/no/such/place"}), "does not exist"),
        ("shell", json!({"argv": [""]}), "does not begin with a program"),
        ("shell", json!({}), "neither command nor argv"),
        ("shell", json!("touch esc"), "bad arguments"),
        ("../../../../esc", json!({"command": "touch esc"}), "there is no tool"),
        ("shell\0", json!({"command": "touch esc"}), "there is no tool"),
    ];
    let script = cases.iter().fold(turn(""), |script, (tool, args, _)| script.call(tool, args.clone()));
    let run = daemon.submit(&script.turn("").shell("echo on").turn("done").expect("Exit code: 0\non\n"));
    assert_eq!(run.answer(), "done");
    for ((tool, args, told), result) in cases.iter().zip(run.results()) {
        let args: String = args.to_string().chars().take(80).collect();
        assert!(
            result.envelope.to_lowercase().contains(told.to_lowercase().as_str()),
            "{tool} {args}: {}",
            result.envelope
        );
        assert!(result.is_error && result.exit_code.is_none() && result.stdout.is_none(), "{tool} {args}");
        assert!(result.envelope.len() < 2_000, "{tool} {args}: {} bytes", result.envelope.len());
    }
    let mut found = BTreeSet::new();
    files_below(&daemon.path(""), &mut found);
    let outside = found.iter().filter(|path| path.to_string_lossy().contains("esc"));
    assert_eq!(outside.collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    let state = daemon.path("home/.local/state/harness");
    let ours = [state.clone(), daemon.path("run"), daemon.path("daemon.log")];
    assert!(found.iter().all(|path| ours.iter().any(|ours| path.starts_with(ours))), "{found:?}");
}

#[test]
fn half_a_character_in_a_request_is_refused_and_the_connection_lives_on() {
    let daemon = Daemon::start();
    let mut client = daemon.connect();
    let spec = r#"{"script":{"turn":[{"call":[{"tool":"shell","args":{"command":"\ud800"}}]},{"text":"x"}]}}"#;
    client.write_line(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"run.submit","params":{{"spec":{spec}}}}}"#));
    let reply = client.read().unwrap();
    assert!(reply["error"]["code"].as_i64().is_some_and(|code| code < 0), "{reply}");
    assert_eq!(client.call("daemon.status", json!({}))["live_runs"].as_u64().unwrap_or(0), 0);
}

#[test]
fn a_directory_that_a_command_removes_under_itself_does_not_hang_the_run() {
    let daemon = Daemon::start();
    let begun = now();
    let script = turn("")
        .shell("mkdir scratch")
        .call("shell", json!({"command": "rm -rf \"$PWD\"; ls; echo hi", "cwd": "scratch"}))
        .call("shell", json!({"command": "echo hi", "cwd": "scratch"}))
        .turn("")
        .shell("echo elsewhere")
        .turn("done")
        .expect("elsewhere");
    let run = daemon.submit(&script);
    assert_eq!(run.answer(), "done");
    let envelopes = run.envelopes();
    assert!(envelopes[1].starts_with("Exit code: 0\nhi\n"), "{}", envelopes[1]);
    assert!(envelopes[2].contains("scratch does not exist"), "{}", envelopes[2]);
    assert!(begun.elapsed().as_secs() < 20);
}
