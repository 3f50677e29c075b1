//! From submit to answer, on a machine that has nothing but the programs.

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Place, json, runs, says, turn};

#[test]
fn a_followed_run_calls_the_shell_reacts_to_it_and_ends_with_an_answer() {
    let place = Place::new();
    let script = turn("Let me look.")
        .shell("echo 42 apples")
        .turn("Twice as many then.")
        .expect("Exit code: 0")
        .capture("count", r"^(\d+) apples")
        .shell("echo $(( ${count} * 2 ))")
        .turn("There are ${double}.")
        .capture("double", r"^(\d+)$");
    // No daemon runs: the command starts it.
    let output = place.ctl(["submit", "--follow", "--script", &place.script_file(&script)]).exits(0);
    for part in ["Let me look.", "$ echo 42 apples", "42 apples", "$ echo $(( 42 * 2 ))", "There are 84."] {
        assert!(output.stdout.contains(part), "{part:?}: {output}");
    }
    assert!(place.daemon_process().is_some());
}

#[test]
fn a_quiet_submit_prints_an_id_alone_also_when_it_starts_the_daemon() {
    let place = Place::new();
    let script = place.script_file(&says("hello"));
    let output =
        place.sh(&format!("id=$(harnessctl submit -q --script {script}) && echo \"[$id]\" && harnessctl wait $id"));
    let stdout = output.ok();
    let (id, answer) = stdout.split_once('\n').unwrap();
    assert!(id.len() == 15 && id[1..14].chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
    assert_eq!(answer, "hello\n");
}

#[test]
fn a_wait_prints_the_answer_alone() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("Looking.").shell("echo noise; echo more >&2").turn("The answer.\nAll of it."));
    assert_eq!(daemon.ctl(["wait", &run.id]).ok(), "The answer.\nAll of it.\n");
    let output = daemon.ctl(["submit", "--wait", "--script", &daemon.script_file(&runs("echo noise"))]);
    assert_eq!(output.ok(), "done\n");
}

#[test]
fn the_transcript_has_the_envelopes_verbatim() {
    let daemon = Daemon::start();
    let run = daemon.submit(&turn("Both.").shell("printf out").shell("echo err >&2; exit 3").turn("Seen."));
    run.wait();
    let shown = daemon.ctl(["show", &run.id, "--json"]).json();
    assert_eq!(shown["schema"], "harness.run/1");
    let entries = shown["transcript"].as_array().unwrap();
    let roles: Vec<_> = entries.iter().map(|entry| entry["role"].as_str().unwrap()).collect();
    assert_eq!(roles[roles.len() - 4..], ["assistant", "result", "result", "assistant"]);
    let results: Vec<_> = entries.iter().filter(|entry| entry["role"] == "result").map(|e| &e["result"]).collect();
    assert_eq!(results[0]["envelope"], "Exit code: 0\nout");
    assert_eq!(results[1]["envelope"], "Exit code: 3\n--- stderr ---\nerr\n");
    assert_eq!((&results[1]["exit_code"], &results[1]["is_error"]), (&json!(3), &json!(true)));
}

#[test]
fn a_failed_expectation_names_the_turn_and_what_was_there() {
    let daemon = Daemon::start();
    let script = turn("Go.").shell("echo oranges").turn("Never said.").expect("apples");
    let output = daemon.ctl(["submit", "--wait", "--script", &daemon.script_file(&script)]).exits(1);
    assert_eq!(output.stdout, "");
    output.tells("turn 2").tells("apples").tells("oranges");
}

#[test]
fn exit_codes_missing_programs_and_time_limits_are_told_and_the_run_goes_on() {
    let daemon = Daemon::start();
    let run = daemon.submit(
        &turn("All of these.")
            .shell("exit 3")
            .shell("no-such-program-here")
            .call("shell", json!({"command": "echo begun; sleep 600", "timeout": 0.2}))
            .shell("kill -9 $$")
            .turn("Still here.")
            .expect("Exit code: 3")
            .expect("Exit code: 127")
            .expect("Exit code: 124")
            .expect("Exit code: 137"),
    );
    assert_eq!(run.answer(), "Still here.");
    let envelopes = run.envelopes();
    assert_eq!(envelopes[2], "Exit code: 124\nbegun\n[timed out after 0.2 s]\n");
    let results = run.results();
    assert_eq!((results[2].timed_out, results[2].exit_code), (true, Some(124)));
    assert_eq!((results[3].signal, results[3].exit_code), (Some(9), Some(137)));
}

#[test]
fn wrong_arguments_and_unknown_tools_are_told_to_the_model_without_a_code() {
    let daemon = Daemon::start();
    let run = daemon.submit(
        &turn("Wrong.").call("shell", json!({"comand": "true"})).call("no-such-tool", json!({})).turn("Sorry."),
    );
    assert_eq!(run.answer(), "Sorry.");
    for result in run.results() {
        assert!(result.is_error && result.exit_code.is_none() && !result.envelope.contains("Exit code"), "{result:?}");
    }
}

#[test]
fn a_working_directory_that_has_gone_is_told_and_the_next_call_runs() {
    let daemon = Daemon::start();
    let script = turn("").call("shell", json!({"command": "true", "cwd": "gone"})).shell("echo here").turn("ok");
    let run = daemon.submit(&script);
    assert_eq!(run.answer(), "ok");
    assert!(run.results()[0].is_error);
    assert_eq!(run.envelopes()[1], "Exit code: 0\nhere\n");
}

#[test]
fn the_timing_of_a_run_adds_up_to_its_wall_time() {
    let daemon = Daemon::of_width(1);
    let runs = daemon.submit_many(3, &runs("sleep 0.1"));
    for run in &runs {
        let view = run.wait();
        assert_eq!(view.state, RunState::Succeeded);
        assert_eq!(view.timing.total(), view.ended_at.unwrap().since(view.submitted_at), "{view:?}");
        assert!(view.timing.tools.as_secs() >= 0.1, "{view:?}");
    }
    // The last run waited in the lane while the two others ran.
    let longest = runs.iter().map(|run| run.view().timing.lane.as_secs()).fold(0.0, f64::max);
    assert!(longest >= 0.15, "{longest}");
}
