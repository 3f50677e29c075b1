//! Hostile clients of all kinds together never keep a normal client from being answered.
//!
//! In CI nothing is timed: what is counted is how many requests of others a probe waited behind. By hand, with
//! figures: `HARNESS_HOSTILE_SECONDS=60 HARNESS_HOSTILE_CPU=0 taskset -c 1 cargo test --release -p harness-tests
//! --test behaviour hostile_clients -- --nocapture`

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness_tests::{Client, Daemon, Disk, Place, Value, eventually, json, now, says, turn};

const HOSTILE: &str = env!("CARGO_BIN_EXE_hostile");
/// Requests of others that one may wait behind.
const MOST_BEHIND: u64 = 64;
/// What the daemon may take beyond what it takes idle: `limits.memory_bytes`.
const MEMORY: u64 = 256 * 1024 * 1024;

/// A hostile client; it ends with this.
struct Hostile(Child);

impl Hostile {
    fn start(kind: &str, daemon: &Daemon) -> Self {
        let (program, mut arguments) = match std::env::var("HARNESS_HOSTILE_CPU") {
            Ok(cpu) => ("taskset", vec!["-c".to_owned(), cpu, HOSTILE.to_owned()]),
            Err(_) => (HOSTILE, Vec::new()),
        };
        arguments.extend([kind.to_owned(), daemon.socket().display().to_string()]);
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn kinds() -> Vec<String> {
    let listed = Command::new(HOSTILE).output().unwrap();
    String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A run that asks a person and waits.
fn waiting() -> Value {
    let call = json!({"tool": "ask_user", "args": {"question": "q"}});
    json!({"on_interaction": "wait", "script": {"turn": [{"call": [call]}, {"text": "x"}]}})
}

/// A client that asks now and then, each time for everything that matters.
struct Prober {
    line: Client,
    took: Vec<(Duration, &'static str)>,
}

impl Prober {
    fn new(daemon: &Daemon) -> Self {
        Self { line: daemon.connect(), took: Vec::new() }
    }

    fn ask(&mut self, method: &'static str, params: Value) -> Value {
        let begun = now();
        let reply = self.line.call(method, params);
        self.took.push((begun.elapsed(), method));
        reply
    }

    fn probe(&mut self) {
        let run = self.ask("run.submit", json!({"spec": waiting()}))["id"].clone();
        self.ask("lane.list", json!({}));
        let cancelled = self.ask("run.cancel", json!({"select": {"runs": [run]}, "force": true}));
        assert_eq!(cancelled["runs"], json!([run]));
        self.ask("daemon.status", json!({}));
    }

    fn status(&mut self) -> Value {
        self.line.call("daemon.status", json!({}))
    }

    fn tell(mut self, what: &str) {
        self.took.sort();
        let at = |part: usize| self.took[(self.took.len() * part / 100).min(self.took.len() - 1)];
        let (most, of) = at(100);
        let count = self.took.len();
        println!("{what}: {count} requests, median {:?}, p99 {:?}, most {most:?} ({of})", at(50).0, at(99).0);
    }
}

/// A daemon with something to list and to follow.
fn with_a_past(place: &Place) -> Daemon {
    place.configure(&format!("[limits]\nfinished_runs = 50\nmemory_bytes = {MEMORY}\n"));
    let daemon = place.start();
    let mut line = daemon.connect();
    let past =
        (0..300).map(|_| ("run.submit", json!({"spec": {"script": says("done").json(), "labels": {"kept": "yes"}}})));
    line.pipeline(past);
    eventually("they have ended", || daemon.rpc("daemon.status", json!({}))["runs"]["succeeded"] == 300);
    daemon
}

/// Probes beside these for a while.
fn beside(kinds: &[String], daemon: &Daemon, seconds: u64) {
    let mut prober = Prober::new(daemon);
    prober.probe();
    let idle = prober.status()["rss_bytes"].as_u64().unwrap();
    let _hostile: Vec<Hostile> = kinds.iter().map(|kind| Hostile::start(kind, daemon)).collect();
    let until = now() + Duration::from_secs(seconds);
    let mut most = 0;
    while now() < until {
        prober.probe();
        let status = prober.status();
        most = most.max(status["rss_bytes"].as_u64().unwrap());
        let behind = status["waited_behind"].as_u64().unwrap();
        assert!(behind <= MOST_BEHIND, "{kinds:?}: a probe waited behind {behind} requests of others");
    }
    println!("{} MiB resident at most, {} idle", most >> 20, idle >> 20);
    prober.tell(&kinds.join(", "));
    assert!(most <= idle + MEMORY, "{kinds:?}: {most} bytes beside {idle} idle");
}

fn seconds(default: u64) -> u64 {
    std::env::var("HARNESS_HOSTILE_SECONDS").map_or(default, |seconds| seconds.parse().unwrap())
}

/// A4, A10, rule 4.
#[test]
fn whatever_one_client_does_the_others_are_answered_in_turn() {
    let daemon = with_a_past(&Place::new());
    for kind in kinds() {
        beside(&[kind], &daemon, seconds(1));
    }
}

/// Rule 4: the driver, the journal and the connections go before what may take long; commands of runs have the priority
/// of the daemon.
#[test]
fn slow_work_has_a_lower_priority_and_commands_have_not() {
    let daemon = with_a_past(&Place::new());
    // Runs that have left the world are read from the journal.
    assert_eq!(daemon.rpc("run.list", json!({"limit": 100}))["runs"].as_array().unwrap().len(), 100);
    let threads = daemon.process().threads();
    let nice_of = |name: &str| -> BTreeSet<i32> {
        let of = threads.iter().filter(|(thread, _)| thread.starts_with(name));
        of.map(|(_, nice)| *nice).collect()
    };
    let [own] = *nice_of("driver").into_iter().collect::<Vec<i32>>() else { panic!("{threads:?}") };
    assert!([nice_of("journal"), nice_of("tokio-rt")].iter().all(|nice| *nice == BTreeSet::from([own])), "{threads:?}");
    let background = nice_of("background");
    assert!(background.first().is_some_and(|least| *least > own), "{threads:?}");
    let run = daemon.submit(&turn("").shell(&format!("test $(nice) -eq {own}")).turn("done"));
    run.wait();
    assert_eq!(run.results()[0].exit_code, Some(0));
}

/// Entry "rule 4" in `tests/README.md`.
#[test]
fn whatever_all_of_them_do_together_the_others_are_answered_in_turn() {
    let daemon = with_a_past(&Place::new());
    beside(&kinds(), &daemon, seconds(15));
}

/// Rule 4: the same where each commit waits for the disk, again and again.
#[test]
#[ignore = "needs root, to mount a disk"]
fn whatever_they_do_on_a_slow_disk_the_others_are_answered_in_turn() {
    let place = Place::new();
    let disk = Disk::in_a_file(&place, 512);
    let daemon = with_a_past(&place);
    let slow = disk.slow();
    beside(&kinds(), &daemon, seconds(10));
    drop(slow);
    drop(daemon);
    drop(disk);
}
