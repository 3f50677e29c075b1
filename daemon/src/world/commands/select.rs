//! Selects runs: by id, name, unique prefix of an id, `@last`, labels, state, or what they wait for.
//!
//! An exact id comes before any name. A text that is the name of one run and the beginning of another's id is refused,
//! so that no command reaches an unintended run. Reads the indexes; must not scan the runs unless a label, a state or a
//! wait is selected.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bevy_ecs::entity::Entity;
use harness_protocol::id::{IdPrefix, InteractionId, RunId};
use harness_protocol::rpc::Selector;
use harness_protocol::run::RunState;

use crate::refusal::{NameRefusal, QuestionRefusal, Refusal};
use crate::world::api::{Caller, Finished, Operator};
use crate::world::model::components::Stage;
use crate::world::model::indexes::Runs;
use crate::world::name_or_id::{may_be_an_id, name_and_id, short};
use crate::world::view::reads::Reads;
use crate::world::view::run::waits_for;

/// The run that `name` means to this caller: to a run, one of its tree, unless it is the whole id of another one.
pub(crate) fn one(world: &Reads<'_, '_>, name: &str, caller: Caller) -> Result<(RunId, Entity), NameRefusal> {
    let runs = &world.runs;
    let root = caller.run.map(|run| {
        let identity = runs.by_id.get(&run).and_then(|&entity| world.identity(entity));
        identity.map_or(run, |identity| identity.root)
    });
    if name == "@last" {
        let last = runs.last_of.get(&caller.uid).and_then(|run| Some((*run, *runs.by_id.get(run)?)));
        return last.ok_or(NameRefusal::NoRunYet);
    }
    // An id is never a name, whatever some run is called.
    if let Ok(id) = name.parse::<RunId>() {
        let found = runs.by_id.get(&id).map(|&entity| (id, entity));
        return found.ok_or_else(|| no_run(name));
    }
    let named = called(world, name, root)?;
    let beginning = beginning_with(world, name, root, 8);
    match (named, beginning.as_slice()) {
        (Some((run, entity)), others) => {
            let other = others.iter().find(|(other, _)| *other != run);
            match other.filter(|_| may_be_an_id(name)) {
                Some((other, _)) => Err(name_and_id(name, run, *other)),
                None => Ok((run, entity)),
            }
        }
        (None, [one]) => Ok(*one),
        (None, []) => by_finished_name(world, name, |entity| is_meant(world, entity, root))
            .or_else(|| by_finished_name(world, name, |_| root.is_none()))
            .ok_or_else(|| no_run(name)),
        (None, several) => Err(any_of(name, several.iter().map(|(run, _)| *run))),
    }
}

/// The live run that is called `name`: to an operator one that an operator submitted, before the only child of that
/// name; to a run one of its tree.
fn called(world: &Reads<'_, '_>, name: &str, root: Option<RunId>) -> Result<Option<(RunId, Entity)>, NameRefusal> {
    let runs = &world.runs;
    let here = |run: &RunId| runs.by_id.get(run).map(|&entity| (*run, entity));
    if let Some(root) = root {
        return Ok(runs.names.in_tree(name, root).and_then(|run| here(&run)));
    }
    if let Some(top) = runs.names.top(name) {
        return Ok(here(&top));
    }
    let children = runs.names.children(name, 8);
    if children.is_empty() {
        return Ok(None);
    }
    // A child may take the name of a run that has ended: where that one is meant, the child is not hit.
    match (by_finished_name(world, name, |entity| is_meant(world, entity, None)), children.as_slice()) {
        (Some(meant), _) => Ok(Some(meant)),
        (None, [child]) => Ok(here(child)),
        (None, several) => Err(any_of(name, several.iter().copied())),
    }
}

fn any_of(name: &str, runs: impl Iterator<Item = RunId>) -> NameRefusal {
    NameRefusal::SeveralRuns { name: short(name), runs: runs.collect() }
}

fn no_run(name: &str) -> NameRefusal {
    NameRefusal::NoRun { name: short(name) }
}

