//! What a run plants where its operator writes or asks: links in the directory of a backup or an export, a socket in the daemon's place, a
//! name that the operator uses. Nothing of the operator's is overwritten, nothing is sent to it, and no name hits it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use harness_tests::{Daemon, Place, json, program, turn};

/// What must stay as it is.
const PRECIOUS: &str = "precious";

/// A file that only the operator may write to, and a directory to which a run may write.
fn precious(daemon: &Daemon) -> (std::path::PathBuf, std::path::PathBuf) {
    let (precious, shared) = (daemon.path("precious"), daemon.path("shared"));
    fs::write(&precious, PRECIOUS).unwrap();
    fs::create_dir_all(&shared).unwrap();
    // As for any directory of somebody else: what others may write to.
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

/// Rule 1: a run neither puts a backup in the place of its operator's journal nor makes one for it, also where no daemon would notice.
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

/// 13: whoever serves another state directory is not taken for the daemon that says that it serves this socket.
#[test]
fn another_daemon_behind_a_link_in_the_sockets_place_is_not_asked() {
    let daemon = Place::new().start();
    let other = Place::new().start();
    let run = other.submit(&turn("").ask("may I?").turn("yes"));
    let socket = daemon.socket();
    for word in ["cancel", "pause"] {
        fs::rename(&socket, socket.with_extension("aside")).unwrap();
        symlink(other.socket(), &socket).unwrap();
        let output = daemon.ctl([word, "--all", "--yes"]);
        assert!(!run.view().state.is_terminal(), "{word}: {output}");
        drop(fs::remove_file(&socket));
        fs::rename(socket.with_extension("aside"), &socket).unwrap();
    }
}

/// 62: a child that takes the name of an operator's run that has ended is hit by no command that names that run.
#[test]
fn a_childs_name_is_never_taken_for_an_operators_run() {
    let daemon = Place::new().start();
    let mut finished = Vec::new();
    for name in ["weekly", "nightly", "b-1", "release", "x"] {
        let run = daemon.submit_with(&turn("mine"), json!({"name": name}));
        run.wait();
        finished.push((name, run));
    }
    for (name, run) in &finished {
        let child = format!(
            "printf '[[turn]]\\ncalls = [{{ tool = \"ask_user\", question = \"may I?\" }}]\\n[[turn]]\\ntext = \"theirs\"\\n' > {name}.toml; harnessctl submit --name {name} --script {name}.toml >{name}.id"
        );
        daemon.submit(&turn("").shell(&child).turn("done")).wait();
        for words in [["reply", name, "yes"].as_slice(), &["cancel", name]] {
            let output = daemon.ctl(words);
            assert_ne!(output.code, 0, "{words:?}: {output}");
        }
        let retried = daemon.ctl(["retry", name, "--json"]).json();
        let retried = daemon.run(retried["id"].as_str().unwrap());
        retried.wait();
        assert_eq!(retried.view().answer.as_deref(), Some("mine"), "{name}");
        assert_eq!(daemon.run(&run.id).view().answer.as_deref(), Some("mine"));
    }
}
