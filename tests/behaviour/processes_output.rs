//! Output: bounded in the daemon, whole on disk up to its quota, counted exactly, readable in any range while it
//! grows and afterwards.

use std::fs;
use std::time::Duration;

use harness_protocol::rpc::OutputReply;
use harness_protocol::run::StreamInfo;
use harness_tests::{Daemon, Run, Running, eventually, json, need, now, program, runs, turn};

/// Bytes of the envelope that each stream may have, by default.
const KEPT: u64 = 32 * 1024;

fn soaks() -> bool {
    std::env::var_os("HARNESS_SOAK").is_some()
}

/// A command with much output: its text, its time limit, and the bytes of both streams where they are known.
struct Noisy {
    command: String,
    timeout: f64,
    bytes: Option<(u64, u64)>,
}

/// Without end, in one line, and on the other stream.
fn noisy(line: u64, errors: u64) -> [Noisy; 3] {
    let known = |command: String, bytes| Noisy { command, timeout: 300.0, bytes: Some(bytes) };
    [
        Noisy { command: "exec timeout 10 yes".to_owned(), timeout: 1.0, bytes: None },
        known(format!("head -c {line} /dev/zero | tr '\\0' x"), (line, 0)),
        known(format!("head -c {errors} /dev/zero >&2"), (0, errors)),
    ]
}

/// Its file has it up to the quota, and what the envelope has and has not adds up.
fn assert_kept(info: &StreamInfo, quota: u64) {
    let on_disk = info.path.as_ref().map_or(0, |path| fs::metadata(&**path).unwrap().len());
    assert_eq!(on_disk, info.bytes.min(quota), "{info:?}");
    assert_eq!(info.bytes.saturating_sub(KEPT), info.omitted, "{info:?}");
}

#[test]
fn many_that_write_much_at_once_leave_the_daemon_as_small_as_it_was_and_end_in_time() {
    const QUOTA: u64 = 2 << 20;
    let (many, line, errors) = if soaks() { (100, 157_000_000, 256 << 20) } else { (20, 20_000_000, 64 << 20) };
    let daemon = Daemon::configured(&format!("[lane.tool]\nwidth = 100\n[tool.shell]\noutput_bytes = {QUOTA}\n"));
    daemon.submit(&runs("true")).answer();
    let before = daemon.process().resident_bytes();
    let kinds = noisy(line, errors);
    let submitted: Vec<(&Noisy, Run)> = kinds
        .iter()
        .cycle()
        .take(many)
        .map(|noisy| {
            let args = json!({"command": noisy.command, "timeout": noisy.timeout});
            (noisy, daemon.submit(&turn("").call("shell", args).turn("done")))
        })
        .collect();
    let mut most = before;
    let begun = now();
    eventually_all(&mut || {
        most = most.max(daemon.process().resident_bytes());
        daemon.lane_is_idle() && submitted.iter().all(|(_, run)| run.view().state.is_terminal())
    });
    println!("{many} at once: {:?}, from {} to {} KiB", begun.elapsed(), before >> 10, most >> 10);
    assert!(most < before + (32 << 20), "{before} bytes before, then {most}");
    for (noisy, run) in &submitted {
        let result = run.results().remove(0);
        let (stdout, stderr) = (result.stdout.as_ref().unwrap(), result.stderr.as_ref().unwrap());
        assert_kept(stdout, QUOTA);
        assert_kept(stderr, QUOTA);
        let Some(bytes) = noisy.bytes else {
            let took = run.view().timing.tools.to_std();
            assert!(result.timed_out && result.exit_code == Some(124), "{result:?}");
            assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(4), "{took:?}");
            continue;
        };
        assert_eq!((result.exit_code, stdout.bytes, stderr.bytes), (Some(0), bytes.0, bytes.1));
        let missing = format!("[{} bytes and 0 line breaks of ", stdout.omitted + stderr.omitted);
        assert!(result.envelope.contains(&missing), "{}", &result.envelope[result.envelope.len() - 200..]);
    }
}

/// Like `eventually`, for what takes longer where it soaks.
#[track_caller]
fn eventually_all(condition: &mut dyn FnMut() -> bool) {
    let limit = Duration::from_secs(if soaks() { 900 } else { 120 });
    harness_tests::found_within(limit, "all have ended", || condition().then_some(()));
}

