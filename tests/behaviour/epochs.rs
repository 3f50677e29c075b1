//! Restored backups and copies: a client is told when the history changes, and no number and no id means two things.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use harness_protocol::run::RunState;
use harness_tests::{Client, Daemon, Place, Value, json, runs, turn};
use nix::sys::signal::Signal;

const JUMP: u64 = 1 << 32;

fn stop(mut daemon: Daemon) -> Place {
    daemon.signal(Signal::SIGTERM);
    daemon.ended(std::time::Duration::from_secs(20));
    daemon.place()
}

fn last(daemon: &Daemon) -> u64 {
    daemon.rpc("daemon.status", json!({}))["last_seq"].as_u64().unwrap()
}

/// The first note of a subscription that is no delta.
fn first_note(client: &mut Client, params: Value) -> Value {
    client.subscribe(params);
    client.note()
}

fn ids(daemon: &Daemon) -> BTreeSet<String> {
    let runs = daemon.rpc("run.list", json!({"limit": 1000}))["runs"].as_array().unwrap().clone();
    runs.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
}

/// A12: a restored backup goes on in an epoch of its own; a cursor of the other one gives a gap with the reason.
#[test]
fn a_restored_backup_begins_an_epoch_and_its_followers_are_told() {
    let daemon = Daemon::start();
    let asks = daemon.submit(&turn("").shell("echo kept").ask("well?").turn("answered"));
    asks.reach(RunState::Waiting);
    let (backup, shared) = (daemon.path("backup.db"), last(&daemon));
    let copied = daemon.ctl(["daemon", "backup", "--outputs", backup.to_str().unwrap(), "--json"]).json();
    assert_eq!(copied["output_bytes"], 5);
    let epoch = daemon.connect().subscribe(json!({"after": 0}))["epoch"].clone();
    daemon.submit_many(7, &runs("echo later")).iter().for_each(|run| assert_eq!(run.answer(), "done"));
    let (after, later) = (last(&daemon), ids(&daemon));
    let follower = daemon.spawn_ctl(["events", "-f", "--after", &shared.to_string()]);
    let mut follower = follower;
    (shared..after).for_each(|_| assert!(!follower.next_line().is_empty()));

    daemon.ctl(["daemon", "restore", backup.to_str().unwrap()]).ok();
    let place = daemon.place();
    drop(daemon);
    assert!(place.state("replaced/harness.db").exists() && place.state("replaced/outputs").exists());
    assert_eq!(fs::read_dir(place.state("replaced/outputs")).unwrap().count(), 8, "nothing was deleted");
    assert_eq!(place.output_files().len(), 1, "what belongs to the backup is there again");
    let daemon = place.start();
    let now = daemon.connect().subscribe(json!({"after": 0}))["epoch"].clone();
    assert_ne!(now, epoch);
    assert_eq!(daemon.rpc("daemon.status", json!({}))["journal"]["epoch"], now);
    // The shared history, then the gap; the same, where the cursor is one that this history never had.
    let first = shared + JUMP;
    for (cursor, from) in
        [(shared, shared + 1), (shared + 3, shared + 1), (after, shared + 1), (after + 99, shared + 1)]
    {
        let note = first_note(&mut daemon.connect(), json!({"after": cursor, "epoch": epoch}));
        let gap = &note["params"]["gap"];
        assert_eq!((&gap["from"], &gap["to"]), (&json!(from), &json!(first - 1)), "{cursor}: {note}");
        assert_eq!(gap["reason"], "restored", "{cursor}: {note}");
    }
    // Without an epoch the numbers alone tell; with a strange one all is new.
    let note = first_note(&mut daemon.connect(), json!({"after": after}));
    assert_eq!(note["params"]["gap"]["to"], first - 1, "{note}");
    let strange = first_note(&mut daemon.connect(), json!({"after": 3, "epoch": "0000000000007"}));
    assert_eq!(
        (&strange["params"]["gap"]["from"], &strange["params"]["gap"]["reason"]),
        (&json!(1), &json!("restored"))
    );
    let same = first_note(&mut daemon.connect(), json!({"after": first - 1, "epoch": now}));
    assert_eq!(same["params"]["event"]["seq"], first, "{same}");

    // The one that follows sees the gap and goes on.
    let line: Value = serde_json::from_str(&follower.next_line()).unwrap();
    assert_eq!(line["gap"]["reason"], "restored", "{line}");
    let next: Value = serde_json::from_str(&follower.next_line()).unwrap();
    assert_eq!(next["seq"], first, "{next}");

    // Old ids stay, and no new one is one that was lost.
    assert!(ids(&daemon).contains(&asks.id));
    let fresh = daemon.submit_many(20, &runs("true"));
    assert!(fresh.iter().all(|run| !later.contains(&run.id)), "an id means two runs");
    asks.reply("yes");
    assert_eq!(asks.answer(), "answered");
    assert!(daemon.ctl(["logs", &asks.id]).ok().contains("kept"));
}

