//! Commands without a person to type: a read sees the end of input, a request for a terminal fails, pagers and editors
//! do not wait.

use std::time::Duration;

use harness_tests::{Place, Process, Run, json, need, now, turn};

/// What "at once" means on a busy machine. Whatever waits for a person waits longer.
const AT_ONCE: Duration = Duration::from_secs(20);

/// A call that would wait for a person if it could, and how it ends.
type Asking = (&'static str, fn(u8) -> bool);
const ASKING: &[Asking] = &[
    ("cat", |code| code == 0),
    ("python3 -c 'input()' 2>&1 | grep -q EOFError", |code| code == 0),
    ("read line", |code| code == 1),
    ("exec 3</dev/tty", |code| code != 0),
    ("python3 -c 'open(\"/dev/tty\")' 2>&1 | grep -q 'No such device'", |code| code == 0),
    ("python3 -c 'import getpass; getpass.getpass()' 2>/dev/null", |code| code != 0),
    ("git rebase -i HEAD~1 2>&1", |code| code != 0),
    ("git -c core.editor='sleep 600;:' rebase -i HEAD~1 2>&1", |code| code != 0),
    ("git -c sequence.editor='sleep 600;:' rebase -i HEAD~1 2>&1", |code| code != 0),
    ("git -c core.editor='sleep 600;:' commit --amend 2>&1", |code| code != 0),
    ("git log | grep -c '^commit'", |code| code == 0),
    ("git -c core.pager='sleep 600' log", |code| code == 0),
];

fn ask_all(place: &Place) -> Run {
    need("git", "git");
    need("python3", "python3");
    let set_up = "git init -q . && git config user.name me && git config user.email me@localhost && \
                  for n in $(seq 200); do git commit -q --allow-empty -m \"message $n\" || exit; done";
    let script = ASKING.iter().fold(turn("").shell(set_up), |script, (command, _)| {
        // None of its own, so that this is the tool's doing.
        script.call("shell", json!({"command": command, "timeout": 60}))
    });
    let run = place.submit(&script.turn("asked"));
    assert_eq!(run.answer(), "asked");
    run
}

fn assert_that_no_process_waited(run: &Run) {
    let results = run.results();
    assert_eq!(results[0].exit_code, Some(0), "{}", results[0].envelope);
    for ((command, ends_well), result) in ASKING.iter().zip(&results[1..]) {
        assert!(!result.timed_out && result.exit_code.is_some_and(ends_well), "{command}: {}", result.envelope);
    }
}

#[test]
#[ignore = "needs git and python3"]
fn a_command_that_reads_asks_edits_or_pages_goes_on_at_once() {
    let daemon = Place::new().start();
    let begun = now();
    let run = ask_all(&daemon);
    assert_that_no_process_waited(&run);
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    let log = &run.results()[ASKING.len()];
    let stdout = log.stdout.as_ref().unwrap();
    assert!(log.envelope.contains("message 200") && stdout.bytes > 10_000, "the log is whole: {}", stdout.bytes);
}

#[test]
#[ignore = "needs git, python3 and script"]
fn so_it_is_when_the_daemon_runs_in_the_foreground_of_a_terminal() {
    need("script", "util-linux");
    let place = Place::new();
    let daemon = place.start_behind(&["script", "-q", "-e", "/dev/null", "-c"]);
    let process = daemon.daemon_process().unwrap();
    assert_ne!(terminal_of(process), 0, "the daemon has a terminal");
    let begun = now();
    assert_that_no_process_waited(&ask_all(&daemon));
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    let run = daemon.submit(&turn("").shell("ps -o tty= -p $$,$PPID 2>/dev/null || tty").turn("done"));
    assert_eq!(run.answer(), "done");
    assert!(!run.envelopes()[0].contains("pts/"), "{}", run.envelopes()[0]);
    // Processes that read are stopped by their terminal, if they have one; the daemon is not.
    assert!(process.is_alive() && !process.is_stopped() && process.is_called("harnessd"));
}

/// The terminal that controls a process, as the kernel numbers it; 0 where there is none.
fn terminal_of(process: Process) -> i64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.0)).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(4).unwrap().parse().unwrap()
}
