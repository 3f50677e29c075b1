//! A process inside a run tries to gain its operator's rights, where daemon and tools have the same user. No way
//! succeeds.
//!
//! Ways through a process that was outside of the tree before (tmux, cron, a user manager, ssh, root) are not tested:
//! the README lists them. Ways that a shell cannot express are in `../adversary/main.rs`.

use std::fs;
use std::path::Path;

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Place, Run, eventually, json, says, turn};

use crate::adversary_daemons::no_process_is_left;
use crate::lane::until_there_is;

/// What a run executes for what needs more than a shell.
const ADVERSARY: &str = env!("CARGO_BIN_EXE_adversary");
/// A daemon that is not root's, with a run of another user and one that asks its operator.
pub(crate) struct Arena {
    pub(crate) daemon: Daemon,
    pub(crate) stranger: Run,
    pub(crate) asking: Run,
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self::in_place(&Place::new())
    }

    pub(crate) fn in_place(place: &Place) -> Self {
        let daemon = place.start_unprivileged(&[Path::new(ADVERSARY)]);
        let stranger = daemon.submit_with(&until_there_is("gate"), json!({"name": "stranger"}));
        let asking = daemon.submit_with(&turn("").ask("may I?").turn("yes"), json!({"name": "asking"}));
        eventually("it asks", || !asking.questions().is_empty());
        Self { daemon, stranger, asking }
    }

    /// What a run's environment has: our programs where its user may execute them.
    pub(crate) fn environment(place: &Place) -> serde_json::Value {
        let path = std::env::var("PATH").unwrap_or_default();
        json!({"PATH": format!("{}:{path}", place.path("bin").display()), "HOME": place.path("home")})
    }

    /// Submits a run that executes these commands, one a turn.
    pub(crate) fn run(&self, commands: &[String]) -> Run {
        let script = commands.iter().fold(turn(""), |script, command| script.shell(command));
        self.daemon.submit_with(&script.turn("tried"), json!({"env": Self::environment(&self.daemon)}))
    }

    /// Nothing is changed that only an operator may change.
    pub(crate) fn is_intact(&self, after: &str) {
        let lane = self.daemon.lane("tool");
        assert_eq!((lane.width, lane.paused), (8, false), "{after}");
        let status = self.daemon.rpc("daemon.status", json!({}));
        assert_eq!(status["health"], "serving", "{after}");
        assert!(!self.stranger.view().state.is_terminal(), "{after}");
        assert_eq!(self.stranger.view().labels.len(), 0, "{after}");
        assert_eq!(self.asking.questions().len(), 1, "{after}");
    }
}

/// Where a daemon's process number stands.
pub(crate) fn daemon_of(place: &Place) -> String {
    // The line after it names the socket.
    fs::read_to_string(place.state("harnessd.lock")).unwrap().lines().next().unwrap().to_owned()
}

