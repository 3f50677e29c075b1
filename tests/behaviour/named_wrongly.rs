//! A wrong name or a wrong argument is reported as what it is, does no harm, and is a usage error.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use harness_protocol::run::RunState;
use harness_protocol::terminal_safe::is_harmful;
use harness_tests::{Daemon, Place, Running, eventually, json, need_root, runs, says, turn};

use crate::workdirs_mounted::Hanging;

#[test]
fn an_error_about_typed_text_drives_no_terminal() {
    let place = Place::new();
    for typed in ["\x1b[2Jx", "a\x1b]0;title\x07", "\u{9b}2J", "a\u{202E}b", "a\rb", "\u{200B}"] {
        let option = format!("--{typed}");
        let named = format!("--state={typed}");
        for words in [
            &[typed][..],
            &["daemon", typed],
            &["list", &option],
            &["list", &named],
            &["list", "--waiting-for", typed],
            &["submit", "hi", "--limit", typed],
            &["submit", "hi", "--max-time", typed],
            &["relieve", "--by", typed],
            &["lane", "resize", typed],
            &["completions", typed],
            &["schema", typed],
            &["usage", "--by", typed],
            &["show", typed, typed, "--call", typed],
        ] {
            let told = place.ctl([&["--no-start"], words].concat());
            let bad = |c: char| c != '\n' && is_harmful(c);
            assert!(!told.stderr.contains(bad), "{words:?}: {:?}", told.stderr);
            assert!(matches!(told.code, 2 | 7), "{words:?}: {told}");
        }
        let told = Running::start({
            let mut command = place.command("harnessd");
            command.arg(&option);
            command
        });
        let told = told.finish().exits(2);
        assert!(!told.stderr.contains(|c: char| c != '\n' && is_harmful(c)), "{told}");
    }
}

#[test]
fn a_shell_that_leaves_a_small_stack_has_its_commands_and_its_daemon() {
    let place = Place::new();
    let script = place.script_file(&runs("echo done"));
    let words = format!(
        "harnessctl submit --wait --script {script} && harnessctl list && harnessctl lane && harnessctl --help"
    );
    let output = place.sh(&format!("ulimit -s 64; {words}"));
    assert!(output.exits(0).stdout.starts_with("done\n"));
}

#[test]
fn a_relief_that_adds_less_than_it_says_tells_so() {
    let daemon = Daemon::start();
    daemon.ctl(["lane", "resize", "999990"]).exits(0);
    daemon.ctl(["relieve", "--by", "3"]).exits(0);
    daemon.ctl(["relieve", "--by", "20"]).exits(0).tells("the relief adds 7 of 20");
    daemon.ctl(["relieve"]).exits(0).tells("the relief adds nothing");
    daemon.ctl(["lane", "resize", "1000000"]).exits(0).tells("wide as it was");
    let plain = daemon.ctl(["lane", "resize", "5"]).exits(0);
    assert!(!plain.stderr.contains("as it was"), "{plain}");
}

#[test]
fn files_that_cannot_be_are_usage_errors_in_words() {
    let daemon = Daemon::start();
    let run = daemon.submit(&says("x"));
    run.wait();
    fs::write(daemon.path("empty"), "").unwrap();
    fs::write(daemon.path("text"), "hello").unwrap();
    let at = |name: &str| daemon.path(name).display().to_string();
    daemon.ctl(["export", &run.id, "--dir", "/nope/x"]).exits(2).tells("/nope/x").tells("is not there");
    daemon.ctl(["export", &run.id, "--dir", &at("text/x")]).exits(2).tells(&at("text/x"));
    for (from, to, told) in [
        ("empty", "new", "it is empty"),
        ("text", "new", "nothing can be read"),
        ("absent", "new", "No such file"),
        ("work", "new", "it is no file"),
        ("home/.local/state/harness/harness.db", "absent/new", "absent/new cannot be made: No such file"),
        ("home/.local/state/harness/harness.db", "text", "is there already"),
    ] {
        daemon.sh(&format!("harnessd salvage {} {}", at(from), at(to))).exits(2).tells(told);
        assert!(!daemon.path("new").exists(), "{from}");
    }
    for (file, told) in [("absent", "absent"), ("empty", "empty"), ("text", "text")] {
        daemon.sh(&format!("harnessd restore --check {}", at(file))).exits(2).tells(told);
        daemon.ctl(["daemon", "restore", &at(file)]).exits(2).tells("was not put in place");
    }
    assert_eq!(daemon.submit(&says("x")).answer(), "x", "it serves on");
}

