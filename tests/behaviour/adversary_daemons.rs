//! Daemons, locks and keepers of a run's own: none of them gives a process of a run the rights of an operator, or keeps
//! the operator's daemon from starting. See `adversary.rs` for the arena.

use std::fs;

use harness_tests::{Place, Process, eventually, json};

use crate::adversary::{Arena, daemon_of};

/// Whether no process has its working directory in the place.
pub(crate) fn no_process_is_left(place: &Place) -> bool {
    let work = place.work();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    !processes.filter_map(|entry| fs::read_link(entry.path().join("cwd")).ok()).any(|cwd| cwd == work)
}

/// A13: what has ended both its keeper and the daemon is ended by the next daemon, or has no rights with it.
#[test]
fn a_process_that_outlives_its_keeper_and_its_daemon_is_no_operator_of_the_next_daemon() {
    for way in ["outlive", "outlive-and-lower-the-mark"] {
        let arena = Arena::new();
        let place = arena.daemon.place();
        let run = arena.run(&[format!("adversary {way} {}", daemon_of(&place))]);
        eventually("the daemon is gone", || place.daemon_process().is_none());
        let pid = place.written("outlived.pid").parse().unwrap();
        drop(arena);
        let daemon = place.start_unprivileged(&[]);
        eventually("it has asked, or was ended", || {
            !place.written("outlived.answer").is_empty() || !Process(pid).is_alive()
        });
        let answer = place.written("outlived.answer");
        assert!(!answer.contains("\"result\""), "{way}: {answer}");
        assert!(!daemon.lane("tool").paused, "{way}");
        Process(pid).try_signal(nix::sys::signal::Signal::SIGKILL);
        drop(run);
    }
}

/// What has ended both and holds the locks, so that no daemon would start any more, is ended by the next one.
#[test]
fn a_process_with_the_locks_of_a_daemon_that_it_killed_keeps_none_from_starting() {
    for (way, locks) in [
        ("outlive-and-hold", &["harnessd.lock"][..]),
        ("outlive-and-hold", &["harnessd.lock", ""]),
        ("outlive-and-hold", &["harnessd.lock", "keepers.lock", ""]),
        ("outlive-hold-and-lower", &["harnessd.lock"]),
        ("outlive-hold-and-lower", &["harnessd.lock", ""]),
        ("outlive-hold-and-lower", &["beside the socket"]),
        ("outlive-hold-and-lower", &["harnessd.lock", "beside the socket"]),
        ("outlive-hold-by-a-child", &["harnessd.lock"]),
        ("outlive-hold-by-a-child", &["beside the socket"]),
        ("outlive-hold-by-a-child-and-lower", &["harnessd.lock"]),
        ("outlive-hold-by-a-child-and-lower", &["harnessd.lock", "keepers.lock", ""]),
        ("outlive-hold-by-a-child-and-lower", &["beside the socket"]),
    ] {
        let arena = Arena::new();
        let place = arena.daemon.place();
        let path = |name: &str| match name {
            "beside the socket" => place.socket().with_extension("sock.lock"),
            name => place.state(name),
        };
        let paths: Vec<String> = locks.iter().map(|name| path(name).display().to_string()).collect();
        let run = arena.run(&[format!("adversary {way} {} {}", daemon_of(&place), paths.join(" "))]);
        eventually("it holds them", || place.work().join("outlived.ready").exists());
        let holder = Process(place.written("outlived.pid").parse().unwrap());
        drop(arena);
        let daemon = place.start_unprivileged(&[]);
        assert!(!holder.is_alive(), "{way} {locks:?}");
        assert!(!daemon.lane("tool").paused, "{way} {locks:?}");
        drop(run);
    }
}

/// Such a process is no daemon to harnessctl, whatever it is called: the daemon that it starts ends it.
#[test]
fn a_process_with_the_lock_and_the_name_of_a_daemon_keeps_no_command_from_starting_one() {
    for way in ["outlive-and-hold", "outlive-hold-and-lower", "outlive-hold-by-a-child"] {
        let arena = Arena::new();
        let place = arena.daemon.place();
        let lock = place.state("harnessd.lock");
        let run = arena.run(&[format!("adversary {way} {} {}", daemon_of(&place), lock.display())]);
        eventually("it holds it", || place.work().join("outlived.ready").exists());
        let holder = Process(place.written("outlived.pid").parse().unwrap());
        drop(arena);
        let list = place.ctl_unprivileged(&["list"]);
        assert_eq!(list.code, 0, "{way}: {list}");
        assert!(!holder.is_alive(), "{way}");
        place.ctl_unprivileged(&["daemon", "stop", "--yes"]).ok();
        drop(run);
    }
}

