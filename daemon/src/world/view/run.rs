//! Builds the view of a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bevy_ecs::entity::Entity;
use harness_protocol::event::Ending;
use harness_protocol::id::{InteractionId, RunId};
use harness_protocol::json_size::cut;
use harness_protocol::lane::Limiter;
use harness_protocol::run::{
    CallState, HeldRun, InferenceView, LiveCall, OpenQuestion, RUN_SCHEMA, RunState, RunView, Usage, WaitKind,
    WaitingFor, exit,
};
use harness_protocol::spec::{Limits, RunSpec};
use harness_protocol::time::Timestamp;

use super::super::apply::earliest;
use super::super::model::components::{BatchState, Call, Life, MAX_FAILURES, Shown, Stage};
use super::super::model::indexes::{OpenInteraction, TOOL_LANE};
use super::super::model::phase::Phase;
use super::super::model::run_data::RunDataItem;
use super::reads::Reads;
use super::size_limits::{fit, take_denials};
use crate::lane::{Lane, Places, TicketId, TicketState};

/// Characters of a title or of a command in a list.
const LINE: usize = 200;
/// Questions of a run and of those below it that its page shows.
const MOST_QUESTIONS: usize = 16;
/// Variables that are named, and characters of each name: those of older runs were not bounded.
const MOST_VARIABLES: usize = 256;
/// Runs in a row that wait for each other, of which the last one is shown.
const LONGEST_ROW: usize = 64;
/// Characters of what a provider said.
const LONGEST_ERROR: usize = 500;

pub(in crate::world) fn view(world: &Reads<'_, '_>, entity: Entity, now: Timestamp) -> Option<RunView> {
    view_among(world, entity, now, None)
}

/// The same for one of a list.
pub(in crate::world) fn view_among(
    world: &Reads<'_, '_>,
    entity: Entity,
    now: Timestamp,
    places: Option<&PlacesSeen>,
) -> Option<RunView> {
    let run = &world.whole(entity)?;
    let (identity, life, watch, origin, ended) = (run.identity, run.life, run.watch, run.origin, run.ended);
    let spec = &*run.spec.0;
    let batch = run.batch.map(|batch| &*batch.0);
    let (answer, error, exit_code) = match ended.map(|ended| &ended.ending) {
        None => (None, None, None),
        Some(Ending::Succeeded { answer }) => (Some(answer.clone()), None, Some(exit::SUCCEEDED)),
        Some(Ending::Failed { error, exit_code }) => (None, Some(error.clone()), Some(*exit_code)),
        Some(Ending::Cancelled { error }) => (None, Some(error.clone()), Some(exit::CANCELLED)),
    };
    let mut view = RunView {
        schema: RUN_SCHEMA.to_owned(),
        id: identity.id,
        name: spec.name.clone(),
        root: identity.root,
        parent: identity.parent,
        retry_of: origin.and_then(|origin| origin.retry_of),
        continues: origin.and_then(|origin| origin.continues),
        labels: spec.labels.clone(),
        share: spec.share.clone().unwrap_or_else(|| "default".into()),
        priority: spec.priority,
        owner: identity.owner,
        state: run.shown.0,
        waiting_for: shown_wait(world, run, places),
        workdir: spec.workdir.clone().unwrap_or_else(|| "/".into()),
        env: spec.env.keys().take(MOST_VARIABLES).map(|name| cut(name, MOST_VARIABLES).into_owned()).collect(),
        provider: spec.provider.clone().unwrap_or_else(|| "".into()),
        model: spec.model.clone(),
        title: title(spec),
        steps: life.step,
        limits: limits(world, entity, run),
        on_interaction: spec.on_interaction,
        submitted_at: life.submitted_at,
        started_at: life.started_at,
        ended_at: ended.map(|ended| ended.at),
        stop_requested_at: life.stopping.map(|stopping| stopping.at),
        answer,
        error,
        exit_code,
        usage: spent(run),
        usage_tree: spent_by_tree(run),
        timing: watch.timing_at(now),
        denials: Vec::new(),
        inference: inference(life),
        stand_in: life.provider.clone(),
        calls: batch.map(live_calls).unwrap_or_default(),
        questions: questions(world, run),
        cut: Vec::new(),
    };
    take_denials(&mut view, run.denials.map_or(&[], |denials| &denials.0));
    fit(&mut view);
    Some(view)
}

