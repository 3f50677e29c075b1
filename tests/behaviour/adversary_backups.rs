//! Another user replaces a backup, or puts files beside it, while its owner restores it: that user's journal never
//! becomes the owner's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use harness_tests::{Daemon, Output, Place, Running, json, need_root, turn};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// The user id of another user, who has no account.
const OTHER: u32 = 61_234;

/// A daemon with one run of its owner's, and a directory to which others may write.
fn with_shared() -> (Daemon, PathBuf) {
    let daemon = Place::new().start();
    daemon.submit_with(&turn("").shell("echo mine").turn("mine"), json!({"name": "mine"})).wait();
    let shared = daemon.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    (daemon, shared)
}

fn back_up(daemon: &Daemon, to: &Path) {
    daemon.ctl(["daemon", "backup", "--outputs", to.to_str().unwrap()]).ok();
}

/// A backup of another daemon, as another user would make it.
fn foreign_backup() -> (Place, PathBuf) {
    let place = Place::new();
    let daemon = place.start();
    daemon.submit_with(&turn("").shell("echo theirs").turn("theirs"), json!({"name": "theirs"})).wait();
    let backup = place.path("theirs.db");
    back_up(&daemon, &backup);
    (place, backup)
}

/// `harnessd` without a daemon, on a state directory of its own.
fn harnessd(place: &Place, state: &str, words: &[&str]) -> Output {
    let mut command = place.command(harness_tests::program("harnessd"));
    command.arg("--state-dir").arg(place.path(state)).args(words);
    Running::start(command).finish()
}