/// 41: a run that makes the daemon's end, and all that says whose its state is, serves none of it: neither below a
/// process that is called as a keeper is, nor with a mark that was lowered, nor with its keeper stopped for good.
#[test]
fn no_run_serves_its_operators_state() {
    let starts = "harnessd --socket SOCKET --state-dir STATE > said 2>&1 & \
                  for n in $(seq 30); do adversary ask-once '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"lane.pause\",\
                  \"params\":{\"lane\":\"tool\"}}' >> asked; sleep 0.1; done; touch tried; sleep 60";
    for (what, before) in [
        ("plainly", ""),
        ("the mark is lowered", "prlimit --pid $$ --locks=5:5;"),
        ("the note is emptied", ": > STATE/keepers.lock;"),
        ("the note is gone", "rm STATE/keepers.lock;"),
        ("both", "prlimit --pid $$ --locks=5:5; rm STATE/keepers.lock;"),
        ("and what is beside the journal", "rm STATE/keepers.lock STATE/harness.id STATE/harness.seq;"),
    ] {
        for below in ["sh start", "bash -c 'exec -a harnessd adversary keeper sh start'"] {
            let arena = Arena::new();
            let place = arena.daemon.place();
            let fill = |text: &str| {
                let text = text.replace("SOCKET", &place.socket().display().to_string());
                text.replace("STATE", place.state("").display().to_string().trim_end_matches('/'))
            };
            fs::write(place.work().join("start"), fill(starts)).unwrap();
            let stop = "for n in 1 2 3 4 5; do kill -STOP $K; sleep 0.02; done;";
            let script = format!("K=$1; trap '' TERM HUP; {before} kill -9 {}; {stop} {below}", daemon_of(&place));
            fs::write(place.work().join("script"), fill(&script)).unwrap();
            let run = arena.run(&["setsid sh script $PPID & sleep 60".to_owned()]);
            eventually("it has tried", || place.work().join("tried").exists());
            let (said, asked) = (place.written("said"), place.written("asked"));
            assert!(said.contains("belongs to a daemon outside of all runs"), "{what}, {below}: {said}");
            assert!(!asked.contains("\"result\""), "{what}, {below}: {asked}");
            drop(arena);
            let next = place.start_unprivileged(&[]);
            assert!(!next.lane("tool").paused, "{what}, {below}");
            drop(run);
        }
    }
}

/// Try 30: a run forges in its operator's journal that a daemon inside of a run has made it, and starts a daemon on it,
/// which takes the locks. The operator's start ends that one, whatever the files say, and goes on from the journal.
#[test]
fn a_daemon_of_a_run_on_a_forged_journal_keeps_no_operator_from_starting() {
    let inside = "CREATE TABLE inside (empty INTEGER) STRICT";
    let referenced = "CREATE TABLE inside (empty INTEGER PRIMARY KEY); INSERT INTO inside VALUES (1); \
                      CREATE TABLE more (a INTEGER REFERENCES inside (empty)); INSERT INTO more VALUES (1)";
    for (what, facts, before, socket) in [
        ("plainly", inside, "", "SOCKET"),
        ("the mark is lowered", inside, "prlimit --pid $$ --locks=5:5;", "SOCKET"),
        ("the mark is lowered to nothing", inside, "prlimit --pid $$ --locks=0:0;", "$PWD/own.sock"),
        ("the table cannot be removed", referenced, "", "SOCKET"),
    ] {
        let arena = Arena::new();
        let place = arena.daemon.place();
        let state = place.state("").display().to_string();
        let state = state.trim_end_matches('/');
        let socket = socket.replace("SOCKET", &place.socket().display().to_string());
        let script = format!(
            "K=$1; trap '' TERM HUP; kill -9 {}; for n in 1 2 3 4 5; do kill -STOP $K; sleep 0.02; done; \
             : > {state}/keepers.lock; adversary forge {state} '{facts}' || exit; {before} \
             harnessd --socket {socket} --state-dir {state} > said 2>&1 & \
             N=$!; until grep -q 'serving socket' said || ! kill -0 $N; do sleep 0.05; done; \
             echo $N > nested.part; mv nested.part nested; sleep 60",
            daemon_of(&place)
        );
        fs::write(place.work().join("script"), script).unwrap();
        let run = arena.run(&["(setsid sh script $PPID; touch over) > log 2>&1 & sleep 60".to_owned()]);
        let is_there = |name: &str| place.work().join(name).exists();
        eventually("it has tried", || is_there("nested") || is_there("over"));
        assert!(is_there("nested"), "{what}: {}", place.written("log"));
        let nested = Process(place.written("nested").trim().parse().unwrap());
        assert!(nested.is_alive(), "{what}: it serves, as the README says: {}", place.written("said"));
        let stranger = arena.stranger.id.clone();
        drop(arena);
        let next = place.start_unprivileged(&[]);
        // The daemon of the run may have answered until it was ended.
        eventually("the daemon of the run is gone", || !nested.is_alive());
        eventually("the operator's serves", || place.ctl(["--no-start", "daemon", "status"]).code == 0);
        assert!(!next.lane("tool").paused, "{what}");
        assert_eq!(next.rpc("run.show", json!({"run": stranger}))["run"]["id"], json!(stranger), "{what}");
        drop((next, run));
        // What it was forged to be, it is no more: a daemon inside of a run is refused.
        assert!(fs::read_to_string(place.state("keepers.lock")).unwrap().contains("outside"), "{what}");
    }
}

