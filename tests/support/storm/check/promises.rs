//! Checks that acknowledged requests of a storm have taken effect: submits, cancels, answers, messages, pauses, prunes,
//! ends.

use std::collections::BTreeMap;

use harness_protocol::run::RunState;

use super::Found;
use crate::{Place, eventually};

pub(super) fn check(found: &mut Found<'_>, place: &Place) {
    let mut wrong = Vec::new();
    submits(found, &mut wrong);
    ends(found, &mut wrong);
    words(found, &mut wrong);
    pauses(found, &mut wrong);
    prunes(found, place, &mut wrong);
    found.wrong.append(&mut wrong);
}

fn submits(found: &Found<'_>, wrong: &mut Vec<String>) {
    // What a submit made bears its number; what was made of that later bears it, too.
    let mut of_number: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (id, run) in found.runs.iter().filter(|(_, run)| run.retry_of.is_none() && run.continues.is_none()) {
        if let Some(number) = run.labels.get("n") {
            of_number.entry(number.parse().unwrap()).or_default().push(id);
        }
    }
    for (number, submit) in &found.told.submits {
        let there = of_number.get(number).map_or(&[][..], Vec::as_slice);
        match &submit.run {
            Some(run) if found.is_pruned(run) && there.is_empty() => {}
            Some(run) if there == [run] => {
                if submit.seq > 0 {
                    let made = found.events.get(&submit.seq);
                    if made.is_none_or(|made| made["kind"] != "run-submitted" || made["run"] != run.as_str()) {
                        wrong.push(format!("run {run} was made with event {}, which is {made:?}", submit.seq));
                    }
                }
            }
            Some(_) => wrong.push(format!("submit {number} {submit:?} was acknowledged, and there are {there:?}")),
            // A client whose reply was lost and that did not ask again may have made one run, and no more.
            None if there.len() <= 1 => {}
            None => wrong.push(format!("submit {number} {submit:?} made {there:?}")),
        }
    }
    for (run, from) in found.told.made.iter().filter(|(run, _)| !found.is_pruned(run)) {
        let made = found.runs.get(run).is_some_and(|made| {
            let first = made.retry_of.or(made.continues);
            first.is_some_and(|first| first.to_string() == *from)
        });
        if !made {
            wrong.push(format!("run {run} was made of {from}, and there is {:?}", found.runs.get(run)));
        }
    }
}

fn ends(found: &Found<'_>, wrong: &mut Vec<String>) {
    for (id, run) in &found.runs {
        if !run.state.is_terminal() {
            wrong.push(format!("run {id} has not ended: it is {}, {:?}", run.state, run.waiting_for));
        }
        let last = found.of(id).find(|(_, event)| event["kind"] == "run-finished");
        let told = last.map(|(_, event)| event["ending"]["state"].as_str().unwrap_or_default().to_owned());
        if told.as_deref() != Some(run.state.as_str()) {
            wrong.push(format!("run {id} is shown as {}, and its events say {told:?}", run.state));
        }
    }
    for run in &found.told.cancelled {
        if found.runs.get(run).is_some_and(|run| run.state != RunState::Cancelled)
            || (!found.runs.contains_key(run) && !found.is_pruned(run))
        {
            wrong.push(format!("run {run} was cancelled, and is {:?}", found.runs.get(run).map(|run| run.state)));
        }
    }
    for (run, (state, answer)) in &found.told.ends {
        let Some(view) = found.runs.get(run) else {
            if !found.is_pruned(run) {
                wrong.push(format!("run {run} had ended as {state}, and is gone"));
            }
            continue;
        };
        if view.state.as_str() != state || view.answer.as_deref() != answer.as_deref() {
            wrong.push(format!("run {run} had ended as {state} {answer:?}, and is {} {:?}", view.state, view.answer));
        }
    }
}

/// Answers and messages.
fn words(found: &Found<'_>, wrong: &mut Vec<String>) {
    for (interaction, run, text) in found.told.answers.iter().filter(|(_, run, _)| !found.is_pruned(run)) {
        let mut settled = found.of(run).filter(|(_, event)| {
            event["kind"] == "interaction-settled" && event["interaction"] == interaction.as_str()
        });
        if settled.next().is_none_or(|(_, event)| event["answer"] != text.as_str()) || settled.next().is_some() {
            wrong.push(format!("{interaction} of run {run} was answered with {text:?}, and is not, or twice"));
        }
        let read = |event: &serde_json::Value| event["result"]["envelope"] == text.as_str();
        if found.of(run).filter(|(_, event)| event["kind"] == "call-finished" && read(event)).count() != 1 {
            wrong.push(format!("run {run} was answered with {text:?}, and did not read it once"));
        }
    }
    for (run, seq, text) in found.told.messages.iter().filter(|(run, _, _)| !found.is_pruned(run)) {
        let there = found.events.get(seq);
        let same = there.is_some_and(|event| {
            event["kind"] == "message-received" && event["run"] == run.as_str() && event["text"] == text.as_str()
        });
        if !same {
            wrong.push(format!("run {run} was told {text:?} with event {seq}, which is {there:?}"));
        }
    }
}

fn pauses(found: &Found<'_>, wrong: &mut Vec<String>) {
    for (run, (paused, resumed)) in found.told.pauses.iter().filter(|(run, _)| !found.is_pruned(run)) {
        let count = |kind: &str| found.of(run).filter(|(_, event)| event["kind"] == kind).count() as u64;
        if count("run-paused") < *paused || count("run-resumed") < *resumed {
            wrong.push(format!(
                "run {run} was paused {paused} times and resumed {resumed} times, and its events differ"
            ));
        }
    }
}

fn prunes(found: &Found<'_>, place: &Place, wrong: &mut Vec<String>) {
    for run in &found.told.pruned {
        if !found.is_pruned(run) {
            wrong.push(format!("run {run} was pruned, and no event says so"));
        }
    }
    for run in found.pruned.keys() {
        if !found.told.perhaps_pruned.contains(run) {
            wrong.push(format!("run {run} was pruned, and nobody wanted that"));
        }
        if found.runs.contains_key(run) || found.of(run).next().is_some() {
            wrong.push(format!("run {run} was pruned, and there is something of it"));
        }
        let outputs = place.state(&format!("outputs/{run}"));
        eventually("the outputs of a pruned run go", || !outputs.exists());
    }
}