/// The limits of a run, with the deadline of the run above it where that comes first.
fn limits(world: &Reads<'_, '_>, entity: Entity, run: &RunDataItem<'_, '_>) -> Limits {
    let mut limits = run.spec.0.limits.clone();
    if run.spawned_by.is_some()
        && let Some(deadline) = world.deadline(entity)
        && earliest(std::iter::once((run.spec, run.life))).is_none_or(|own| deadline < own)
    {
        limits.deadline_at = Some(deadline);
    }
    limits
}

pub(super) fn title(spec: &RunSpec) -> String {
    match &spec.prompt {
        Some(prompt) => one_line(prompt),
        None => "(script)".to_owned(),
    }
}

/// The first line with something on it, shortened.
pub(in crate::world) fn one_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut short: String = line.chars().take(LINE).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().nth(LINE).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// The first line with something on it, behind a beginning, in what a line has room for. Its end says what is left out.
pub(in crate::world) fn brief(beginning: &str, text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let end = match lines.count() {
        0 => "…".to_owned(),
        1 => "… (+1 line)".to_owned(),
        more => format!("… (+{more} lines)"),
    };
    let whole = || beginning.chars().chain(first.chars()).map(|c| if c.is_control() { ' ' } else { c });
    let is_long = whole().nth(LINE).is_some();
    if !is_long && end == "…" {
        return whole().collect();
    }
    whole().take(LINE - end.chars().count()).collect::<String>() + &end
}

/// What a call does, in a line: the one argument that tells, or all of them.
pub(in crate::world) fn summary(call: &Call) -> String {
    let telling = serde_json::from_str::<serde_json::Value>(&call.args).ok().and_then(|args| {
        ["command", "question", "prompt", "agent", "path"]
            .iter()
            .find_map(|key| args.get(key).and_then(|value| value.as_str().map(one_line)))
    });
    telling.unwrap_or_else(|| one_line(&call.args))
}

fn live_calls(batch: &BatchState) -> Vec<LiveCall> {
    let shown = batch.calls.iter().take(100).map(|call| LiveCall {
        call: call.id,
        tool: call.tool.clone(),
        summary: summary(call),
        state: call.stage.shown(),
        since: call.since,
    });
    shown.collect()
}

pub(super) fn spent(run: &RunDataItem<'_, '_>) -> Usage {
    // Nothing used costs nothing: only a used token can have an unknown price.
    run.usage_total.map_or(Usage { cost_usd: Some(0.0), ..Usage::default() }, |spent| spent.0)
}

/// What a run and all below it have spent.
fn spent_by_tree(run: &RunDataItem<'_, '_>) -> Usage {
    let mut total = spent(run);
    if let Some(below) = run.usage_below {
        total.add(&below.0);
    }
    total
}

/// The first questions that a run and those below it ask, in the order of asking.
fn questions(world: &Reads<'_, '_>, run: &RunDataItem<'_, '_>) -> Vec<OpenQuestion> {
    let calls = run.batch.map_or(&[][..], |batch| &batch.0.calls);
    let own = calls.iter().filter_map(|call| match call.stage {
        Stage::Asking(id, _) => Some((id, world.interactions.open.get(&id)?)),
        _ => None,
    });
    let mut asked: Vec<(InteractionId, &OpenInteraction)> = own.collect();
    if run.children.is_some() {
        asked.extend(world.interactions.open_below(run.identity.id).take(MOST_QUESTIONS));
    }
    asked.sort_by_key(|(_, open)| open.number);
    let question = |(id, open): (InteractionId, &OpenInteraction)| OpenQuestion {
        id,
        run: open.run,
        kind: open.kind,
        question: brief("", &open.question),
    };
    asked.into_iter().take(MOST_QUESTIONS).map(question).collect()
}

/// The places in the queues of all lanes that have come up in a list so far.
pub(in crate::world) type PlacesSeen = RefCell<BTreeMap<String, Places>>;

/// How much is told of a wait.
#[derive(Debug, Clone, Copy)]
enum Detail<'p> {
    /// All of it, with places as they were counted for all runs of a list, if it is one of a list.
    Whole(Option<&'p PlacesSeen>),
    /// All but the place in a queue, which is counted run by run, and what a run that it waits for stands still for
    /// itself.
    Kind,
}

/// What a run waits for, as its view says it: also that it waits for the journal, while that cannot commit.
pub(in crate::world) fn waits_for(world: &Reads<'_, '_>, entity: Entity) -> Option<WaitKind> {
    let run = &world.whole(entity)?;
    let batch = run.batch.map(|batch| &*batch.0);
    let kind = waiting_for(world, run, Detail::Kind).map(|wait| wait.kind);
    if !world.incoming.held {
        return kind;
    }
    let executes = batch.is_some_and(|batch| batch.calls.iter().any(|call| call.stage.shown() == CallState::Executing));
    while_held(kind, run.shown.0.is_terminal(), executes)
}

