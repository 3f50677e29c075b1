//! The rights of calls, and what is left of them: survivors are looked for in `/proc`.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::run::CallResult;
use harness_tests::{Daemon, PATIENCE, Place, Process, Run, Script, Value, eventually, json, now, runs};
use nix::sys::signal::Signal;

use crate::lane::open;

/// What the drain may take, with room for a machine that is busy.
const DRAINED: Duration = Duration::from_millis(3_500);

fn limited(text: &str, seconds: f64) -> Value {
    json!({ "command": text, "timeout": seconds })
}

/// A script that makes these calls, each in a turn of its own.
fn calls<const COUNT: usize>(calls: [Value; COUNT]) -> Script {
    calls.into_iter().fold(Script::default(), |script, call| script.turn("").call("shell", call)).turn("done")
}

/// Runs these commands, each in a turn of its own.
fn commands<const COUNT: usize>(lines: [&str; COUNT]) -> Script {
    calls(lines.map(|line| json!({ "command": line })))
}

/// The results of a run once it has ended.
fn results(run: &Run) -> Vec<Arc<CallResult>> {
    run.wait();
    run.results()
}

/// Makes one call to its end.
fn call(place: &Place, args: Value) -> Arc<CallResult> {
    results(&place.submit(&calls([args]))).remove(0)
}

fn shell(place: &Place, line: &str) -> Arc<CallResult> {
    call(place, json!({ "command": line }))
}

/// A daemon that is started behind a line of a shell, in a place with this configuration.
fn behind(line: &str, config: &str) -> Daemon {
    Place::configured(config).start_behind(&["sh", "-c", &format!("{line}\nexec \"$@\""), "sh"])
}

/// Waits until no living process has this in its command line.
fn until_gone(mark: &str) {
    eventually(&format!("{mark} is gone"), || Process::marked(mark).is_empty());
}

#[test]
fn a_background_child_that_holds_the_output_does_not_hold_the_call_and_ends_with_the_run() {
    let daemon = Daemon::start();
    for (text, mark) in
        [("sleep 31001 & printf hi", "sleep 31001"), ("sleep 31002 >/dev/null & printf hi", "sleep 31002")]
    {
        let begun = now();
        let result = shell(&daemon, text);
        assert!(begun.elapsed() < DRAINED, "{:?}", begun.elapsed());
        assert_eq!(&*result.envelope, "Exit code: 0\nhi");
        until_gone(mark);
    }
}

#[test]
fn whatever_holds_a_pipe_the_call_ends_in_time() {
    let daemon = Daemon::start();
    let begun = now();
    let result = shell(&daemon, "setsid sleep 31003 & echo ok");
    assert_eq!(&*result.envelope, "Exit code: 0\nok\n");
    let result = shell(&daemon, "exec bash -c 'exec > >(cat; sleep 31004) 2>&1 && true'");
    assert_eq!(result.exit_code, Some(0));
    let text = "mkfifo p; (while :; do echo c; sleep 0.1; done)>p & cat p";
    let result = call(&daemon, limited(text, 0.5));
    assert_eq!((result.exit_code, result.timed_out), (Some(124), true));
    assert!(begun.elapsed() < 3 * DRAINED);
    ["sleep 31003", "sleep 31004", "mkfifo p"].into_iter().for_each(until_gone);
}

#[test]
fn there_is_nothing_to_read_and_no_terminal() {
    let daemon = Daemon::start();
    let result = shell(&daemon, "cat; (: </dev/tty) 2>/dev/null && echo terminal; echo end");
    assert_eq!(&*result.envelope, "Exit code: 0\nend\n");
}

#[test]
fn a_process_gets_back_what_the_daemon_has_changed_for_itself() {
    let daemon = behind("umask 027; ulimit -S -n 200; trap '' HUP USR1", "");
    let result = shell(&daemon, "umask; ulimit -n; grep -E 'Sig(Ign|Blk)' /proc/self/status | cut -f2");
    // Of the signals, two beyond the classic ones are the C library's own affair.
    let told: Vec<&str> = result.envelope.lines().skip(1).collect();
    assert_eq!(told[..2], ["0027", "200"]);
    assert!(told[2..].iter().all(|mask| u64::from_str_radix(mask, 16).unwrap() & 0x7FFF_FFFF == 0), "{told:?}");
}

