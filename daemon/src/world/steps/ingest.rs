//! Handles commands in the order of their arrival (the set Ingest). Each command gets exactly one reply.

use std::collections::BTreeSet;
use std::sync::Arc;

use bevy_ecs::entity::Entity;
use bevy_ecs::schedule::{IntoScheduleConfigs as _, Schedule};
use harness_protocol::event::{Cause, EventBody, StopReason, Via};
use harness_protocol::id::{ReliefId, RunId};
use harness_protocol::interaction::Resolution;
use harness_protocol::lane::LaneChanged;
use harness_protocol::rpc::{Answered, Changed, Selector, Submitted, Unchanged, UnchangedReason};
use harness_protocol::run::RunState;
use harness_protocol::spec::{RunSpec, SpecChanges};
use harness_protocol::time::Span;

use super::retire::archive_tree;
use super::{StepSystems, exclusive};
use crate::lane::{Lane, MAX_WIDTH};
use crate::refusal::{LaneRefusal, QuestionRefusal, Refusal, RunRefusal, Text};
use crate::world::api::{Caller, Change, Command, Effect, Finished, Input, LaneChange, Reply, Sent, Settlement};
use crate::world::commands::select;
use crate::world::commands::submit::{Descent, check_message, check_text, check_what_is_said, submit};
use crate::world::ending;
use crate::world::inference::{next_inference, provider_health};
use crate::world::interactions;
use crate::world::model::components::{Ended, QueuedMessages, Shown, ToldUnder};
use crate::world::model::ids::Ids;
use crate::world::model::indexes::{Daemon, Interactions, ProviderHealth, Runs, TOOL_LANE};
use crate::world::model::phase::Phase;
use crate::world::tx::Tx;

/// A relief for longer than this is a slip of the pen.
const LONGEST_RELIEF: Span = Span::from_secs(LONGEST_RELIEF_DAYS * 86_400);
/// The same in days.
const LONGEST_RELIEF_DAYS: u64 = 366;
/// Reliefs of one lane at once.
const MOST_RELIEFS: usize = 64;
/// What a lane that may grant again still waits for.
const DRAINS: &str = "the daemon drains: nothing new starts before harnessctl daemon undrain";

pub(in crate::world) fn install(schedule: &mut Schedule) {
    schedule.add_systems(exclusive(take_commands).in_set(StepSystems::Ingest));
}

fn take_commands(tx: &mut Tx<'_>) {
    let mut rest = Vec::new();
    for input in tx.take_inputs() {
        match input {
            Input::Command { reply, caller, command } => {
                tx.caused_by(Cause { via: Via::Socket, uid: Some(caller.uid), by_run: caller.run });
                let synced = is_promise(&command);
                let answer = obey(tx, caller, command);
                tx.effect(Effect::Reply { to: reply, reply: answer, synced });
            }
            other => rest.push(other),
        }
    }
    tx.leave_inputs(rest);
}

/// Whether the answer promises something that must survive power loss.
fn is_promise(command: &Command) -> bool {
    match command {
        Command::Submit { .. } | Command::Retry { .. } | Command::Message { .. } => true,
        Command::Cancel { .. } | Command::Answer { .. } | Command::Prune(_) => true,
        Command::Each(Change::Cancel { .. }, _) => true,
        Command::Pause(_) | Command::Resume(_) | Command::Each(Change::Pause | Change::Resume, _) => false,
        Command::Lane { .. } | Command::Drain(_) | Command::Reconfigure(_) | Command::Release(_) => false,
        Command::PruneEvents(_) => false,
    }
}