/// A run of the world whose id begins with `name`, where that is long enough to be taken for an id.
pub(crate) fn with_id_like(runs: &Runs, name: &str) -> Option<RunId> {
    let prefix = name.parse::<IdPrefix>().ok().filter(|_| may_be_an_id(name))?;
    runs.by_id.range(runs_with(&prefix)).next().map(|(run, _)| run)
}

/// The ids that begin so.
fn runs_with(prefix: &IdPrefix) -> RangeInclusive<RunId> {
    RunId::from_u64(*prefix.range().start())..=RunId::from_u64(*prefix.range().end())
}

/// Runs whose ids begin so; to a run nothing is told of those of other trees.
fn beginning_with(world: &Reads<'_, '_>, name: &str, root: Option<RunId>, most: usize) -> Vec<(RunId, Entity)> {
    let Ok(prefix) = name.parse::<IdPrefix>() else { return Vec::new() };
    let all = world.runs.by_id.range(runs_with(&prefix));
    all.filter(|&(_, entity)| root.is_none() || is_meant(world, entity, root)).take(most).collect()
}

/// Whether a run is one that a name means first: to an operator one that an operator submitted, to a run one of its
/// tree.
fn is_meant(world: &Reads<'_, '_>, entity: Entity, root: Option<RunId>) -> bool {
    world.identity(entity).is_some_and(|identity| match root {
        Some(root) => identity.root == root,
        None => identity.parent.is_none(),
    })
}

/// Whether what `name` means here is a child that is called so: of those that have left the world, an operator's own may be.
pub(crate) fn is_child_by_name(world: &Reads<'_, '_>, name: &str, operator: Operator) -> bool {
    let named = |entity| world.spec(entity).is_some_and(|spec| spec.0.name.as_deref() == Some(name));
    if name.parse::<RunId>().is_ok() {
        return false;
    }
    match one(world, name, operator.into()) {
        Ok((_, entity)) => named(entity) && !is_meant(world, entity, None),
        // Several children have the name.
        Err(_) => has_name(world, name) && world.runs.names.top(name).is_none(),
    }
}

/// Whether a live run is called so.
fn has_name(world: &Reads<'_, '_>, name: &str) -> bool {
    let names = &world.runs.names;
    names.top(name).is_some() || !names.children(name, 1).is_empty()
}

/// The latest finished run of that name which is meant. Names are unique among live runs only.
fn by_finished_name(world: &Reads<'_, '_>, name: &str, meant: impl Fn(Entity) -> bool) -> Option<(RunId, Entity)> {
    let runs = &world.runs;
    runs.finished.values().rev().take(10_000).copied().find_map(|entity| {
        let spec = world.spec(entity)?;
        let found = spec.0.name.as_deref() == Some(name) && meant(entity);
        found.then(|| world.identity(entity).map(|identity| (identity.id, entity))).flatten()
    })
}

/// Whether a run has the labels, one of the states and one of the waits that are asked for.
pub(crate) fn fits(world: &Reads<'_, '_>, entity: Entity, select: &Selector) -> bool {
    let Some(spec) = world.spec(entity) else { return false };
    let waits = || waits_for(world, entity).is_some_and(|kind| select.waiting_for.contains(&kind));
    select.labels.iter().all(|(key, value)| spec.0.labels.get(key) == Some(value))
        && (select.states.is_empty() || state(world, entity).is_some_and(|state| select.states.contains(&state)))
        && (select.waiting_for.is_empty() || waits())
}

/// The refusal of a selector that names no run and says nothing of them: it would be every run.
fn check_selects(select: &Selector) -> Result<(), NameRefusal> {
    if select.has_filter() || select.all { Ok(()) } else { Err(NameRefusal::NothingSelected) }
}

pub(crate) fn state(world: &Reads<'_, '_>, entity: Entity) -> Option<RunState> {
    world.shown(entity).map(|shown| shown.0)
}

