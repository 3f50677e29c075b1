//! Applies the events of inferences: wanted, started, answered, summarised or failed.

use std::sync::Arc;

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;
use harness_protocol::event::{EventBody, ProviderFault};
use harness_protocol::id::RunId;
use harness_protocol::run::{CallRequest, Compaction, Entry, Usage};
use harness_protocol::time::Timestamp;

use super::super::model::call_kind;
use super::super::model::components::{
    Batch, BatchState, Call, Compacting, CompactionFailures, ContextOverflow, Identity, LastAsked, Life,
    QueuedMessages, Spec, Stage, Transcript, Trouble,
};
use super::super::model::ids::Ids;
use super::super::model::indexes::{Lanes, Runs, Timer, Timers};
use super::super::model::phase::Phase;
use super::calls::leave_batch;
use super::transition::enter;
use super::{asked, claim, edit, phase, pools, providers, wake, with_provider_lane};

/// It wants to be answered: what people said meanwhile is part of what it asks.
pub(super) fn step_begun(world: &mut World, entity: Entity) {
    let mut entity = world.entity_mut(entity);
    entity.remove::<Compacting>();
    let mail = entity.take::<QueuedMessages>().map(|mail| mail.0).unwrap_or_default();
    if let Some(mut transcript) = entity.get_mut::<Transcript>() {
        mail.into_iter().for_each(|text| transcript.push(Entry::User { text }));
    }
}

/// It wants a summary first.
pub(super) fn compaction_begun(world: &mut World, entity: Entity, plan: &Arc<Compaction>) {
    world.entity_mut(entity).insert(Compacting(Arc::clone(plan)));
}

/// It stands in the lane of its provider.
pub(super) fn wanted(
    world: &mut World,
    run: RunId,
    entity: Entity,
    (step, provider): (u32, &Option<Arc<str>>),
    at: Timestamp,
) {
    leave_batch(world, entity, at);
    match phase(world, entity) {
        // It goes over to another provider.
        Some(Phase::Wanting(ticket)) => drop(with_provider_lane(world, entity, |lane| lane.leave(ticket, at))),
        Some(Phase::Postponed(_)) => pools::stop_waiting(world, entity),
        _ => {}
    }
    edit::<Life>(world, entity, |life| life.provider.clone_from(provider));
    let Some(name) = asked(world, entity) else { return };
    world.resource_mut::<Lanes>().provider(&name);
    let lanes = world.resource::<Lanes>();
    let Some(claim) = lanes.providers.get(&name).and_then(|lane| claim(world, run, entity, lane)) else { return };
    let ticket = world.resource_mut::<Lanes>().provider(&name).enter(claim, at);
    world.resource_mut::<Timers>().set(Timer::Retry(run), None);
    edit::<Life>(world, entity, |life| life.comes_to(step));
    enter(world, entity, Phase::Wanting(ticket));
}

/// It waits for what is held back for others, or for its provider.
pub(super) fn postponed(
    world: &mut World,
    entity: Entity,
    step: u32,
    (budget_of, stalled): (RunId, bool),
    at: Timestamp,
) {
    leave_batch(world, entity, at);
    if let Some(Phase::Wanting(ticket)) = phase(world, entity) {
        with_provider_lane(world, entity, |lane| lane.leave(ticket, at));
        world.entity_mut(entity).remove::<Compacting>();
        pools::hold(world, entity, None);
    }
    if let Some(run) = world.get::<Identity>(entity).map(|identity| identity.id) {
        world.resource_mut::<Timers>().set(Timer::Retry(run), None);
    }
    pools::wait(world, entity, budget_of, stalled);
    edit::<Life>(world, entity, |life| {
        life.comes_to(step);
        // Whom it asks is decided when it looks again.
        life.provider = None;
    });
    enter(world, entity, Phase::Postponed(budget_of));
}

pub(super) fn started(world: &mut World, entity: Entity, attempt: u32, at: Timestamp) {
    let Some(Phase::Wanting(ticket)) = phase(world, entity) else { return };
    with_provider_lane(world, entity, |lane| lane.grant(ticket, at));
    world.resource_mut::<Runs>().executing += 1;
    enter(world, entity, Phase::Thinking(ticket));
    edit::<Life>(world, entity, |life| {
        life.attempt = attempt;
        life.started_at.get_or_insert(at);
    });
}

/// The inference is no longer out.
pub(super) fn back(world: &mut World, entity: Entity, at: Timestamp) {
    if let Some(Phase::Thinking(ticket)) = phase(world, entity) {
        with_provider_lane(world, entity, |lane| lane.leave(ticket, at));
        let mut runs = world.resource_mut::<Runs>();
        runs.executing = runs.executing.saturating_sub(1);
        pools::hold(world, entity, None);
    }
}

