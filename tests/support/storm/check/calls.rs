//! Calls: each executed at most once, by the line that it leaves; each result says what became of it; parents know their children.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Found;
use crate::{Place, TOKENS};

/// Gives how many calls executed, and how many were interrupted.
pub(super) fn check(found: &mut Found<'_>, place: &Place) -> (usize, usize) {
    let mut wrong = Vec::new();
    let mut executed: BTreeMap<String, u32> = BTreeMap::new();
    for token in place.written(TOKENS).lines() {
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
    for (call, times) in executed.iter().filter(|(_, times)| **times > 1) {
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
        if not_run && ran {
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
    let envelopes: Vec<(&str, &str)> = results
        .values()
        .map(|result| (result["tool"].as_str().unwrap(), result["envelope"].as_str().unwrap()))
        .collect();
    let of = |tool: &str, text: &str| envelopes.iter().filter(|(of, has)| *of == tool && has.contains(text)).count();
    for (id, child) in found.runs.iter().filter(|(_, run)| run.parent.is_some()) {
        let started = of("spawn_agent", &format!("Started agent {id}."));
        if started != 1 {
            wrong.push(format!("run {id} is a child, and was started {started} times"));
        }
        let parent = child.parent.unwrap().to_string();
        if !found.runs.contains_key(&parent) && !found.is_pruned(&parent) {
            wrong.push(format!("run {id} is a child of {parent}, which is gone"));
        }
        let ends = [
            ("succeeded", format!("Agent {id} succeeded:")),
            ("failed", format!("Agent {id} failed:")),
            ("cancelled", format!("Agent {id} was cancelled.")),
        ];
        for (state, text) in ends.iter().filter(|(state, _)| *state != child.state.as_str()) {
            if of("wait_for_agent", text) > 0 {
                wrong.push(format!("run {id} is {}, and its parent read that it {state}", child.state));
            }
        }
    }
    for (_, text) in envelopes.iter().filter(|(tool, _)| *tool == "spawn_agent") {
        let child = text.strip_prefix("Started agent ").and_then(|rest| rest.strip_suffix('.'));
        if let Some(child) = child.filter(|child| !found.runs.contains_key(*child) && !found.is_pruned(child)) {
            wrong.push(format!("run {child} was started by its parent, and is gone"));
        }
    }
}

/// What is shown of a run is what its events say.
fn transcripts(found: &Found<'_>, place: &Place, wrong: &mut Vec<String>) {
    let mut client = place.connect();
    for (id, events) in found.by_run() {
        if found.is_pruned(&id) || !found.runs.contains_key(&id) {
            continue;
        }
        let shown = client.call("run.show", json!({"run": id, "transcript": true}));
        let mut in_transcript: Vec<&Value> = Vec::new();
        let entries = shown["transcript"].as_array().cloned().unwrap_or_default();
        for entry in entries.iter().filter(|entry| entry["role"] == "result") {
            in_transcript.push(&entry["result"]);
        }
        let in_events: Vec<&Value> = events
            .iter()
            .filter(|(_, event)| event["kind"] == "call-finished")
            .map(|(_, event)| &event["result"])
            .collect();
        // One that goes on from another begins with what that one was.
        if !in_transcript.ends_with(&in_events)
            || (found.runs[&id].continues.is_none()
                && found.runs[&id].retry_of.is_none()
                && in_transcript.len() != in_events.len())
        {
            wrong.push(format!("run {id} shows the results {in_transcript:?}, and its events are {in_events:?}"));
        }
    }
}
