//! Many calls of all kinds: afterwards the daemon uses no more than before. `HARNESS_SOAK=1` makes it 20,000.

use std::fs;
use std::time::Duration;

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Process, Run, Script, eventually, found_within, json, now, runs, turn};

/// Keepers without work that a daemon keeps.
const FREE: usize = 16;
/// Runs that are in the daemon at once.
const AT_ONCE: usize = 40;
/// Calls of ten runs.
const OF_TEN: usize = 100;
/// Looks, one after the other, between which nothing changes in a daemon that is at rest.
const LOOKS_AT_REST: usize = 40;
/// What the measure of memory may differ by.
const MARGIN: u64 = 16 << 20;

/// Ten calls: quick, noisy, slow, killed, out of time, left in the background, bereft of their keeper.
fn mixed() -> Script {
    let short = |command: &str| json!({"command": command, "timeout": 0.05});
    turn("")
        .shell("true")
        .shell("seq 30000; seq 5000 >&2")
        .call("shell", json!({"argv": ["true"]}))
        .shell("sleep 0.03")
        .shell("kill -9 $$")
        .call("shell", short("sleep 31099"))
        .shell("setsid sleep 31099 >/dev/null 2>&1 & true")
        .shell("(sleep 31099 >/dev/null 2>&1 &) ; echo left")
        .call("shell", short("sh -c 'sleep 31099 | cat' & sleep 31099"))
        .shell("printf x")
        .turn("done")
}

/// The same, and its keeper is killed by the call in the end.
fn bereft() -> Script {
    let nine = (0..8).fold(turn(""), |script, _| script.shell("true"));
    nine.shell("setsid sleep 31099 & kill -9 $PPID; sleep 31099").shell("echo on").turn("done")
}

/// Nine calls, and one that never ends by itself.
fn endless() -> Script {
    (0..9).fold(turn(""), |script, _| script.shell("true")).shell("sleep 31099").turn("never")
}

/// Submits so many calls, and waits until all have ended.
fn rounds(daemon: &Daemon, calls: usize) {
    let (mixed, bereft, endless) = (mixed(), bereft(), endless());
    let mut left = calls / OF_TEN * 10;
    while left > 0 {
        let now = left.min(AT_ONCE);
        left -= now;
        let submitted: Vec<(usize, Run)> = (0..now)
            .map(|number| {
                let script = match number % 10 {
                    3 => &endless,
                    7 => &bereft,
                    _ => &mixed,
                };
                (number % 10, daemon.submit(script))
            })
            .collect();
        for (_, run) in submitted.iter().filter(|(kind, _)| *kind == 3) {
            eventually("its last call executes", || run.results().len() == 9);
            run.cancel();
        }
        for (kind, run) in &submitted {
            let view = found_within(Duration::from_secs(120), "it ends", || {
                let view = run.view();
                view.state.is_terminal().then_some(view)
            });
            let expected = if *kind == 3 { RunState::Cancelled } else { RunState::Succeeded };
            assert_eq!(view.state, expected, "{:?}", view.error);
            let results = run.results();
            assert_eq!(results.len(), 10);
            match kind {
                3 => assert!(results[9].cancelled),
                7 => assert!(results[8].exit_code.is_none() && results[9].exit_code == Some(0), "{results:?}"),
                _ => {
                    let codes: Vec<_> = results.iter().filter_map(|result| result.exit_code).collect();
                    assert_eq!(codes, [0, 0, 0, 0, 137, 124, 0, 0, 124, 0]);
                    assert_eq!(results[1].stdout.as_ref().unwrap().bytes, 168_894);
                }
            }
        }
    }
}

/// The resources of an idle daemon.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    descriptors: usize,
    threads: usize,
    children: usize,
}

impl Size {
    /// Threads of the runtime that had something to do end only after a while.
    fn is_back_at(&self, before: &Self) -> bool {
        (self.descriptors, self.children) == (before.descriptors, before.children) && self.threads <= before.threads
    }
}

/// Its size once that stays the same: a connection is closed a moment after its reply.
fn at_rest(process: Process) -> Size {
    let (mut last, mut looks) = (size(process), 0);
    eventually("it is at rest", || {
        let now = size(process);
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
        looks == LOOKS_AT_REST
    });
    size(process)
}

fn size(process: Process) -> Size {
    let count = |name: &str| fs::read_dir(format!("/proc/{}/{name}", process.0)).map_or(0, Iterator::count);
    Size { descriptors: count("fd"), threads: count("task"), children: process.children().len() }
}

/// Has as many keepers made as are kept, so that their number is not the question.
fn fill(daemon: &Daemon) {
    let script = runs("until [ -e full ]; do sleep 0.02; done");
    let held = daemon.submit_many(FREE + 4, &script);
    eventually("all are at work", || daemon.lane("tool").busy as usize == FREE + 4);
    crate::lane::open(daemon, "full");
    held.iter().for_each(|run| drop(run.answer()));
    fs::remove_file(daemon.work().join("full")).unwrap();
    eventually("the others go", || daemon.process().children().len() == FREE);
}

#[test]
fn after_many_mixed_calls_the_daemon_is_what_it_was_before() {
    let calls = if std::env::var_os("HARNESS_SOAK").is_some() { 20_000 } else { 600 };
    let daemon = Daemon::configured(
        "[lane.tool]\nwidth = 24\n[limits]\nfinished_runs = 50\nevents = 2000\n[tool.shell]\noutput_bytes = 100000\n",
    );
    // What the first hundreds leave behind in memory, they leave once.
    rounds(&daemon, 600);
    fill(&daemon);
    let process = daemon.process();
    let (before, memory) = (at_rest(process), process.resident_bytes());
    let begun = now();
    rounds(&daemon, calls);
    let took = begun.elapsed();
    fill(&daemon);
    eventually("descriptors, threads and children are what they were", || size(process).is_back_at(&before));
    let memory_now = process.resident_bytes();
    println!("{calls} calls in {took:.1?}: {before:?}, {} KiB before, {} KiB after", memory >> 10, memory_now >> 10);
    assert!(memory_now < memory + MARGIN, "{memory} bytes before, then {memory_now}");
    assert_eq!(Process::with_word("31099"), [], "nobody is left");
    assert!(process.children().iter().all(|child| child.is_alive()), "no zombie");
    assert!(daemon.lane_is_idle());
}