#[test]
fn a_restore_takes_no_journal_that_is_in_place_and_asks_before_it_moves_live_runs_aside() {
    let daemon = Daemon::start();
    let live = daemon.submit(&turn("").ask("well?").turn("done"));
    live.reach(RunState::Waiting);
    let (journal, other) = (daemon.state("harness.db"), daemon.path("other.db"));
    fs::hard_link(&journal, &other).unwrap();
    symlink(&journal, daemon.path("link.db")).unwrap();
    for file in [journal, other, daemon.path("link.db")] {
        let refused = daemon.ctl(["daemon", "restore", "-y", file.to_str().unwrap()]).exits(2);
        assert!(refused.stderr.contains("is the journal that is in place"), "{refused}");
    }
    fs::remove_file(daemon.path("other.db")).unwrap();
    let backup = daemon.path("backup.db").display().to_string();
    daemon.ctl(["daemon", "backup", &backup]).ok();
    let mut asks = daemon.ctl_on_terminal(["daemon", "restore", &backup]);
    asks.shows("1 live run is moved aside with the journal");
    asks.types("n\n");
    let (code, screen) = asks.finish();
    assert!(code == 2 && screen.contains("nothing was done"), "{screen}");
    assert_eq!(live.view().state, RunState::Waiting);
    let answered = daemon.ctl_on_terminal(["daemon", "restore", "--yes", &backup]).finish();
    assert_eq!(answered.0, 0, "{}", answered.1);
    assert!(daemon.state("replaced/harness.db").exists());
}

#[test]
fn an_entry_in_the_place_of_a_socket_is_told_by_its_kind() {
    let place = Place::new();
    let at = |name: &str| place.path(name).display().to_string();
    fs::write(place.path("file"), "").unwrap();
    symlink(place.path("nowhere"), place.path("link")).unwrap();
    for (name, told) in [("file", "is a file, and no socket"), ("work", "is a directory"), ("link", "leads nowhere")] {
        place.ctl(["--socket", &at(name), "list"]).exits(2).tells(told);
    }
    drop(UnixListener::bind(place.path("stale")).unwrap());
    place.ctl(["--no-start", "--socket", &at("stale"), "list"]).exits(7).tells("no daemon serves");
    let daemon = place.start();
    fs::remove_file(daemon.socket()).unwrap();
    fs::write(daemon.socket(), "").unwrap();
    daemon.ctl(["list"]).exits(7).tells("a file is in its place");
    // The advice is right.
    fs::remove_file(daemon.socket()).unwrap();
    eventually("it binds again", || daemon.ctl(["list"]).code == 0);
}

#[test]
fn parts_without_a_main_file_count_and_links_that_lead_nowhere_are_told() {
    let place = Place::new();
    let dir = place.path("home/.config/harness");
    fs::create_dir_all(dir.join("conf.d")).unwrap();
    fs::write(dir.join("conf.d/lane.toml"), "[lane.tool]\nwidth = 3\n").unwrap();
    assert_eq!(place.ctl(["lane", "tool", "--json"]).json()["width"], 3);
    place.ctl(["daemon", "reload"]).exits(0).tells("conf.d");
    place.ctl(["daemon", "stop"]).exits(0);
    let main = dir.join("config.toml");
    for to in [main.clone(), dir.join("nowhere")] {
        symlink(to, &main).unwrap();
        place.ctl(["list"]).exits(7).tells(main.to_str().unwrap());
        fs::remove_file(&main).unwrap();
    }
}

#[test]
#[ignore = "needs root, to mount"]
fn a_start_that_waits_for_a_file_says_so_and_serves_without_it() {
    need_root();
    let place = Place::new();
    let hanging = Hanging::at(&place.path("hanging"));
    place.configure(&format!(
        "[provider.local]\ndialect = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\n\
         api_key_file = \"{}/key\"\n",
        hanging.at
    ));
    let started = place.ctl(["daemon", "start"]).exits(0);
    assert!(started.stderr.contains("the daemon starts: it is reading the keys of the providers"), "{started}");
    let run = place.ask_with("hi", json!({"provider": "local"}));
    eventually("its key is missed", || place.ctl(["show", &run.id]).ok().contains("provider local (place 1): key"));
    assert!(place.ctl(["show", &run.id]).ok().contains("it gave no answer within 3 s"));
    place.ctl(["cancel", &run.id]).ok();
    place.ctl(["daemon", "stop"]).exits(0);
}