pub(super) fn finished(world: &mut World, run: RunId, entity: Entity, body: &EventBody, usage: &Usage, at: Timestamp) {
    let EventBody::InferenceFinished { text, calls, carried, cut, .. } = body else { return };
    back(world, entity, at);
    if let Some(provider) = asked(world, entity) {
        providers::is_well(world, &provider);
    }
    world.resource_mut::<Ids>().calls += calls.len() as u64;
    let entry = Entry::Assistant { text: Arc::clone(text), calls: calls.clone(), carried: carried.clone(), cut: *cut };
    edit::<Transcript>(world, entity, |transcript| transcript.push(entry));
    pools::spent(world, entity, usage);
    let entries = world.get::<Transcript>(entity).map_or(0, |transcript| transcript.0.len());
    let mut of_run = world.entity_mut(entity);
    of_run.remove::<ContextOverflow>();
    // Some servers do not tell.
    if usage.input_tokens > 0 {
        // What it thought does not go back, unless its provider wants it.
        let thought = if carried.is_none() { usage.reasoning_output_tokens } else { 0 };
        of_run.insert(LastAsked { tokens: usage.tokens().saturating_sub(thought), entries });
    } else {
        of_run.remove::<LastAsked>();
    }
    if !calls.is_empty() {
        let spec = world.get::<Spec>(entity).map(|spec| Arc::clone(&spec.0)).unwrap_or_default();
        let call = |request: &CallRequest| Call {
            id: request.call,
            tool: Arc::clone(&request.tool),
            args: Arc::clone(&request.args),
            kind: call_kind::of(request, &spec),
            unusable: request.unusable.clone(),
            ask: request.ask.clone(),
            cleared: false,
            told: None,
            stage: Stage::Pending,
            since: at,
        };
        let batch = BatchState { ticket: None, calls: calls.iter().map(call).collect() };
        world.entity_mut(entity).insert(Batch(Box::new(batch)));
    }
    let next = if calls.is_empty() { Phase::Resting } else { Phase::Acting };
    enter(world, entity, next);
    edit::<Life>(world, entity, |life| {
        life.answered = true;
        life.trouble = None;
    });
    wake(world, run);
}

/// The summary is there: the same step begins again, with what is left.
pub(super) fn compaction_finished(
    world: &mut World,
    run: RunId,
    entity: Entity,
    body: &EventBody,
    usage: &Usage,
    at: Timestamp,
) {
    let EventBody::CompactionFinished { text, entries, kept, .. } = body else { return };
    back(world, entity, at);
    if let Some(provider) = asked(world, entity) {
        providers::is_well(world, &provider);
    }
    let entry = Entry::Summary { text: Arc::clone(text), entries: *entries, kept: kept.clone() };
    edit::<Transcript>(world, entity, |transcript| transcript.push(entry));
    pools::spent(world, entity, usage);
    // The length of the next prompt is unknown until a provider has counted it.
    world.entity_mut(entity).remove::<(Compacting, LastAsked, CompactionFailures)>();
    edit::<ContextOverflow>(world, entity, |too_long| too_long.due = false);
    enter(world, entity, Phase::Retrying(at));
    edit::<Life>(world, entity, |life| {
        life.answered = true;
        (life.failures, life.unusable, life.trouble) = (0, 0, None);
    });
    wake(world, run);
}

pub(super) fn failed(
    world: &mut World,
    run: RunId,
    entity: Entity,
    (retry_at, fault): (Option<Timestamp>, ProviderFault),
    error: &Arc<str>,
    at: Timestamp,
) {
    let began = match phase(world, entity) {
        Some(Phase::Thinking(ticket)) => with_provider_lane(world, entity, |lane| lane.claimed(ticket)).flatten(),
        _ => None,
    };
    back(world, entity, at);
    if let (Some(provider), Some(began)) = (asked(world, entity), began) {
        providers::failed(world, &provider, fault, (began.since, at));
    }
    let summarised = world.entity_mut(entity).take::<Compacting>().is_some();
    if summarised && fault == ProviderFault::Refused {
        let tries = world.get::<CompactionFailures>(entity).map_or(0, |tries| tries.0);
        world.entity_mut(entity).insert(CompactionFailures(tries.saturating_add(1)));
    }
    if fault == ProviderFault::ContextTooLong {
        let refused = world.get::<ContextOverflow>(entity).map_or(0, |too_long| too_long.refused);
        world.entity_mut(entity).insert(ContextOverflow { refused: refused.saturating_add(1), due: true });
    }
    let paused = world.get::<Life>(entity).is_some_and(|life| life.paused);
    world.resource_mut::<Timers>().set(Timer::Retry(run), retry_at.filter(|_| !paused));
    enter(world, entity, retry_at.map_or(Phase::Resting, Phase::Retrying));
    edit::<Life>(world, entity, |life| {
        life.failures += u32::from(counts(fault));
        // What is refused is asked again only where nothing in the answer could be used.
        let is_unusable = fault == ProviderFault::Refused && retry_at.is_some() && !summarised;
        life.unusable += u32::from(is_unusable);
        if is_unusable || is_trouble(fault) {
            life.trouble = Some(Arc::new(Trouble { error: Arc::clone(error), fault, at }));
        }
    });
    wake(world, run);
}

/// Whether so often in a row is a reason to give up.
fn counts(fault: ProviderFault) -> bool {
    match fault {
        ProviderFault::Failing | ProviderFault::Refused => true,
        // The daemon was restarted; the prompt becomes shorter.
        ProviderFault::Unknown | ProviderFault::ContextTooLong => false,
        // A limit ends by time, and a problem with the account or the key needs an operator. The lane is held for that
        // long.
        ProviderFault::RateLimit | ProviderFault::Quota | ProviderFault::Credentials | ProviderFault::NoKey => false,
        // It ends its run.
        ProviderFault::AnswerTooLarge => false,
    }
}

/// Whether the same is asked again once the provider is better.
fn is_trouble(fault: ProviderFault) -> bool {
    counts(fault) && fault != ProviderFault::Refused
        || matches!(
            fault,
            ProviderFault::RateLimit | ProviderFault::Quota | ProviderFault::Credentials | ProviderFault::NoKey
        )
}
