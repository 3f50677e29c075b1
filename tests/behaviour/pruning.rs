//! Pruning, backups, and the use of the disk.

use std::fs;
use std::thread;

use harness_tests::{Daemon, Place, Value, eventually, json, runs, says, turn};

#[test]
fn finished_runs_are_removed_by_age_number_label_and_state_and_live_ones_never() {
    let daemon = Daemon::start();
    let with_label = |team: &str| json!({"labels": {"team": team}});
    let mut old = Vec::new();
    for _ in 0..3 {
        old.push(daemon.submit_with(&runs("echo out"), with_label("a")));
        old.iter().for_each(|run| drop(run.answer()));
    }
    let other = daemon.submit_with(&says("x"), with_label("b"));
    other.answer();
    let live = daemon.submit_with(&turn("").ask("well?").turn("thanks"), with_label("a"));
    eventually("it asks", || !live.questions().is_empty());

    daemon.ctl(["prune"]).exits(2).tells("--older-than");
    let lines = |words: &[&str]| {
        let output = daemon.ctl(["prune"].iter().chain(words));
        output.ok().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(&["--older-than", "1h"]), [""; 0]);
    assert_eq!(lines(&["--older-than", "0s", "-n"]).len(), 4);
    assert_eq!(lines(&["-l", "team=a", "--keep", "2", "-n"]), [old[0].id.as_str()]);
    daemon.ctl(["prune", "--all", "--dry-run"]).exits(0).tells("4 runs would be removed for good");
    assert!(daemon.state("outputs").join(&old[0].id).exists());

    daemon.ctl(["prune", "-l", "team=a", "--keep", "2"]).exits(0).tells("1 run removed for good");
    for words in [&["show"][..], &["wait"], &["logs"], &["follow"]] {
        daemon.ctl(words.iter().chain(&[old[0].id.as_str()])).exits(6);
    }
    eventually("its outputs are gone", || !daemon.state("outputs").join(&old[0].id).exists());
    daemon.ctl(["prune", &live.id]).exits(6).tells("is live");
    daemon.ctl(["prune", &other.id, "-l", "team=a"]).exits(6).tells("it stays");
    assert_eq!(lines(&["--all"]).len(), 3);
    live.reply("yes");
    assert_eq!(live.answer(), "thanks");
    // A client that reads from the start is told what is missing, now and after a restart.
    assert!(daemon.ctl(["events", "--after", "0"]).ok().contains("\"gap\""));
    let daemon = daemon.crash().start();
    assert!(daemon.ctl(["events", "--after", "0"]).ok().contains("\"gap\""));
}

#[test]
fn a_named_one_whose_tree_lives_stays_and_says_why() {
    let daemon = Daemon::start();
    let script =
        turn("").spawn("child").wait_for_all().turn("").ask("well?").turn("thanks").child("child", &says("hi"));
    let parent = daemon.submit(&script);
    eventually("it asks", || !parent.questions().is_empty());
    let list = daemon.ctl(["list", "--json", "--state", "succeeded"]).json();
    daemon.ctl(["prune", list["id"].as_str().unwrap()]).exits(6).tells("something of its tree is live");
    parent.reply("yes");
    parent.answer();
}

#[test]
fn the_configuration_prunes_by_itself() {
    let place = Place::configured("[retention]\nage_days = 30\nruns = 2\nevery_seconds = 0.1\n");
    let daemon = place.start();
    let runs: Vec<_> = (0..5)
        .map(|_| {
            let run = daemon.submit(&says("kept"));
            assert_eq!(run.answer(), "kept");
            run
        })
        .collect();
    eventually("the oldest are gone", || daemon.ctl(["list", "--json"]).ok().lines().count() == 2);
    let left = daemon.ctl(["list", "--json"]).ok();
    assert!(runs[3..].iter().all(|run| left.contains(&run.id)), "{left}");
    // Those of a day and a half ago go by their age, whatever their number.
    daemon.configure("[retention]\nage_days = 1\nevery_seconds = 0.1\n");
    let place = daemon.crash();
    let db = rusqlite::Connection::open(place.state("harness.db")).unwrap();
    db.execute("UPDATE run SET ended_at = ended_at - 36 * 3600 * 1000000 WHERE id = ?1", [&runs[3].id]).unwrap();
    drop(db);
    let daemon = place.start();
    eventually("the old one is gone", || daemon.ctl(["list", "--json"]).ok().lines().count() == 1);
    assert!(daemon.ctl(["list", "--json"]).ok().contains(&runs[4].id));
    daemon.configure("[retention]\nage_dyas = 30\n");
    daemon.ctl(["daemon", "reload"]).exits(2).tells("did you mean `age_days`?");
}

#[test]
fn the_status_tells_what_the_state_takes_on_disk() {
    let daemon = Daemon::start();
    daemon.submit(&runs("seq 100000")).answer();
    let status = daemon.ctl(["daemon", "status"]).ok();
    let disk = status.lines().find(|line| line.starts_with("disk")).unwrap();
    assert!(disk.contains("journal ") && disk.contains("outputs ") && disk.contains(" free"), "{disk}");
    let disk = &daemon.ctl(["daemon", "status", "--json"]).json()["disk"];
    assert!(disk["journal_bytes"].as_u64().unwrap() > 0 && disk["free_bytes"].as_u64().unwrap() > 0, "{disk}");
}

#[test]
fn a_backup_under_load_has_every_run_that_was_acknowledged_before() {
    let daemon = Daemon::start();
    let place = daemon.place();
    let load = thread::spawn(move || {
        let many: Vec<_> = (0..10).flat_map(|_| place.submit_many(20, &runs("true"))).collect();
        many.iter().for_each(|run| drop(run.answer()));
    });
    let acknowledged: Vec<_> =
        (0..10).flat_map(|_| daemon.submit_many(10, &turn("").ask("well?").turn("ok"))).collect();
    // A path of the caller, not of the daemon.
    let output = daemon.ctl(["daemon", "backup", "copy.db"]).exits(0);
    assert!(output.stdout.contains(&daemon.work().join("copy.db").display().to_string()), "{output}");
    assert!(output.stdout.trim_end().ends_with("bytes"), "{output}");
    daemon.ctl(["daemon", "backup", "copy.db"]).exits(2).tells("exists");
    load.join().unwrap();

    let other = Place::new();
    fs::create_dir_all(other.state("")).unwrap();
    fs::copy(daemon.work().join("copy.db"), other.state("harness.db")).unwrap();
    let second = other.start();
    for run in &acknowledged {
        assert_eq!(second.run(&run.id).view().id.to_string(), run.id);
    }
    let asked = second.run(&acknowledged[0].id);
    eventually("it asks there, too", || !asked.questions().is_empty());
    asked.reply("yes");
    assert_eq!(asked.answer(), "ok");
    assert_eq!(second.submit(&runs("true")).answer(), "done");
}

#[test]
fn a_tree_goes_as_a_whole() {
    let daemon = Daemon::configured("[limits]\nfinished_runs = 0\n");
    let child = says("a child's answer");
    let top = daemon.submit(&turn("").spawn("child").wait_for_all().turn("done").child("child", &child));
    assert_eq!(top.answer(), "done");
    let list = || daemon.ctl(["list", "--json"]).ok();
    let runs: Vec<Value> = list().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(runs.len(), 2);
    let child = runs.iter().find(|run| !run["parent"].is_null()).unwrap()["id"].as_str().unwrap();
    daemon.ctl(["prune", child]).exits(2).tells("goes as a whole").tells(&top.id);
    daemon.ctl(["prune", "--all"]).ok();
    assert_eq!(list(), "");
}
