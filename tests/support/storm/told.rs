//! Records what clients were told: every reply, every event. The checker compares the record with the state of the
//! daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use serde::Deserialize;

use super::ids::Ids;

/// Everything that clients were told, and what they found wrong on the spot.
#[derive(Debug, Default)]
pub struct Told {
    /// The promises that must hold in the end.
    pub promises: Promises,
    /// How often a backup took the journal's place so far: what was promised before that may be gone.
    pub era: u64,
    /// Events that a follower saw, by number, whatever became of them.
    pub events: BTreeMap<u64, Seen>,
    /// Ids that something got, in any of the histories.
    pub ids: Ids,
    /// What those got who followed one run.
    pub followed: Vec<Followed>,
    /// Runs that a client may have pruned: the reply was lost.
    pub perhaps_pruned: BTreeSet<String>,
    /// Runs whose outputs went with a history that a backup has replaced: pruned there, or not among the outputs of the
    /// backup. Another backup, without outputs, may have these runs.
    pub without_outputs: BTreeSet<String>,
    /// The disk had no room at times, so that outputs could not be kept.
    pub disk_was_full: bool,
    /// How often a call may have executed once more, since it had not begun where a history branched.
    pub again: BTreeMap<String, u32>,
    /// The errors that were noticed at the time.
    pub wrong: Vec<String>,
    /// How often what happened.
    pub counts: BTreeMap<&'static str, u64>,
}

/// What clients were told of one history. A restored backup takes it back to what it was.
#[derive(Debug, Default, Clone)]
pub struct Promises {
    /// Submits by their number, which the run bears as a label.
    pub submits: BTreeMap<u64, Submit>,
    /// Commands that were put off, and what each said last.
    pub put_off: BTreeMap<String, String>,
    /// Runs that a retry or a message made: by id, the run that they came from.
    pub made: BTreeMap<String, String>,
    /// Answers that were taken: interaction, run, text.
    pub answers: Vec<(String, String, String)>,
    /// Runs that a cancel has changed.
    pub cancelled: BTreeSet<String>,
    /// Runs that were pruned.
    pub pruned: BTreeSet<String>,
    /// Messages that were taken by a live run: run, number of the event, text.
    pub messages: Vec<(String, u64, String)>,
    /// How often a run was paused, and let go on.
    pub pauses: BTreeMap<String, (u64, u64)>,
    /// How a run ended, as a client was told that waited for it: state, answer.
    pub ends: BTreeMap<String, (String, Option<String>)>,
    /// Numbers that a follower was told not to get, because they were pruned: from, to.
    pub gaps: Vec<(u64, u64)>,
    /// The last number before each epoch that began with a restored backup or a copy, and which of the two it was.
    pub cuts: Vec<(u64, &'static str)>,
    /// The epochs of the backup that was gone on from.
    pub epochs: BTreeSet<String>,
}

/// What a follower of one run got.
#[derive(Debug, Clone, Default)]
pub struct Followed {
    /// The id of the run that it followed.
    pub run: String,
    /// Numbers of its events, in the order of their coming.
    pub seen: Vec<u64>,
    /// Numbers that it was told not to get: from, to.
    pub left_out: Vec<(u64, u64)>,
}

impl Followed {
    /// It is told that it does not get these numbers, and that what it has seen of them may be of another history.
    pub fn leave_out(&mut self, from: u64, to: u64) {
        self.seen.retain(|seq| !(from..=to).contains(seq));
        self.left_out.push((from, to));
    }
}

impl Deref for Told {
    type Target = Promises;
    fn deref(&self) -> &Promises {
        &self.promises
    }
}

impl DerefMut for Told {
    fn deref_mut(&mut self) -> &mut Promises {
        &mut self.promises
    }
}

/// A submit that a client makes until it is settled.
#[derive(Debug, Clone)]
pub struct Submit {
    /// Its idempotency key.
    pub key: Option<String>,
    /// What the script does.
    pub kind: &'static str,
    /// The run, once a client was told.
    pub run: Option<String>,
    /// Number of the event that made it.
    pub seq: u64,
    /// A client was told of a run, in a history that was gone by then, or later: there may be one.
    pub gone: bool,
}

impl Submit {
    /// One of which nothing is known yet.
    pub fn new(key: Option<String>, kind: &'static str) -> Self {
        Self { key, kind, run: None, seq: 0, gone: false }
    }