fn obey(tx: &mut Tx<'_>, caller: Caller, command: Command) -> Result<Reply, Refusal> {
    if let Some(run) = caller.run
        && !matches!(command, Command::Submit { .. })
    {
        return Err(Refusal::OwnTreeOnly { run: Some(run) });
    }
    match command {
        Command::Submit { spec, idempotency_key, known, sent } => {
            let owner = caller.run.and_then(|run| tx.identity(run)).map_or(caller.uid, |parent| parent.owner);
            let descent = Descent { owner, parent: caller.run, idempotency_key, known, sent, ..Descent::default() };
            submit(tx, &spec, descent).map(Reply::Submitted)
        }
        Command::Retry { run, changes, takes_child, left, sent } => {
            retry(tx, caller, (&run, takes_child), &changes, left, sent)
        }
        Command::Message { run, text, left, sent } => message(tx, caller, &run, text, left, sent),
        Command::Cancel { select, force } => cancel(tx, caller, &select, force),
        Command::Pause(select) => pause(tx, caller, &select, true),
        Command::Resume(select) => pause(tx, caller, &select, false),
        Command::Each(change, runs) => Ok(each(tx, change, &runs)),
        Command::Prune(runs) => Ok(Reply::Changed(prune(tx, &runs))),
        Command::PruneEvents(events) => {
            tx.emit(None, EventBody::EventsPruned { events });
            Ok(Reply::Done)
        }
        Command::Answer { interaction, settlement } => settle(tx, caller, &interaction, settlement),
        Command::Lane { lane, change } => change_lane(tx, lane, &change),
        Command::Drain(on) => {
            if tx.res::<Daemon>().draining != on {
                tx.emit(None, if on { EventBody::DrainStarted } else { EventBody::DrainEnded });
            }
            Ok(Reply::Done)
        }
        Command::Reconfigure(lanes) => {
            for (lane, width) in lanes {
                if tx.lanes().get(&lane).is_none_or(|l| l.configured_width() != width) {
                    tx.emit(None, EventBody::LaneConfigured { lane, width });
                }
            }
            let held: Vec<Arc<str>> = tx.res::<ProviderHealth>().0.keys().cloned().collect();
            for provider in &held {
                provider_health::try_again(tx, provider);
                next_inference::reconsider(tx, provider);
            }
            Ok(Reply::Done)
        }
        Command::Release(provider) => {
            provider_health::release(tx, &provider);
            next_inference::reconsider(tx, &provider);
            Ok(Reply::Done)
        }
    }
}

/// What this very request has done already: its reply was lost, and it was sent again.
fn done_before(tx: &Tx<'_>, sent: &Sent) -> Option<Reply> {
    let key = sent.key?;
    let here = tx.res::<Runs>().submit_keys.get(&key).and_then(|&run| {
        let told = tx.get::<ToldUnder>(tx.entity(run)?).and_then(|told| told.0.iter().find(|(one, _)| *one == key));
        Some((run, told.map_or(tx.identity(run)?.seq, |(_, seq)| *seq)))
    });
    let (id, seq) = here.or(sent.made.map(|made| (made.id, made.seq)))?;
    Some(Reply::Submitted(Submitted { id, seq, existing: true }))
}

fn retry(
    tx: &mut Tx<'_>,
    caller: Caller,
    (name, takes_child): (&str, bool),
    changes: &SpecChanges,
    left: Option<Box<Finished>>,
    sent: Sent,
) -> Result<Reply, Refusal> {
    if let Some(done) = done_before(tx, &sent) {
        return Ok(done);
    }
    // The specification was taken once, what changes was not.
    check_what_is_said(&changes.applied_to(&RunSpec::default()))?;
    let mut first = match left {
        Some(left) => *left,
        None => {
            let (run, entity) = tx.read(|reads| select::one(reads, name, caller))?;
            if !state(tx, entity).is_some_and(RunState::is_terminal) {
                return Err(RunRefusal::NotEnded { run }.into());
            }
            tx.read(|reads| select::finished(reads, entity)).ok_or(RunRefusal::Gone { run })?
        }
    };
    if let Some(parent) = first.parent.filter(|_| !takes_child) {
        return Err(RunRefusal::OfAnotherRun { run: first.id, parent }.into());
    }
    first.transcript.truncate(first.earlier);
    let descent = Descent {
        owner: caller.uid,
        retry_of: Some(first.id),
        continues: first.continues,
        earlier: first.transcript.into(),
        prepared: first.prepared,
        sent,
        ..Descent::default()
    };
    submit(tx, &changes.applied_to(&first.spec), descent).map(Reply::Submitted)
}