/// A daemon that goes on from a backup.
fn restored(daemon: Daemon, backup: &str) -> Daemon {
    daemon.ctl(["daemon", "restore", backup]).ok();
    let place = daemon.place();
    drop(daemon);
    fs::remove_dir_all(place.state("replaced")).unwrap();
    place.start()
}

/// A backup that is taken now, and the number of its last event.
fn backed_up(daemon: &Daemon, name: &str) -> (String, u64) {
    let file = daemon.path(name).to_str().unwrap().to_owned();
    daemon.ctl(["daemon", "backup", &file]).ok();
    (file, last(daemon))
}

/// The epoch that goes on, and its first number.
fn epoch(daemon: &Daemon) -> (Value, u64) {
    let journal = daemon.rpc("daemon.status", json!({}))["journal"].clone();
    (journal["epoch"].clone(), journal["since"].as_u64().unwrap())
}

/// The gaps of all that there is behind a cursor: from, to, reason.
fn gaps(daemon: &Daemon, after: u64, epoch: &Value) -> Vec<(u64, u64, Value)> {
    let (mut client, last, mut at, mut gaps) = (daemon.connect(), last(daemon), 0, Vec::new());
    client.subscribe(json!({"after": after, "epoch": epoch}));
    while at < last {
        let note = client.note();
        let gap = &note["params"]["gap"];
        if let Some(to) = gap["to"].as_u64() {
            gaps.push((gap["from"].as_u64().unwrap(), to, gap["reason"].clone()));
            at = to;
        } else {
            at = note["params"]["event"]["seq"].as_u64().unwrap();
        }
    }
    gaps
}

/// A12: backups are restored in any order, also one of an epoch that a later one went back behind. A follower is told
/// what is not of the history that goes on; what was pruned is told apart from that; and where its epoch is known no
/// more, all up to the first epoch that it cannot have seen.
#[test]
fn followers_are_told_whichever_backups_are_restored_in_whichever_order() {
    let gap = |from: u64, next: u64| (from, next - 1, json!("restored"));
    let daemon = Daemon::start();
    daemon.submit(&runs("true")).answer();
    let passing = daemon.submit(&runs("true"));
    passing.answer();
    let (first, _) = epoch(&daemon);
    let (early, shared) = backed_up(&daemon, "early.db");
    daemon.submit(&runs("true")).answer();

    let daemon = restored(daemon, &early);
    let (second, second_from) = epoch(&daemon);
    daemon.submit(&runs("true")).answer();
    let (late, second_to) = backed_up(&daemon, "late.db");
    daemon.submit(&runs("true")).answer();
    let second_seen = last(&daemon);

    // An earlier backup once more: the second epoch is known no more, and its numbers are left out.
    let daemon = restored(daemon, &early);
    let (third, third_from) = epoch(&daemon);
    daemon.submit(&runs("true")).answer();
    daemon.rpc("run.prune", json!({"select": {"runs": [passing.id]}}));
    let third_seen = last(&daemon);
    assert!(third_from > second_seen, "{third_from} was used in an epoch that is gone");
    // A gap of pruned events has no reason.
    let told = |after, epoch: &Value| -> (Vec<_>, Vec<_>) {
        gaps(&daemon, after, epoch).into_iter().partition(|(_, _, reason)| reason.is_null())
    };
    let (pruned, cut) = told(0, &first);
    assert_eq!(cut, [gap(shared + 1, third_from)]);
    assert!(pruned.iter().any(|(_, to, _)| *to == shared), "what was pruned is told apart: {pruned:?}");
    assert_eq!(told(second_seen, &second).1, [gap(1, third_from)]);
    assert_eq!(told(third_from, &third).1, []);

    // The later one: the third epoch is known no more, and the second one again, as far as the backup has it.
    let daemon = restored(daemon, &late);
    let (_, fourth_from) = epoch(&daemon);
    daemon.submit(&runs("true")).answer();
    assert!(fourth_from > third_seen, "{fourth_from} was used in an epoch that is gone");
    assert_eq!(gaps(&daemon, 0, &first), [gap(shared + 1, second_from), gap(second_to + 1, fourth_from)]);
    assert_eq!(gaps(&daemon, second_from, &second), [gap(second_to + 1, fourth_from)]);
    assert_eq!(gaps(&daemon, second_seen, &second), [gap(second_to + 1, fourth_from)]);
    assert_eq!(gaps(&daemon, third_seen, &third), [gap(1, fourth_from)]);
    // A follower in the third epoch that was no further than the first has seen nothing of the second.
    assert_eq!(gaps(&daemon, 2, &third), [gap(1, second_from), gap(second_to + 1, fourth_from)]);
}