fn is_serving(daemon: &Daemon) {
    assert_eq!(daemon.rpc("daemon.status", json!({}))["health"], "serving", "nothing was stopped");
    assert!(!daemon.state("replaced").exists(), "nothing was moved");
    let hidden = fs::read_dir(daemon.state("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(hidden.filter(|name| name.to_string_lossy().starts_with('.')).count(), 0, "nothing is left");
}

#[test]
fn a_file_beside_a_backup_is_never_taken_for_a_part_of_it() {
    let (daemon, shared) = with_shared();
    let (_place, theirs) = foreign_backup();
    for end in ["-wal", "-shm", "-journal"] {
        let backup = shared.join(format!("b{end}.db"));
        back_up(&daemon, &backup);
        let beside = PathBuf::from(format!("{}{end}", backup.display()));
        for planted in ["a file", "a link to nothing"] {
            // Without a log, no program reads the index of a log.
            if (end, planted) == ("-shm", "a file") {
                fs::copy(&theirs, &beside).unwrap();
                harnessd(&daemon, "elsewhere", &["restore", backup.to_str().unwrap()]).ok();
                let db = rusqlite::Connection::open(daemon.path("elsewhere/harness.db")).unwrap();
                let name: String = db.query_row("SELECT name FROM run", [], |row| row.get(0)).unwrap();
                assert_eq!(name, "mine");
                fs::remove_file(&beside).unwrap();
                continue;
            }
            match planted {
                "a file" => drop(fs::copy(&theirs, &beside).unwrap()),
                _ => symlink("/nothing", &beside).unwrap(),
            }
            daemon.ctl(["daemon", "restore", backup.to_str().unwrap()]).exits(2).tells("a backup has none");
            is_serving(&daemon);
            fs::remove_file(&beside).unwrap();
        }
        daemon.ctl(["daemon", "restore", backup.to_str().unwrap()]).ok();
        daemon.ctl(["daemon", "start"]).ok();
        assert_eq!(daemon.run("mine").view().answer.as_deref(), Some("mine"));
        fs::remove_dir_all(daemon.state("replaced")).unwrap();
    }
}

#[test]
fn a_backup_that_others_may_write_or_that_is_no_file_is_not_put_in_place() {
    let (daemon, shared) = with_shared();
    let backup = shared.join("b.db");
    back_up(&daemon, &backup);
    let restore = |words: &str| {
        daemon.ctl(["daemon", "restore", backup.to_str().unwrap()]).exits(2).tells(words);
        is_serving(&daemon);
    };
    for mode in [0o620, 0o602, 0o666] {
        fs::set_permissions(&backup, fs::Permissions::from_mode(mode)).unwrap();
        restore("others may write to");
    }
    fs::remove_file(&backup).unwrap();
    nix::unistd::mkfifo(&backup, nix::sys::stat::Mode::S_IRWXU).unwrap();
    restore("is no regular file");
}

/// The path holds the owner's file, and a moment later another user's: the file that was checked is the one that is
/// restored.
#[test]
fn a_backup_that_is_exchanged_while_it_is_put_in_place_is_all_of_one_owner() {
    let (daemon, shared) = with_shared();
    let (_place, theirs) = foreign_backup();
    let (backup, other) = (shared.join("b.db"), shared.join("theirs.db"));
    back_up(&daemon, &backup);
    fs::copy(theirs, &other).unwrap();
    // As one of another user's; that is tried where these tests are root's.
    fs::set_permissions(&other, fs::Permissions::from_mode(0o666)).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let names = (backup.clone(), other.clone());
    let exchanger = std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            renameat_with(CWD, &names.0, CWD, &names.1, RenameFlags::EXCHANGE).unwrap();
        }
    });
    let mut placed = 0;
    for attempt in 0..60 {
        let state = format!("state-{attempt}");
        let output = harnessd(&daemon, &state, &["restore", backup.to_str().unwrap()]);
        if output.code != 0 {
            output.tells("others may write to");
            continue;
        }
        placed += 1;
        let db = rusqlite::Connection::open(daemon.path(&state).join("harness.db")).unwrap();
        let name: String = db.query_row("SELECT name FROM run", [], |row| row.get(0)).unwrap();
        assert_eq!(name, "mine", "attempt {attempt}");
    }
    drop(stop);
    exchanger.join().unwrap();
    assert!(placed > 0, "none of 60 was put in place");
    // One of the two is the owner's own, and they are no longer exchanged.
    let is_open = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o022 != 0;
    let (own, open) = if is_open(&backup) { (other, backup) } else { (backup, other) };
    harnessd(&daemon, "state-own", &["restore", own.to_str().unwrap()]).ok();
    harnessd(&daemon, "state-open", &["restore", open.to_str().unwrap()]).exits(2).tells("others may write to");
}

/// What would fill the disk is told before anything is copied: the daemon is neither held nor stopped for it.
#[test]
fn a_backup_for_which_there_is_no_room_is_refused_before_it_is_copied() {
    let daemon = Place::new().start();
    let backup = daemon.path("b.db");
    back_up(&daemon, &backup);
    let outputs = PathBuf::from(format!("{}.outputs", backup.display()));
    fs::create_dir_all(outputs.join("run")).unwrap();
    fs::File::create(outputs.join("run/1.stdout")).unwrap().set_len(8 << 40).unwrap();
    let checked = harnessd(&daemon, "state", &["restore", "--check", backup.to_str().unwrap()]);
    checked.exits(75).tells("has no room for it");
    daemon.ctl(["daemon", "restore", backup.to_str().unwrap()]).exits(75);
    is_serving(&daemon);
}

#[test]
fn a_start_removes_copies_that_a_killed_process_has_begun() {
    let place = Place::new().start().crash();
    let (left, live) = (".restore.partial-2147483647-0", format!(".restore.partial-{}-0", std::process::id()));
    for name in [left, &live] {
        fs::create_dir(place.state(name)).unwrap();
        fs::write(place.state(name).join("journal"), "half").unwrap();
    }
    let daemon = place.start();
    assert!(!daemon.state(left).exists());
    assert!(daemon.state(&live).join("journal").exists(), "its process lives");
}