/// A finished run, as far as another one can come from it; `None` where it has not ended.
pub(crate) fn finished(world: &Reads<'_, '_>, entity: Entity) -> Option<Finished> {
    let run = world.whole(entity)?;
    run.ended?;
    Some(Finished {
        id: run.identity.id,
        parent: run.identity.parent,
        seq: run.identity.seq,
        spec: Arc::clone(&run.spec.0),
        continues: run.origin.and_then(|origin| origin.continues),
        transcript: run.transcript.0.clone(),
        earlier: run.origin.map_or(0, |origin| origin.earlier),
        prepared: run.prepared.map(|prepared| prepared.0.told.clone()),
    })
}

/// The live runs that are to be changed, in the order of their numbers; those that are named, also if they have ended.
pub(crate) fn several(
    world: &Reads<'_, '_>,
    select: &Selector,
    caller: Caller,
) -> Result<Vec<(RunId, Entity)>, NameRefusal> {
    let mut chosen = Vec::new();
    if !select.runs.is_empty() {
        let mut seen = BTreeSet::new();
        for name in &select.runs {
            let (run, entity) = one(world, name, caller)?;
            if fits(world, entity, select) && seen.insert(run) {
                chosen.push((run, entity));
            }
        }
        return Ok(chosen);
    }
    check_selects(select)?;
    let runs = &world.runs;
    for &entity in runs.live.values() {
        if fits(world, entity, select)
            && let Some(identity) = world.identity(entity)
        {
            chosen.push((identity.id, entity));
        }
    }
    Ok(chosen)
}

/// Live runs that are selected by what they are, not by name, with numbers above `after` and up to `last`: at most
/// `found` of them, of at most `scanned` that are looked at. Also the number to go on after, where there may be more.
pub(crate) fn some(
    world: &Reads<'_, '_>,
    select: &Selector,
    (after, last): (u64, u64),
    (found, scanned): (usize, usize),
) -> Result<(Vec<RunId>, Option<u64>), NameRefusal> {
    check_selects(select)?;
    let mut chosen = Vec::new();
    if after >= last {
        return Ok((chosen, None));
    }
    let live = world.runs.live.range(after + 1..=last);
    for (looked_at, (&number, &entity)) in live.enumerate() {
        if fits(world, entity, select)
            && let Some(identity) = world.identity(entity)
        {
            chosen.push(identity.id);
        }
        if chosen.len() >= found || looked_at + 1 >= scanned {
            return Ok((chosen, Some(number)));
        }
    }
    Ok((chosen, None))
}

/// The interaction that `name` means: by id, unique prefix among the open ones, or the run that waits for one.
pub(crate) fn interaction(world: &Reads<'_, '_>, name: &str, caller: Caller) -> Result<InteractionId, Refusal> {
    let interactions = &world.interactions;
    if let Ok(id) = name.parse::<InteractionId>()
        && (interactions.open.contains_key(&id) || interactions.closed.contains_key(&id))
    {
        return Ok(id);
    }
    if name.parse::<RunId>().is_ok() {
        return asked_by(world, name, caller);
    }
    // A name is asked before the beginning of an id, unless it may be taken for one: then both must mean the same.
    let is_name = has_name(world, name);
    if is_name && !may_be_an_id(name) {
        return asked_by(world, name, caller);
    }
    if let Ok(prefix) = name.parse::<IdPrefix>() {
        let range = InteractionId::from_u64(*prefix.range().start())..=InteractionId::from_u64(*prefix.range().end());
        let open: Vec<InteractionId> = interactions.open.range(range.clone()).map(|(&id, _)| id).take(8).collect();
        match open.as_slice() {
            [id] if is_name && asked_by(world, name, caller) != Ok(*id) => {
                return Err(NameRefusal::NameAndInteraction { name: short(name), interaction: *id }.into());
            }
            [id] => return Ok(*id),
            [] if is_name => {}
            [] => {
                let mut closed = interactions.closed.range(range).map(|(&id, _)| id);
                if let (Some(id), None) = (closed.next(), closed.next()) {
                    return Ok(id);
                }
            }
            several => return Err(several_open(name, several).into()),
        }
    }
    asked_by(world, name, caller)
}