/// A1, B1: what a shell and a small program can do while the daemon lives.
#[test]
fn no_way_of_asking_from_inside_a_run_gives_an_operators_rights() {
    let arena = Arena::new();
    let stranger = &arena.stranger.id;
    let question = arena.asking.questions().pop().unwrap();
    let socket = arena.daemon.socket().display().to_string();
    let asks = |line: &str| format!("adversary ask '{line}'");
    let call = |method: &str, params: &serde_json::Value| {
        asks(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string())
    };
    let all = json!({"select": {"all": true}});
    let ways: Vec<(&str, String)> = vec![
        ("a child connects and dies", "adversary connect-and-die 20".into()),
        ("a grandchild connects, and both die", "adversary connect-in-a-grandchild 20".into()),
        ("one in another session connects and dies", "adversary connect-in-another-session 10".into()),
        ("bursts", "for n in 1 2 3 4; do adversary connect-and-die 15 & done; wait".into()),
        ("the request is there before its process dies", "adversary speak-before-it-dies 20".into()),
        ("the socket is a sibling's, which has gone", "adversary pass-it-on".into()),
        ("parents come and go meanwhile", "adversary churn 40".into()),
        ("the keeper is stopped", "timeout 20 adversary stop-the-keeper".into()),
        ("the keeper is killed", "adversary kill-the-keeper".into()),
        ("the keeper is killed, from another session", "setsid -w adversary kill-the-keeper".into()),
        ("without an environment", format!("env -i HARNESS_SOCKET={socket} $(command -v harnessctl) lane pause")),
        ("in a session of its own", "setsid -w harnessctl lane pause".into()),
        ("a double fork", "(setsid sh -c '(harnessctl lane pause; echo $?) > out 2>&1 &'); sleep 1; cat out".into()),
        ("in a new user and pid namespace", "unshare -Urpf harnessctl lane pause".into()),
        ("as another run", format!("HARNESS_RUN_ID={stranger} harnessctl cancel {stranger}")),
        ("as no run", "env -u HARNESS_RUN_ID -u HARNESS_CALL_ID harnessctl lane pause".into()),
        ("a wider lane", call("lane.resize", &json!({"lane": "tool", "width": 50}))),
        ("relief", call("lane.relieve", &json!({"lane": "tool", "by": 5}))),
        ("its own answer", call("interaction.answer", &json!({"interaction": question, "answer": "yes"}))),
        (
            "its own answer, by the run's name",
            call("interaction.answer", &json!({"interaction": "asking", "answer": "yes"})),
        ),
        (
            "a method that is named twice",
            asks(r#"{"jsonrpc":"2.0","id":1,"method":"run.list","method":"lane.pause","params":{"lane":"tool"}}"#),
        ),
        (
            "the other way round",
            asks(r#"{"jsonrpc":"2.0","id":1,"method":"lane.pause","params":{"lane":"tool"},"method":"lane.list"}"#),
        ),
        (
            "a method in escapes",
            asks(r#"{"jsonrpc":"2.0","id":1,"method":"lane.p\u0061use","params":{"lane":"tool"}}"#),
        ),
        ("a batch", asks(r#"[{"jsonrpc":"2.0","id":1,"method":"lane.pause","params":{"lane":"tool"}}]"#)),
        ("capitals", asks(r#"{"jsonrpc":"2.0","id":1,"method":"Lane.Pause","params":{"lane":"tool"}}"#)),
        ("an odd id", asks(r#"{"jsonrpc":"2.0","id":[1],"method":"lane.pause","params":{"lane":"tool"}}"#)),
        ("the questions of all", call("interaction.list", &json!({}))),
        ("cancel all", call("run.cancel", &all)),
        ("cancel one by a prefix", call("run.cancel", &json!({"select": {"runs": [&stranger[..6]]}}))),
        ("pause all", call("run.pause", &all)),
        ("resume all", call("run.resume", &all)),
        ("prune all", call("run.prune", &all)),
        ("retry another's", call("run.retry", &json!({"run": stranger}))),
        ("a message to another's", call("run.message", &json!({"run": "stranger", "text": "hello"}))),
        ("export another's", call("run.export", &json!({"run": stranger}))),
        ("show another's", call("run.show", &json!({"run": "stranger", "transcript": true}))),
        ("wait for another's", call("run.wait", &json!({"run": stranger, "timeout_seconds": 1}))),
        (
            "the output of another's",
            call("run.output", &json!({"run": stranger, "call": "0000000000000", "stream": "stdout", "offset": 0})),
        ),
        ("a text of another's", call("blob.get", &json!({"hash": "ab".repeat(32)}))),
        ("list another's tree", call("run.list", &json!({"root": stranger}))),
        ("events of another's", call("event.subscribe", &json!({"run": stranger}))),
        ("the lanes", call("lane.list", &json!({}))),
        ("the daemon", call("daemon.status", &json!({}))),
        ("stop", call("daemon.stop", &json!({}))),
        ("drain", call("daemon.drain", &json!({}))),
        ("undrain", call("daemon.undrain", &json!({}))),
        ("reload", call("daemon.reload", &json!({}))),
        ("backup", call("daemon.backup", &json!({"path": arena.daemon.work().join("copy.db")}))),
        ("the providers", call("provider.list", &json!({}))),
        ("a check of a provider", call("provider.check", &json!({"provider": "scripted"}))),
        (
            "a daemon of its own on this state",
            format!(
                "harnessd --socket {}/own.sock --state-dir {} & sleep 1; \
                 HARNESS_SOCKET={0}/own.sock harnessctl --no-start lane pause; kill %1",
                arena.daemon.work().display(),
                arena.daemon.state("").display(),
            ),
        ),
        (
            "a second daemon once the lock file is gone",
            format!(
                "mv {0}harnessd.lock {0}old.lock; harnessd --socket {1}/own.sock --state-dir {0}; \
                 mv {0}old.lock {0}harnessd.lock",
                arena.daemon.state("").display(),
                arena.daemon.work().display(),
            ),
        ),
    ];
    for (what, command) in &ways {
        let run = arena.run(std::slice::from_ref(command));
        assert!(run.wait().state.is_terminal());
        let told = run.envelopes().join("\n");
        assert!(!told.contains("\"result\""), "{what}: {told}");
        assert!(!told.starts_with("Exit code: 0\n0\n"), "{what}: {told}");
        arena.is_intact(what);
    }
    assert_eq!(arena.stranger.view().state, RunState::Acting);
    fs::write(arena.daemon.work().join("gate"), "").unwrap();
    assert_eq!(arena.stranger.answer(), "done");
}

/// A harnessctl that waits for its operator has a connection with rights: it lets no other process take it.
#[test]
fn no_process_takes_the_connection_of_a_waiting_command() {
    let arena = Arena::new();
    let waiting = arena.daemon.spawn_ctl(["wait", &arena.stranger.id]);
    let pid = waiting.process().0;
    eventually("it waits", || {
        fs::metadata(format!("/proc/{pid}/fd")).is_ok_and(|fd| std::os::unix::fs::MetadataExt::uid(&fd) == 0)
    });
    let run = arena.run(&[format!("ls /proc/{pid}/fd; cat /proc/{pid}/environ; cat /proc/{pid}/mem")]);
    run.wait();
    let told = run.envelopes().join("\n");
    assert_eq!(told.matches("ermission denied").count(), 3, "{told}");
    fs::write(arena.daemon.work().join("gate"), "").unwrap();
    waiting.finish();
}

/// Nothing of the daemon's user can trace a process whose program that user cannot read, not even in its first moments:
/// a keeper that is steered would pass for a daemon.
#[test]
fn keepers_execute_what_their_own_user_cannot_read() {
    let arena = Arena::new();
    let run = arena.run(&["echo $PPID > keeper; test ! -r /proc/$PPID/mem && cat /proc/$PPID/exe > copy".to_owned()]);
    run.wait();
    assert!(run.envelopes()[0].contains("ermission denied"), "{:?}", run.envelopes());
    let keeper: u32 = arena.daemon.written("keeper").trim().parse().unwrap();
    let program = format!("/proc/{keeper}/exe");
    // Root alone is shown what program that is.
    if !nix::unistd::geteuid().is_root() {
        let refused = fs::metadata(&program).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        return;
    }
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&program).unwrap());
    assert_eq!(mode & 0o777, 0o111, "{:?}", fs::read_link(&program));
}

/// A child may be called as it likes: no command that names it hits it, its operator's next run of that name is made,
/// and is the one that is meant.
#[test]
fn no_child_keeps_a_name_from_its_operator() {
    let arena = Arena::new();
    let waits = turn("").ask("may I, says the child?").turn("yes");
    let open = || arena.daemon.rpc("interaction.list", json!({}))["interactions"].as_array().unwrap().len();
    for name in ["nightly", "weekly.build", "u", "b-1", "Z_9"] {
        let parent = turn("").spawn_as(name, "child").wait_for_all().turn("both").child("child", &waits);
        let parent = arena.daemon.submit(&parent);
        eventually("the child asks", || open() == 2);
        let child = parent.child(name).id;
        for words in [&["show", name][..], &["cancel", name], &["reply", name, "yes"], &["message", name, "hello"]] {
            let refused = arena.daemon.ctl(words).exits(6);
            assert!(refused.stderr.contains(&format!("a child run has the name \"{name}\"")), "{refused}");
            assert!(refused.stderr.contains(&format!("use its id, {child}")), "{refused}");
        }
        arena.daemon.ctl(["show", &child]).ok();
        let gate = until_there_is(&format!("gate-of-{}", parent.id));
        let own = arena.daemon.submit_with(&gate, json!({"name": name}));
        assert_eq!(arena.daemon.ctl(["show", name, "--json"]).json()["id"], own.id, "{name}");
        // The run of that name asks nothing, whatever a child of that name does.
        arena.daemon.ctl(["reply", name, "yes"]).exits(6);
        assert_eq!(open(), 2, "{name}");
        own.cancel();
        parent.cancel();
        parent.wait();
    }
}

/// B7: the daemon is killed from inside, in every way, and nothing that comes after is an operator or starts a daemon.
#[test]
fn a_run_that_kills_the_daemon_starts_no_other() {
    let ways = [
        ("plainly", "kill -9 DAEMON; TRY"),
        (
            "without an environment",
            "kill -9 DAEMON; env -i K=$K PATH=$PATH HOME=$HOME HARNESS_SOCKET=$HARNESS_SOCKET sh -c 'TRY'",
        ),
        ("from a session of its own", "setsid sh -c 'kill -9 DAEMON; TRY'"),
        ("a double fork", "(setsid sh -c '(kill -9 DAEMON; TRY) &') ; sleep 30"),
        ("the keeper first", "setsid sh -c 'kill -9 KEEPER; kill -9 DAEMON; TRY'"),
        (
            "the keeper first, without an environment",
            "env -i K=$K PATH=$PATH HOME=$HOME HARNESS_SOCKET=$HARNESS_SOCKET \
             setsid sh -c 'kill -9 KEEPER; kill -9 DAEMON; TRY'",
        ),
        ("the daemon first, then the keeper", "setsid sh -c 'kill -9 DAEMON KEEPER; TRY'"),
        ("the daemon first, then the keeper, then a daemon", "setsid sh -c 'kill -9 DAEMON KEEPER; START'"),
        ("the keeper is stopped", "setsid sh -c 'kill -STOP KEEPER; kill -9 DAEMON; TRY; kill -CONT KEEPER'"),
        ("both, then the daemon itself", "setsid sh -c 'kill -9 KEEPER; kill -9 DAEMON; START'"),
        (
            "with another state directory",
            "env -i K=$K PATH=$PATH HOME=$HOME HARNESS_SOCKET=$HARNESS_SOCKET HARNESS_STATE_DIR=$PWD/own \
             setsid sh -c 'kill -9 KEEPER; kill -9 DAEMON; TRY'",
        ),
    ];
    for (what, way) in ways {
        let arena = Arena::new();
        let place = arena.daemon.place();
        let tries = "for n in 1 2 3 4 5; do harnessctl lane pause && touch gained; done > said 2>&1; touch tried";
        let start = format!(
            "harnessd --on-demand --socket {} --state-dir {} > said 2>&1 && touch gained; touch tried",
            place.socket().display(),
            place.state("").display()
        );
        let command = way
            .replace("TRY", tries)
            .replace("START", &start)
            .replace("KEEPER", "$K")
            .replace("DAEMON", &daemon_of(&place));
        // The shell of the call is the keeper's own child.
        let daemon = place.daemon_process();
        let run = arena.run(&[format!("touch begun; export K=$PPID; {command}")]);
        eventually("it begins", || place.work().join("begun").exists());
        // A daemon that sees its keeper die ends what was below it, perhaps before that has killed the daemon.
        let has_ended = || {
            let shown = place.ctl(["--no-start", "show", &run.id, "--json"]);
            shown.code == 0 && shown.json()["state"] == "succeeded"
        };
        let is_over = || place.work().join("tried").exists() || no_process_is_left(&place) || has_ended();
        eventually("it tried, or was ended", is_over);
        assert!(!place.work().join("gained").exists(), "{what}: {}", place.written("said"));
        let after = place.daemon_process();
        assert!(after.is_none() || after == daemon, "{what}: a daemon was started: {}", place.written("said"));
    }
}

/// What a call's environment has the loader do happens in the command, which has its limits then, and never in what
/// sets them.
#[test]
fn variables_of_the_loader_reach_a_command_and_not_what_sets_its_limits() {
    let arena = Arena::new();
    let child = arena.daemon.script_file(&turn("").shell("ulimit -Hn; env | grep -c ^LD_ ; echo $ODD").turn("tried"));
    for (variable, seen) in [
        ("LD_PRELOAD=/nowhere/a.so", "LD_PRELOAD cannot be preloaded"),
        ("LD_AUDIT=/nowhere/a.so", "cannot be loaded as audit interface"),
        ("LD_DEBUG=files", "transferring control: "),
        ("LD_DEBUG=libs", "transferring control: "),
        ("LD_SHOW_AUXV=1", "AT_EXECFN:"),
    ] {
        let submit = format!(
            "C=$(harnessctl submit -q --limit open_files=77 --env {variable} --env ODD=+x --script {child}); \
             harnessctl wait $C > /dev/null; harnessctl logs $C"
        );
        let run = arena.run(&[submit]);
        run.wait();
        let told = run.envelopes().join("\n");
        assert!(told.contains("77") && told.contains("+x") && told.contains(seen), "{variable}: {told}");
        for launcher in ["/proc/self/exe", "harnessd"] {
            assert!(!told.contains(launcher), "{variable}: {told}");
        }
    }
}

/// A2: whatever a run calls its children, it is hit by its own id.
#[test]
fn no_child_is_taken_for_the_run_whose_id_it_bears_as_a_name() {
    let arena = Arena::new();
    let child = arena.daemon.script_file(&says("from below"));
    let spellings = [
        "$HARNESS_RUN_ID",
        "$(echo $HARNESS_RUN_ID | tr a-z A-Z)",
        "$(echo $HARNESS_RUN_ID | tr 0 o)",
        "$(echo $HARNESS_RUN_ID | tr 1 l)",
        "$(echo $HARNESS_RUN_ID | cut -c1-12)",
        "$(echo $HARNESS_RUN_ID | cut -c1-6)",
        "$(echo $HARNESS_RUN_ID | cut -c1-6 | tr a-z A-Z)",
    ];
    let commands = spellings.map(|name| format!("harnessctl submit -q --script {child} --name {name}"));
    let run = arena.run(&commands);
    assert_eq!(run.answer(), "tried");
    for result in run.results() {
        assert_eq!(result.exit_code, Some(2), "{}", result.envelope);
    }
}

/// A19: the keys of what a run submits are those of its tree, so that none of its operator's is taken before it is
/// used.
#[test]
fn a_key_that_a_run_has_used_is_still_its_operators() {
    let arena = Arena::new();
    let child = arena.daemon.script_file(&says("from below"));
    let keys = ["nightly", "nightly-2", "a b", "0", "x"];
    let commands = keys.map(|key| format!("harnessctl submit -q --script {child} --idempotency-key '{key}'"));
    let again = commands.clone();
    let run = arena.run(&[commands, again].concat());
    assert_eq!(run.answer(), "tried");
    let made: Vec<String> = run.envelopes();
    assert_eq!(made[..5], made[5..], "the same key is the same child");
    for key in keys {
        let submit = || {
            let spec = arena.daemon.spec(&says("the operator's"), json!({}));
            arena.daemon.rpc("run.submit", json!({"spec": spec, "idempotency_key": key}))
        };
        let (first, second) = (submit(), submit());
        assert_eq!((&first["existing"], &second["existing"]), (&json!(false), &json!(true)), "{key}");
        assert_eq!(first["id"], second["id"]);
        assert_eq!(arena.daemon.run(first["id"].as_str().unwrap()).answer(), "the operator's");
    }
    // Another tree has keys of its own, too.
    let other = arena.run(&[format!("harnessctl submit -q --script {child} --idempotency-key nightly")]);
    assert_eq!(other.answer(), "tried");
    assert_ne!(other.envelopes()[0], made[0]);
}
