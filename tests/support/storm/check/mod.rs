//! Compares the replies that clients got with the state of the daemon. Reads the socket and the SQLite file, and knows
//! nothing of the daemon's internals.

mod calls;
mod file;
mod history;
mod outputs;
mod promises;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use harness_protocol::run::RunView;
use serde_json::{Value, json};

use super::line::{Line, Note};
use super::told::{Seen, Told};
use crate::{PATIENCE, Place, TOKENS, now};

/// The state of the daemon, from the socket.
struct Found<'t> {
    told: &'t Told,
    /// Every event, by number.
    events: BTreeMap<u64, Value>,
    /// Their numbers, by run.
    by_run: BTreeMap<String, Vec<u64>>,
    /// Of these, what is kept of an event that was seen.
    seen: BTreeMap<u64, Seen>,
    /// Numbers that a follower of everything is told not to get.
    holes: BTreeSet<u64>,
    /// The same with a reason: an epoch begins behind them.
    epochs: Vec<(u64, u64, String)>,
    /// The lines that calls have left.
    tokens: &'t str,
    last: u64,
    runs: BTreeMap<String, RunView>,
    /// Runs that were pruned, and the number of the event that says so.
    pruned: BTreeMap<String, u64>,
    wrong: Vec<String>,
}

/// What the checker found.
#[derive(Debug)]
pub struct Verdict {
    /// Everything that is lost, doubled or different.
    pub losses: Vec<String>,
    /// Runs that are there.
    pub runs: usize,
    /// Events that are there.
    pub events: usize,
    /// Calls that executed, by their side effect.
    pub executed: usize,
    /// Calls that a restart interrupted.
    pub interrupted: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { losses, runs, events, executed, interrupted } = self;
        write!(
            f,
            "{runs} runs, {events} events, {executed} calls executed, {interrupted} interrupted; losses: {}",
            losses.len()
        )?;
        losses.iter().take(40).try_for_each(|loss| write!(f, "\n  {loss}"))
    }
}

/// Compares everything that clients were told with what there is at a place where nothing happens any more.
pub fn check(place: &Place, told: &Told) -> Verdict {
    check_with(place, told, &place.written(TOKENS))
}

/// The same where calls have left their lines elsewhere.
pub(super) fn check_with(place: &Place, told: &Told, tokens: &str) -> Verdict {
    let mut found = Found::look(place, told, tokens);
    found.wrong.extend(told.wrong.iter().cloned());
    history::check(&mut found);
    promises::check(&mut found, place);
    let (executed, interrupted) = calls::check(&mut found, place);
    outputs::check(&mut found, place);
    file::check(&mut found, place);
    Verdict { losses: found.wrong, runs: found.runs.len(), events: found.events.len(), executed, interrupted }
}

impl<'t> Found<'t> {
    fn look(place: &Place, told: &'t Told, tokens: &'t str) -> Self {
        let mut line = Line::open(&place.socket()).unwrap();
        let status = line.call("daemon.status", &json!({})).unwrap();
        let mut found = Self {
            told,
            events: BTreeMap::new(),
            by_run: BTreeMap::new(),
            seen: BTreeMap::new(),
            holes: BTreeSet::new(),
            epochs: Vec::new(),
            tokens,
            last: status["last_seq"].as_u64().unwrap(),
            runs: BTreeMap::new(),
            pruned: BTreeMap::new(),
            wrong: Vec::new(),
        };
        for (what, count) in [("executing", &status["executing"]), ("pending", &status["pending"])] {
            if *count != 0 {
                found.wrong.push(format!("{what}: {count}, and nothing is going on"));
            }
        }
        if !place.lane_is_idle() {
            found.wrong.push(format!("the lane is not idle: {:?}", place.lane("tool")));
        }
        found.read_events(&mut line);
        found.read_runs(&mut line);
        found
    }

    fn read_events(&mut self, line: &mut Line) {
        line.call("event.subscribe", &json!({"after": 0})).unwrap();
        let (mut at, end) = (0, now() + PATIENCE);
        while at < self.last {
            assert!(now() < end, "event {} of {} does not come", at + 1, self.last);
            match line.note(PATIENCE).unwrap() {
                Note::Nothing => {}
                Note::Gap(from, to, Some(reason)) => {
                    self.epochs.push((from, to, reason));
                    at = to;
                }
                Note::Gap(from, to, None) => {
                    self.holes.extend(from..=to);
                    at = to;
                }
                Note::Event(text) => {
                    let (seq, seen) = Seen::of(&text);
                    at = seq;
                    self.seen.insert(seq, seen);
                    let event: Value = serde_json::from_str(&text).unwrap();
                    if event["kind"] == "runs-pruned" {
                        let runs = event["runs"].as_array().unwrap();
                        self.pruned.extend(runs.iter().map(|run| (run.as_str().unwrap().to_owned(), seq)));
                    }
                    if let Some(run) = event["run"].as_str() {
                        self.by_run.entry(run.to_owned()).or_default().push(seq);
                    }
                    self.events.insert(seq, event);
                }
            }
        }
    }

    fn read_runs(&mut self, line: &mut Line) {
        let mut cursor = Value::Null;
        loop {
            let page = line.call("run.list", &json!({"limit": 200, "cursor": cursor})).unwrap();
            for run in page["runs"].as_array().unwrap() {
                let view: RunView = serde_json::from_value(run.clone()).unwrap();
                if let Some(twice) = self.runs.insert(view.id.to_string(), view) {
                    self.wrong.push(format!("run {} is listed twice", twice.id));
                }
            }
            cursor = page["cursor"].clone();
            if cursor.is_null() {
                return;
            }
        }
    }

    /// The events of a run, in order.
    fn of<'f>(&'f self, run: &str) -> impl Iterator<Item = (u64, &'f Value)> {
        self.by_run.get(run).into_iter().flatten().map(|seq| (*seq, &self.events[seq]))
    }

    /// Whether a number is of a history that is gone.
    fn is_gone(&self, seq: u64) -> bool {
        self.epochs.iter().any(|(from, to, _)| (*from..=*to).contains(&seq))
    }

    fn is_pruned(&self, run: &str) -> bool {
        self.pruned.contains_key(run)
    }

    fn lost(&mut self, what: impl Into<String>) {
        self.wrong.push(what.into());
    }
}
