//! Checks ids: each means one thing, in all histories that branched from one another.
//!
//! It records which id was given with which event. It need not know which history continues.

use std::collections::BTreeMap;

use serde_json::Value;

/// Ids, and what they mean.
#[derive(Debug, Default)]
pub struct Ids {
    /// By id, the number of the event that gave it to a run, a call or a question.
    given: BTreeMap<String, u64>,
    /// By run, the number of the submit that made it.
    submits: BTreeMap<String, u64>,
}

/// The ids that an event gives.
fn given_by(event: &Value) -> Vec<&str> {
    match event["kind"].as_str() {
        Some("run-submitted") => event["run"].as_str().into_iter().collect(),
        Some("inference-finished") => {
            event["calls"].as_array().into_iter().flatten().filter_map(|call| call["call"].as_str()).collect()
        }
        Some("interaction-opened") => event["interaction"].as_str().into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Whether an event can give an id. Most cannot, and are not read.
fn may_give(event: &str) -> bool {
    ["\"run-submitted\"", "\"inference-finished\"", "\"interaction-opened\""].iter().any(|kind| event.contains(kind))
}

impl Ids {
    /// An event gives its ids. Tells of those that another event has given.
    pub fn given(&mut self, event: &str, seq: u64) -> Vec<String> {
        if !may_give(event) {
            return Vec::new();
        }
        let event: Value = serde_json::from_str(event).unwrap();
        let ids = given_by(&event).into_iter();
        ids.filter_map(|id| once(&mut self.given, id.to_owned(), seq, "events")).collect()
    }

    /// A submit gave a run. Tells where that run is another submit's.
    pub fn of_submit(&mut self, run: &str, number: u64) -> Option<String> {
        once(&mut self.submits, run.to_owned(), number, "submits")
    }

    /// Adds what is known elsewhere. Tells of ids that mean something else there.
    pub fn add(&mut self, others: Self) -> Vec<String> {
        let given: Vec<_> = others.given.into_iter().collect();
        let submits: Vec<_> = others.submits.into_iter().collect();
        let given = given.into_iter().filter_map(|(id, seq)| once(&mut self.given, id, seq, "events"));
        let mut wrong: Vec<String> = given.collect();
        wrong.extend(submits.into_iter().filter_map(|(id, number)| once(&mut self.submits, id, number, "submits")));
        wrong
    }

    /// How many ids of events are known.
    pub fn len(&self) -> usize {
        self.given.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }
}

/// Notes what an id means. Tells where it has meant something else.
fn once(known: &mut BTreeMap<String, u64>, id: String, means: u64, what: &str) -> Option<String> {
    let before = *known.entry(id.clone()).or_insert(means);
    (before != means).then(|| format!("the id {id} is of two {what}: {before} and {means}"))
}
