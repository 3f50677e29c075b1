//! Which runs somebody means: by id, unique prefix of one, name, `@last`, labels, state.
//!
//! Reads the indexes; never scans the runs unless a label or a state is asked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use bevy_ecs::entity::Entity;
use bevy_ecs::world::World;
use harness_protocol::id::{IdPrefix, InteractionId, RunId};
use harness_protocol::rpc::{ErrorKind, RpcError, Selector};
use harness_protocol::run::RunState;

use super::boundary::Finished;
use super::components::{Batch, Ended, Identity, Origin, Spec, Stage, Stopwatch, Transcript};
use super::resources::{Interactions, Runs};

/// The run that `name` means.
pub(crate) fn one(world: &World, name: &str, uid: u32) -> Result<(RunId, Entity), RpcError> {
    let runs = world.resource::<Runs>();
    if name == "@last" {
        let last = runs.last_of.get(&uid).and_then(|run| runs.by_id.get_key_value(run));
        return last.map(|(&run, &entity)| (run, entity)).ok_or_else(|| not_found("you have submitted no run"));
    }
    if let Some(run) = runs.names.get(name)
        && let Some(&entity) = runs.by_id.get(run)
    {
        return Ok((*run, entity));
    }
    let Ok(prefix) = name.parse::<IdPrefix>() else {
        return by_finished_name(world, name).ok_or_else(|| not_found(&format!("no run {}", shown(name))));
    };
    let range = RunId::from_u64(*prefix.range().start())..=RunId::from_u64(*prefix.range().end());
    let mut matches = runs.by_id.range(range);
    match (matches.next(), matches.next()) {
        (Some((&run, &entity)), None) => Ok((run, entity)),
        (None, _) => by_finished_name(world, name).ok_or_else(|| not_found(&format!("no run {}", shown(name)))),
        (Some((first, _)), Some((second, _))) => {
            let candidates: Vec<String> =
                [first, second].into_iter().chain(matches.take(6).map(|(run, _)| run)).map(RunId::to_string).collect();
            let message = format!("{} may be any of {}", shown(name), candidates.join(", "));
            Err(RpcError::new(ErrorKind::Ambiguous, message))
        }
    }
}

/// The latest finished run of that name. Names are unique among live runs only.
fn by_finished_name(world: &World, name: &str) -> Option<(RunId, Entity)> {
    let runs = world.resource::<Runs>();
    runs.finished.values().rev().take(10_000).copied().find_map(|entity| {
        let spec = world.get::<Spec>(entity)?;
        let found = spec.0.name.as_deref() == Some(name);
        found.then(|| world.get::<Identity>(entity).map(|identity| (identity.id, entity))).flatten()
    })
}

fn not_found(message: &str) -> RpcError {
    RpcError::new(ErrorKind::NotFound, message)
}

fn shown(name: &str) -> String {
    let short: String = name.chars().take(80).collect();
    format!("{short:?}")
}

/// Whether a run has the labels and one of the states that are asked for.
pub(crate) fn fits(world: &World, entity: Entity, select: &Selector) -> bool {
    let Some(spec) = world.get::<Spec>(entity) else { return false };
    let labels = select.labels.iter().all(|(key, value)| spec.0.labels.get(key) == Some(value));
    labels && (select.states.is_empty() || state(world, entity).is_some_and(|state| select.states.contains(&state)))
}

pub(crate) fn state(world: &World, entity: Entity) -> Option<RunState> {
    world.get::<Stopwatch>(entity).map(|watch| watch.shown)
}

/// A finished run, as far as another one can come from it; `None` where it has not ended.
pub(crate) fn finished(world: &World, entity: Entity) -> Option<Finished> {
    world.get::<Ended>(entity)?;
    let identity = world.get::<Identity>(entity)?;
    let origin = world.get::<Origin>(entity);
    Some(Finished {
        id: identity.id,
        parent: identity.parent,
        seq: identity.seq,
        spec: Arc::clone(&world.get::<Spec>(entity)?.0),
        continues: origin.and_then(|origin| origin.continues),
        transcript: world.get::<Transcript>(entity)?.0.clone(),
        earlier: origin.map_or(0, |origin| origin.earlier),
    })
}

/// The live runs that are to be changed, in the order of their numbers; those that are named, also if they have ended.
pub(crate) fn several(world: &World, select: &Selector, uid: u32) -> Result<Vec<(RunId, Entity)>, RpcError> {
    let mut chosen = Vec::new();
    if !select.runs.is_empty() {
        let mut seen = BTreeSet::new();
        for name in &select.runs {
            let (run, entity) = one(world, name, uid)?;
            if fits(world, entity, select) && seen.insert(run) {
                chosen.push((run, entity));
            }
        }
        return Ok(chosen);
    }
    if select.labels.is_empty() && select.states.is_empty() && !select.all {
        return Err(RpcError::new(ErrorKind::Invalid, "name the runs, or select them by label, by state, or all"));
    }
    let runs = world.resource::<Runs>();
    for &entity in runs.live.values() {
        if fits(world, entity, select)
            && let Some(identity) = world.get::<Identity>(entity)
        {
            chosen.push((identity.id, entity));
        }
    }
    Ok(chosen)
}

/// The interaction that `name` means: by id, unique prefix among the open ones, or the run that waits for one.
pub(crate) fn interaction(world: &World, name: &str, uid: u32) -> Result<InteractionId, RpcError> {
    let interactions = world.resource::<Interactions>();
    if let Ok(id) = name.parse::<InteractionId>()
        && (interactions.open.contains_key(&id) || interactions.closed.contains_key(&id))
    {
        return Ok(id);
    }
    if world.resource::<Runs>().names.contains_key(name) {
        return asked_by(world, name, uid);
    }
    if let Ok(prefix) = name.parse::<IdPrefix>() {
        let range = InteractionId::from_u64(*prefix.range().start())..=InteractionId::from_u64(*prefix.range().end());
        let open: Vec<InteractionId> = interactions.open.range(range.clone()).map(|(&id, _)| id).take(8).collect();
        match open.as_slice() {
            [id] => return Ok(*id),
            [] => {
                let mut closed = interactions.closed.range(range).map(|(&id, _)| id);
                if let (Some(id), None) = (closed.next(), closed.next()) {
                    return Ok(id);
                }
            }
            several => return Err(several_open(name, several)),
        }
    }
    asked_by(world, name, uid)
}

/// The one question that a run asks.
fn asked_by(world: &World, name: &str, uid: u32) -> Result<InteractionId, RpcError> {
    let Ok((run, entity)) = one(world, name, uid) else {
        return Err(not_found(&format!("no interaction {}", shown(name))));
    };
    let open: Vec<InteractionId> = world.get::<Batch>(entity).map_or_else(Vec::new, |batch| {
        let asks = batch.0.calls.iter().filter_map(|call| match call.stage {
            Stage::Asking(interaction) => Some(interaction),
            _ => None,
        });
        asks.take(8).collect()
    });
    match open.as_slice() {
        [id] => Ok(*id),
        [] => Err(RpcError::new(ErrorKind::NoLongerApplies, format!("run {run} asks nothing"))),
        several => Err(several_open(name, several)),
    }
}

fn several_open(name: &str, open: &[InteractionId]) -> RpcError {
    let list: Vec<String> = open.iter().map(InteractionId::to_string).collect();
    RpcError::new(ErrorKind::Ambiguous, format!("{} may be any of {}", shown(name), list.join(", ")))
}