/// A3: outputs of a run that a backup does not know are moved aside, and are back with one that does.
#[test]
fn outputs_are_back_with_the_backup_that_knows_their_run() {
    let daemon = Daemon::start();
    let (early, _) = backed_up(&daemon, "early.db");
    let run = daemon.submit(&runs("seq 20000"));
    run.answer();
    let (late, _) = backed_up(&daemon, "late.db");
    let output = daemon.ctl(["logs", "--call", "1", "--stream", "stdout", "--raw", &run.id]).ok();
    // The start after the one that the epoch began with moves them.
    let place = stop(restored(daemon, &early));
    let daemon = place.start();
    assert!(daemon.state("outputs/.lost").join(&run.id).exists() && !daemon.state("outputs").join(&run.id).exists());
    let daemon = restored(daemon, &late);
    assert!(!daemon.state("outputs/.lost").join(&run.id).exists());
    assert_eq!(daemon.ctl(["logs", "--call", "1", "--stream", "stdout", "--raw", &run.id]).ok(), output);
}

/// A12: a copied state directory and the original go on side by side, and share no number and no id but the old ones.
#[test]
fn a_copied_state_directory_shares_nothing_new_with_the_original() {
    for crashed in [false, true] {
        let daemon = Daemon::start();
        daemon.submit_many(3, &runs("true")).iter().for_each(|run| assert_eq!(run.answer(), "done"));
        let shared = ids(&daemon);
        let place = if crashed { daemon.crash() } else { stop(daemon) };
        let other = Place::new();
        fs::create_dir_all(other.state("").parent().unwrap()).unwrap();
        assert!(Command::new("cp").arg("-a").arg(place.state("")).arg(other.state("")).status().unwrap().success());
        let (original, copy) = (place.start(), other.start());
        assert!(original.journal_report().findings.is_empty());
        assert_eq!(copy.rpc("daemon.status", json!({}))["journal"]["findings"][0]["reason"], "copied");
        assert!(last(&copy) > JUMP && last(&original) < JUMP);
        let of = |daemon: &Daemon| {
            daemon.submit_many(30, &runs("true")).iter().map(|run| run.id.clone()).collect::<BTreeSet<_>>()
        };
        assert!(of(&original).is_disjoint(&of(&copy)));
        assert!(ids(&original).is_superset(&shared) && ids(&copy).is_superset(&shared));
        // And a copy of the copy; an ordinary restart is none.
        let copy = stop(copy).start();
        assert!(copy.journal_report().findings.is_empty());
    }
}

/// A12: what is no backup is not put in place, and nothing is moved for it.
#[test]
fn a_file_that_is_no_backup_is_refused_and_nothing_is_moved() {
    let daemon = Daemon::start();
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
    let backup = daemon.path("backup.db");
    daemon.ctl(["daemon", "backup", backup.to_str().unwrap()]).ok();
    let place = stop(daemon);
    let bytes = fs::read(&backup).unwrap();
    let cases: [(&str, Vec<u8>); 5] = [
        ("empty.db", Vec::new()),
        ("text.db", b"hello".to_vec()),
        ("half.db", bytes[..bytes.len() / 2].to_vec()),
        ("header.db", bytes[..100].to_vec()),
        ("zeros.db", vec![0; bytes.len()]),
    ];
    let before = fs::read(place.state("harness.db")).unwrap();
    for (name, bytes) in cases {
        fs::write(place.path(name), bytes).unwrap();
        let refused = place.ctl(["daemon", "restore", place.path(name).to_str().unwrap()]);
        assert_eq!(refused.code, 2, "{name}: {refused}");
        assert_eq!(fs::read(place.state("harness.db")).unwrap(), before, "{name}");
        assert!(!place.state("replaced").exists(), "{name}");
    }
    place.ctl(["daemon", "restore", "/no/such/file"]).exits(2);
    assert_eq!(place.start().submit(&runs("true")).answer(), "done");
}
