//! What clients were told: every reply that came, every event that was seen. The checker compares it with what is there.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// Everything that clients were told, and what they found wrong on the spot.
#[derive(Debug, Default)]
pub struct Told {
    /// Submits by their number, which the run bears as a label.
    pub submits: BTreeMap<u64, Submit>,
    /// Runs that a retry or a message made: by id, the run that they came from.
    pub made: BTreeMap<String, String>,
    /// Events that somebody saw, by number.
    pub events: BTreeMap<u64, Seen>,
    /// Numbers that somebody was told not to get: from, to.
    pub gaps: Vec<(u64, u64)>,
    /// Numbers of the events of one run that was followed, in the order of their coming.
    pub followed: Vec<(String, Vec<u64>)>,
    /// Answers that were taken: interaction, run, text.
    pub answers: Vec<(String, String, String)>,
    /// Runs that a cancel has changed.
    pub cancelled: BTreeSet<String>,
    /// Runs that were pruned.
    pub pruned: BTreeSet<String>,
    /// Runs that somebody may have pruned: the reply was lost.
    pub perhaps_pruned: BTreeSet<String>,
    /// Messages that were taken by a live run: run, number of the event, text.
    pub messages: Vec<(String, u64, String)>,
    /// How often a run was paused, and let go on.
    pub pauses: BTreeMap<String, (u64, u64)>,
    /// How a run ended, as somebody was told who waited for it: state, answer.
    pub ends: BTreeMap<String, (String, Option<String>)>,
    /// What was wrong at the time.
    pub wrong: Vec<String>,
    /// How often what happened.
    pub counts: BTreeMap<&'static str, u64>,
}

/// A submit.
#[derive(Debug, Clone)]
pub struct Submit {
    /// Its idempotency key.
    pub key: Option<String>,
    /// What the script does.
    pub kind: &'static str,
    /// The run, once somebody was told.
    pub run: Option<String>,
    /// Number of the event that made it.
    pub seq: u64,
}

/// An event that somebody saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its run.
    pub run: Option<String>,
    /// Its kind.
    pub kind: String,
    /// Of its bytes.
    pub hash: u64,
}

/// The beginning of every event.
#[derive(Deserialize)]
struct Head {
    seq: u64,
    #[serde(default)]
    run: Option<String>,
    kind: String,
}

impl Seen {
    /// Number of an event, and what is kept of it.
    pub fn of(event: &str) -> (u64, Self) {
        let head: Head = serde_json::from_str(event).unwrap_or_else(|error| panic!("{error}: {event}"));
        (head.seq, Self { run: head.run, kind: head.kind, hash: hash(event.as_bytes()) })
    }
}

/// FNV-1a, by Fowler, Noll and Vo.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

impl Told {
    /// Counts something.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Somebody saw an event. Everybody sees the same.
    pub fn saw(&mut self, event: &str) -> u64 {
        let (seq, seen) = Seen::of(event);
        match self.events.get(&seq) {
            Some(before) if *before != seen => {
                self.wrong.push(format!("event {seq} was {before:?} and is {seen:?}: {event}"));
            }
            Some(_) => {}
            None => drop(self.events.insert(seq, seen)),
        }
        seq
    }

    /// Somebody was told the run of a submit. It is always the same one.
    pub fn submitted(&mut self, number: u64, run: &str, seq: u64) {
        self.count("submits acknowledged");
        let Some(submit) = self.submits.get_mut(&number) else { return };
        match &submit.run {
            Some(before) if before != run => {
                let key = submit.key.clone();
                self.wrong.push(format!("the key {key:?} gave run {before}, then {run}"));
            }
            _ => (submit.run, submit.seq) = (Some(run.to_owned()), seq),
        }
    }

    /// Somebody was told how a run ended. That stays so.
    pub fn ended(&mut self, run: &str, state: &str, answer: Option<&str>) {
        let end = (state.to_owned(), answer.map(str::to_owned));
        if let Some(before) = self.ends.insert(run.to_owned(), end.clone())
            && before != end
        {
            self.wrong.push(format!("run {run} had ended as {before:?} and then as {end:?}"));
        }
    }

    /// The latest runs that somebody was told of, and what they do.
    pub fn latest(&self, most: usize) -> Vec<(String, &'static str)> {
        let known = self.submits.values().rev().filter_map(|submit| Some((submit.run.clone()?, submit.kind)));
        known.take(most).collect()
    }
}
