//! Drives the socket as clients do: some submit, some answer, and some change the runs of others.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::chance::Chance;
use super::line::{Line, Trouble};
use super::scripts::{KINDS, script};
use super::told::Submit;
use super::{MOST_LIVE, Mood, Shared, live_in, pause};

/// Submits, with and without a key. What was sent under a key is sent again until its reply has come, and now and
/// then after.
pub(super) fn submit(shared: &Shared, mut chance: Chance) {
    let mut open: Vec<(u64, Value)> = Vec::new();
    let mut done: Vec<(u64, Value)> = Vec::new();
    while let Some(mut line) = shared.line() {
        loop {
            match shared.mood() {
                Mood::Over => return,
                Mood::Calm if open.is_empty() => {
                    pause(&mut chance);
                    continue;
                }
                Mood::Stormy if open.is_empty() => match next(shared, &mut chance, &mut line, &mut done) {
                    Ok(Some(fresh)) => open.push(fresh),
                    Ok(None) => pause(&mut chance),
                    Err(Trouble::Lost) => break,
                    Err(Trouble::Refused(error)) => shared.told().wrong.push(format!("daemon.status: {error}")),
                },
                _ => {}
            }
            let Some((number, params)) = open.pop() else { continue };
            let keyed = params.get("idempotency_key").is_some();
            match line.call("run.submit", &params) {
                Ok(reply) => {
                    let (run, seq) = (reply["id"].as_str().unwrap(), reply["seq"].as_u64().unwrap());
                    shared.submitted(line.era, number, run, seq);
                    if keyed {
                        done.push((number, params));
                    }
                }
                Err(Trouble::Lost) => {
                    shared.told().count("replies lost");
                    if keyed {
                        open.push((number, params));
                    }
                    break;
                }
                Err(refused) if matches!(refused.kind(), "busy" | "held") => {
                    shared.told().count(if refused.kind() == "held" { "submits held" } else { "submits put off" });
                    if keyed {
                        open.push((number, params));
                    }
                    pause(&mut chance);
                }
                Err(Trouble::Refused(error)) => shared.told().wrong.push(format!("submit {number}: {error}")),
            }
        }
    }
}

/// The next submit: a new one, or a repeated one under its key; `None` where there are enough.
fn next(
    shared: &Shared,
    chance: &mut Chance,
    line: &mut Line,
    done: &mut Vec<(u64, Value)>,
) -> Result<Option<(u64, Value)>, Trouble> {
    if !done.is_empty() && chance.percent(10) {
        let index = usize::try_from(chance.below(done.len() as u64)).unwrap();
        shared.told().count("submits repeated");
        return Ok(Some(done.swap_remove(index)));
    }
    if live_in(&line.call("daemon.status", &json!({}))?) >= MOST_LIVE {
        return Ok(None);
    }
    let number = shared.next.fetch_add(1, Ordering::SeqCst);
    let kind = chance.pick(&KINDS);
    let labels = json!({"n": number.to_string(), "kind": kind});
    let mut params = json!({"spec": shared.place.spec(&script(kind, chance), json!({"labels": labels}))});
    // What may be pruned is not asked for again: its key goes with it.
    let key = (kind != "passing" && chance.percent(70)).then(|| format!("key-{number}"));
    if let Some(key) = &key {
        params["idempotency_key"] = json!(key);
    }
    shared.told().submits.insert(number, Submit::new(key, kind));
    Ok(Some((number, params)))
}

/// Answers whatever is asked, each question with a text of its own.
pub(super) fn answer(shared: &Shared, mut chance: Chance) {
    let mut number = 0;
    while let Some(mut line) = shared.line() {
        while let Ok(open) = line.call("interaction.list", &json!({})) {
            for one in open["interactions"].as_array().unwrap() {
                number += 1;
                let (id, run) = (one["id"].as_str().unwrap(), one["run"].as_str().unwrap());
                let text = format!("answer {number}");
                match line.call("interaction.answer", &json!({"interaction": id, "answer": text})) {
                    Ok(reply) => {
                        assert_eq!(reply["run"], run);
                        let mut told = shared.told_in(line.era);
                        told.count("answers acknowledged");
                        told.answers.push((id.to_owned(), run.to_owned(), text));
                    }
                    Err(Trouble::Lost) => shared.told().count("replies lost"),
                    // It was cancelled, or an answer whose reply was lost has been taken.
                    Err(refused) => match refused.kind() {
                        "no-longer-applies" | "held" | "busy" => {}
                        _ => shared.told().wrong.push(format!("answer to {id}: {refused:?}")),
                    },
                }
            }
            if shared.mood() == Mood::Over {
                return;
            }
            pause(&mut chance);
        }
    }
}

