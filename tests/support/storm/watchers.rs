//! Follows events as clients do, and continues at the last event when the daemon comes back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::chance::Chance;
use super::line::{Line, Note, Trouble};
use super::told::Followed;
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
        let mut ahead;
        match line.call("event.subscribe", &json!({"after": at, "epoch": epoch})) {
            Ok(reply) => {
                ahead = Ahead::of(shared, &line, &epoch, &reply["epoch"]);
                epoch = reply["epoch"].clone();
            }
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
                    ahead.comes(shared, &line, seq);
                    (seq, seq)
                }
                Ok(Note::Gap(from, to, None)) => {
                    shared.told_in(line.era).gaps.push((from, to));
                    (from, to)
                }
                Ok(Note::Gap(from, to, Some(reason))) => {
                    ahead.epoch_began(shared, &line, from, &reason);
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
        let (mut at, mut epoch) = (0, Value::Null);
        let mut followed = Followed { run: run.clone(), ..Followed::default() };
        while shared.mood() == Mood::Stormy {
            let Some(mut line) = shared.try_line() else {
                pause(&mut chance);
                continue;
            };
            let mut ahead;
            match line.call("event.subscribe", &json!({"after": at, "epoch": epoch, "run": run})) {
                Ok(reply) => {
                    ahead = Ahead::of(shared, &line, &epoch, &reply["epoch"]);
                    epoch = reply["epoch"].clone();
                }
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
            if follow(shared, &mut line, &mut followed, &mut at, &mut ahead) {
                break;
            }
        }
        shared.told().followed.push(followed);
    }
}

/// What has to come first on a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// Whatever there is.
    Nothing,
    /// A gap from the first number on: the history knows nothing of the epoch that the follower comes from.
    GapFromOne,
}

impl Ahead {
    /// What comes first for a follower that comes from `epoch`, where `current` is the one that goes on.
    fn of(shared: &Shared, line: &Line, epoch: &Value, current: &Value) -> Self {
        let told = shared.told();
        let is_known = |epoch: &str| told.epochs.contains(epoch) || *current == epoch;
        match epoch.as_str() {
            Some(epoch) if told.era == line.era && !is_known(epoch) => Self::GapFromOne,
            _ => Self::Nothing,
        }
    }

    /// An event comes.
    fn comes(&mut self, shared: &Shared, line: &Line, seq: u64) {
        let mut told = shared.told();
        if *self == Self::GapFromOne && told.era == line.era {
            told.wrong.push(format!("event {seq} comes to a follower from an epoch that is not known, without a gap"));
        }
        *self = Self::Nothing;
    }

    /// The follower is told that an epoch begins, and that it does not get what it may have seen from `from` on: that
    /// is what a backup did not have, or all, where it comes from a history that this one knows nothing of.
    fn epoch_began(&mut self, shared: &Shared, line: &Line, from: u64, reason: &str) {
        let mut told = shared.told();
        told.count("gaps with a reason");
        let of_a_cut = told.cuts.iter().any(|(last, why)| *last + 1 == from && *why == reason);
        let is_right = if *self == Self::GapFromOne { from == 1 } else { of_a_cut };
        if told.era == line.era && !is_right {
            let (cuts, ahead) = (told.cuts.clone(), *self);
            told.wrong.push(format!(
                "an epoch that was {reason} begins behind a gap from {from}; there are {cuts:?}, ahead is {ahead:?}"
            ));
        }
        if *self == Self::GapFromOne {
            told.count("gaps from the first number on");
        }
        *self = Self::Nothing;
    }
}

/// Says whether it has ended.
fn follow(shared: &Shared, line: &mut Line, followed: &mut Followed, at: &mut u64, ahead: &mut Ahead) -> bool {
    while shared.mood() == Mood::Stormy {
        match line.note(LOOK) {
            Err(_) => return false,
            Ok(Note::Nothing) => {}
            Ok(Note::Gap(from, to, Some(reason))) => {
                ahead.epoch_began(shared, line, from, &reason);
                followed.leave_out(from, to);
                *at = to;
            }
            Ok(Note::Gap(from, to, None)) => {
                let run = &followed.run;
                shared.told().wrong.push(format!("a follower of run {run} misses {from} to {to}"));
            }
            Ok(Note::Event(event)) => {
                *at = shared.told().saw(&event);
                ahead.comes(shared, line, *at);
                followed.seen.push(*at);
                let event: Value = serde_json::from_str(&event).unwrap();
                if event["kind"] == "run-finished" {
                    return true;
                }
            }
        }
    }
    false
}