/// A daemon that a call starts goes on from what it has made itself, and its operator may have it afterwards.
#[test]
fn a_daemon_inside_of_a_run_goes_on_from_its_own_journal() {
    let arena = Arena::new();
    let own = arena.daemon.work().join("own");
    let serves = format!(
        "export HARNESS_SOCKET={0}/s; mkdir -p -m 700 {0}; harnessd --socket {0}/s --state-dir {0}/state & D=$!; \
         until harnessctl --no-start lane resize tool 5; do sleep 0.05; done; kill $D; wait",
        own.display()
    );
    let run = arena.run(&[serves.clone(), serves]);
    run.wait();
    for told in run.envelopes() {
        assert!(told.contains("tool"), "{told}");
    }
    let state = own.join("state");
    assert!(state.join("harness.db").exists());
    arena.is_intact("a daemon inside");
}

/// 19: what a call does to its own keeper's limits, priority, scheduling or processors is no other run's.
#[test]
fn harm_to_a_keeper_reaches_no_other_run() {
    let arena = Arena::new();
    let state = "ulimit -Ha; nice; taskset -p $$ | tail -c 5; chrt -p $$ | sed 's/.*: //'; \
                 grep -E 'locks|CPU' /proc/self/limits";
    let before = arena.run(&[state.to_owned()]);
    before.wait();
    let ways = [
        "prlimit --pid $PPID --fsize=4096:4096",
        "prlimit --pid $PPID --nofile=16:16",
        "prlimit --pid $PPID --cpu=1:1",
        "prlimit --pid $PPID --core=0:0",
        "prlimit --pid $PPID --nproc=7:7",
        "prlimit --pid $PPID --locks=77:77",
        "renice -n 19 -p $PPID",
        "chrt -b -p 0 $PPID",
        "chrt -i -p 0 $PPID",
        "taskset -p 1 $PPID",
    ];
    for way in ways {
        let run = arena.run(&[format!("{way} && echo changed")]);
        run.wait();
        assert!(run.envelopes()[0].contains("changed"), "{way}: {:?}", run.envelopes());
        let after = arena.run(&[state.to_owned()]);
        after.wait();
        assert_eq!(after.envelopes(), before.envelopes(), "{way}");
    }
}

/// A daemon keeps the mark that it reads while it starts: a process that gives it another mark does not become its
/// operator.
#[test]
fn no_process_becomes_an_operator_by_lowering_the_limit_of_a_daemon() {
    let arena = Arena::new();
    let other = Place::new();
    drop(other.start_unprivileged(&[]));
    let (state, socket) = (other.state(""), other.socket());
    let lower = format!("adversary lower-the-next-daemon {} {}", state.display(), socket.display());
    let run = arena.run(&[lower]);
    eventually("it holds the lock", || arena.daemon.work().join("holding").exists());
    let next = other.start_unprivileged(&[]);
    run.wait();
    let told = run.envelopes().join("\n");
    assert!(told.contains("lowered: Ok(())"), "{told}");
    assert!(told.contains("the process that asks cannot be told") && told.contains("caller-unknown"), "{told}");
    assert!(!next.lane("tool").paused, "{told}");
    // A daemon that runs already: its next calls start all the same, and have no operator's rights.
    let daemon = daemon_of(&arena.daemon);
    for limit in ["4611686009837453312", "99999999999999", "77", "1", "0"] {
        let lowers = arena.run(&[format!("adversary lower {} {limit}", daemon)]);
        lowers.wait();
        assert!(lowers.envelopes().join("\n").contains("Ok(())"), "{limit}: {:?}", lowers.envelopes());
        // Each leaves something behind, so that the next one has a new keeper.
        // Over the socket itself: harnessctl does not believe a daemon with such a limit.
        let pause = json!({"jsonrpc": "2.0", "id": 1, "method": "lane.pause", "params": {"lane": "tool"}});
        let ask = format!("adversary ask '{pause}'");
        let run = arena.run(&[format!("sleep 60 & {ask}"), ask]);
        run.wait();
        let told = run.envelopes().join("\n");
        assert_eq!(told.matches("look at its own tree").count(), 2, "{limit}: {told}");
        arena.is_intact(limit);
    }
}

