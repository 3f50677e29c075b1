//! What a run does with the limit that is the mark, and with locks that nothing shows: it becomes no operator of any
//! daemon, keeps none from its start, and gets nothing of its operator's ended. What it leaves is
//! `../adversary/holder.c`. See `adversary.rs` for the arena.

use std::fs;
use std::path::Path;
use std::process::Command;

use harness_tests::{Daemon, Place, Process, eventually, json, turn};

use crate::adversary::{Arena, daemon_of};

/// Users that no other test has. A start may end all that was left by any daemon of its user.
const USER: u32 = 61_301;
const OTHER_USER: u32 = 61_302;

/// Starts a daemon as a user of its own, where the tests may.
fn start_as(place: &Place, user: u32) -> Daemon {
    if nix::unistd::geteuid().is_root() { place.start_as(user, &[]) } else { place.start() }
}

/// The compiled holder, in a place.
fn holder(place: &Place) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/adversary/holder.c");
    let to = place.path("holder");
    assert!(Command::new("cc").args(["-O1", "-o"]).arg(&to).arg(source).status().expect("a C compiler").success());
    to.display().to_string()
}

/// A run leaves holders of a daemon's locks, and kills the daemon. `locks` are files of the state directory.
fn leave_holders(place: &Place, holder: &str, daemon: Daemon, how: &str, locks: &[&str]) {
    let path = |name: &str| match name {
        "beside the socket" => place.socket().with_extension("sock.lock"),
        name => place.state(name),
    };
    let locks: Vec<String> = locks.iter().map(|name| path(name).display().to_string()).collect();
    let ready = place.work().join("ready");
    let leave =
        format!("{holder} '{how}' {} $PPID {} {}; sleep 60", daemon_of(place), ready.display(), locks.join(" "));
    let run = daemon.submit(&turn("").shell(&leave).turn("tried"));
    eventually("the locks are held", || ready.exists());
    drop((run, daemon));
    assert!(place.daemon_process().is_none());
}

/// Whether a process executes this program.
fn lives(program: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok()).any(|line| {
        let first = line.split(|&byte| byte == 0).next();
        first == Some(program.as_bytes())
    })
}

/// All locks that a daemon has.
const ALL: &[&str] = &["harnessd.lock", "", "beside the socket"];

/// Processes that fork and exit all the time have inherited the locks.
#[test]
fn what_forks_and_exits_all_the_time_keeps_no_lock_of_a_dead_daemon() {
    for (how, locks) in [("hop", ALL), ("hop setsid", ALL), ("hop", &["beside the socket"])] {
        let place = Place::new();
        let holder = holder(&place);
        let daemon = start_as(&place, USER);
        leave_holders(&place, &holder, daemon, how, locks);
        let next = start_as(&place, USER);
        eventually("nothing is left", || !lives(&holder));
        assert!(!next.lane("tool").paused, "{how}");
    }
}

/// What is registered with an `io_uring` has no descriptor, and what has an `io_uring` need not show that either.
#[test]
#[ignore = "needs io_uring, which some containers forbid"]
fn what_holds_a_lock_by_an_io_uring_keeps_no_daemon_from_starting() {
    for (how, locks) in [
        ("ring", ALL),
        ("ring", &["harnessd.lock"]),
        ("ring", &["beside the socket"]),
        ("ring unseen", ALL),
        ("ring unseen", &["beside the socket"]),
        ("ring unseen daemon", ALL),
        ("daemon", ALL),
    ] {
        let place = Place::new();
        let holder = holder(&place);
        let daemon = start_as(&place, USER);
        leave_holders(&place, &holder, daemon, how, locks);
        let left = Process(place.written("ready").trim().parse().unwrap());
        let next = start_as(&place, USER);
        assert!(!left.is_alive(), "{how}: {locks:?}");
        assert!(!next.lane("tool").paused, "{how}");
    }
}