/// What a restore moved aside is a journal, with commits in its log where its daemon was killed.
#[test]
fn a_restore_can_be_undone_and_no_commit_is_lost_by_it() {
    let daemon = Place::new().start();
    let backup = daemon.path("b.db");
    back_up(&daemon, &backup);
    daemon.submit_with(&turn("later"), json!({"name": "later"})).wait();
    let place = daemon.crash();
    let (aside, log) = (place.state("replaced/harness.db"), place.state("replaced/harness.db-wal"));
    place.ctl(["daemon", "restore", backup.to_str().unwrap()]).ok();
    assert!(log.metadata().unwrap().len() > 0, "the last commits are in the log");
    let refused = place.ctl(["daemon", "restore", aside.to_str().unwrap()]).exits(2);
    refused.tells(&format!("harnessd salvage {} NEW", aside.display()));
    let saved = place.path("saved.db");
    harnessd(&place, "state", &["salvage", aside.to_str().unwrap(), saved.to_str().unwrap()]).ok();
    fs::rename(place.state("replaced"), place.path("first")).unwrap();
    place.ctl(["daemon", "restore", saved.to_str().unwrap()]).ok();
    let daemon = place.start();
    assert_eq!(daemon.run("later").view().answer.as_deref(), Some("later"));
    fs::remove_dir_all(daemon.state("replaced")).unwrap();

    // A daemon that was stopped has an empty log, if any: it is put back as it is.
    daemon.ctl(["daemon", "restore", backup.to_str().unwrap()]).ok();
    fs::File::options().create(true).append(true).open(&log).unwrap();
    assert_eq!(log.metadata().unwrap().len(), 0, "all is in the journal");
    fs::rename(daemon.state("replaced"), daemon.path("second")).unwrap();
    daemon.ctl(["daemon", "restore", daemon.path("second/harness.db").to_str().unwrap()]).ok();
    daemon.ctl(["daemon", "start"]).ok();
    assert_eq!(daemon.run("later").view().answer.as_deref(), Some("later"));
}

/// While a daemon takes over a journal without a write-ahead log, it writes without one for a moment. Killed then, it
/// leaves the old pages beside the journal, and SQLite puts them back into the next file of that name, wherever that
/// is.
fn leave_a_transaction_half_done(place: &Place) {
    let (journal, half) = (place.state("harness.db"), place.path("half"));
    let named = |path: &Path, end: &str| PathBuf::from(format!("{}{end}", path.display()));
    let db = rusqlite::Connection::open(&journal).unwrap();
    // More than there is room for in memory: a part is written.
    let change = "PRAGMA journal_mode = DELETE; PRAGMA cache_size = 1; BEGIN;
        INSERT INTO listing VALUES (999999, hex(randomblob(500000)))";
    db.execute_batch(change).unwrap();
    for end in ["", "-journal"] {
        fs::copy(named(&journal, end), named(&half, end)).unwrap();
    }
    db.execute_batch("ROLLBACK").unwrap();
    drop(db);
    assert!(half.metadata().unwrap().len() > journal.metadata().unwrap().len(), "a part is written");
    for end in ["", "-journal"] {
        fs::rename(named(&half, end), named(&journal, end)).unwrap();
    }
}