fn message(
    tx: &mut Tx<'_>,
    caller: Caller,
    name: &str,
    text: Arc<str>,
    left: Option<Box<Finished>>,
    sent: Sent,
) -> Result<Reply, Refusal> {
    if let Some(done) = done_before(tx, &sent) {
        return Ok(done);
    }
    check_message(&text, tx.setup().config.limits.text_bytes)?;
    if let Some(left) = left {
        return go_on_from(tx, caller, *left, text, sent);
    }
    let (run, entity) = tx.read(|reads| select::one(reads, name, caller))?;
    let Some(life) = tx.life(run) else { return Err(RunRefusal::Gone { run }.into()) };
    if !matches!(life.phase(), Phase::Ended(_)) {
        let unread: usize =
            tx.get::<QueuedMessages>(entity).map_or(0, |mail| mail.0.iter().map(|text| text.len() + 64).sum());
        if unread + text.len() > tx.setup().config.limits.text_bytes as usize {
            return Err(RunRefusal::TooManyMessages { run }.into());
        }
        if life.stopping.is_some() {
            return Err(RunRefusal::BeingEnded { run }.into());
        }
        let seq = tx.emit(Some(run), EventBody::MessageReceived { text, submit_key: sent.key });
        return Ok(Reply::Submitted(Submitted { id: run, seq, existing: true }));
    }
    let finished = tx.read(|reads| select::finished(reads, entity)).ok_or(RunRefusal::Gone { run })?;
    go_on_from(tx, caller, finished, text, sent)
}

/// A new run that begins with the transcript of a finished one.
fn go_on_from(tx: &mut Tx<'_>, caller: Caller, first: Finished, text: Arc<str>, sent: Sent) -> Result<Reply, Refusal> {
    if first.transcript.is_empty() {
        return Err(RunRefusal::NoTranscript { run: first.id }.into());
    }
    let spec = RunSpec { prompt: Some(text), prompt_blob: None, ..(*first.spec).clone() };
    let descent = Descent {
        owner: caller.uid,
        continues: Some(first.id),
        earlier: first.transcript.into(),
        prepared: first.prepared,
        sent,
        ..Descent::default()
    };
    submit(tx, &spec, descent).map(Reply::Submitted)
}

fn cancel(tx: &mut Tx<'_>, caller: Caller, select: &Selector, force: bool) -> Result<Reply, Refusal> {
    let mut changed = Changed::default();
    let mut seen = BTreeSet::new();
    for (run, entity) in tx.read(|reads| select::several(reads, select, caller))? {
        let subtree: Vec<RunId> = tx.ids(&tx.downward(entity));
        let before = changed.runs.len();
        let known = seen.contains(&run);
        for run in subtree {
            if seen.insert(run) && ending::stop(tx, run, StopReason::Cancelled, force) {
                changed.runs.push(run);
            }
        }
        if changed.runs.len() == before && !known {
            changed.unchanged.push(Unchanged::new(run, over(tx, entity)));
        }
    }
    Ok(Reply::Changed(changed))
}

fn state(tx: &Tx<'_>, run: Entity) -> Option<RunState> {
    tx.get::<Shown>(run).map(|shown| shown.0)
}

/// Why nothing about a run can be changed any more: it has ended, or is being ended.
fn over(tx: &Tx<'_>, entity: Entity) -> UnchangedReason {
    let state = state(tx, entity);
    state.and_then(UnchangedReason::of_ended).unwrap_or(UnchangedReason::BeingEnded)
}

fn pause(tx: &mut Tx<'_>, caller: Caller, select: &Selector, pause: bool) -> Result<Reply, Refusal> {
    let mut changed = Changed::default();
    for (run, entity) in tx.read(|reads| select::several(reads, select, caller))? {
        pause_one(tx, run, entity, pause, &mut changed);
    }
    Ok(Reply::Changed(changed))
}