/// A start that ends what was left touches no other daemon of the user, none of its runs, whatever mark these have, and
/// no shell of an operator, whatever mark a run has given it.
#[test]
#[ignore = "needs io_uring, which some containers forbid"]
fn a_start_that_ends_what_was_left_touches_nothing_that_belongs_to_others() {
    let other = Place::new();
    let other_daemon = start_as(&other, OTHER_USER);
    let lowered = "prlimit --pid $$ --locks=5:5; echo $$ > pid; exec sleep 600";
    let plain = other_daemon.submit(&turn("").shell("echo $$ > plain; exec sleep 600").turn("done"));
    let hidden = other_daemon.submit(&turn("").shell(lowered).turn("done"));
    eventually("they run", || !other.written("pid").is_empty() && !other.written("plain").is_empty());
    let pid = |name: &str| Process(other.written(name).trim().parse().unwrap());
    let theirs = [pid("pid"), pid("plain")];

    let place = Place::new();
    let holder = holder(&place);
    let daemon = start_as(&place, OTHER_USER);
    // An operator's shell, to which a run gives the mark that it has itself.
    let mut command = Command::new("sleep");
    command.arg("600");
    if nix::unistd::geteuid().is_root() {
        use std::os::unix::process::CommandExt;
        command.uid(OTHER_USER).gid(OTHER_USER);
    }
    let mut shell = command.spawn().unwrap();
    let give = format!(
        "own=$(awk '/^Max file locks/{{print $5}}' /proc/self/limits); prlimit --pid {} --locks=$own:$own \
         && touch given",
        shell.id()
    );
    daemon.submit(&turn("").shell(&give).turn("done")).wait();
    assert!(place.work().join("given").exists());
    leave_holders(&place, &holder, daemon, "ring unseen daemon", ALL);
    let left = Process(place.written("ready").trim().parse().unwrap());
    let next = start_as(&place, OTHER_USER);
    assert!(!left.is_alive());
    assert!(theirs.iter().all(|process| process.is_alive()), "runs of another daemon");
    assert!(other.daemon_process().is_some(), "another daemon");
    assert!(shell.try_wait().unwrap().is_none(), "an operator's shell");
    shell.kill().unwrap();
    shell.wait().unwrap();
    drop((plain, hidden, next));
}

/// A run gives its operator's shell and the parent of that shell the marks of a keeper and a daemon. The daemon that
/// the operator then starts in that shell has no operators among the run's processes.
#[test]
fn a_shell_that_was_given_the_mark_of_a_keeper_makes_no_run_an_operator() {
    let pause = json!({"jsonrpc": "2.0", "id": 1, "method": "lane.pause", "params": {"lane": "tool"}});
    for (what, of_keeper, of_daemon) in [
        ("a smaller mark for the keeper", "$((own - 4294967296))", None),
        ("its own for the keeper and the daemon", "$own", Some("$own")),
    ] {
        let place = Place::new();
        let arena = Arena::in_place(&place);
        let second = place.work().join("second");
        let path = place.path("bin");
        let lower = |pid: &str, to: &str| format!("prlimit --pid {pid} --locks={to}:{to} || exit 7; ");
        let attack = [
            "parent() { sed 's/.*) . //' /proc/$1/stat | cut -d' ' -f1; }; ".to_owned(),
            "own=$(awk '/^Max file locks/{print $5}' /proc/self/limits); ".to_owned(),
            "K=$PPID; D=$(parent $K); S=$(parent $D); P=$(parent $S); ".to_owned(),
            lower("$S", "$own"),
            lower("$P", "$((own + 4294967296))"),
            lower("$K", of_keeper),
            of_daemon.map(|to| lower("$D", to)).unwrap_or_default(),
            "touch forged; until test -S second/s; do sleep 0.05; done; ".to_owned(),
            format!("HARNESS_SOCKET=$PWD/second/s adversary ask '{pause}' > answer; mv answer answered; sleep 60"),
        ]
        .concat();
        let first = place.work().join("first");
        fs::write(place.work().join("attack.toml"), turn("").shell(&attack).turn("tried").toml()).unwrap();
        let serve = |dir: &Path| {
            let dir = dir.display();
            format!("mkdir -m 700 {dir}; harnessd --socket {dir}/s --state-dir {dir}/state 2> {dir}/said & ")
        };
        let shell = [
            format!("cd {}; export PATH={}:$PATH; ", place.work().display(), path.display()),
            serve(&first),
            format!("A=$!; export HARNESS_SOCKET={0}/s HARNESS_STATE_DIR={0}/state; ", first.display()),
            "until test -S first/s; do sleep 0.05; done; ".to_owned(),
            "harnessctl submit -q --env PATH --script attack.toml; until test -e forged; do sleep 0.05; done; "
                .to_owned(),
            serve(&second),
            "B=$!; until test -e answered; do sleep 0.05; done; kill $A $B; wait".to_owned(),
        ]
        .concat();
        fs::write(place.work().join("shell"), shell).unwrap();
        let mut command = place.command("setpriv");
        if nix::unistd::geteuid().is_root() {
            command.args(["--reuid=61234", "--regid=61234", "--clear-groups"]);
        }
        // Two shells, one the parent of the other.
        command.args(["timeout", "60", "sh", "-c"]).arg(format!("sh {}/shell; true", place.work().display()));
        let output = command.output().unwrap();
        let told = place.written("answered");
        assert!(told.contains("the process that asks cannot be told"), "{what}: {told:?}, {output:?}");
        arena.is_intact(what);
    }
}