#[test]
fn a_time_limit_leaves_no_process_whatever_they_do() {
    let daemon = Daemon::start();
    for (text, mark) in [
        ("sh -c 'sleep 31011 | cat' | sh -c 'cat; sleep 31011'", "31011"),
        ("for c in 1 2 3; do (: 31012; while :; do :; done)& done; sleep 60", "31012"),
        ("env -i setsid sh -c '(setsid sleep 31013 &)'; sleep 31013", "31013"),
        ("trap '' TERM; sh -c 'trap \"\" TERM; sleep 31014; sleep 31014' & sleep 31014; sleep 31014", "31014"),
        (": 31015; (while :; do (setsid sleep 0.02 &); done) & sleep 60", "31015"),
    ] {
        let result = call(&daemon, limited(text, 0.3));
        assert_eq!((result.exit_code, result.timed_out), (Some(124), true), "{result:?}");
        assert!(result.signal.is_some());
        assert_eq!(Process::marked(mark), [], "{text}");
    }
}

#[test]
fn a_cancel_leaves_no_process() {
    let daemon = Daemon::start();
    let run = daemon.submit(&runs("trap '' TERM; env -i setsid sleep 31021 & sleep 31021; sleep 31021"));
    eventually("they run", || Process::marked("sleep 31021").len() == 3);
    run.cancel();
    let result = results(&run).remove(0);
    assert_eq!((result.exit_code, result.signal, result.cancelled), (Some(137), Some(9), true));
    assert_eq!(Process::marked("sleep 31021"), []);
}

#[test]
fn when_the_daemon_is_killed_everything_is_gone_within_three_seconds_and_no_other_process_is_touched() {
    let daemon = Daemon::start();
    let mut stranger = Command::new("sleep").arg("31032").spawn().unwrap();
    daemon.submit(&runs("trap '' TERM; env -i setsid sleep 31031 & sleep 31031; sleep 31031"));
    daemon.submit(&commands(["sleep 31031 >/dev/null 2>&1 &", "sleep 31031"]));
    // This one stops its keeper, which then would not see that the daemon is gone.
    daemon.submit(&runs("sleep 1; kill -STOP $PPID; sleep 31031"));
    let process = daemon.process();
    eventually("they run", || {
        Process::marked("sleep 31031").len() >= 6 && process.children().into_iter().any(Process::is_stopped)
    });
    let keepers = process.children();
    let _place = daemon.crash();
    let begun = now();
    until_gone("sleep 31031");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    keepers.into_iter().for_each(Process::is_gone_soon);
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn when_the_daemon_stops_no_process_is_left() {
    let mut daemon = Daemon::start();
    daemon.submit(&commands(["sleep 31041 >/dev/null 2>&1 & setsid sleep 31041 >/dev/null 2>&1 &", "sleep 31041"]));
    eventually("they run", || Process::marked("sleep 31041").len() >= 3);
    let keepers = daemon.process().children();
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.ended(PATIENCE).code(), Some(0));
    assert_eq!(Process::marked("sleep 31041"), []);
    assert!(keepers.iter().all(|keeper| !keeper.is_alive()));
}

#[test]
fn a_server_answers_later_calls_of_its_run_is_shown_and_ends_with_it() {
    let daemon = Daemon::start();
    let serve =
        "mkfifo asked answered; (: 31051; while read line <asked; do echo \"got $line\"; echo noise >answered; done) &";
    let ask = "echo hello >asked; cat answered";
    let run = daemon.submit(&commands([serve, ask, "touch there; until [ -e go ]; do sleep 0.02; done"]));
    eventually("the third call", || daemon.work().join("there").exists());
    let shown = daemon.rpc("run.show", json!({ "run": run.id }));
    let lines: Vec<&str> =
        shown["processes"].as_array().unwrap().iter().filter_map(|of| of["command"].as_str()).collect();
    assert!(
        lines.iter().any(|line| line.contains("31051")) && lines.iter().any(|line| line.contains("until")),
        "{lines:?}"
    );
    open(&daemon, "go");
    let results = results(&run);
    assert_eq!(&*results[1].envelope, "Exit code: 0\nnoise\n");
    until_gone("31051");
    let output = daemon.rpc("run.output", json!({"run": run.id, "call": results[0].call, "stream": "stdout"}));
    assert_eq!(output["total"], 10);
}