fn pause_one(tx: &mut Tx<'_>, run: RunId, entity: Entity, pause: bool, changed: &mut Changed) {
    let Some(life) = tx.life(run) else { return };
    let reason = match life.phase() {
        Phase::Ended(_) => Some(over(tx, entity)),
        _ if life.stopping.is_some() => Some(UnchangedReason::BeingEnded),
        _ if life.paused == pause && pause => Some(UnchangedReason::AlreadyPaused),
        _ if life.paused == pause => Some(UnchangedReason::NotPaused),
        _ => None,
    };
    match reason {
        Some(reason) => changed.unchanged.push(Unchanged::new(run, reason)),
        None => {
            tx.emit(Some(run), if pause { EventBody::RunPaused } else { EventBody::RunResumed });
            changed.runs.push(run);
        }
    }
}

/// A piece of a change of many. What lies below a run that is being ended is told: it is to be ended next, and nothing
/// more can come to be below it.
fn each(tx: &mut Tx<'_>, change: Change, runs: &[RunId]) -> Reply {
    let (mut changed, mut below) = (Changed::default(), Vec::new());
    for &run in runs {
        // One that has ended and left meanwhile is done with.
        let Some(entity) = tx.entity(run) else { continue };
        match change {
            Change::Pause | Change::Resume => {
                pause_one(tx, run, entity, change == Change::Pause, &mut changed);
            }
            Change::Cancel { force } => {
                if ending::stop(tx, run, StopReason::Cancelled, force) {
                    changed.runs.push(run);
                } else {
                    changed.unchanged.push(Unchanged::new(run, over(tx, entity)));
                }
                below.extend(tx.children(run));
            }
        }
    }
    Reply::Piece(changed, below)
}

/// Removes finished runs: those that are here, and those that the journal alone has. Never one that lives.
fn prune(tx: &mut Tx<'_>, runs: &[RunId]) -> Changed {
    let mut changed = Changed::default();
    for &run in runs {
        let root = tx.identity(run).map(|identity| (identity.root, identity.number));
        if !tx.has_ended(run) {
            changed.unchanged.push(Unchanged::new(run, UnchangedReason::Live));
        } else if let Some((root, number)) = root
            && !can_leave(tx, run, number)
        {
            changed.unchanged.push(Unchanged::of_tree(run, root));
        } else {
            if let Some((root, _)) = root {
                archive_tree(tx, root);
            }
            changed.runs.push(run);
        }
    }
    if !changed.runs.is_empty() {
        tx.emit(None, EventBody::RunsPruned { runs: changed.runs.clone() });
    }
    changed
}

/// Whether nothing of its tree lives any more.
fn can_leave(tx: &Tx<'_>, run: RunId, number: u64) -> bool {
    let ended = tx.entity(run).and_then(|entity| tx.get::<Ended>(entity));
    ended.is_some_and(|ended| tx.res::<Runs>().by_end.contains(&(ended.at, number)))
}

fn settle(tx: &mut Tx<'_>, caller: Caller, name: &str, settlement: Settlement) -> Result<Reply, Refusal> {
    check_text(Text::Answer, Some(&settlement.text), tx.setup().config.limits.text_bytes)?;
    let interaction = tx.read(|reads| select::interaction(reads, name, caller))?;
    let interactions = tx.res::<Interactions>();
    let Some(open) = interactions.open.get(&interaction) else {
        let refusal = match interactions.closed.get(&interaction).map(|closed| (closed.settled, closed)) {
            Some((Some((Resolution::Expired, _)), closed)) => QuestionRefusal::Expired { interaction, at: closed.at },
            Some((Some((_, cause)), closed)) => QuestionRefusal::Answered { interaction, by: cause.uid, at: closed.at },
            Some((None, closed)) => QuestionRefusal::NoLongerAsked { interaction, run: closed.run },
            None => QuestionRefusal::Gone { interaction },
        };
        return Err(refusal.into());
    };
    let resolution = settlement.resolution;
    if !open.kind.takes(resolution) {
        return Err(QuestionRefusal::Unfit { interaction, kind: open.kind, resolution }.into());
    }
    if resolution == Resolution::Answered && settlement.scope.is_some() {
        return Err(QuestionRefusal::NoScope { interaction }.into());
    }
    let run = interactions::settle(tx, interaction, settlement).ok_or(QuestionRefusal::Gone { interaction })?;
    Ok(Reply::Answered(Answered { interaction, run }))
}