/// What a run waits for while the journal cannot commit: for that, unless it waits for something that goes on all the
/// same.
pub(crate) fn while_held(kind: Option<WaitKind>, has_ended: bool, executes: bool) -> Option<WaitKind> {
    match kind {
        _ if has_ended => None,
        // What executes goes on to its end.
        None if executes => None,
        // No lane grants anything.
        None | Some(WaitKind::Lane | WaitKind::Provider | WaitKind::Budget | WaitKind::Storage) => {
            Some(WaitKind::Storage)
        }
        Some(WaitKind::Person | WaitKind::Run | WaitKind::Paused) => kind,
    }
}

/// What a run of a list waits for, if it waits.
pub(super) fn shown_wait(
    world: &Reads<'_, '_>,
    run: &RunDataItem<'_, '_>,
    places: Option<&PlacesSeen>,
) -> Option<WaitingFor> {
    waiting_for(world, run, Detail::Whole(places))
}

fn waiting_for(world: &Reads<'_, '_>, run: &RunDataItem<'_, '_>, detail: Detail<'_>) -> Option<WaitingFor> {
    let waits = match (run.shown.0, run.life.phase()) {
        (RunState::Paused, Phase::Acting) => by_itself(world, run, detail),
        (RunState::Paused, _) => None,
        _ => return by_itself(world, run, detail),
    };
    waits.or_else(|| Some(WaitingFor::new(WaitKind::Paused, "", run.watch.since)))
}

/// What it waits for, whether it is paused or not.
fn by_itself(world: &Reads<'_, '_>, run: &RunDataItem<'_, '_>, detail: Detail<'_>) -> Option<WaitingFor> {
    let (life, watch, &Shown(shown)) = (run.life, run.watch, run.shown);
    let batch = run.batch.map(|batch| &*batch.0);
    let lanes = &world.lanes;
    let provider = life.provider.as_deref().or(run.spec.0.provider.as_deref()).unwrap_or_default();
    let of_provider = || WaitingFor::new(WaitKind::Provider, provider, watch.since);
    match life.phase() {
        Phase::Wanting(ticket) => {
            let wait = in_lane(lanes.get(provider)?, ticket, WaitKind::Provider, provider, detail)?;
            Some(with_hold(world, provider, wait))
        }
        // Nothing of a budget is held for it while its provider stands still.
        Phase::Postponed(_) if world.is_stalled(provider) => {
            let limiter = lanes.get(provider).map(Lane::limiter);
            Some(with_hold(world, provider, WaitingFor { limiter, ..of_provider() }))
        }
        Phase::Retrying(next) => {
            let hold = world.health.get(provider).and_then(|breaker| breaker.hold.as_ref());
            let until = hold.and_then(|hold| hold.until).map_or(next, |until| until.max(next));
            let limiter = hold.map(|hold| hold.limiter);
            Some(WaitingFor { until: Some(until), limiter, ..of_provider() })
        }
        Phase::Acting if shown == RunState::Waiting || shown == RunState::Paused => {
            batch.and_then(|batch| parked(world, batch, detail))
        }
        Phase::Acting => match batch?.ticket {
            Some(ticket) => in_lane(&lanes.tool, ticket, WaitKind::Lane, TOOL_LANE, detail),
            // A child that it wants to start is put off until the end of the drain.
            None => world.daemon.draining.then(|| WaitingFor {
                limiter: Some(Limiter::Draining),
                ..WaitingFor::new(WaitKind::Lane, TOOL_LANE, watch.since)
            }),
        },
        Phase::Postponed(budget_of) => Some(WaitingFor::new(WaitKind::Budget, budget_of.to_string(), watch.since)),
        Phase::Resting | Phase::Thinking(_) | Phase::Ended(_) => None,
    }
}

fn in_lane(lane: &Lane, ticket: TicketId, kind: WaitKind, id: &str, detail: Detail<'_>) -> Option<WaitingFor> {
    let claimed = lane.claimed(ticket)?;
    let waits = matches!(claimed.state, TicketState::Queued | TicketState::Resuming);
    waits.then(|| WaitingFor {
        position: match detail {
            Detail::Kind => None,
            Detail::Whole(None) => lane.position(ticket),
            Detail::Whole(Some(seen)) => {
                seen.borrow_mut().entry(id.to_owned()).or_insert_with(|| lane.places()).of(ticket)
            }
        },
        limiter: Some(lane.limiter_of(ticket)),
        runs: Some(lane.waiting()),
        ..WaitingFor::new(kind, id, claimed.since)
    })
}

