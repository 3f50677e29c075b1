//! A run plants files where its operator writes or asks: links in the directory of a backup or an export, a socket in
//! the daemon's place, a name that the operator uses. No file of the operator is overwritten, nothing is sent to the
//! run's socket, and the name does not mislead the operator.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Place, copy_program, eventually, json, need_root, program, turn};

/// What must stay as it is.
const PRECIOUS: &str = "precious";

/// A file that only the operator may write to, and a directory to which a run may write.
fn precious(daemon: &Daemon) -> (std::path::PathBuf, std::path::PathBuf) {
    let (precious, shared) = (daemon.path("precious"), daemon.path("shared"));
    fs::write(&precious, PRECIOUS).unwrap();
    fs::create_dir_all(&shared).unwrap();
    // Like any directory of another user: others may write to it.
    fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    (precious, shared)
}

fn is_intact(precious: &Path, after: &str) {
    assert_eq!(fs::read_to_string(precious).unwrap(), PRECIOUS, "{after}");
}

/// 55: what a run plants where a backup goes is refused, whatever it is, and nothing of the backup is left there.
#[test]
fn a_backup_writes_into_nothing_that_was_there_before() {
    let daemon = Place::new().start();
    let (precious, shared) = precious(&daemon);
    let run = daemon.submit(&turn("").shell("echo '* * * * * root'").turn("done"));
    run.wait();
    let call = run.view().id;
    type Plant<'a> = &'a dyn Fn(&Path);
    let plants: [(&str, Plant<'_>); 6] = [
        ("a directory of outputs", &|at| fs::create_dir(at.with_extension("db.outputs")).unwrap()),
        ("outputs with links", &|at| {
            let dir = at.with_extension("db.outputs").join(call.to_string());
            fs::create_dir_all(&dir).unwrap();
            for name in ["a.stdout", "a.out"] {
                symlink(&precious, dir.join(name)).unwrap();
            }
        }),
        ("outputs that are a link", &|at| symlink(shared.join("nothing"), at.with_extension("db.outputs")).unwrap()),
        ("a link for the journal", &|at| symlink(&precious, at).unwrap()),
        ("a link to nothing", &|at| symlink(precious.with_extension("new"), at).unwrap()),
        ("a file", &|at| fs::write(at, "x").unwrap()),
    ];
    for (number, (plant, planted)) in plants.iter().enumerate() {
        let to = shared.join(format!("x{number}.db"));
        planted(&to);
        let before = fs::read_dir(&shared).unwrap().count();
        daemon.ctl(["daemon", "backup", "--outputs", to.to_str().unwrap()]).exits(2).tells("exists");
        is_intact(&precious, plant);
        assert!(!precious.with_extension("new").exists(), "{plant}");
        assert_eq!(fs::read_dir(&shared).unwrap().count(), before, "{plant}: nothing is left");
    }
    let whole = shared.join("whole.db");
    daemon.ctl(["daemon", "backup", "--outputs", whole.to_str().unwrap()]).ok();
    let copied = daemon.path("mine.db");
    daemon.ctl(["daemon", "backup", "--outputs", copied.to_str().unwrap()]).ok();
    for backup in [whole, copied] {
        assert!(backup.metadata().unwrap().len() > 1_000, "{}", backup.display());
        assert_eq!(fs::read_dir(backup.with_extension("db.outputs")).unwrap().count(), 1, "{}", backup.display());
        daemon.ctl(["daemon", "restore", backup.to_str().unwrap()]).ok();
        daemon.ctl(["daemon", "start"]).ok();
        assert!(run.view().state.is_terminal(), "it is whole");
    }
}

/// 57: an export writes to the directory that it made, and to no other, whatever has its name meanwhile.
#[test]
fn an_export_writes_only_to_what_it_made() {
    let daemon = Place::new().start();
    let (precious, shared) = precious(&daemon);
    let run = daemon.submit(&turn("").shell("seq 20000").turn("done"));
    run.wait();
    let to = shared.join("exp");
    let swap = format!(
        "mkdir mine; for n in events.jsonl transcript.jsonl script.toml run.json; do ln -s {} mine/$n; done
         until n=$(ls -A | grep '^.exp.partial' | head -1) && [ -n \"$n\" ] && mv $n theirs; do :; done; mv mine $n",
        precious.display()
    );
    let mut swapper = daemon.command("sh");
    swapper.args(["-c", &swap]).current_dir(&shared);
    let mut swapper = swapper.spawn().unwrap();
    // Whether it comes in time or not: nothing is written through its links.
    for attempt in 0..20 {
        let to = to.with_file_name("exp");
        let output = daemon.ctl(["export", &run.id, "--dir", to.to_str().unwrap()]);
        is_intact(&precious, &format!("attempt {attempt}: {output}"));
        if swapper.try_wait().unwrap().is_some() {
            break;
        }
        drop(fs::remove_dir_all(&to));
    }
    drop(swapper.kill());
    swapper.wait().unwrap();
    let own = daemon.path("own");
    daemon.ctl(["export", &run.id, "--dir", own.to_str().unwrap()]).ok();
    for name in ["events.jsonl", "transcript.jsonl", "script.toml", "run.json", "outputs"] {
        assert!(own.join(name).exists(), "{name}");
    }
}

/// Rule 1: a restore acts on the state directory of a start from here, whatever answers at the socket says.
#[test]
fn a_restore_never_acts_on_a_state_directory_that_only_the_server_names() {
    let daemon = Place::new().start();
    let other = Place::new();
    let backup = daemon.path("backup.db");
    daemon.ctl(["daemon", "backup", backup.to_str().unwrap()]).ok();
    let elsewhere = other.start();
    let words = ["--socket", elsewhere.socket().to_str().unwrap(), "daemon", "restore", backup.to_str().unwrap()]
        .map(str::to_owned);
    daemon.ctl(words).exits(2).tells("HARNESS_STATE_DIR");
    for one in [&daemon, &elsewhere] {
        assert_eq!(one.rpc("daemon.status", json!({}))["health"], "serving", "nothing was stopped");
        assert!(!one.state("replaced").exists(), "nothing was moved");
    }
}

/// Rule 1: a run neither puts a backup in the place of its operator's journal nor makes one for it, also where no
/// daemon would notice.
#[test]
fn a_run_mends_no_journal_of_a_daemon_outside() {
    let daemon = Place::new().start();
    let backup = daemon.path("backup.db");
    daemon.ctl(["daemon", "backup", backup.to_str().unwrap()]).ok();
    let (harnessd, state, backup) = (program("harnessd"), daemon.state(""), backup.display());
    let harnessd = harnessd.display();
    let restore = format!("{harnessd} --state-dir {} restore {backup} 2>&1", state.display());
    let salvage = format!("{harnessd} salvage {} {backup}.new 2>&1", state.join("harness.db").display());
    let put_there = format!("{harnessd} salvage {backup} {} 2>&1", state.join("new.db").display());
    let run = daemon.submit(&turn("").shell(&restore).shell(&salvage).shell(&put_there).turn("done"));
    assert_eq!(run.answer(), "done");
    for envelope in run.envelopes() {
        assert!(envelope.starts_with("Exit code: 2\n"), "{envelope}");
        assert!(envelope.contains("belongs to a daemon outside of all runs"), "{envelope}");
    }
    assert!(!state.join("replaced").exists() && !state.join("new.db").exists());
    assert!(!Path::new(&format!("{backup}.new")).exists());
}

/// 13: a server of another state directory is not taken for the daemon of this socket, whatever the lock file says.
#[test]
fn another_daemon_behind_a_link_in_the_sockets_place_is_not_asked() {
    let daemon = Place::new().start();
    let other = Place::new().start();
    let run = other.submit(&turn("").ask("may I?").turn("yes"));
    let (socket, lock) = (daemon.socket(), daemon.state("harnessd.lock"));
    let told = fs::read_to_string(&lock).unwrap();
    let holder = told.lines().next().unwrap();
    let edits = [
        told.clone(),
        format!("{holder}\n{}\n", daemon.path("run/harness/other.sock").display()),
        format!("{holder}\n"),
        format!("{}\n{}\n", other.daemon_process().unwrap().0, other.socket().display()),
        String::new(),
    ];
    type Lead<'a> = &'a dyn Fn();
    let leads: [Lead<'_>; 2] =
        [&|| symlink(other.socket(), &socket).unwrap(), &|| fs::hard_link(other.socket(), &socket).unwrap()];
    for (edit, lead) in edits.iter().flat_map(|edit| leads.map(|lead| (edit, lead))) {
        fs::rename(&socket, socket.with_extension("aside")).unwrap();
        fs::write(&lock, edit).unwrap();
        lead();
        for word in ["cancel", "pause"] {
            let output = daemon.ctl([word, "--all", "--yes"]);
            assert!(!run.view().state.is_terminal(), "{word}, {edit:?}: {output}");
            assert_ne!(output.code, 0, "{word}, {edit:?}: {output}");
        }
        drop(fs::remove_file(&socket));
        fs::write(&lock, &told).unwrap();
        fs::rename(socket.with_extension("aside"), &socket).unwrap();
    }
}

/// Whatever a run of one daemon does to its lock file, its socket and its directories, a command for that daemon is
/// never sent to another daemon of the same user.
#[test]
fn no_command_for_a_daemon_reaches_another_one_of_the_same_user() {
    type Lead<'a> = &'a dyn Fn(&Daemon, &Daemon);
    let anew = |at: &Daemon| {
        fs::rename(at.state("harnessd.lock"), at.state("aside")).unwrap();
        fs::write(at.state("harnessd.lock"), "").unwrap();
    };
    let away = |at: &Daemon| fs::rename(at.socket(), at.socket().with_extension("aside")).unwrap();
    let lock_of = |one: &Daemon, other: &Daemon| {
        fs::rename(one.state("harnessd.lock"), one.state("aside")).unwrap();
        fs::rename(other.state("harnessd.lock"), one.state("harnessd.lock")).unwrap();
    };
    let state_of = |one: &Daemon, other: &Daemon| {
        let state = one.state("").components().as_path().to_owned();
        fs::rename(&state, state.with_extension("aside")).unwrap();
        symlink(other.state(""), state).unwrap();
    };
    let end = |one: &Daemon| one.process().end();
    let leads: [(&str, Lead<'_>); 8] = [
        ("a link, and a lock file made anew", &|one, other| {
            anew(one);
            away(one);
            symlink(other.socket(), one.socket()).unwrap();
        }),
        ("a hard link, and a lock file made anew", &|one, other| {
            anew(one);
            away(one);
            fs::hard_link(other.socket(), one.socket()).unwrap();
        }),
        ("a link, and no daemon", &|one, other| {
            end(one);
            drop(fs::remove_file(one.socket()));
            symlink(other.socket(), one.socket()).unwrap();
        }),
        ("a hard link, and no daemon", &|one, other| {
            end(one);
            drop(fs::remove_file(one.socket()));
            fs::hard_link(other.socket(), one.socket()).unwrap();
        }),
        ("the lock file of the other, and no daemon", &|one, other| {
            end(one);
            drop(fs::remove_file(one.socket()));
            lock_of(one, other);
        }),
        ("the lock file of the other, and a directory for a socket", &|one, other| {
            lock_of(one, other);
            away(one);
            fs::create_dir(one.socket()).unwrap();
        }),
        ("a link for the state directory, and no daemon", &|one, other| {
            end(one);
            drop(fs::remove_file(one.socket()));
            state_of(one, other);
        }),
        ("links for both directories", &|one, other| {
            let (dir, to) = (one.socket(), other.socket());
            let (dir, to) = (dir.parent().unwrap(), to.parent().unwrap());
            fs::rename(dir, dir.with_extension("aside")).unwrap();
            symlink(to, dir).unwrap();
            state_of(one, other);
        }),
    ];
    for (what, lead) in leads {
        let (daemon, other) = (Place::new().start(), Place::new().start());
        let run = other.submit(&turn("").ask("may I?").turn("yes"));
        let process = other.process();
        lead(&daemon, &other);
        for words in ["cancel --all --yes", "lane pause tool", "daemon stop --yes"] {
            // As who names no place: the directories are those of the environment.
            let output = daemon.sh(&format!("unset HARNESS_SOCKET; harnessctl --no-start {words}"));
            assert!(process.is_alive() && !run.view().state.is_terminal(), "{what}, {words}: {output}");
            assert!(!other.lane("tool").paused, "{what}, {words}: {output}");
        }
    }
}

/// 62: a child that takes the name of an operator's run that has ended is hit by no command that names that run.
#[test]
fn a_childs_name_is_never_taken_for_an_operators_run() {
    let daemon = Place::new().start();
    let mut finished = Vec::new();
    for name in ["weekly", "nightly", "b-1", "release", "u"] {
        let run = daemon.submit_with(&turn("mine"), json!({"name": name}));
        run.wait();
        finished.push((name, run));
    }
    for (name, run) in &finished {
        let script = daemon.script_file(&turn("").ask("may I?").turn("theirs"));
        let child = format!("harnessctl submit -q --name {name} --on-interaction wait --script {script} >{name}.id");
        assert_eq!(daemon.submit(&turn("").shell(&child).turn("done")).wait().exit_code, Some(0));
        let child = daemon.written(&format!("{name}.id")).trim().to_owned();
        assert!(!daemon.run(&child).reach(RunState::Waiting).questions.is_empty(), "{name}");
        for words in [["reply", name, "yes"].as_slice(), &["cancel", name]] {
            let output = daemon.ctl(words);
            assert_ne!(output.code, 0, "{words:?}: {output}");
        }
        let retried = daemon.ctl(["retry", name, "--json"]).json();
        let retried = daemon.run(retried["id"].as_str().unwrap());
        retried.wait();
        assert_eq!(retried.view().answer.as_deref(), Some("mine"), "{name}");
        assert_eq!(daemon.run(&run.id).view().answer.as_deref(), Some("mine"));
        // The operator's runs of that name go, and the child stays: the name means nothing then.
        for gone in [run, &retried] {
            daemon.ctl(["prune", &gone.id]).ok();
        }
        for words in [
            &["show", name][..],
            &["logs", name],
            &["wait", name],
            &["follow", name],
            &["export", name, "--dir", "exported"],
            &["reply", name, "yes"],
            &["cancel", name],
            &["pause", name],
            &["resume", name],
            &["message", name, "go on"],
            &["retry", name],
            &["prune", name],
            &["list", "--root", name],
            &["events", "--run", name],
        ] {
            let refused = daemon.ctl(words);
            assert!(![0, 1].contains(&refused.code) && refused.stderr.contains(&child), "{words:?}: {refused}");
        }
        // By its id it is there, as it was.
        assert_eq!(daemon.run(&child).view().id.to_string(), child);
        daemon.ctl(["cancel", &child]);
    }
}

/// What stands in the place of the lock file is not waited for.
#[test]
fn a_lock_file_that_is_none_is_told_at_once() {
    let daemon = Place::new().start();
    let (lock, aside) = (daemon.state("harnessd.lock"), daemon.state("aside"));
    type Plant<'a> = &'a dyn Fn();
    let plants: [(&str, Plant<'_>); 4] = [
        ("is no regular file", &|| nix::unistd::mkfifo(&lock, nix::sys::stat::Mode::S_IRWXU).unwrap()),
        ("is no regular file", &|| symlink(&aside, &lock).unwrap()),
        ("is no regular file", &|| drop(std::os::unix::net::UnixListener::bind(&lock).unwrap())),
        ("is also another file", &|| fs::hard_link(&aside, &lock).unwrap()),
    ];
    fs::rename(&lock, &aside).unwrap();
    for (words, planted) in plants {
        planted();
        for command in [["lane"].as_slice(), &["daemon", "stop"], &["cancel", "--all"]] {
            daemon.ctl(command).exits(7).tells(words);
        }
        fs::remove_file(&lock).unwrap();
    }
    fs::rename(&aside, &lock).unwrap();
    daemon.ctl(["lane"]).ok();
}

/// A run that has ended its daemon holds its lock, and writes another daemon into the file. Nothing is asked of
/// that one.
#[test]
fn a_daemon_that_only_stands_in_a_lock_file_is_neither_asked_nor_stopped() {
    let victim = Place::new().start();
    let run = victim.submit(&turn("").ask("may I?").turn("yes"));
    let pid = victim.daemon_process().unwrap();
    // It holds the lock and is called as a daemon is.
    let place = Place::new();
    fs::create_dir_all(place.state("")).unwrap();
    let lock = place.state("harnessd.lock");
    let named = place.path("harnessd");
    copy_program(Path::new("/bin/sleep"), &named);
    let hold = || {
        let mut holder = place.command("flock");
        holder.args(["--no-fork", "--exclusive"]).arg(&lock).arg(&named).arg("1000").spawn().unwrap()
    };
    for socket in [victim.socket(), victim.path("no.sock"), "relative".into()] {
        fs::write(&lock, format!("{}\n{}\n", pid.0, socket.display())).unwrap();
        let mut holder = hold();
        let process = harness_tests::Process(holder.id());
        harness_tests::eventually("it holds the lock", || process.is_called("harnessd"));
        for command in
            [["cancel", "--all", "--yes"].as_slice(), &["lane", "pause", "tool"], &["daemon", "stop", "--yes"]]
        {
            let output = place.ctl(command.iter().chain(&["--no-start"]));
            assert!(pid.is_alive() && !run.view().state.is_terminal(), "{command:?}: {output}");
            assert!(!victim.lane("tool").paused, "{command:?}: {output}");
        }
        drop(holder.kill());
        holder.wait().unwrap();
        fs::remove_file(&lock).unwrap();
    }
    assert_eq!(victim.rpc("daemon.status", json!({}))["health"], "serving");
}

/// The daemon of a socket belongs to the owner of the socket's directory, and no other user starts one there.
#[test]
#[ignore = "needs root, to make a directory of another user"]
fn no_daemon_is_started_in_the_place_of_another_users() {
    need_root();
    let place = Place::new();
    let theirs = place.path("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(61_234), None).unwrap();
    let script = place.script_file(&turn("done"));
    for socket in [theirs.join("control.sock"), theirs.join("not/yet/control.sock")] {
        for words in [["submit", "--script", &script].as_slice(), &["daemon", "start"], &["lane"]] {
            let socket = ["--socket", socket.to_str().unwrap()];
            place.ctl(socket.iter().chain(words)).tells("belongs to user 61234");
        }
    }
    // What they put there leads to a directory of root's.
    symlink(place.path("home"), theirs.join("link")).unwrap();
    std::os::unix::fs::lchown(theirs.join("link"), Some(61_234), None).unwrap();
    let socket = theirs.join("link/control.sock").to_str().unwrap().to_owned();
    for words in ["lane", "daemon start"] {
        place.sh(&format!("harnessctl --socket {socket} {words}")).exits(7).tells("belongs to user 61234");
    }
    assert!(place.daemon_process().is_none());
    // A link that leads from there to a daemon of root's own is another's, too.
    let own = place.start();
    let other = Place::new();
    symlink(own.socket(), theirs.join("control.sock")).unwrap();
    let through =
        ["--socket", theirs.join("control.sock").to_str().unwrap(), "lane", "pause", "tool"].map(str::to_owned);
    other.ctl(through).exits(7).tells("another user may have made this one lead there");
    assert!(!own.lane("tool").paused);
    // A state directory that cannot be believed has no daemon to compare: the one that was named is asked.
    symlink(own.state(""), theirs.join("state")).unwrap();
    std::os::unix::fs::lchown(theirs.join("state"), Some(61_234), None).unwrap();
    let lane = format!("HARNESS_STATE_DIR={} harnessctl lane", theirs.join("state").display());
    own.sh(&lane).ok();
    own.ctl(["daemon", "stop", "--yes"]).ok();
    own.sh(&lane).tells("is a link that another user");
}

/// The system's socket is taken away; a client that asks next gets no daemon of its own unless it wants one.
#[test]
#[ignore = "needs root, for a mount namespace"]
fn no_daemon_is_started_in_the_place_of_the_systems() {
    need_root();
    let place = Place::new();
    let script = place.script_file(&turn("done"));
    let within = |line: &str| {
        let line = format!("mount -t tmpfs none /run && mkdir -m 755 /run/harness && {line}");
        let mut command = place.command("unshare");
        command.args(["--mount", "sh", "-c", &line]);
        harness_tests::Running::start(command).finish()
    };
    let submit = format!("harnessctl submit --script {script}");
    within(&submit).exits(7).tells("systemctl restart harnessd.socket");
    within(&format!("unset XDG_RUNTIME_DIR; {submit}")).exits(7).tells("systemctl restart harnessd.socket");
    assert!(place.daemon_process().is_none());
    // Files that a daemon of root's own has left there do not make it the system's daemon, for any user.
    let as_another = "HOME=/run/own HARNESS_STATE_DIR=/run/own/state XDG_RUNTIME_DIR=/run/own setpriv --reuid=61234 \
                      --regid=61234 --clear-groups harnessctl";
    within(&format!(
        "chmod 700 /run/harness && mkdir -m 700 /run/own && chown 61234:61234 /run/own && unset HARNESS_SOCKET && \
         {as_another} list && {as_another} daemon stop --yes"
    ))
    .ok();
    // A umask of 002 lets the group write, which may be that user's alone.
    let of_group = format!(
        "chmod 700 /run/harness && mkdir -m 775 /run/own && chown 61234:61234 /run/own && unset HARNESS_SOCKET && \
         {as_another} list && {as_another} daemon stop --yes"
    );
    within(&of_group).exits(7).tells("others may write");
    let database = |name| format!("cat /etc/{name} - >/run/{name} && mount --bind /run/{name} /etc/{name}");
    let known = format!(
        "echo own:x:61234:61234::/:/bin/sh | ({}) && echo own:x:61234: | ({})",
        database("passwd"),
        database("group")
    );
    within(&format!("{known} && {of_group}")).ok();
    within("harnessctl daemon start").ok();
    place.ctl(["submit", "--wait", "--script", &script]).ok();
}

/// Nothing can be recorded while a process of a run keeps the lock that writers need. A cancel ends that process.
#[test]
fn a_run_that_locks_the_journal_is_ended_by_a_cancel_and_the_rest_goes_on() {
    let daemon = Daemon::start();
    let lock = format!("{} lock-the-journal {}", env!("CARGO_BIN_EXE_adversary"), daemon.state("").display());
    let alone = turn("").shell(&lock).turn("done");
    let below = turn("").spawn("child").wait_for_all().turn("done").child("child", &alone);
    for (script, force) in [(alone, None), (below, Some("--force"))] {
        let run = daemon.submit(&script);
        let health = || daemon.rpc("daemon.status", json!({}))["health"].as_str().unwrap().to_owned();
        let file = daemon.script_file(&turn("other"));
        eventually("nothing is recorded any more", || {
            daemon.ctl(["submit", "-q", "--script", &file]);
            health() == "held"
        });
        let words: Vec<&str> = ["cancel", &run.id].into_iter().chain(force).collect();
        // It is refused, because it cannot be recorded, or takes effect where the lock has just gone.
        assert!([0, 75].contains(&daemon.ctl(&words).code));
        eventually("the lock is gone", || health() == "serving");
        // It may have ended meanwhile.
        daemon.ctl(&words);
        run.wait();
        assert_eq!(daemon.submit(&turn("other")).answer(), "other");
    }
}
