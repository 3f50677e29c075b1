//! The log of a daemon that was started on demand: its content, and its size.

use std::fs;
use std::process::Stdio;

use harness_tests::{Place, Running, eventually, says};

/// Starts a daemon on demand with this variable.
#[track_caller]
fn start_with(place: &Place, filter: &str) {
    let mut command = place.command(harness_tests::program("harnessctl"));
    command.args(["daemon", "start"]).env("HARNESS_LOG", filter);
    Running::start_reading(command, Stdio::null()).finish().exits(0);
}

fn log(place: &Place) -> String {
    fs::read_to_string(place.state("harnessd.log")).unwrap_or_default()
}

/// B12: the daemon starts itself anew without what it sheds, and what it logs is not among that.
#[test]
fn the_variable_for_the_log_filter_has_an_effect() {
    for (filter, is_there, is_not) in [
        ("debug", &[" INFO ", "DEBUG"][..], &[][..]),
        ("info", &[" INFO "], &["DEBUG"]),
        ("warn", &[], &[" INFO ", "DEBUG"]),
        ("off", &[], &[" INFO ", "DEBUG", "ERROR"]),
        ("error,harnessd::observe=debug", &["DEBUG"], &["INFO harnessd::startup"]),
    ] {
        let place = Place::new();
        // There is something to shed, so that it does start itself anew.
        start_with(&place, filter);
        place.submit(&says("done")).wait();
        for word in is_there {
            eventually(&format!("{filter}: {word}"), || log(&place).contains(word));
        }
        place.ctl(["daemon", "stop", "-y"]).ok();
        assert!(is_not.iter().all(|word| !log(&place).contains(word)), "{filter}: {}", log(&place));
    }
    let place = Place::new();
    let mut command = place.command(harness_tests::program("harnessctl"));
    command.args(["daemon", "start"]).env("HARNESS_LOG", "loud");
    Running::start(command).finish().exits(7).tells("loud");
}

/// Entry B12 in `tests/README.md`.
#[test]
fn a_log_that_has_grown_is_put_aside_while_the_daemon_runs_and_every_line_is_there() {
    let place = Place::new();
    start_with(&place, "debug");
    place.ctl(["daemon", "stop", "-y"]).ok();
    // As a daemon of some weeks would have it: nearly full.
    let path = place.state("harnessd.log");
    let before = log(&place).len() as u64;
    fs::OpenOptions::new().append(true).open(&path).unwrap().set_len(10 * 1024 * 1024 - 6_000).unwrap();
    start_with(&place, "debug");
    let runs: Vec<String> = (0..60).map(|_| place.submit(&says("done")).id).collect();
    let both = || {
        let aside = fs::read(place.state("harnessd.log.1")).unwrap_or_default();
        String::from_utf8_lossy(&[aside, fs::read(&path).unwrap_or_default()].concat()).into_owned()
    };
    eventually("it is put aside", || place.state("harnessd.log.1").exists());
    place.ctl(["daemon", "stop", "-y"]).ok();
    let text = both();
    for run in &runs {
        let told = text.lines().filter(|line| line.contains(&**run) && line.contains("run-submitted")).count();
        assert_eq!(told, 1, "run {run}");
    }
    let sizes = ["harnessd.log", "harnessd.log.1"].map(|name| fs::metadata(place.state(name)).unwrap().len());
    assert!(sizes.iter().all(|size| *size <= 10 * 1024 * 1024) && before > 0, "{sizes:?}");
}
