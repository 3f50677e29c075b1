//! `harnessctl` under rough use: in pipes, with nonsense arguments, interrupted.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use harness_tests::{Daemon, Place, Running, Value, json, now, program, runs, says, turn};
use nix::sys::signal::Signal;

use crate::lane::{open, until_there_is};

/// What "at once" means on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);

#[test]
fn a_reader_that_leaves_ends_logs_and_events_quietly() {
    let daemon = Daemon::start();
    let much = (0..10).fold(turn("begin"), |script, _| script.shell("seq 8000 | head -c 30000")).turn("end");
    let run = daemon.submit(&much);
    run.answer();
    for command in [format!("logs {}", run.id), "events --after 0".to_owned(), format!("show {} --json", run.id)] {
        let output = daemon.sh(&format!("{{ harnessctl {command}; echo $? > code; }} | head -1 | head -c 20"));
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{command}");
        assert!(!output.stdout.is_empty());
        harness_tests::eventually("it has ended", || daemon.written("code").trim() == "0");
        std::fs::remove_file(daemon.work().join("code")).unwrap();
    }
}

#[test]
fn a_prompt_on_the_command_line_never_reads_standard_input() {
    let daemon = Daemon::start();
    let mut command = daemon.command(program("harnessctl"));
    command.args(["submit", "--wait", "--script", &daemon.script_file(&says("hello")), "hi"]);
    // As behind `sleep 999 |`: nothing comes, and no end.
    let begun = now();
    assert_eq!(Running::start_reading(command, Stdio::piped()).finish().ok(), "hello\n");
    assert!(begun.elapsed() < AT_ONCE);
}

#[test]
fn a_run_that_does_not_exist_is_6_and_says_so() {
    let daemon = Daemon::start();
    for words in
        [["show", "no-such-run"], ["logs", "zzzz"], ["wait", "no-such-run"], ["cancel", "@last"], ["follow", "x"]]
    {
        let output = daemon.ctl(words).exits(6);
        assert!(output.stdout.is_empty() && output.stderr.starts_with("harnessctl: "), "{output}");
    }
}

#[test]
fn an_empty_prompt_is_refused_before_anything_is_started() {
    let place = Place::new();
    for words in [["submit", ""].as_slice(), &["submit", " \n "], &["submit"], &["submit", "-"]] {
        place.ctl(words).exits(2).tells("prompt");
    }
    assert!(place.daemon_process().is_none());
}

#[test]
fn a_prompt_that_does_not_fit_a_request_is_refused_clearly_and_quickly() {
    let daemon = Daemon::start();
    let script = daemon.script_file(&says("never"));
    let quotes = daemon.file("quotes", &"\"".repeat(5 << 20));
    let mut command = daemon.command(program("harnessctl"));
    command.args(["submit", "--script", &script, "-"]);
    let begun = now();
    let output = Running::start_reading(command, File::open(quotes).unwrap()).finish().exits(2);
    assert!(begun.elapsed() < AT_ONCE && output.stderr.contains("MiB"), "{output}");
    assert!(output.stdout.is_empty() && output.stderr.len() < 1000);
    assert_eq!(daemon.ctl(["list", "--json", "--all"]).ok(), "");
}

#[test]
fn a_large_prompt_that_fits_goes_through_untouched() {
    let daemon = Daemon::start();
    let prompt = "é\"\\\n".repeat(200_000);
    let file = daemon.file("prompt", &prompt);
    let mut command = daemon.command(program("harnessctl"));
    command.args(["submit", "--wait", "--script", &daemon.script_file(&says("read")), "-"]);
    assert_eq!(Running::start_reading(command, File::open(file).unwrap()).finish().ok(), "read\n");
    let shown = daemon.ctl(["show", "@last", "--json"]).json();
    let first = shown["transcript"][0]["text"].as_str().unwrap();
    assert_eq!(first.trim_end(), prompt.trim_end());
}

