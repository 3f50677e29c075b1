//! Clients that follow events, and go on where they stopped when the daemon comes back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::chance::Chance;
use super::line::{Line, Note, Trouble};
use super::{Mood, Shared, pause};

/// Between two looks whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// Follows everything from the first event on: each next number, or an explicit gap, which goes back where a backup
/// took the journal's place, to what is in that.
pub(super) fn everything(shared: &Shared, mut chance: Chance) {
    let (mut at, mut epoch) = (0, Value::Null);
    let over = |at: u64| shared.mood() == Mood::Over && at >= shared.last.load(Ordering::SeqCst);
    while !over(at) {
        let Some(mut line) = shared.try_line() else {
            pause(&mut chance);
            continue;
        };
        match line.call("event.subscribe", &json!({"after": at, "epoch": epoch})) {
            Ok(reply) => epoch = reply["epoch"].clone(),
            Err(Trouble::Lost) => continue,
            Err(refused) if matches!(refused.kind(), "busy" | "held") => continue,
            Err(Trouble::Refused(error)) => {
                shared.told().wrong.push(format!("event {at} was seen, and then: {error}"));
                return;
            }
        }
        while !over(at) {
            let (from, to) = match line.note(LOOK) {
                Err(_) => break,
                Ok(Note::Nothing) => continue,
                Ok(Note::Event(event)) => {
                    let seq = shared.told().saw(&event);
                    (seq, seq)
                }
                Ok(Note::Gap(from, to, None)) => {
                    shared.told().gaps.push((from, to));
                    (from, to)
                }
                Ok(Note::Gap(from, to, Some(reason))) => {
                    epoch_began(shared, &line, from, &reason);
                    // What it has seen may be in the gap; what it has not must be.
                    (from.max(at + 1), to)
                }
            };
            if from != at + 1 || to < from {
                shared.told().wrong.push(format!("after event {at} a follower of everything got {from} to {to}"));
            }
            at = to;
        }
    }
}

/// Follows one run after the other, each from its beginning to its end.
pub(super) fn one_run(shared: &Shared, mut chance: Chance) {
    while shared.mood() == Mood::Stormy {
        let latest = shared.told().latest(10);
        let known: Vec<_> = latest.iter().filter(|(_, kind)| !matches!(*kind, "passing" | "endless")).collect();
        if known.is_empty() {
            pause(&mut chance);
            continue;
        }
        let run = chance.pick(&known).0.clone();
        let (mut seen, mut epoch) = (Vec::new(), Value::Null);
        while shared.mood() == Mood::Stormy {
            let Some(mut line) = shared.try_line() else {
                pause(&mut chance);
                continue;
            };
            let after = seen.last().copied().unwrap_or(0);
            match line.call("event.subscribe", &json!({"after": after, "epoch": epoch, "run": run})) {
                Ok(reply) => epoch = reply["epoch"].clone(),
                Err(Trouble::Lost) => continue,
                Err(refused) if matches!(refused.kind(), "busy" | "held") => continue,
                Err(refused) if refused.kind() == "not-found" && !shared.told().is_promised(line.era, &run) => {
                    shared.told().count("followed runs gone");
                    break;
                }
                Err(Trouble::Refused(error)) => {
                    shared.told().wrong.push(format!("run {run} was acknowledged, and then: {error}"));
                    break;
                }
            }
            if follow(shared, &mut line, &run, &mut seen) {
                break;
            }
        }
        shared.told().followed.push((run, seen));
    }
}

/// A follower was told that an epoch begins, and that it does not get what it has seen from `from` on: that is what a
/// backup did not have, or all, where the follower comes from a history that this one knows nothing of.
fn epoch_began(shared: &Shared, line: &Line, from: u64, reason: &str) {
    let mut told = shared.told();
    told.count("gaps with a reason");
    let known = told.cuts.iter().any(|(last, why)| *last + 1 == from && *why == reason);
    if told.era == line.era && !known && from != 1 {
        let cuts = told.cuts.clone();
        told.wrong.push(format!("an epoch that was {reason} begins behind a gap from {from}; there are {cuts:?}"));
    }
}

/// Says whether it has ended.
fn follow(shared: &Shared, line: &mut Line, run: &str, seen: &mut Vec<u64>) -> bool {
    while shared.mood() == Mood::Stormy {
        match line.note(LOOK) {
            Err(_) => return false,
            Ok(Note::Nothing) => {}
            Ok(Note::Gap(from, _, Some(reason))) => epoch_began(shared, line, from, &reason),
            Ok(Note::Gap(from, to, None)) => {
                shared.told().wrong.push(format!("a follower of run {run} misses {from} to {to}"));
            }
            Ok(Note::Event(event)) => {
                seen.push(shared.told().saw(&event));
                let event: Value = serde_json::from_str(&event).unwrap();
                if event["kind"] == "run-finished" {
                    return true;
                }
            }
        }
    }
    false
}