/// That a change of width came to less than was asked for, or to nothing.
fn falls_short(change: &LaneChange, before: u32, width: u32) -> Option<String> {
    match *change {
        LaneChange::Relieve { .. } if width == before => {
            Some(format!("it is {width} wide as it was: no lane is wider, so the relief adds nothing"))
        }
        LaneChange::Relieve { by, .. } if width - before < by => {
            Some(format!("a lane is at most {MAX_WIDTH} wide: the relief adds {} of {by}", width - before))
        }
        LaneChange::Resize(_) | LaneChange::Undo(_) if width == before => Some(format!("it is {width} wide as it was")),
        _ => None,
    }
}

fn change_lane(tx: &mut Tx<'_>, lane: Option<Arc<str>>, change: &LaneChange) -> Result<Reply, Refusal> {
    let lane = lane.unwrap_or_else(|| TOOL_LANE.into());
    let Some(current) = tx.lanes().get(&lane) else {
        let known = std::iter::once(TOOL_LANE.into()).chain(tx.lanes().providers.keys().cloned()).collect();
        return Err(LaneRefusal::NoLane { lane, known }.into());
    };
    let before = current.width();
    let (paused, has) = (current.is_paused(), |id: ReliefId| current.has_relief(id));
    let draining = tx.res::<Daemon>().draining;
    let (mut note, mut relief) = (None, None);
    match *change {
        LaneChange::Relieve { by: 0, .. } => note = Some("a relief of 0 does nothing".to_owned()),
        LaneChange::Relieve { by, during } => {
            let id = tx.res::<Ids>().next_relief();
            let until = during.map(|span| tx.now() + span);
            relief = Some(id);
            if during == Some(Span::ZERO) {
                return Err(LaneRefusal::ReliefForNoTime { lane }.into());
            }
            if during.is_some_and(|during| during > LONGEST_RELIEF) {
                return Err(LaneRefusal::ReliefTooLong { lane, days: LONGEST_RELIEF_DAYS }.into());
            }
            if current.reliefs() >= MOST_RELIEFS {
                return Err(LaneRefusal::TooManyReliefs { lane, most: MOST_RELIEFS }.into());
            }
            if by > MAX_WIDTH {
                return Err(LaneRefusal::ReliefTooWide { lane, most: MAX_WIDTH }.into());
            }
            tx.emit(None, EventBody::LaneRelieved { lane: lane.clone(), relief: id, by, until });
        }
        LaneChange::Undo(id) if has(id) => {
            relief = Some(id);
            tx.emit(None, EventBody::LaneReliefEnded { lane: lane.clone(), relief: id, undone: true });
        }
        LaneChange::Undo(id) => {
            return Err(LaneRefusal::NoRelief { lane, relief: id }.into());
        }
        LaneChange::Resize(width) => {
            if width > MAX_WIDTH {
                return Err(LaneRefusal::TooWide { lane, most: MAX_WIDTH }.into());
            }
            if width == 0 {
                return Err(LaneRefusal::TooNarrow { lane }.into());
            }
            tx.emit(None, EventBody::LaneResized { lane: lane.clone(), width });
        }
        LaneChange::Pause if paused => note = Some("it is paused already".to_owned()),
        LaneChange::Resume if !paused && draining => note = Some(format!("it is not paused, but {DRAINS}")),
        LaneChange::Resume if !paused => note = Some("it is not paused".to_owned()),
        LaneChange::Pause => {
            tx.emit(None, EventBody::LanePaused { lane: lane.clone() });
            next_inference::give_back(tx, &lane);
        }
        LaneChange::Resume => {
            tx.emit(None, EventBody::LaneResumed { lane: lane.clone() });
            note = draining.then(|| DRAINS.to_owned());
        }
    }
    let width = tx.lanes().get(&lane).map_or(before, Lane::width);
    let note = note.or_else(|| falls_short(change, before, width));
    Ok(Reply::Lane(LaneChanged { lane, width_before: before, width, relief, note }))
}