/// The one question that a run asks.
fn asked_by(world: &Reads<'_, '_>, name: &str, caller: Caller) -> Result<InteractionId, Refusal> {
    let (run, entity) = one(world, name, caller).map_err(|refusal| match refusal {
        several if several.is_ambiguous() => several,
        _ => NameRefusal::NoInteraction { name: short(name) },
    })?;
    let open: Vec<InteractionId> = world.batch(entity).map_or_else(Vec::new, |batch| {
        let asks = batch.0.calls.iter().filter_map(|call| match call.stage {
            Stage::Asking(interaction, _) => Some(interaction),
            _ => None,
        });
        asks.take(8).collect()
    });
    match open.as_slice() {
        [id] => Ok(*id),
        [] => Err(QuestionRefusal::AsksNothing { run }.into()),
        several => Err(several_open(name, several).into()),
    }
}

fn several_open(name: &str, open: &[InteractionId]) -> NameRefusal {
    NameRefusal::SeveralInteractions { name: short(name), interactions: open.to_vec() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use harness_protocol::event::{Cause, Event, EventBody, Via};
    use harness_protocol::id::Seq;
    use harness_protocol::spec::RunSpec;
    use harness_protocol::time::Timestamp;

    use super::*;
    use crate::config::Config;
    use crate::world::Engine;

    const OPERATOR: Caller = Caller { uid: 7, run: None };

    /// As an older daemon let them be submitted: by number, parent, name.
    fn world(runs: &[(u64, Option<u64>, &str)]) -> Engine {
        let event = |(index, &(id, parent, name)): (usize, &(u64, Option<u64>, &str))| {
            let spec = RunSpec { name: (!name.is_empty()).then(|| name.into()), ..RunSpec::default() };
            let number = index as u64 + 1;
            Event {
                seq: Seq(number),
                version: 1,
                at: Timestamp::from_micros(number),
                run: Some(RunId::from_u64(id)),
                cause: Cause { via: Via::Socket, uid: Some(7), by_run: None },
                body: EventBody::RunSubmitted {
                    number,
                    owner: 7,
                    parent: parent.map(RunId::from_u64),
                    retry_of: None,
                    continues: None,
                    idempotency_key: None,
                    submit_key: None,
                    spec: Arc::new(spec),
                    earlier: Arc::default(),
                },
            }
        };
        let events: Vec<Event> = runs.iter().enumerate().map(event).collect();
        Engine::rebuild(Config::default(), Default::default(), 7, &events)
    }

    /// A2, rule 2: whatever a run is called, an id hits the run that has it.
    #[test]
    fn an_exact_id_is_never_taken_for_a_name_in_whatever_spelling() {
        let victim = RunId::from_u64(0x1234_5678_9abc_def0);
        let id = victim.to_string();
        let spellings = [
            id.clone(),
            id.to_uppercase(),
            id.replace('1', "l"),
            id.replace('1', "I"),
            id.replace('0', "o"),
            id.replace('0', "O"),
        ];
        for spelling in &spellings {
            let engine = world(&[(victim.as_u64(), None, ""), (5, Some(victim.as_u64()), spelling)]);
            for asked in &spellings {
                assert_eq!(engine.find(asked, OPERATOR), Ok(victim), "{asked}, while a child is called {spelling}");
            }
            // Of one that has left the world nothing here has the id, and the impostor neither.
            let without = world(&[(4, None, ""), (5, Some(4), spelling)]);
            assert_eq!(without.find(&id, OPERATOR), Err(no_run(&id)), "{spelling}");
        }
    }

    /// A name means an operator's run first: a child that takes the same name is not selected.
    #[test]
    fn a_name_means_the_run_of_an_operator_before_any_child() {
        for name in ["weekly", "nightly", "b-1", "release 2.0", "x", "@weekly"] {
            let engine = world(&[(4, None, ""), (5, Some(4), name), (6, None, name)]);
            assert_eq!(engine.find(name, OPERATOR), Ok(RunId::from_u64(6)), "{name}");
            let engine = world(&[(4, None, ""), (5, Some(4), name)]);
            assert_eq!(engine.find(name, OPERATOR), Ok(RunId::from_u64(5)), "{name}: there is no other");
            assert!(engine.is_child_by_name(name, OPERATOR.operator().unwrap()));
            assert!(
                !engine.is_child_by_name(&RunId::from_u64(5).to_string(), OPERATOR.operator().unwrap()),
                "an id means one run"
            );
        }
    }

    /// Children of different trees may be called the same, and as a run of an operator.
    #[test]
    fn a_childs_name_is_of_its_tree_and_of_no_other() {
        for name in ["worker", "x", "b-1", "release 2.0", "@weekly"] {
            let engine = world(&[(4, None, ""), (5, Some(4), name), (6, None, ""), (7, Some(6), name)]);
            assert!(engine.find(name, OPERATOR).unwrap_err().is_ambiguous(), "{name}");
            assert!(
                engine.is_child_by_name(name, OPERATOR.operator().unwrap()),
                "{name}: the journal may have an operator's"
            );
            for (asks, meant) in [(4, 5), (5, 5), (6, 7), (7, 7)] {
                let caller = Caller { uid: 7, run: Some(RunId::from_u64(asks)) };
                assert_eq!(engine.find(name, caller), Ok(RunId::from_u64(meant)), "{name}");
            }
            let engine = world(&[(4, None, ""), (5, Some(4), name), (6, None, ""), (7, None, name)]);
            assert_eq!(engine.find(name, OPERATOR), Ok(RunId::from_u64(7)), "{name}");
        }
    }

    /// To a run it is all the same whether another tree has such a run or none has.
    #[test]
    fn a_run_learns_nothing_of_other_trees_by_asking_for_names_and_beginnings_of_ids() {
        let other = RunId::from_u64(0x1234_5678_9abc_def0);
        let engine = world(&[(other.as_u64(), None, "nightly"), (3, Some(other.as_u64()), "part"), (5, None, "")]);
        let caller = Caller { uid: 7, run: Some(RunId::from_u64(5)) };
        let id = other.to_string();
        for name in ["nightly", "part", &id[..4], &id[..8], &id[..id.len() - 1]] {
            assert_eq!(engine.find(name, caller), Err(no_run(name)));
        }
    }

    #[test]
    fn what_is_a_name_and_may_be_meant_as_an_id_hits_nobody() {
        let victim = RunId::from_u64(0x1234_5678_9abc_def0);
        let id = victim.to_string();
        for length in 4..id.len() {
            for name in [id[..length].to_owned(), id[..length].to_uppercase()] {
                let engine = world(&[(victim.as_u64(), None, ""), (5, Some(victim.as_u64()), &name)]);
                assert!(engine.find(&name, OPERATOR).unwrap_err().is_ambiguous(), "{name}");
                assert_eq!(engine.find(&id, OPERATOR), Ok(victim));
                assert_eq!(engine.find(&RunId::from_u64(5).to_string(), OPERATOR), Ok(RunId::from_u64(5)));
            }
        }
    }

    #[test]
    fn a_name_that_is_none_or_too_short_to_be_taken_for_one_hits_its_run() {
        let first = RunId::from_u64(0xb000_0000_0000_0000);
        for name in ["b", "b0", "b00", "build", "b0-1", "zebra", "b0000u", "b000000000000000"] {
            let engine = world(&[(first.as_u64(), None, ""), (5, None, name)]);
            assert_eq!(engine.find(name, OPERATOR), Ok(RunId::from_u64(5)), "{name}");
        }
        let engine = world(&[(first.as_u64(), None, "b0000"), (5, None, "")]);
        assert_eq!(engine.find("b0000", OPERATOR), Ok(first), "its own beginning is no other run's");
    }
}