#[test]
fn harm_to_a_keeper_touches_its_own_call_alone() {
    let daemon = Daemon::start();
    let other = daemon.submit(&runs("until [ -e go ]; do sleep 0.02; done; echo fine"));
    for text in ["kill $PPID; echo on", "kill -HUP $PPID; echo on", "kill -STOP $PPID; echo on"] {
        assert_eq!(&*shell(&daemon, text).envelope, "Exit code: 0\non\n", "{text}");
    }
    let result = shell(&daemon, "kill 0");
    assert_eq!((result.exit_code, result.signal), (Some(143), Some(15)));
    let text =
        "echo said; setsid sleep 31061 & env -i setsid sh -c '(setsid sleep 31061 &)'; kill -9 $PPID; sleep 31061";
    let result = shell(&daemon, text);
    assert!(result.exit_code.is_none() && result.envelope.contains("was killed"), "{result:?}");
    assert_eq!(result.stdout.as_ref().map(|stdout| stdout.bytes), Some(5));
    assert_eq!(Process::marked("sleep 31061"), []);
    // Also a command that is killed in the background, while no process listens to it.
    let run = daemon.submit(&commands([
        "(sleep 0.2; kill -9 $PPID; sleep 31062) >/dev/null 2>&1 & echo $PPID",
        "until [ -e go ]; do sleep 0.02; done",
    ]));
    eventually("the keeper is killed", || Process::marked("sleep 31062").is_empty() && has_good_keepers(&daemon));
    open(&daemon, "go");
    assert_eq!(results(&run).len(), 2);
    assert_eq!(&*results(&other)[0].envelope, "Exit code: 0\nfine\n");
}

/// Whether all children of the daemon are keepers that live.
fn has_good_keepers(daemon: &Daemon) -> bool {
    let children = daemon.process().children();
    children.iter().all(|child| child.is_alive() && child.command_line().contains("keeper"))
}

#[test]
fn five_hundred_calls_with_few_descriptors_leave_none_behind_and_no_keeper_too_many() {
    let many = if std::env::var_os("HARNESS_SOAK").is_some() { 5_000 } else { 500 };
    let daemon = behind("ulimit -n 256", "");
    let rounds = |count: usize, each: usize| {
        let turn = |script: Script, _| (0..50).fold(script.turn(""), |script, _| script.shell("true"));
        let script = (0..each / 50).fold(Script::default(), turn).turn("done");
        for run in daemon.submit_many(count, &script) {
            let results = results(&run);
            assert_eq!(results.len(), each);
            assert!(results.iter().all(|result| result.exit_code == Some(0)));
        }
    };
    let open = || daemon.rpc("daemon.status", json!({}))["open_files"].as_u64().unwrap();
    rounds(10, 50);
    let before = open();
    rounds(10, many / 10);
    // A connection may be closed a moment after its reply.
    eventually("descriptors come back", || open() <= before + 2);
    assert!(daemon.process().children().len() <= 16 && has_good_keepers(&daemon));
}