#[test]
fn a_script_with_a_mistake_is_refused_with_its_place() {
    let place = Place::new();
    let broken = place.file("broken.toml", "[[turn]]\ntext = \"a\"\n[[turn]\n");
    place.ctl(["submit", "--script", &broken]).exits(2).tells("broken.toml:3:");
    let misspelt = place.file("misspelt.toml", "[[turn]]\ntxet = \"a\"\n");
    place.ctl(["submit", "--script", &misspelt]).exits(2).tells("misspelt.toml:2:").tells("txet");
    place.ctl(["submit", "--script", "no-such-file"]).exits(2).tells("no-such-file");
    assert!(place.daemon_process().is_none());
    // What only the provider can tell is told before the run is made, too.
    let uncaptured = place.script_file(&turn("${nobody}"));
    place.ctl(["submit", "--script", &uncaptured]).exits(2).tells("turn 1").tells("nobody");
    assert_eq!(place.ctl(["list", "--json", "--all"]).ok(), "");
}

#[test]
fn a_wait_for_three_of_which_one_fails_has_three_lines_and_exits_with_1() {
    let daemon = Daemon::start();
    let fails = turn("").shell("true").turn("never").expect("apples");
    let scripts = [runs("sleep 0.2"), fails, says("early")];
    let ids: Vec<_> = scripts.iter().map(|script| daemon.submit(script).id).collect();
    let output = daemon.ctl(["wait", &ids[0], &ids[1], &ids[2]]).exits(1);
    let lines: Vec<_> = output.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{output}");
    for (id, told) in ids.iter().zip(["succeeded 0 done", "failed 1 ", "succeeded 0 early"]) {
        assert!(lines.iter().any(|line| line.starts_with(&format!("{id} {told}"))), "{output}");
    }
    daemon.ctl(["wait", &ids[0], &ids[2]]).exits(0);
}

#[test]
fn an_interrupt_while_following_detaches_and_the_run_goes_on() {
    let daemon = Daemon::start();
    let script = daemon.script_file(&until_there_is("gate"));
    for words in [["submit", "--follow", "--script", &script].as_slice(), &["follow", "@last"], &["wait", "@last"]] {
        let following = daemon.spawn_ctl(words);
        harness_tests::eventually("it is followed", || {
            daemon.lane("tool").busy == 1 && following.process().catches(Signal::SIGINT)
        });
        let begun = now();
        following.signal(Signal::SIGINT);
        let output = following.finish().exits(130).tells("detached").tells("the run goes on");
        assert!(begun.elapsed() < AT_ONCE, "{output}");
    }
    open(&daemon, "gate");
    assert_eq!(daemon.run("@last").answer(), "done");
}

#[test]
fn an_ambiguous_name_lists_the_candidates() {
    let daemon = Daemon::start();
    let mut ids: Vec<_> = daemon.submit_many(40, &says("x")).into_iter().map(|run| run.id).collect();
    ids.sort();
    // Of forty ids two begin with the same character.
    let pair = ids.windows(2).find(|pair| pair[0][..1] == pair[1][..1]).unwrap();
    let output = daemon.ctl(["show", &pair[0][..1]]).exits(2);
    assert!(output.stderr.contains(&pair[0]) && output.stderr.contains(&pair[1]), "{output}");
    let unique = (1..14).find(|&n| ids.iter().filter(|id| id.starts_with(&pair[0][..n])).count() == 1).unwrap();
    assert_eq!(daemon.ctl(["show", &pair[0][..unique], "--json"]).json()["id"], pair[0].as_str());
}

#[test]
fn a_check_of_the_lane_is_one_line_with_the_code_of_the_convention() {
    let daemon = Daemon::of_width(1);
    let check = |words: &[&str]| daemon.ctl(["lane", "--check"].iter().chain(words));
    let line = check(&["queued", "-w", "1", "-c", "2"]).line();
    assert!(line.starts_with("LANE OK - ") && line.contains("| queued=0;1;2"), "{line}");
    let held = daemon.submit_many(3, &until_there_is("gate"));
    harness_tests::eventually("two are queued", || daemon.lane("tool").queued == 2);
    assert!(check(&["queued", "-w", "1", "-c", "2"]).exits(1).stdout.starts_with("LANE WARNING - "));
    assert!(check(&["queued", "-w", "0", "-c", "1"]).exits(2).stdout.starts_with("LANE CRITICAL - "));
    check(&["mood"]).exits(3);
    open(&daemon, "gate");
    held.iter().for_each(|run| drop(run.answer()));
    let place = Place::new();
    place.ctl(["lane", "--check", "queued"]).exits(2);
    assert!(place.daemon_process().is_none(), "a check starts nothing");
}