/// Until when its provider is left alone, and what that said, where it is that for which the run waits.
fn with_hold(world: &Reads<'_, '_>, provider: &str, wait: WaitingFor) -> WaitingFor {
    let hold = world.health.get(provider).and_then(|breaker| breaker.hold.as_ref());
    match hold.filter(|hold| Some(hold.limiter) == wait.limiter) {
        Some(hold) => WaitingFor { until: hold.until, error: Some(shortened(&hold.error)), ..wait },
        None => wait,
    }
}

/// How its inference goes, where a try has failed.
pub(super) fn inference(life: &Life) -> Option<InferenceView> {
    let trouble = life.trouble.as_ref()?;
    let next_at = match life.phase() {
        Phase::Retrying(at) => Some(at),
        _ => None,
    };
    Some(InferenceView {
        attempt: life.failures + 1,
        attempts: MAX_FAILURES,
        error: shortened(&trouble.error),
        fault: trouble.fault,
        failed_at: trouble.at,
        next_at,
    })
}

/// An error, as far as a page has room for it.
fn shortened(error: &Arc<str>) -> Arc<str> {
    match error.char_indices().nth(LONGEST_ERROR) {
        Some((end, _)) => format!("{}…", &error[..end]).into(),
        None => Arc::clone(error),
    }
}

/// What a parked batch waits for: the first of its calls that waits.
fn parked(world: &Reads<'_, '_>, batch: &BatchState, detail: Detail<'_>) -> Option<WaitingFor> {
    batch.calls.iter().find_map(|call| {
        let (kind, id) = match &call.stage {
            Stage::Asking(interaction, _) => (WaitKind::Person, interaction.to_string()),
            Stage::Waiting { .. } => {
                let (run, entity) = awaited(world, call)?;
                let because = if matches!(detail, Detail::Whole(_)) { held(world, run, entity) } else { None };
                return Some(WaitingFor { because, ..WaitingFor::new(WaitKind::Run, run.to_string(), call.since) });
            }
            Stage::OffLane => (WaitKind::Person, call.id.to_string()),
            Stage::Pending | Stage::Executing | Stage::Returning | Stage::Done => return None,
        };
        Some(WaitingFor::new(kind, id, call.since))
    })
}

/// The first run that a call waits for and that has not ended.
fn awaited(world: &Reads<'_, '_>, call: &Call) -> Option<(RunId, Entity)> {
    let Stage::Waiting { runs, .. } = &call.stage else { return None };
    let mut here = runs.iter().filter_map(|&run| Some((run, world.entity(run)?)));
    here.find(|(_, entity)| world.ended(*entity).is_none())
}

/// What a run that is waited for stands still for itself; `None` where it goes on. Runs that wait for each other in a
/// row are followed to the last one, as far as that is near.
fn held(world: &Reads<'_, '_>, mut run: RunId, mut entity: Entity) -> Option<Box<HeldRun>> {
    for _ in 0..LONGEST_ROW {
        let whole = &world.whole(entity)?;
        let waiting_for = waiting_for(world, whole, Detail::Kind)?;
        let next = (waiting_for.kind == WaitKind::Run)
            .then(|| whole.batch?.0.calls.iter().find_map(|call| awaited(world, call)))
            .flatten();
        let Some(next) = next else {
            let share = whole.spec.0.share.clone().unwrap_or_else(|| "default".into());
            return Some(Box::new(HeldRun { run, share, waiting_for, inference: inference(whole.life) }));
        };
        (run, entity) = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_line_says_what_it_leaves_out_also_where_it_is_cut_itself() {
        assert_eq!(brief("allow shell: ", "  ls\t-l\n\n"), "allow shell: ls -l");
        assert_eq!(brief("allow shell: ", "\nls\n\nrm x\n"), "allow shell: ls… (+1 line)");
        assert_eq!(brief("", "a\r\nb\r\nc"), "a… (+2 lines)");
        let long = "é".repeat(LINE);
        assert_eq!(brief("", &long), long);
        for (text, end) in [(format!("{long}x"), "é…"), (format!("{long}\nx"), "é… (+1 line)")] {
            let shown = brief("", &text);
            assert!(shown.ends_with(end) && shown.chars().count() == LINE, "{shown}");
            assert_eq!(brief("", &shown), shown, "it is shown in a line of another place as it is");
        }
    }
}