    /// Whether its client still tries.
    pub fn is_open(&self) -> bool {
        self.key.is_some() && self.run.is_none() && !self.gone
    }
}

/// An event that a follower saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Id of its run; `None` for an event of the daemon.
    pub run: Option<String>,
    /// Kind of the event, as on the wire.
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
    /// Counts one more of `what`, for the summary at the end.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A follower saw an event. All followers see the same.
    pub fn saw(&mut self, event: &str) -> u64 {
        let (seq, seen) = Seen::of(event);
        self.wrong.extend(self.ids.given(event, seq));
        match self.events.get(&seq) {
            Some(before) if *before != seen => {
                self.wrong.push(format!("event {seq} was {before:?} and is {seen:?}: {event}"));
            }
            Some(_) => {}
            None => drop(self.events.insert(seq, seen)),
        }
        seq
    }

    /// A client was told the run of a submit. It is always the same one.
    pub fn submitted(&mut self, number: u64, run: &str, seq: u64) {
        self.count("submits acknowledged");
        self.wrong.extend(self.ids.of_submit(run, number));
        let Some(submit) = self.promises.submits.get_mut(&number) else { return };
        match &submit.run {
            Some(before) if before != run => {
                let key = submit.key.clone();
                self.wrong.push(format!("the key {key:?} gave run {before}, then {run}"));
            }
            _ => (submit.run, submit.seq, submit.gone) = (Some(run.to_owned()), seq, false),
        }
    }

    /// A client was told a run of which it is not known in which history it is.
    pub fn perhaps_submitted(&mut self, number: u64, run: &str) {
        self.count("submits acknowledged across a restore");
        self.wrong.extend(self.ids.of_submit(run, number));
        if let Some(submit) = self.promises.submits.get_mut(&number) {
            submit.gone = submit.run.is_none();
        }
    }

    /// A backup took the journal's place that has all of `promises`, up to the event `last`, and these epochs. What
    /// clients still try goes on.
    pub fn go_back(&mut self, promises: &Promises, last: u64, epochs: &BTreeSet<String>) {
        self.era += 1;
        let now = std::mem::replace(&mut self.promises, promises.clone());
        self.promises.cuts.push((last, "restored"));
        self.promises.epochs.clone_from(epochs);
        for (number, submit) in now.submits {
            let gone = submit.gone || submit.run.is_some();
            let known = self.promises.submits.entry(number).or_insert(Submit { run: None, seq: 0, ..submit });
            known.gone = known.run.is_none() && gone;
        }
    }

    /// Whether a run must be there, as far as is known in an era.
    pub fn is_promised(&self, era: u64, run: &str) -> bool {
        self.era == era && self.submits.values().any(|submit| submit.run.as_deref() == Some(run))
    }

    /// Adds what was told of a history that was gone by the time.
    pub fn add_past(&mut self, mut past: Self) {
        self.wrong.append(&mut past.wrong);
        self.wrong.extend(self.ids.add(past.ids));
        for (what, times) in past.counts {
            *self.counts.entry(what).or_default() += times;
        }
    }

    /// A client was told how a run ended. That stays so.
    pub fn ended(&mut self, run: &str, state: &str, answer: Option<&str>) {
        let end = (state.to_owned(), answer.map(str::to_owned));
        if let Some(before) = self.ends.insert(run.to_owned(), end.clone())
            && before != end
        {
            self.wrong.push(format!("run {run} had ended as {before:?} and then as {end:?}"));
        }
    }

    /// The latest runs that a client was told of, and what they do.
    pub fn latest(&self, most: usize) -> Vec<(String, &'static str)> {
        let known = self.submits.values().rev().filter_map(|submit| Some((submit.run.clone()?, submit.kind)));
        known.take(most).collect()
    }
}