#[test]
fn runs_are_selected_by_label_and_state() {
    let daemon = Daemon::start();
    let script = daemon.script_file(&until_there_is("gate"));
    for team in ["a", "a", "b"] {
        let label = format!("team={team}");
        daemon.ctl(["submit", "-q", "--script", &script, "-l", &label]).ok();
    }
    let list = |words: &[&str]| daemon.ctl(["list", "--json"].iter().chain(words)).ok().lines().count();
    assert_eq!((list(&["-l", "team=a"]), list(&["-l", "team=b"]), list(&["-l", "team=c"])), (2, 1, 0));
    daemon.ctl(["cancel"]).exits(2).tells("no run is named");
    assert!(!daemon.ctl(["cancel", "-l", "team=b"]).ok().is_empty());
    harness_tests::eventually("it has ended", || list(&["--all", "--state", "cancelled"]) == 1);
    open(&daemon, "gate");
}

#[test]
fn of_a_stream_that_was_not_kept_whole_is_said_how_much_there_is() {
    let daemon = Daemon::configured("[tool.shell]\noutput_bytes = 1000\n");
    let run = daemon.submit(&turn("").shell("seq 1000; echo whole >&2").turn("done"));
    run.answer();
    let bytes = run.results()[0].stdout.as_ref().unwrap().bytes;
    let logs = |words: &[&str]| daemon.ctl(["logs", &run.id, "--call", "1"].iter().chain(words));
    let told = format!("only the first 1000 of {bytes} bytes of stdout were kept");
    for words in [&[][..], &["-f"], &["--raw"], &["--stream", "stdout"]] {
        let output = logs(words).exits(0).tells(&told);
        assert!(output.stdout.starts_with("1\n2\n"), "{words:?}: {output}");
    }
    let output = logs(&["--tail", "1", "--stream", "stdout"]).exits(1).tells("this is not the end of stdout");
    assert!(!output.stdout.contains("1000"), "{output}");
    assert_eq!(logs(&["--tail", "1", "--stream", "stderr"]).exits(0).stderr, "");
}

#[test]
fn the_usage_of_runs_is_added_up_and_the_time_of_a_run_is_told() {
    let daemon = Daemon::start();
    let script = turn("Let me see.").shell("sleep 0.2").turn("the answer");
    let run = daemon.submit_with(&script, json!({"labels": {"team": "a"}}));
    assert_eq!(run.answer(), "the answer");
    daemon.submit_with(&script, json!({"labels": {"team": "a"}})).answer();
    daemon.submit(&script).answer();
    let told = daemon.ctl(["show", &run.id, "--why"]).ok();
    assert!(told.contains("tools") && told.contains(" %") && told.contains("tokens in"), "{told}");
    let table = daemon.ctl(["usage", "--by", "label.team"]).ok();
    let of =
        |group: &str| table.lines().find(|line| line.starts_with(group)).unwrap().split_whitespace().nth(1).unwrap();
    assert_eq!((of("a"), of("-")), ("2", "1"), "{table}");
    let lines = daemon.ctl(["usage", "--by", "state", "--since", "1h", "--json"]).ok();
    let group: Value = serde_json::from_str(lines.trim()).unwrap();
    assert_eq!((&group["group"], &group["runs"]), (&json!("succeeded"), &json!(3)));
    assert!(group["usage"]["output_tokens"].as_u64().unwrap() > 0, "{group}");
    daemon.ctl(["usage", "--by", "team"]).exits(2).tells("label.KEY");
}