/// An operator's shell that has the limit of a run starts a daemon: the run gets no rights there.
#[test]
fn a_daemon_that_is_started_with_the_limit_of_a_run_has_no_operators_with_that_limit() {
    let arena = Arena::new();
    let limit = r"awk '/^Max file locks/{print $5}' /proc/self/limits";
    let shown = arena.run(&[limit.into()]);
    shown.wait();
    let limit: u64 = shown.envelopes()[0].lines().nth(1).unwrap().parse().unwrap();
    for lowered in [limit, limit - 1, limit + 1, 1, 0] {
        let other = Place::new();
        let locks = format!("--locks={lowered}:{lowered}");
        let daemon = other.start_unprivileged_behind(&["prlimit", &locks], &[]);
        // Over the socket itself: harnessctl does not believe a daemon with such a limit.
        let pause = json!({"jsonrpc": "2.0", "id": 1, "method": "lane.pause", "params": {"lane": "tool"}});
        let asks = format!("env HARNESS_SOCKET={} adversary ask '{pause}'", other.socket().display());
        let run = arena.run(&[asks.clone(), format!("setsid -w {asks}")]);
        run.wait();
        let told = run.envelopes().join("\n");
        assert_eq!(told.matches("the process that asks cannot be told").count(), 2, "{lowered}: {told}");
        assert!(!daemon.lane("tool").paused, "{lowered}");
    }
}

/// A daemon inside a run is for the call that has started it, and for no other run.
#[test]
fn a_daemon_that_a_call_has_started_obeys_that_call_and_no_process_of_another_run() {
    let arena = Arena::new();
    let own = arena.daemon.work().join("own");
    let socket = format!("HARNESS_SOCKET={}/s", own.display());
    let start = format!(
        "mkdir -m 700 {0}; harnessd --socket {0}/s --state-dir {0}/state & D=$!; export {socket}; \
         until harnessctl --no-start lane resize tool 5; do sleep 0.05; done; touch serves; \
         until test -e enough; do sleep 0.05; done; harnessctl --no-start lane; kill $D; wait",
        own.display()
    );
    let starter = arena.run(&[start]);
    eventually("it serves", || arena.daemon.work().join("serves").exists());
    let ask = format!("{socket} harnessctl --no-start lane resize tool 40");
    let ways = [
        ask.clone(),
        format!("setsid -w sh -c '{ask}'"),
        format!("env -u HARNESS_RUN_ID {ask}"),
        format!("(sh -c '({ask}) > out 2>&1 &'); sleep 1; cat out"),
        format!("{socket} harnessctl --no-start cancel --all --yes"),
    ];
    let stranger = arena.run(&ways);
    stranger.wait();
    for (way, told) in ways.iter().zip(stranger.envelopes()) {
        assert!(told.contains("it belongs to another call"), "{way}: {told}");
    }
    fs::write(arena.daemon.work().join("enough"), "").unwrap();
    starter.wait();
    let told = starter.envelopes().join("\n");
    assert!(told.contains("width 5 (") && !told.contains("width 40"), "{told}");
    arena.is_intact("a daemon inside");
}

/// A keeper has a mark before it is a keeper: a process that takes its place at once has no rights at any daemon, and
/// starts none.
#[test]
fn a_process_of_a_daemon_is_inside_from_its_first_moment() {
    let arena = Arena::new();
    let pid = arena.daemon.process().0;
    let hard = |pid: &str| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        harness_protocol::inside_run::hard_limit(&limits).unwrap()
    };
    let born = hard(&pid.to_string());
    assert!(harness_protocol::inside_run::is_marked(born), "{born}");
    assert!(!harness_protocol::inside_run::is_marked(hard("self")));
    // Such a process, as one that left its daemon: outside of every tree, with what it was born with.
    let other = Place::new();
    let daemon = other.start_unprivileged(&[]);
    let locks = format!("--locks={born}:{born}");
    let as_born = |place: &Place, words: &[&str]| {
        let mut command = place.command("prlimit");
        command.arg(&locks).arg("harnessctl").args(words).output().unwrap()
    };
    for place in [&other, &arena.daemon.place()] {
        for words in [&["lane", "pause"][..], &["cancel", "--all", "--yes"], &["daemon", "stop"]] {
            let output = as_born(place, &[&["--no-start"], words].concat());
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && told.contains("it was started by a run"), "{words:?}: {told}");
        }
    }
    arena.is_intact("what was born below it");
    assert!(!daemon.lane("tool").paused);
    drop(daemon);
    let output = as_born(&other, &["lane", "pause"]);
    assert!(!output.status.success() && other.daemon_process().is_none(), "{output:?}");
}
