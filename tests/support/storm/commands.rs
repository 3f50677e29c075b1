//! Works like a shell script: it calls `harnessctl`, and goes by its output and exit codes.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::chance::Chance;
use super::scripts::script;
use super::told::Submit;
use super::{Mood, Shared, pause};
use crate::{Output, Place};

/// Submits under a key until there is an id, then waits for the end.
pub(super) fn submit_and_wait(shared: &Shared, mut chance: Chance) {
    let place = &shared.place;
    let kinds: Vec<_> =
        ["quick", "steps"].map(|kind| (kind, place.script_file(&script(kind, &mut chance)))).into_iter().collect();
    while shared.mood() == Mood::Stormy {
        let number = shared.next.fetch_add(1, Ordering::SeqCst);
        let (kind, file) = chance.pick(&kinds);
        let key = format!("ctl-{number}");
        shared.told().submits.insert(number, Submit::new(Some(key.clone()), kind));
        let label = format!("n={number}");
        let words = ["submit", "-q", "--no-start", "--idempotency-key", &key, "-l", &label, "--script", &file];
        let (era, id) = loop {
            let era = shared.era();
            let output = place.ctl(words);
            match output.code {
                0 => break (era, output.stdout.trim().to_owned()),
                7 | 75 if shared.mood() != Mood::Over => pause(&mut chance),
                _ => return shared.told().wrong.push(format!("harnessctl submit: {output}")),
            }
        };
        shared.submitted(era, number, &id, 0);
        let output = place.ctl(["wait", "--no-start", "--timeout", "2s", &id]);
        let mut told = shared.told();
        told.count("commands");
        if told.era != era {
            // It may be of a history that is gone.
            continue;
        }
        match output.code {
            0 => {
                let answer = output.stdout.strip_suffix('\n').unwrap_or(&output.stdout).to_owned();
                told.ended(&id, "succeeded", Some(&answer));
            }
            // A message that came when all had been said asks for more than the script has.
            1 => told.ended(&id, "failed", None),
            // Cancelled; unreachable for too long; not yet; held by a full disk.
            5 | 7 | 8 | 75 => {}
            _ => told.wrong.push(format!("harnessctl wait {id}: {output}")),
        }
    }
}

/// Runs of one batch.
const BATCH: u64 = 6;

/// Submits without any key of its own, tried for a while by `harnessctl`, again and again until there is an id.
pub(super) fn submit_once(shared: &Shared, mut chance: Chance) {
    let place = &shared.place;
    let file = place.script_file(&script("quick", &mut chance));
    while shared.mood() == Mood::Stormy {
        let number = begin(shared, "quick");
        let label = format!("n={number}");
        let words = ["submit", "-q", "--no-start", "--retry-for", "300ms", "-l", &label, "--script", &file];
        let Some((era, ids)) = settle(shared, &mut chance, &words) else { return };
        shared.submitted(era, number, ids.trim(), 0);
        leave_room(place, [ids.trim()]);
    }
}

/// The same with many at once.
pub(super) fn submit_batches(shared: &Shared, mut chance: Chance) {
    let place = &shared.place;
    let script_file = place.script_file(&script("steps", &mut chance));
    while shared.mood() == Mood::Stormy {
        let numbers: Vec<u64> = (0..BATCH).map(|_| begin(shared, "steps")).collect();
        let line = |number: &u64| json!({"labels": {"n": number.to_string()}, "script_file": script_file}).to_string();
        let lines: Vec<String> = numbers.iter().map(line).collect();
        let file = batch_file(place, numbers[0], &lines.join("\n"));
        let mut words = vec!["submit", "-q", "--no-start", "--batch", &file];
        if chance.percent(50) {
            words.extend(["--retry-for", "300ms"]);
        }
        let Some((era, ids)) = settle(shared, &mut chance, &words) else { return };
        let ids: Vec<&str> = ids.lines().collect();
        if ids.len() != numbers.len() {
            return shared.told().wrong.push(format!("a batch of {} gave {ids:?}", numbers.len()));
        }
        numbers.iter().zip(&ids).for_each(|(number, id)| shared.submitted(era, *number, id, 0));
        shared.told().count("batches");
        leave_room(place, ids);
    }
}

/// Waits a while for the ends of runs: others have work of theirs.
fn leave_room<'a>(place: &Place, ids: impl IntoIterator<Item = &'a str>) {
    drop(place.ctl(["wait", "--no-start", "--timeout", "2s"].into_iter().chain(ids)));
}

fn batch_file(place: &Place, number: u64, lines: &str) -> String {
    place.file(&format!("home/batch-{number}.jsonl"), lines)
}

/// The number of a submit that is brought to its end, whatever happens.
fn begin(shared: &Shared, kind: &'static str) -> u64 {
    let number = shared.next.fetch_add(1, Ordering::SeqCst);
    let key = Some(format!("made by harnessctl for {number}"));
    shared.told().submits.insert(number, Submit::new(key, kind));
    number
}

/// Runs a command until it ends well, as its user would: with `--again` where it says so. Gives what it printed, and
/// the era in which that command began.
fn settle(shared: &Shared, chance: &mut Chance, words: &[&str]) -> Option<(u64, String)> {
    let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    loop {
        let era = shared.era();
        let output = shared.place.ctl(&words);
        match output.code {
            0 => return Some((era, output.stdout)),
            7 | 75 if shared.mood() != Mood::Over => {
                shared.told().put_off.insert(words.join(" "), output.to_string());
            }
            _ => {
                shared.told().wrong.push(format!("harnessctl {words:?}: {output}"));
                return None;
            }
        }
        if let Some(key) = told_key(&output)
            && !words.contains(&"--again".to_owned())
        {
            shared.told().count("submits settled later");
            words.extend(["--again".to_owned(), key]);
        }
        pause(chance);
    }
}

fn told_key(output: &Output) -> Option<String> {
    let (_, rest) = output.stderr.split_once("--again ")?;
    Some(rest.split(|c: char| !c.is_ascii_hexdigit()).next()?.to_owned())
}