/// Cancels, pauses, resumes, tells, waits, looks, retries and prunes; in the end, lets go on what is paused and ends
/// what is endless.
pub(super) fn meddle(shared: &Shared, mut chance: Chance) {
    let mut number = 0;
    while let Some(mut line) = shared.line() {
        loop {
            let result = match shared.mood() {
                Mood::Over => return,
                Mood::Calm => settle(shared, &mut line),
                Mood::Stormy => {
                    let latest = shared.told().latest(150);
                    match latest.as_slice() {
                        [] => Ok(()),
                        some => {
                            let (run, kind) = chance.pick(some);
                            number += 1;
                            one_thing(shared, &mut line, &mut chance, &run, kind, number)
                        }
                    }
                }
            };
            match result {
                Err(Trouble::Lost) => {
                    shared.told().count("replies lost");
                    break;
                }
                Err(refused) => match refused.kind() {
                    "held" => shared.told().count("other requests held"),
                    "no-longer-applies" | "not-found" | "busy" => {}
                    _ if is_too_early(&refused) => {}
                    _ => shared.told().wrong.push(format!("{refused:?}")),
                },
                Ok(()) => {}
            }
            pause(&mut chance);
        }
    }
}

/// A retry of a run that is live, or a message to one that ended before it had said anything.
fn is_too_early(refused: &Trouble) -> bool {
    let Trouble::Refused(error) = refused else { return false };
    let message = error["message"].as_str().unwrap_or_default();
    refused.kind() == "invalid" && (message.contains("has not ended") || message.contains("no transcript"))
}

fn settle(shared: &Shared, line: &mut Line) -> Result<(), Trouble> {
    changes(shared, line, "run.resume", &json!({"select": {"states": ["paused"]}}))?;
    changes(shared, line, "run.cancel", &json!({"select": {"labels": {"kind": "endless"}, "states": ["acting"]}}))
}

fn one_thing(
    shared: &Shared,
    line: &mut Line,
    chance: &mut Chance,
    run: &str,
    kind: &str,
    number: u64,
) -> Result<(), Trouble> {
    let select = json!({"select": {"runs": [run]}});
    if kind == "passing" && chance.percent(50) {
        return prune(shared, line, run);
    }
    match chance.below(10) {
        0 | 1 if kind == "endless" || chance.percent(30) => changes(shared, line, "run.cancel", &select),
        2 => changes(shared, line, "run.pause", &select),
        3 | 4 => changes(shared, line, "run.resume", &json!({"select": {"states": ["paused"]}})),
        5 => tell(shared, line, run, number),
        7 if chance.percent(20) => {
            let reply = line.call("run.retry", &json!({"run": run}))?;
            let made = reply["id"].as_str().unwrap().to_owned();
            shared.told_in(line.era).made.insert(made, run.to_owned());
            Ok(())
        }
        8 => {
            line.call("run.show", &json!({"run": run, "transcript": true}))?;
            Ok(())
        }
        _ => {
            let reply = line.call("run.wait", &json!({"run": run, "timeout_seconds": 0.1}))?;
            let (view, mut told) = (&reply["run"], shared.told_in(line.era));
            if reply["reached"] == true {
                told.count("ends told");
                told.ended(run, view["state"].as_str().unwrap(), view["answer"].as_str());
            }
            Ok(())
        }
    }
}

fn changes(shared: &Shared, line: &mut Line, method: &str, params: &Value) -> Result<(), Trouble> {
    let reply = line.call(method, params)?;
    let mut told = shared.told_in(line.era);
    for run in reply["runs"].as_array().unwrap() {
        let run = run.as_str().unwrap().to_owned();
        match method {
            "run.cancel" => {
                told.count("cancels acknowledged");
                told.cancelled.insert(run);
            }
            "run.pause" => {
                told.count("pauses acknowledged");
                told.pauses.entry(run).or_default().0 += 1;
            }
            _ => told.pauses.entry(run).or_default().1 += 1,
        }
    }
    Ok(())
}

fn tell(shared: &Shared, line: &mut Line, run: &str, number: u64) -> Result<(), Trouble> {
    let text = format!("message {number}");
    let reply = line.call("run.message", &json!({"run": run, "text": text}))?;
    let (id, seq) = (reply["id"].as_str().unwrap().to_owned(), reply["seq"].as_u64().unwrap());
    let mut told = shared.told_in(line.era);
    if reply["existing"] == true {
        told.count("messages acknowledged");
        told.messages.push((id, seq, text));
    } else {
        told.made.insert(id, run.to_owned());
    }
    Ok(())
}

fn prune(shared: &Shared, line: &mut Line, run: &str) -> Result<(), Trouble> {
    shared.told().perhaps_pruned.insert(run.to_owned());
    let reply = line.call("run.prune", &json!({"select": {"runs": [run]}}))?;
    let mut told = shared.told_in(line.era);
    for run in reply["runs"].as_array().unwrap() {
        told.count("prunes acknowledged");
        told.pruned.insert(run.as_str().unwrap().to_owned());
    }
    Ok(())
}
