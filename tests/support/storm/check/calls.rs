//! Checks the calls of a storm: each was executed at most once, by the line that it writes; each result says what
//! happened; parents know their children.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Found;
use crate::Place;

/// Runs whose transcripts are looked at.
const MOST_SHOWN: usize = 1_000;

/// Gives how many calls executed, and how many were interrupted.
pub(super) fn check(found: &mut Found<'_>, place: &Place) -> (usize, usize) {
    let mut wrong = Vec::new();
    let mut executed: BTreeMap<String, u32> = BTreeMap::new();
    for token in found.tokens.lines() {
        *executed.entry(token.to_owned()).or_default() += 1;
    }
    let mut results: BTreeMap<&str, &Value> = BTreeMap::new();
    let mut asked: BTreeMap<&str, &str> = BTreeMap::new();
    for event in found.events.values() {
        match event["kind"].as_str().unwrap() {
            "call-finished" => drop(results.insert(event["result"]["call"].as_str().unwrap(), &event["result"])),
            "inference-finished" => {
                for call in event["calls"].as_array().into_iter().flatten() {
                    asked.insert(call["call"].as_str().unwrap(), event["run"].as_str().unwrap());
                }
            }
            _ => {}
        }
    }
    // A call that had not begun where a history branched may execute in each branch.
    let again = |call: &str| found.told.again.get(call).copied().unwrap_or(0);
    for (call, times) in executed.iter().filter(|(call, times)| **times > 1 + again(call)) {
        wrong.push(format!("call {call} of run {:?} executed {times} times", asked.get(call.as_str())));
    }
    for (call, result) in results.iter().filter(|(_, result)| result["tool"] == "shell") {
        let ran = executed.contains_key(*call);
        if result["exit_code"] == 0 && !ran {
            wrong.push(format!("call {call} has a good end and left nothing: {result}"));
        }
        if result["interrupted"] == true && !result["exit_code"].is_null() {
            wrong.push(format!("call {call} was interrupted, and has an exit code: {result}"));
        }
        let not_run = result["envelope"].as_str().unwrap().starts_with("Not run");
        if not_run && ran && again(call) == 0 {
            wrong.push(format!("call {call} is said not to have run, and left its line: {result}"));
        }
    }
    let interrupted = results.values().filter(|result| result["interrupted"] == true).count();
    families(found, &results, &mut wrong);
    transcripts(found, place, &mut wrong);
    found.wrong.append(&mut wrong);
    (executed.len(), interrupted)
}

/// A child has one parent that started it, and that reads how it ended.
fn families(found: &Found<'_>, results: &BTreeMap<&str, &Value>, wrong: &mut Vec<String>) {
    let mut started: BTreeMap<&str, u32> = BTreeMap::new();
    let mut read: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for result in results.values() {
        let envelope = result["envelope"].as_str().unwrap();
        match result["tool"].as_str().unwrap() {
            "spawn_agent" => {
                if let Some(child) = envelope.strip_prefix("Started agent ").and_then(|rest| rest.strip_suffix('.')) {
                    *started.entry(child).or_default() += 1;
                }
            }
            "wait_for_agent" => {
                for line in envelope.lines().filter_map(|line| line.strip_prefix("Agent ")) {
                    let (child, how) = line.split_once(' ').unwrap();
                    read.entry(child).or_default().push(how);
                }
            }
            _ => {}
        }
    }
    for child in started.keys().filter(|child| !found.runs.contains_key(**child) && !found.is_pruned(child)) {
        wrong.push(format!("run {child} was started by its parent, and is gone"));
    }
    for (id, child) in found.runs.iter().filter(|(_, run)| run.parent.is_some()) {
        let parent = child.parent.unwrap().to_string();
        if !found.runs.contains_key(&parent) && !found.is_pruned(&parent) {
            wrong.push(format!("run {id} is a child of {parent}, which is gone"));
        }
        if started.get(id.as_str()) != Some(&1) && !found.is_pruned(&parent) {
            wrong.push(format!("run {id} is a child, and was started {:?} times", started.get(id.as_str())));
        }
        let ends = [("succeeded:", "succeeded"), ("failed:", "failed"), ("was cancelled.", "cancelled")];
        for how in read.get(id.as_str()).into_iter().flatten() {
            if !ends.iter().any(|(word, state)| how.starts_with(word) && *state == child.state.as_str()) {
                wrong.push(format!("run {id} is {}, and its parent read that it {how}", child.state));
            }
        }
    }
}

/// Checks that the view of a run agrees with its events. Of very many runs, some are checked.
fn transcripts(found: &Found<'_>, place: &Place, wrong: &mut Vec<String>) {
    let mut client = place.connect();
    for (id, run) in found.runs.iter().step_by(1 + found.runs.len() / MOST_SHOWN) {
        let shown = client.call("run.show", json!({"run": id, "transcript": true}));
        let entries = shown["transcript"].as_array().map_or(&[][..], Vec::as_slice);
        let shown = entries.iter().filter(|entry| entry["role"] == "result").map(|entry| &entry["result"]);
        let shown: Vec<&Value> = shown.collect();
        let events = found.of(id).filter(|(_, event)| event["kind"] == "call-finished");
        let events: Vec<&Value> = events.map(|(_, event)| &event["result"]).collect();
        // A run that continues another one begins with that one's entries.
        let goes_on = run.continues.is_some() || run.retry_of.is_some();
        if !shown.ends_with(&events) || (!goes_on && shown.len() != events.len()) {
            wrong.push(format!("run {id} shows the results {shown:?}, and its events are {events:?}"));
        }
    }
}
