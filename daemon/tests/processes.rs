//! The rights of calls, and their leftovers: drives the real daemon over its socket, and looks for survivors in
//! `/proc`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub
)]

#[path = "processes/place.rs"]
mod place;

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use place::{Place, children, envelope, marked, processes, signal, until};
use serde_json::{Value, json};

/// What the drain may take, with room for a machine that is busy.
const DRAINED: Duration = Duration::from_millis(3_500);

fn command(text: &str) -> Value {
    json!({ "command": text })
}

fn limited(text: &str, seconds: f64) -> Value {
    json!({ "command": text, "timeout": seconds })
}

#[test]
fn a_background_child_that_holds_the_output_does_not_hold_the_call_and_ends_with_the_run() {
    let place = Place::new();
    for (text, mark) in
        [("sleep 31001 & printf hi", "sleep 31001"), ("sleep 31002 >/dev/null & printf hi", "sleep 31002")]
    {
        let begun = Instant::now();
        let result = place.shell(text);
        assert!(begun.elapsed() < DRAINED, "{:?}", begun.elapsed());
        assert_eq!(envelope(&result), "Exit code: 0\nhi");
        until(mark, || marked(mark).is_empty());
    }
}

#[test]
fn whatever_holds_a_pipe_the_call_ends_in_time() {
    let place = Place::new();
    let begun = Instant::now();
    let result = place.shell("setsid sleep 31003 & echo ok");
    assert_eq!(envelope(&result), "Exit code: 0\nok\n");
    let result = place.shell("exec bash -c 'exec > >(cat; sleep 31004) 2>&1 && true'");
    assert_eq!(result["exit_code"], 0);
    let text = "mkfifo p; (while :; do echo c; sleep 0.1; done)>p & cat p";
    let result = place.call(&limited(text, 0.5));
    assert_eq!((&result["exit_code"], &result["timed_out"]), (&json!(124), &json!(true)));
    assert!(begun.elapsed() < 3 * DRAINED);
    for mark in ["sleep 31003", "sleep 31004", "mkfifo p"] {
        until(mark, || marked(mark).is_empty());
    }
}

#[test]
fn there_is_nothing_to_read_and_no_terminal() {
    let place = Place::new();
    let result = place.shell("cat; (: </dev/tty) 2>/dev/null && echo terminal; echo end");
    assert_eq!(envelope(&result), "Exit code: 0\nend\n");
}

#[test]
fn a_process_gets_back_what_the_daemon_has_changed_for_itself() {
    let place = Place::behind("umask 027; ulimit -S -n 200; trap '' HUP USR1", "");
    let result = place.shell("umask; ulimit -n; grep -E 'Sig(Ign|Blk)' /proc/self/status | cut -f2");
    // Of the signals, two beyond the classic ones are the C library's own affair.
    let told: Vec<&str> = envelope(&result).lines().skip(1).collect();
    assert_eq!(told[..2], ["0027", "200"]);
    assert!(told[2..].iter().all(|mask| u64::from_str_radix(mask, 16).unwrap() & 0x7FFF_FFFF == 0), "{told:?}");
}

#[test]
fn a_time_limit_leaves_nobody_whatever_they_do() {
    let place = Place::new();
    for (text, mark) in [
        ("sh -c 'sleep 31011 | cat' | sh -c 'cat; sleep 31011'", "31011"),
        ("for c in 1 2 3; do (: 31012; while :; do :; done)& done; sleep 60", "31012"),
        ("env -i setsid sh -c '(setsid sleep 31013 &)'; sleep 31013", "31013"),
        ("trap '' TERM; sh -c 'trap \"\" TERM; sleep 31014; sleep 31014' & sleep 31014; sleep 31014", "31014"),
        (": 31015; (while :; do (setsid sleep 0.02 &); done) & sleep 60", "31015"),
    ] {
        let result = place.call(&limited(text, 0.3));
        assert_eq!((&result["exit_code"], &result["timed_out"]), (&json!(124), &json!(true)), "{result}");
        assert!(result["signal"].is_number());
        assert_eq!(marked(mark), Vec::<i32>::new(), "{text}");
    }
}

