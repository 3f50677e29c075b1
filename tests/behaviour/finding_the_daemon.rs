//! A daemon is found, used and stopped wherever its socket is, or was.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use harness_tests::{Daemon, Place, Process, eventually, json, program, runs, says};
use nix::sys::signal::Signal;

/// Entry B2 in `tests/README.md`.
#[test]
fn a_daemon_whose_socket_is_gone_binds_it_again_and_every_command_gets_on() {
    type Loss = fn(&Path);
    let losses: [(&str, Loss, &[&str]); 6] = [
        ("a logout", |run| fs::remove_dir_all(run.join("harness")).unwrap(), &["list", "--all"]),
        ("a cleaner of old files", |run| fs::remove_file(run.join("harness/control.sock")).unwrap(), &["lane"]),
        ("and of locks", |run| fs::remove_file(run.join("harness/control.sock.lock")).unwrap(), &["pending"]),
        ("a move", |run| fs::rename(run.join("harness"), run.join("old")).unwrap(), &["daemon", "start"]),
        (
            "one that died there",
            |run| {
                fs::remove_file(run.join("harness/control.sock")).unwrap();
                drop(UnixListener::bind(run.join("harness/control.sock")).unwrap());
            },
            &["usage"],
        ),
        ("a stop", |run| fs::remove_dir_all(run.join("harness")).unwrap(), &["daemon", "stop"]),
    ];
    let mut daemon = Daemon::start();
    let waiting = daemon.submit(&runs("sleep 600"));
    let mut stays = daemon.connect();
    for (name, lose, words) in losses {
        lose(&daemon.path("run"));
        let output = daemon.ctl(words);
        assert_eq!(output.code, 0, "{name}: {output}");
        if !words.contains(&"stop") {
            assert_eq!(daemon.daemon_process(), Some(daemon.process()), "{name}: no other was started");
            assert_eq!(stays.call("run.show", json!({"run": waiting.id}))["run"]["id"], waiting.id, "{name}");
        }
    }
    assert_eq!(daemon.ended(harness_tests::PATIENCE).code(), Some(0));
}

/// Entry B2 in `tests/README.md`.
#[test]
fn a_daemon_that_cannot_be_reached_any_more_is_told_by_its_pid_and_stopped_all_the_same() {
    type Loss = fn(&Path);
    let losses: [(&str, Loss); 3] = [
        ("a file in its place", |socket| {
            fs::remove_file(socket).unwrap();
            fs::write(socket, "precious").unwrap();
        }),
        ("a directory in its place", |socket| {
            fs::remove_file(socket).unwrap();
            fs::create_dir(socket).unwrap();
        }),
        ("a file in place of its directory", |socket| {
            fs::remove_dir_all(socket.parent().unwrap()).unwrap();
            fs::write(socket.parent().unwrap(), "").unwrap();
        }),
    ];
    for (name, lose) in losses {
        let mut daemon = Daemon::start();
        lose(&daemon.socket());
        let list = daemon.ctl(["list"]).exits(7).tells(&format!("pid {}", daemon.process().0));
        assert!(!list.stderr.contains("daemon start"), "{name}: {list}");
        daemon.ctl(["daemon", "stop"]).exits(0).tells(&format!("stopped: pid {}", daemon.process().0));
        assert_eq!(daemon.ended(harness_tests::PATIENCE).code(), Some(0), "{name}");
        daemon.ctl(["daemon", "stop"]).exits(0).tells("does not run");
    }
}

#[test]
fn a_hangup_lets_a_daemon_look_after_its_socket_at_once() {
    let daemon = Daemon::start();
    fs::remove_dir_all(daemon.path("run/harness")).unwrap();
    daemon.signal(Signal::SIGHUP);
    eventually("it is bound again", || daemon.socket().exists());
    assert_eq!(daemon.submit(&says("here")).answer(), "here");
}

/// Another way to the same home: another runtime directory, as under cron or ssh.
fn other_way(place: &Place, more: &[(&str, &str)], words: &[&str]) -> harness_tests::Output {
    let mut command = place.command(program("harnessctl"));
    let other = place.path("other-run");
    fs::create_dir_all(&other).unwrap();
    command.env("XDG_RUNTIME_DIR", other).envs(more.iter().copied()).args(words);
    harness_tests::Running::start(command).finish()
}

/// Entry B3 in `tests/README.md`.
#[test]
fn a_daemon_that_holds_the_state_directory_is_used_by_its_own_socket_from_wherever_it_is_asked() {
    let daemon = Daemon::start();
    let script = daemon.script_file(&says("found"));
    for words in [
        ["submit", "--wait", "--script", &script].as_slice(),
        &["list", "--all"],
        &["daemon", "status"],
        &["lane"],
        &["--no-start", "pending"],
        &["daemon", "start"],
    ] {
        other_way(&daemon, &[], words).exits(0);
    }
    assert!(!daemon.path("other-run/harness").exists(), "no other daemon was started");
    let status = other_way(&daemon, &[], &["daemon", "status", "--json"]).json();
    assert_eq!(status["pid"], daemon.process().0);
    // A client that names a socket wants that one.
    let named = daemon.path("named.sock").display().to_string();
    let pid = format!("pid {}", daemon.process().0);
    let socket = daemon.socket().display().to_string();
    for (more, words) in [
        (&[][..], &["--socket", &named, "list"][..]),
        (&[("HARNESS_SOCKET", named.as_str())], &["submit", "--script", &script]),
        (&[], &["--socket", &named, "--no-start", "lane"]),
        (&[], &["--socket", &named, "daemon", "stop"]),
        (&[], &["--socket", &named, "daemon", "start"]),
    ] {
        other_way(&daemon, more, words).exits(7).tells(&pid).tells(&socket);
    }
    other_way(&daemon, &[], &["daemon", "stop"]).exits(0).tells("stopped");
}

/// Entry B3 in `tests/README.md`.
#[test]
fn a_daemon_that_cannot_start_says_why_at_once_in_its_own_words() {
    let daemon = Daemon::start();
    let pid = Process(daemon.process().0);
    // Another state directory behind the same socket, whose file is gone and whose lock is held.
    daemon.signal(Signal::SIGSTOP);
    eventually("it stands still", || pid.is_stopped());
    fs::remove_file(daemon.socket()).unwrap();
    let state = daemon.path("other-state").display().to_string();
    let mut command = daemon.command(program("harnessctl"));
    command.env("HARNESS_STATE_DIR", state).args(["list"]);
    let told = harness_tests::Running::start(command).finish().exits(7);
    daemon.signal(Signal::SIGCONT);
    let told = told.tells(&format!("another daemon (pid {}) holds", pid.0));
    assert!(!told.stderr.contains("harnessctl daemon start"), "{told}");
}