#[test]
fn many_that_write_without_end_take_bounded_memory_and_end_in_time() {
    let (many, bytes) = if std::env::var_os("HARNESS_SOAK").is_some() { (100, 256_000_000) } else { (24, 4_000_000) };
    let daemon = Daemon::configured("[lane.tool]\nwidth = 100\n[tool.shell]\noutput_bytes = 100000\n");
    shell(&daemon, "true");
    let resident = || daemon.process().resident_bytes();
    let before = resident();
    let text = format!("head -c {bytes} /dev/zero | tr '\\0' x; head -c {bytes} /dev/zero >&2; exec yes");
    let begun = now();
    let all = daemon.submit_many(many, &calls([limited(&text, 3.0)]));
    let mut most = before;
    eventually("they end", || {
        most = most.max(resident());
        let runs = daemon.rpc("run.list", json!({"select": {"states": ["queued", "thinking", "acting"]}}));
        runs["runs"].as_array().unwrap().is_empty()
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(most < before + (32 << 20), "{before} bytes at first, then {most}");
    for run in all {
        let result = results(&run).remove(0);
        assert_eq!(result.exit_code, Some(124));
        for stream in [&result.stdout, &result.stderr].into_iter().flatten() {
            let Some(path) = &stream.path else { continue };
            assert_eq!(fs::metadata(&**path).unwrap().len(), stream.bytes.min(100_000));
        }
    }
}

#[test]
fn a_terminal_has_its_size_one_stream_and_an_end_of_input_and_leaves_no_process() {
    let daemon = Daemon::start();
    let text = "stty size; test -t 0 && test -t 1 && test -t 2 && echo three; echo err >&2; cat; tty </dev/tty";
    let result = call(&daemon, json!({ "command": text, "tty": true, "timeout": 20 }));
    assert!(result.envelope.starts_with("Exit code: 0\n40 120\r\nthree\r\nerr\r\n/dev/"), "{:?}", result.envelope);
    assert_eq!((result.stderr.as_ref().map(|stderr| stderr.bytes), result.exit_code), (Some(0), Some(0)));
    let result = call(&daemon, json!({"argv": ["sh", "-c", "kill -9 $$"], "tty": true}));
    assert_eq!((result.exit_code, result.signal), (Some(137), Some(9)));
    let result = call(&daemon, json!({"argv": ["no-such-program"], "tty": true}));
    assert_eq!(result.exit_code, Some(127));
    let begun = now();
    let text = "sh -c 'trap \"\" HUP; sleep 31071' & sleep 31071";
    let result = call(&daemon, json!({"command": text, "tty": true, "timeout": 0.3}));
    assert_eq!(result.exit_code, Some(124));
    assert!(begun.elapsed() < DRAINED);
    assert_eq!(Process::marked("31071"), []);
}

#[test]
fn limits_hold_and_are_named() {
    let limits =
        "cpu_seconds = 1\naddress_space_bytes = 268435456\nopen_files = 40\nfile_size_bytes = 100000\nprocesses = 5000";
    let daemon = Daemon::configured(&format!("[tool.shell.limits]\n{limits}\n"));
    let result = shell(&daemon, "ulimit -n; ulimit -H -n; ulimit -v; ulimit -p");
    assert_eq!(&*result.envelope, "Exit code: 0\n40\n40\n262144\n5000\n");
    let result = shell(&daemon, "while :; do :; done");
    assert_eq!((result.exit_code, result.signal), (Some(152), Some(24)));
    assert_eq!(&*result.envelope, "Exit code: 152\n[ended by the limit of CPU time, 1 s]\n");
    assert!(result.cpu_seconds.unwrap() > 0.3);
    let result = shell(&daemon, "head -c 200000 /dev/zero >file; exit $?");
    assert!(result.envelope.ends_with("[ended by the limit of file size, 100000 bytes]\n"), "{result:?}");
    let result = shell(&daemon, "exec dd if=/dev/zero of=/dev/null bs=512M count=1");
    assert_eq!((result.is_error, result.signal), (true, None));
}

#[test]
fn a_directory_that_goes_away_is_told_and_the_run_goes_on() {
    let daemon = Daemon::start();
    let [remove, say] = ["rm -rf \"$PWD\"", "echo hi"].map(|line| json!({ "command": line }));
    let run = daemon.submit(&calls([remove, say, json!({"command": "echo hi", "cwd": "/"})]));
    let results = results(&run);
    assert!(results[1].envelope.contains("does not exist"), "{}", results[1].envelope);
    assert_eq!(&*results[2].envelope, "Exit code: 0\nhi\n");
}

#[test]
fn a_daemon_whose_keepers_are_killed_starts_others() {
    let daemon = Daemon::start();
    for _ in 0..3 {
        assert_eq!(shell(&daemon, "true").exit_code, Some(0));
        daemon.process().children().iter().for_each(|keeper| keeper.try_signal(Signal::SIGKILL));
    }
    eventually("they are reaped", || daemon.process().children().iter().all(|child| child.is_alive()));
    assert_eq!(shell(&daemon, "true").exit_code, Some(0));
}
