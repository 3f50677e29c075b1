//! Checks the events of a storm: none is missing, none has changed, and the events of each run make a whole life.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::told::Followed;
use super::Found;

pub(super) fn check(found: &mut Found<'_>) {
    let mut wrong = Vec::new();
    seen_are_there(found, &mut wrong);
    holes_are_of_pruned_runs(found, &mut wrong);
    epochs_are_those_that_began(found, &mut wrong);
    for run in found.by_run.keys() {
        life(run, &found.of(run).collect::<Vec<_>>(), &mut wrong);
    }
    followed(found, &mut wrong);
    found.wrong.append(&mut wrong);
}

fn seen_are_there(found: &Found<'_>, wrong: &mut Vec<String>) {
    for (seq, seen) in &found.told.events {
        match found.seen.get(seq) {
            Some(there) if there == seen => {}
            Some(there) => wrong.push(format!("event {seq} was {seen:?} and is {there:?}")),
            None if seen.run.as_deref().is_some_and(|run| found.is_pruned(run)) => {}
            None if found.is_gone(*seq) => {}
            None => wrong.push(format!("event {seq} was seen and is gone: {seen:?}")),
        }
    }
}

fn holes_are_of_pruned_runs(found: &Found<'_>, wrong: &mut Vec<String>) {
    // If a client was told of a pruned run, it is known when the run was made; its events are between that and the
    // prune.
    let made: BTreeMap<&str, u64> =
        found.told.submits.values().filter_map(|submit| Some((submit.run.as_deref()?, submit.seq))).collect();
    let spans: Vec<(u64, u64)> = found
        .pruned
        .iter()
        .map(|(run, at)| (made.get(run.as_str()).copied().filter(|seq| *seq > 0).unwrap_or(1), *at))
        .collect();
    for hole in &found.holes {
        let of_pruned = spans.iter().any(|(from, to)| (from..=to).contains(&hole));
        let seen = found.told.events.get(hole);
        if !of_pruned || seen.is_some_and(|seen| seen.run.as_deref().is_none_or(|run| !found.is_pruned(run))) {
            wrong.push(format!("event {hole} is missing, and no run was pruned that had it: {seen:?}"));
        }
    }
    let gone: u64 = found.epochs.iter().map(|(from, to, _)| to - from + 1).sum();
    let numbers = (found.events.len() + found.holes.len()) as u64 + gone;
    if numbers != found.last {
        wrong.push(format!("{numbers} numbers are accounted for, of {}", found.last));
    }
    for (from, to) in &found.told.gaps {
        if let Some((there, _)) = found.events.range(*from..=*to).next() {
            wrong.push(format!("a follower was told not to get {from} to {to}, and event {there} is there"));
        }
    }
}

/// An epoch begins behind what was in each backup or copy that was gone on from, and nowhere else.
fn epochs_are_those_that_began(found: &Found<'_>, wrong: &mut Vec<String>) {
    let there: Vec<(u64, &str)> = found.epochs.iter().map(|(from, _, why)| (from - 1, why.as_str())).collect();
    if there != found.told.cuts {
        wrong.push(format!("epochs begin behind {there:?}, and it was gone on from {:?}", found.told.cuts));
    }
}

/// A run is made once, ends once, and in between every step is asked before it is answered.
fn life(run: &str, events: &[(u64, &Value)], wrong: &mut Vec<String>) {
    let kind = |index: usize| events[index].1["kind"].as_str().unwrap();
    if kind(0) != "run-submitted" {
        wrong.push(format!("run {run} begins with {}", events[0].1));
    }
    let count = |wanted: &str| events.iter().filter(|(_, event)| event["kind"] == wanted).count();
    for (wanted, least) in [("run-submitted", 1), ("run-finished", 1)] {
        if count(wanted) != least {
            wrong.push(format!("run {run} has {} times {wanted}", count(wanted)));
        }
    }
    let after = events.iter().skip_while(|(_, event)| event["kind"] != "run-finished").skip(1);
    for (seq, event) in after.filter(|(_, event)| event["kind"] != "run-archived") {
        wrong.push(format!("run {run} has ended, and then there is event {seq}: {event}"));
    }
    let mut open: Vec<&str> = Vec::new();
    for (seq, event) in events {
        match event["kind"].as_str().unwrap() {
            "inference-started" if !open.is_empty() => {
                wrong.push(format!("run {run} asks its model at {seq} and has no result of {open:?}"));
            }
            "inference-finished" => {
                let calls = event["calls"].as_array().into_iter().flatten();
                open.extend(calls.map(|call| call["call"].as_str().unwrap()));
            }
            "call-finished" => {
                let call = event["result"]["call"].as_str().unwrap();
                match open.iter().position(|open| *open == call) {
                    Some(at) => drop(open.remove(at)),
                    None => wrong.push(format!("run {run}: call {call} has a second result, or was never asked for")),
                }
            }
            _ => {}
        }
    }
    if !open.is_empty() {
        wrong.push(format!("run {run} has ended without a result of {open:?}"));
    }
}

fn followed(found: &Found<'_>, wrong: &mut Vec<String>) {
    for Followed { run, seen, left_out } in found.told.followed.iter().filter(|one| !found.is_pruned(&one.run)) {
        let seen: Vec<u64> = seen.iter().copied().filter(|seq| !found.is_gone(*seq)).collect();
        let last = seen.last().copied().unwrap_or(0);
        let is_left_out = |seq: &u64| left_out.iter().any(|(from, to)| (from..=to).contains(&seq));
        let there = found.of(run).map(|(seq, _)| seq).take_while(|seq| *seq <= last);
        let there: Vec<u64> = there.filter(|seq| !is_left_out(seq)).collect();
        if there != seen {
            wrong.push(format!("a follower of run {run} got {seen:?}, and there are {there:?}"));
        }
    }
}