#[test]
#[ignore = "needs python3"]
fn no_cut_makes_a_replacement_character_and_raw_output_is_the_exact_bytes() {
    need("python3", "python3");
    let daemon = Daemon::start();
    let script = turn("")
        .shell("printf '\\360'")
        .shell("printf '\\342'; sleep 0.05; printf '\\230\\203'")
        .shell("python3 -c 'print(\"a\" + \"\\u2603\" * 50000, end=\"\")'")
        .shell("printf 'a\\0b\\377\\r\\n\\033[0m'; printf '\\376' >&2")
        .turn("done");
    let run = daemon.submit_with(&script, json!({"env": {"PATH": std::env::var("PATH").unwrap(), "PYTHONUTF8": "1"}}));
    assert_eq!(run.answer(), "done");
    let envelopes = run.envelopes();
    assert_eq!(envelopes[0], "Exit code: 0\n\u{FFFD}");
    assert_eq!(envelopes[1], "Exit code: 0\n\u{2603}");
    let snow = &run.results()[2];
    assert!(!snow.envelope.contains('\u{FFFD}') && snow.envelope.ends_with('\u{2603}'));
    let stdout = snow.stdout.as_ref().unwrap();
    let shown = snow.envelope.matches('\u{2603}').count() as u64 * 3 + 1;
    assert_eq!((stdout.bytes, shown + stdout.omitted), (150_001, 150_001), "nothing is lost or told twice");
    for (call, stream, bytes) in [
        (1, "stdout", b"\xf0".to_vec()),
        (2, "stdout", "\u{2603}".into()),
        (3, "stdout", ["a", &"\u{2603}".repeat(50_000)].concat().into()),
        (4, "stdout", b"a\0b\xff\r\n\x1b[0m".to_vec()),
        (4, "stderr", b"\xfe".to_vec()),
    ] {
        let mut logs = daemon.command(program("harnessctl"));
        logs.args(["logs", &run.id, "--call", &call.to_string(), "--stream", stream, "--raw"]);
        assert!(Running::start(logs).bytes().1 == bytes, "{call} {stream}");
    }
}

#[test]
fn the_line_after_thousands_of_progress_frames_is_in_the_envelope() {
    let daemon = Daemon::start();
    let frames = "i=0; while [ $i -lt 5000 ]; do printf 'fetching: %d of 5000\\r' $i; i=$((i+1)); done; echo fetched";
    let run = daemon.submit(&runs(frames));
    assert_eq!(run.answer(), "done");
    assert!(run.envelopes()[0].ends_with("fetching: 4999 of 5000\rfetched\n"), "{}", run.envelopes()[0]);
    // Without shortening it shows on a terminal as it would there.
    let shown = daemon.ctl(["logs", &run.id, "--call", "1", "--tail", "1"]).ok();
    assert!(shown.ends_with("fetched\n"), "{shown}");
}

/// A range of the standard output of the first call.
fn range(daemon: &Daemon, run: &Run, call: &str, offset: i64, limit: u32) -> OutputReply {
    let params = json!({"run": run.id, "call": call, "stream": "stdout", "offset": offset, "limit": limit});
    serde_json::from_value(daemon.rpc("run.output", params)).unwrap()
}

#[test]
fn any_range_of_a_stream_is_read_during_a_call_and_after_it() {
    let daemon = Daemon::start();
    let mut whole: String = (1..=60_000).map(|n| format!("{n}\n")).collect();
    let run = daemon.submit(&runs("seq 60000; until [ -e gate ]; do sleep 0.02; done; echo the end"));
    let call = harness_tests::found("the call", || run.view().calls.first().map(|call| call.call.to_string()));
    eventually("what it wrote is there", || range(&daemon, &run, &call, 0, 0).total == whole.len() as u64);
    let check = |whole: &str, live: bool| {
        let length = i64::try_from(whole.len()).unwrap();
        for (offset, limit) in [
            (0, 1),
            (0, 4 << 20),
            (100_000, 1_000),
            (length - 5, 100),
            (length, 100),
            (length + 1_000, 100),
            (-1, 10),
            (-100, 50),
            (-length - 7, 10),
        ] {
            let found = range(&daemon, &run, &call, offset, limit);
            let from = if offset < 0 { (length + offset).max(0) } else { offset.min(length) };
            let to = (from + i64::from(limit)).min(length);
            let expected = &whole.as_bytes()[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];
            assert!(found.bytes == expected, "{offset} {limit}: {} bytes", found.bytes.len());
            assert_eq!((found.offset, found.total, found.live), (from.unsigned_abs(), length.unsigned_abs(), live));
        }
        let logs = |words: &[&str]| daemon.ctl(["logs", &run.id, "--call", "1"].iter().chain(words)).ok();
        let last: String = whole.split_inclusive('\n').skip(whole.lines().count() - 3).collect();
        assert_eq!(logs(&["--tail", "3"]), last);
        assert!(logs(&["--raw"]) == whole && logs(&[]) == whole);
    };
    check(&whole, true);
    let following = daemon.spawn_ctl(["logs", &run.id, "--call", "1", "-f", "--raw"]);
    crate::lane::open(&daemon, "gate");
    assert_eq!(run.answer(), "done");
    whole += "the end\n";
    check(&whole, false);
    assert!(following.finish().ok() == whole, "who follows gets all");
}
