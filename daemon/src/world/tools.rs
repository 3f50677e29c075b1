//! Carries out the transitions that tools plan: asking a person, spawning a child, waiting for other runs.
//!
//! They need no permit and have no job: a waiting call is only data of its batch. A wait by which runs would wait for
//! each other is refused.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use harness_protocol::event::{Ending, EventBody};
use harness_protocol::id::{CallId, RunId};
use harness_protocol::interaction::InteractionKind;
use harness_protocol::spec::RunSpec;

use super::api::{Asked, Caller};
use super::commands::select;
use super::commands::submit::{Descent, submit};
use super::ending::finish_call;
use super::interactions;
use super::model::components::{Ended, Stage};
use super::tx::Tx;
use crate::tools::{Spawn, Transition, Wait};

/// Bytes of the answers in the result of one wait.
const WAIT_BYTES: usize = 256 * 1024;
/// Most runs that one call may wait for.
const MAX_TARGETS: usize = 1_000;

/// Makes the transition that a call has planned.
pub(super) fn carry_out(tx: &mut Tx<'_>, run: RunId, call: CallId, transition: Transition) {
    match transition {
        Transition::Ask(question) => {
            let asked = Asked { kind: InteractionKind::Question, question, subject: None, within: None };
            interactions::open(tx, run, call, asked);
        }
        Transition::Spawn(planned) => spawn(tx, run, call, planned),
        Transition::Wait(planned) => wait(tx, run, call, &planned),
    }
}

fn spawn(tx: &mut Tx<'_>, run: RunId, call: CallId, planned: Spawn) {
    let (Some(above), Some(identity)) = (tx.spec(run), tx.identity(run)) else { return };
    let above = Arc::clone(&above.0);
    let Spawn { prompt, name, script, labels } = planned;
    let spec = RunSpec {
        prompt,
        prompt_blob: None,
        name,
        labels,
        script,
        script_blob: None,
        limits: Default::default(),
        ..(*above).clone()
    };
    let descent = Descent { owner: identity.owner, parent: Some(run), ..Descent::default() };
    match submit(tx, &spec, descent) {
        Ok(child) => finish_call(tx, run, call, format!("Started agent {}.", child.id), false),
        Err(refusal) => finish_call(tx, run, call, format!("Not started: {refusal}."), true),
    }
}

fn wait(tx: &mut Tx<'_>, run: RunId, call: CallId, planned: &Wait) {
    let targets = match targets(tx, run, &planned.agents) {
        Ok(targets) => targets,
        Err(refusal) => {
            finish_call(tx, run, call, refusal, true);
            return;
        }
    };
    if let Some(ring) = ring(tx, run, &targets) {
        let named: Vec<String> = ring.iter().map(|&member| name_of(tx, member)).collect();
        let text = format!("Refused: these agents would wait for each other: {}.", named.join(" -> "));
        finish_call(tx, run, call, text, true);
        return;
    }
    tx.emit(Some(run), EventBody::CallWaiting { call, runs: targets, any: planned.any });
}

/// The runs that are to be waited for: those named, or all children.
fn targets(tx: &mut Tx<'_>, run: RunId, names: &[String]) -> Result<Vec<RunId>, String> {
    let mut targets = Vec::new();
    if names.is_empty() {
        targets.extend(tx.children(run));
        if targets.is_empty() {
            return Err("There is nothing to wait for: no agent is named, and none was started.".to_owned());
        }
    }
    let identity = tx.identity(run).cloned().ok_or("This agent is gone.")?;
    for name in names {
        let asks = Caller { uid: identity.owner, run: Some(run) };
        let (target, _) = tx.read(|reads| select::one(reads, name, asks)).map_err(|e| format!("Refused: {e}."))?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    if targets.len() > MAX_TARGETS {
        return Err(format!("Refused: at most {MAX_TARGETS} agents can be waited for in one call."));
    }
    Ok(targets)
}

/// A cycle of waits from `targets` back to `run`: with it, `run` would wait for ever.
fn ring(tx: &Tx<'_>, run: RunId, targets: &[RunId]) -> Option<Vec<RunId>> {
    let mut seen: BTreeMap<RunId, RunId> = BTreeMap::new();
    let mut open: Vec<RunId> = Vec::new();
    for &target in targets {
        if seen.insert(target, run).is_none() {
            open.push(target);
        }
    }
    while let Some(at) = open.pop() {
        if at == run {
            let mut ring = vec![run];
            let mut back = seen[&run];
            while back != run {
                ring.push(back);
                back = seen[&back];
            }
            ring.push(run);
            ring.reverse();
            return Some(ring);
        }
        for target in waits_of(tx, at) {
            if !tx.has_ended(target) && !seen.contains_key(&target) {
                seen.insert(target, at);
                open.push(target);
            }
        }
    }
    None
}

fn waits_of(tx: &Tx<'_>, run: RunId) -> Vec<RunId> {
    let Some(batch) = tx.batch(run) else { return Vec::new() };
    let waits = batch.0.calls.iter().filter_map(|call| match &call.stage {
        Stage::Waiting { runs, .. } => Some(runs.iter().copied()),
        _ => None,
    });
    waits.flatten().collect()
}

fn name_of(tx: &Tx<'_>, run: RunId) -> String {
    match tx.spec(run).and_then(|spec| spec.0.name.clone()) {
        Some(name) => format!("{name} ({run})"),
        None => run.to_string(),
    }
}

/// As much of a text as there is room for, and how much is missing.
fn cut(text: &str, room: usize) -> Cow<'_, str> {
    if text.len() <= room {
        return Cow::Borrowed(text);
    }
    let mut end = room;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}\n[{} more bytes; ask for fewer agents at once]", &text[..end], text.len() - end))
}

/// Gives a wait that is over its result: how each run ended, and with what.
pub(super) fn end_wait(tx: &mut Tx<'_>, run: RunId, call: CallId) {
    let waited = tx.batch(run).and_then(|batch| batch.0.call(call)).map(|call| call.stage.clone());
    let Some(Stage::Waiting { runs, .. }) = waited else { return };
    let mut text = String::new();
    let room = WAIT_BYTES / runs.len().max(1);
    for target in runs {
        let name = name_of(tx, target);
        let ended = tx.entity(target).and_then(|entity| tx.get::<Ended>(entity));
        // Writing to a String cannot fail.
        let _ = match ended.map(|ended| &ended.ending) {
            Some(Ending::Succeeded { answer }) => writeln!(text, "Agent {name} succeeded:\n{}", cut(answer, room)),
            Some(Ending::Failed { error, .. }) => writeln!(text, "Agent {name} failed: {}", cut(error, room)),
            Some(Ending::Cancelled { .. }) => writeln!(text, "Agent {name} was cancelled."),
            None if tx.entity(target).is_some() => writeln!(text, "Agent {name} is still at work."),
            None => writeln!(text, "Agent {name} has ended; nothing more is known of it."),
        };
    }
    finish_call(tx, run, call, text, false);
}