#[test]
fn a_cancel_leaves_nobody() {
    let place = Place::new();
    let run = place.submit(&[command("trap '' TERM; env -i setsid sleep 31021 & sleep 31021; sleep 31021")]);
    until("they run", || marked("sleep 31021").len() == 3);
    place.ask("run.cancel", &json!({"select": {"runs": [run]}}));
    let result = place.results(&run).pop().unwrap();
    assert_eq!((&result["exit_code"], &result["signal"], &result["cancelled"]), (&json!(137), &json!(9), &json!(true)));
    assert_eq!(marked("sleep 31021"), Vec::<i32>::new());
}

#[test]
fn when_the_daemon_is_killed_everything_is_gone_within_three_seconds_and_nobody_else_is_touched() {
    let mut place = Place::new();
    let mut stranger = std::process::Command::new("sleep").arg("31032").spawn().unwrap();
    // The last one stops its keeper, which then would not see that the daemon is gone.
    place.submit(&[command("trap '' TERM; env -i setsid sleep 31031 & sleep 31031; sleep 31031")]);
    place.submit(&[command("sleep 31031 >/dev/null 2>&1 &"), command("sleep 31031")]);
    place.submit(&[command("sleep 1; kill -STOP $PPID; sleep 31031")]);
    until("they run", || {
        marked("sleep 31031").len() >= 6 && children(place.pid()).iter().any(|seen| seen.state == 'T')
    });
    let keepers: Vec<i32> = children(place.pid()).iter().map(|seen| seen.pid).collect();
    place.kill();
    let took = until("they end", || marked("sleep 31031").is_empty());
    assert!(took < Duration::from_secs(3), "{took:?}");
    until("the keepers end", || processes().iter().all(|seen| seen.state == 'Z' || !keepers.contains(&seen.pid)));
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn when_the_daemon_stops_nobody_is_left() {
    let mut place = Place::new();
    place.submit(&[
        command("sleep 31041 >/dev/null 2>&1 & setsid sleep 31041 >/dev/null 2>&1 &"),
        command("sleep 31041"),
    ]);
    until("they run", || marked("sleep 31041").len() >= 3);
    let keepers: Vec<i32> = children(place.pid()).iter().map(|seen| seen.pid).collect();
    place.stop();
    assert_eq!(marked("sleep 31041"), Vec::<i32>::new());
    assert!(processes().iter().all(|seen| !keepers.contains(&seen.pid)));
}

#[test]
fn a_server_answers_later_calls_of_its_run_is_shown_and_ends_with_it() {
    let place = Place::new();
    let serve =
        "mkfifo asked answered; (: 31051; while read line <asked; do echo \"got $line\"; echo noise >answered; done) &";
    let ask = "echo hello >asked; cat answered";
    let run =
        place.submit(&[command(serve), command(ask), command("touch there; until [ -e go ]; do sleep 0.02; done")]);
    until("the third call", || place.work("there").exists());
    let shown = place.ask("run.show", &json!({ "run": run }));
    let lines: Vec<&str> =
        shown["processes"].as_array().unwrap().iter().filter_map(|of| of["command"].as_str()).collect();
    assert!(
        lines.iter().any(|line| line.contains("31051")) && lines.iter().any(|line| line.contains("until")),
        "{lines:?}"
    );
    fs::write(place.work("go"), "").unwrap();
    let results = place.results(&run);
    assert_eq!(envelope(&results[1]), "Exit code: 0\nnoise\n");
    until("the server ends", || marked("31051").is_empty());
    let call = results[0]["call"].as_str().unwrap();
    let output = place.ask("run.output", &json!({"run": run, "call": call, "stream": "stdout"}));
    assert_eq!(output["total"], 10);
}

#[test]
fn what_a_call_does_to_its_keeper_touches_nobody_else() {
    let place = Place::new();
    let other = place.submit(&[command("until [ -e go ]; do sleep 0.02; done; echo fine")]);
    for text in ["kill $PPID; echo on", "kill -HUP $PPID; echo on", "kill -STOP $PPID; echo on"] {
        assert_eq!(envelope(&place.shell(text)), "Exit code: 0\non\n", "{text}");
    }
    let result = place.shell("kill 0");
    assert_eq!((&result["exit_code"], &result["signal"]), (&json!(143), &json!(15)));
    let text =
        "echo said; setsid sleep 31061 & env -i setsid sh -c '(setsid sleep 31061 &)'; kill -9 $PPID; sleep 31061";
    let result = place.shell(text);
    assert!(result["exit_code"].is_null() && envelope(&result).contains("was killed"), "{result}");
    assert_eq!(result["stdout"]["bytes"], 5);
    assert_eq!(marked("sleep 31061"), Vec::<i32>::new());
    // Also a command that is killed in the background, while no process listens to it.
    let run = place.submit(&[
        command("(sleep 0.2; kill -9 $PPID; sleep 31062) >/dev/null 2>&1 & echo $PPID"),
        command("until [ -e go ]; do sleep 0.02; done"),
    ]);
    until("the keeper is killed", || {
        let left = children(place.pid());
        marked("sleep 31062").is_empty() && left.iter().all(|seen| seen.state != 'Z' && seen.line.contains("keeper"))
    });
    fs::write(place.work("go"), "").unwrap();
    assert_eq!(place.results(&run).len(), 2);
    assert_eq!(envelope(&place.results(&other)[0]), "Exit code: 0\nfine\n");
}

#[test]
fn five_hundred_calls_with_few_descriptors_leave_none_behind_and_no_keeper_too_many() {
    let calls = if std::env::var_os("HARNESS_SOAK").is_some() { 5_000 } else { 500 };
    let place = Place::behind("ulimit -n 256", "");
    let turns = |calls: usize| {
        let call = json!({"tool": "shell", "args": {"command": "true"}});
        let mut turns = vec![json!({ "call": vec![call; 50] }); calls / 50];
        turns.push(json!({"text": "done"}));
        turns
    };
    let rounds = |count: usize, each: usize| {
        let runs: Vec<String> = (0..count).map(|_| place.submit_turns(&turns(each))).collect();
        for run in runs {
            let results = place.results(&run);
            assert_eq!(results.len(), each);
            assert!(results.iter().all(|result| result["exit_code"] == 0));
        }
    };
    let open = || place.ask("daemon.status", &json!({}))["open_files"].as_u64().unwrap();
    rounds(10, 50);
    let before = open();
    rounds(10, calls / 10);
    // A connection may be closed a moment after its reply.
    until("descriptors come back", || open() <= before + 2);
    let left = children(place.pid());
    assert!(left.len() <= 16 && left.iter().all(|seen| seen.state != 'Z' && seen.line.contains("keeper")));
}

#[test]
fn many_that_write_without_end_take_bounded_memory_and_end_in_time() {
    let (many, bytes) = if std::env::var_os("HARNESS_SOAK").is_some() { (100, 256_000_000) } else { (24, 4_000_000) };
    let place = Place::behind("", "[lane.tool]\nwidth = 100\n[tool.shell]\noutput_bytes = 100000\n");
    place.shell("true");
    let resident = || place.ask("daemon.status", &json!({}))["rss_bytes"].as_u64().unwrap();
    let before = resident();
    let text = format!("head -c {bytes} /dev/zero | tr '\\0' x; head -c {bytes} /dev/zero >&2; exec yes");
    let begun = Instant::now();
    let runs: Vec<String> = (0..many).map(|_| place.submit(&[limited(&text, 3.0)])).collect();
    let mut most = before;
    until("they end", || {
        most = most.max(resident());
        let runs = place.ask("run.list", &json!({"select": {"states": ["queued", "thinking", "acting"]}}));
        runs["runs"].as_array().unwrap().is_empty()
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(most < before + (32 << 20), "{before} bytes at first, then {most}");
    for run in runs {
        let result = place.results(&run).pop().unwrap();
        assert_eq!(result["exit_code"], 124);
        let (stdout, stderr) = (&result["stdout"], &result["stderr"]);
        for stream in [stdout, stderr] {
            let Some(path) = stream["path"].as_str() else { continue };
            assert_eq!(fs::metadata(path).unwrap().len(), stream["bytes"].as_u64().unwrap().min(100_000));
        }
    }
}

#[test]
fn a_terminal_has_its_size_one_stream_and_an_end_of_input_and_leaves_nobody() {
    let place = Place::new();
    let tty = |text: &str| json!({ "command": text, "tty": true, "timeout": 20 });
    let result = place
        .call(&tty("stty size; test -t 0 && test -t 1 && test -t 2 && echo three; echo err >&2; cat; tty </dev/tty"));
    let text = envelope(&result);
    assert!(text.starts_with("Exit code: 0\n40 120\r\nthree\r\nerr\r\n/dev/"), "{text:?}");
    assert_eq!((&result["stderr"]["bytes"], &result["exit_code"]), (&json!(0), &json!(0)));
    let result = place.call(&json!({"argv": ["sh", "-c", "kill -9 $$"], "tty": true}));
    assert_eq!((&result["exit_code"], &result["signal"]), (&json!(137), &json!(9)));
    let result = place.call(&json!({"argv": ["no-such-program"], "tty": true}));
    assert_eq!(result["exit_code"], 127);
    let begun = Instant::now();
    let result = place
        .call(&json!({"command": "sh -c 'trap \"\" HUP; sleep 31071' & sleep 31071", "tty": true, "timeout": 0.3}));
    assert_eq!(result["exit_code"], 124);
    assert!(begun.elapsed() < DRAINED);
    assert_eq!(marked("31071"), Vec::<i32>::new());
}

#[test]
fn limits_hold_and_are_named() {
    let limits =
        "cpu_seconds = 1\naddress_space_bytes = 268435456\nopen_files = 40\nfile_size_bytes = 100000\nprocesses = 5000";
    let place = Place::behind("", &format!("[tool.shell.limits]\n{limits}\n"));
    let result = place.shell("ulimit -n; ulimit -H -n; ulimit -v; ulimit -p");
    assert_eq!(envelope(&result), "Exit code: 0\n40\n40\n262144\n5000\n");
    let result = place.shell("while :; do :; done");
    assert_eq!((&result["exit_code"], &result["signal"]), (&json!(152), &json!(24)));
    assert_eq!(envelope(&result), "Exit code: 152\n[ended by the limit of CPU time, 1 s]\n");
    assert!(result["cpu_seconds"].as_f64().unwrap() > 0.3);
    let result = place.shell("head -c 200000 /dev/zero >file; exit $?");
    assert!(envelope(&result).ends_with("[ended by the limit of file size, 100000 bytes]\n"), "{result}");
    let result = place.shell("exec dd if=/dev/zero of=/dev/null bs=512M count=1");
    assert_eq!((&result["is_error"], &result["signal"]), (&json!(true), &Value::Null));
}

#[test]
fn a_directory_that_goes_away_is_told_and_the_run_goes_on() {
    let place = Place::new();
    let run =
        place.submit(&[command("rm -rf \"$PWD\""), command("echo hi"), json!({"command": "echo hi", "cwd": "/"})]);
    let results = place.results(&run);
    assert!(envelope(&results[1]).contains("does not exist"), "{}", envelope(&results[1]));
    assert_eq!(envelope(&results[2]), "Exit code: 0\nhi\n");
}

#[test]
fn a_daemon_whose_keepers_are_killed_starts_others() {
    let place = Place::new();
    for _ in 0..3 {
        assert_eq!(place.shell("true")["exit_code"], 0);
        children(place.pid()).iter().for_each(|keeper| signal(keeper.pid, Signal::SIGKILL));
    }
    until("they are reaped", || children(place.pid()).iter().all(|seen| seen.state != 'Z'));
    assert_eq!(place.shell("true")["exit_code"], 0);
}