#[test]
fn an_unfinished_transaction_is_undone_in_its_own_journal_and_not_in_the_restored_one() {
    let daemon = Place::new().start();
    daemon.submit_with(&turn("early"), json!({"name": "early"})).wait();
    let backup = daemon.path("b.db");
    back_up(&daemon, &backup);
    let long = "later ".repeat(20_000);
    daemon.submit_with(&turn(&long), json!({"name": "later"})).wait();
    let place = daemon.place();
    daemon.ctl(["daemon", "stop"]).ok();
    leave_a_transaction_half_done(&place);
    place.ctl(["daemon", "restore", backup.to_str().unwrap()]).ok();
    assert!(!place.state("harness.db-journal").exists());
    let modes = fs::read(place.state("harness.db")).unwrap()[18..20].to_vec();
    assert_eq!(modes, [2, 2], "the start that takes it over has a write-ahead log from the first moment");
    place.ctl(["daemon", "start"]).ok();
    assert_eq!(place.run("early").view().answer.as_deref(), Some("early"));

    // And what was in the place is whole with what lies beside it.
    let (aside, saved) = (place.state("replaced/harness.db"), place.path("saved.db"));
    let refused = place.ctl(["daemon", "restore", aside.to_str().unwrap()]).exits(2);
    refused.tells(&format!("harnessd salvage {} NEW", aside.display()));
    place.ctl(["daemon", "stop"]).ok();
    harnessd(&place, "state", &["salvage", aside.to_str().unwrap(), saved.to_str().unwrap()]).ok();
    assert!(place.state("replaced/harness.db-journal").exists(), "nothing of the old one was changed");
    fs::rename(place.state("replaced"), place.path("first")).unwrap();
    place.ctl(["daemon", "restore", saved.to_str().unwrap()]).ok();
    place.ctl(["daemon", "start"]).ok();
    assert_eq!(place.run("later").view().answer.as_deref(), Some(long.as_str()));
    let db = rusqlite::Connection::open(place.state("harness.db")).unwrap();
    let half: u32 = db.query_row("SELECT count(*) FROM listing WHERE number = 999999", [], |row| row.get(0)).unwrap();
    assert_eq!(half, 0, "what was half done is undone");
}

#[test]
#[ignore = "needs root, to make files of another user"]
fn a_file_of_another_user_is_neither_restored_nor_salvaged() {
    need_root();
    let (daemon, shared) = with_shared();
    let (_place, theirs) = foreign_backup();
    let backup = shared.join("b.db");
    back_up(&daemon, &backup);
    let outputs = PathBuf::from(format!("{}.outputs", backup.display()));
    let own_outputs = || daemon.output_files();
    let before = own_outputs();
    let restore = |what: &str| {
        daemon.ctl(["daemon", "restore", backup.to_str().unwrap()]).exits(2).tells("another user (uid 61234)");
        is_serving(&daemon);
        assert_eq!(own_outputs(), before, "{what}");
    };
    let run = fs::read_dir(&outputs).unwrap().next().unwrap().unwrap().path();
    let planted = run.join("1.stdout");
    fs::write(&planted, "forged").unwrap();
    chown(&planted, Some(OTHER), None).unwrap();
    restore("a file of outputs");
    fs::remove_file(&planted).unwrap();
    chown(&run, Some(OTHER), None).unwrap();
    restore("the outputs of a run");
    fs::remove_dir_all(&outputs).unwrap();
    fs::create_dir(&outputs).unwrap();
    chown(&outputs, Some(OTHER), None).unwrap();
    restore("all outputs");
    fs::remove_dir(&outputs).unwrap();
    fs::copy(&theirs, &backup).unwrap();
    chown(&backup, Some(OTHER), None).unwrap();
    restore("the journal");
    let salvage = |from: &Path, words: &str| {
        let to = daemon.path("saved.db");
        harnessd(&daemon, "state", &["salvage", from.to_str().unwrap(), to.to_str().unwrap()]).exits(2).tells(words);
        assert!(!to.exists());
    };
    salvage(&backup, "another user (uid 61234)");
    // In a place where others may turn names, an owner says nothing of what is opened next.
    chown(&backup, Some(0), None).unwrap();
    salvage(&backup, "others may write to the directory");
    let own = daemon.path("own.db");
    fs::copy(&backup, &own).unwrap();
    let log = daemon.path("own.db-wal");
    fs::write(&log, "").unwrap();
    chown(&log, Some(OTHER), None).unwrap();
    salvage(&own, "another user (uid 61234)");
    fs::remove_file(&log).unwrap();
    harnessd(&daemon, "state", &["salvage", own.to_str().unwrap(), daemon.path("saved.db").to_str().unwrap()]).ok();
}
