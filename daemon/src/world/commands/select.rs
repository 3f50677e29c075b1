//! Selects runs: by id, name, unique prefix of an id, `@last`, labels, state, what they wait for, or all. Also finds
//! the question that a name means.
//!
//! An exact id comes before any name. A text that is the name of one run and may be the beginning of another's id is
//! refused, so that no command reaches an unintended run. When an operator gives a name, it means a run that an
//! operator submitted, and never a child: models choose the names of children. For a caller inside a run there are no
//! other runs than those of its tree. Reads the indexes. Must not scan live runs for an id or for the name of a live
//! run; a finished run is looked for by its name among 10,000 at most.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bevy_ecs::entity::Entity;
use harness_protocol::id::{IdPrefix, InteractionId, RunId};
use harness_protocol::rpc::Selector;
use harness_protocol::run::RunState;

use crate::refusal::{NameRefusal, QuestionRefusal, Refusal};
use crate::world::api::{Caller, Finished};
use crate::world::model::components::Stage;
use crate::world::model::indexes::Runs;
use crate::world::name_or_id::{may_be_an_id, name_and_id, short};
use crate::world::view::reads::Reads;
use crate::world::view::run::waits_for;

/// Finished runs among which one is looked for by its name.
const MOST_FINISHED: usize = 10_000;

/// The runs that a name of a caller can mean.
#[derive(Clone, Copy)]
enum Scope {
    /// An operator's: all runs by id, and by name those that operators submitted.
    Operator,
    /// A run's: those of the tree below this run, by id and by name. Nothing here tells of any other.
    Tree(RunId),
}

impl Scope {
    fn of(world: &Reads<'_, '_>, caller: Caller) -> Self {
        let Some(run) = caller.run else { return Self::Operator };
        let identity = world.runs.by_id.get(&run).and_then(|&entity| world.identity(entity));
        Self::Tree(identity.map_or(run, |identity| identity.root))
    }

    /// Whether an id can mean this run.
    fn has(self, world: &Reads<'_, '_>, entity: Entity) -> bool {
        match self {
            Self::Operator => true,
            Self::Tree(root) => world.identity(entity).is_some_and(|identity| identity.root == root),
        }
    }

    /// The live run of that name.
    fn live(self, runs: &Runs, name: &str) -> Option<RunId> {
        match self {
            Self::Operator => runs.names.top(name),
            Self::Tree(root) => runs.names.in_tree(name, root),
        }
    }

    /// The latest finished run of that name, among as many as are looked at.
    fn finished(self, world: &Reads<'_, '_>, name: &str) -> Option<(RunId, Entity)> {
        let runs = &world.runs;
        let has_name = |&entity: &Entity| world.spec(entity).is_some_and(|spec| spec.0.name.as_deref() == Some(name));
        let (_, run, entity) = match self {
            Self::Operator => {
                let finished = runs.finished.iter().rev().take(MOST_FINISHED).map(|(_, &entity)| entity);
                let of_operators = finished.filter(has_name).filter_map(|entity| {
                    let identity = world.identity(entity).filter(|identity| identity.parent.is_none())?;
                    Some((identity.number, identity.id, entity))
                });
                of_operators.take(1).next()
            }
            Self::Tree(root) => {
                let &top = runs.by_id.get(&root)?;
                let tree = std::iter::once(top).chain(world.below(top)).take(MOST_FINISHED);
                let ended = tree.filter(has_name).filter_map(|entity| {
                    let identity = world.identity(entity)?;
                    let is_finished = runs.finished.contains_key(&identity.number);
                    is_finished.then_some((identity.number, identity.id, entity))
                });
                ended.max_by_key(|(number, ..)| *number)
            }
        }?;
        Some((run, entity))
    }

    /// The refusal of what means no run. To a run it is the same whatever there is outside of its tree.
    fn no_run(self, runs: &Runs, text: &str) -> NameRefusal {
        let name = short(text);
        match self {
            Self::Tree(_) => NameRefusal::NoRunInTree { name },
            Self::Operator => match runs.names.children(text, 8) {
                children if children.is_empty() => NameRefusal::NoRun { name },
                runs => NameRefusal::ChildName { name, runs },
            },
        }
    }
}

/// The run that `name` means to this caller.
pub(crate) fn one(world: &Reads<'_, '_>, name: &str, caller: Caller) -> Result<(RunId, Entity), NameRefusal> {
    let (runs, scope) = (&world.runs, Scope::of(world, caller));
    let here = |run: RunId| runs.by_id.get(&run).map(|&entity| (run, entity));
    if name == "@last" && matches!(scope, Scope::Operator) {
        let last = runs.last_of.get(&caller.uid).and_then(|&run| here(run));
        return last.ok_or(NameRefusal::NoRunYet);
    }
    // An id is never a name, whatever some run is called.
    if let Ok(id) = name.parse::<RunId>() {
        let found = here(id).filter(|&(_, entity)| scope.has(world, entity));
        return found.ok_or_else(|| scope.no_run(runs, name));
    }
    let named = scope.live(runs, name).and_then(here);
    let beginning = beginning_with(world, name, scope, 8);
    match (named, beginning.as_slice()) {
        (Some((run, entity)), others) => {
            let other = others.iter().find(|(other, _)| *other != run);
            match other.filter(|_| may_be_an_id(name)) {
                Some((other, _)) => Err(name_and_id(name, run, *other)),
                None => Ok((run, entity)),
            }
        }
        (None, [one]) => Ok(*one),
        (None, []) => scope.finished(world, name).ok_or_else(|| scope.no_run(runs, name)),
        (None, several) => Err(any_of(name, several.iter().map(|(run, _)| *run))),
    }
}

fn any_of(name: &str, runs: impl Iterator<Item = RunId>) -> NameRefusal {
    NameRefusal::SeveralRuns { name: short(name), runs: runs.collect() }
}

/// One of the runs that are `meant` whose id begins with `name`, where that is long enough to be taken for an id.
pub(crate) fn with_id_like(runs: &Runs, name: &str, meant: impl Fn(RunId) -> bool) -> Option<RunId> {
    let prefix = name.parse::<IdPrefix>().ok().filter(|_| may_be_an_id(name))?;
    runs.by_id.range(runs_with(&prefix)).map(|(run, _)| run).find(|&run| meant(run))
}

/// The ids that begin so.
fn runs_with(prefix: &IdPrefix) -> RangeInclusive<RunId> {
    RunId::from_u64(*prefix.range().start())..=RunId::from_u64(*prefix.range().end())
}

/// Runs whose ids begin so.
fn beginning_with(world: &Reads<'_, '_>, name: &str, scope: Scope, most: usize) -> Vec<(RunId, Entity)> {
    let Ok(prefix) = name.parse::<IdPrefix>() else { return Vec::new() };
    let all = world.runs.by_id.range(runs_with(&prefix));
    all.filter(|&(_, entity)| scope.has(world, entity)).take(most).collect()
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
    let is_name = world.runs.names.top(name).is_some();
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
        told if told.is_ambiguous() || matches!(told, NameRefusal::ChildName { .. }) => told,
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
            assert!(without.find(&id, OPERATOR).is_err_and(|told| told.is_unknown_run()), "{spelling}");
        }
    }

    /// A model chose the name of the child: no command of an operator hits it by that name.
    #[test]
    fn a_name_means_a_run_of_an_operator_and_never_a_child() {
        for name in ["weekly", "nightly", "b-1", "release 2.0", "x", "@weekly"] {
            let engine = world(&[(4, None, ""), (5, Some(4), name), (6, None, name)]);
            assert_eq!(engine.find(name, OPERATOR), Ok(RunId::from_u64(6)), "{name}");
            for trees in [1, 2, 3] {
                let family = |tree: u64| [(10 * tree, None, ""), (10 * tree + 1, Some(10 * tree), name)];
                let runs: Vec<_> = (1..=trees).flat_map(family).collect();
                let children: Vec<RunId> = (1..=trees).map(|tree| RunId::from_u64(10 * tree + 1)).collect();
                let engine = world(&runs);
                let told = NameRefusal::ChildName { name: name.to_owned(), runs: children.clone() };
                assert_eq!(engine.find(name, OPERATOR), Err(told), "{name}");
                for child in children {
                    assert_eq!(engine.find(&child.to_string(), OPERATOR), Ok(child), "an id means one run");
                }
            }
        }
    }

    /// Children of different trees may be called the same, and as a run of an operator.
    #[test]
    fn a_childs_name_is_of_its_tree_and_of_no_other() {
        for name in ["worker", "x", "b-1", "release 2.0", "@weekly"] {
            let engine = world(&[(4, None, ""), (5, Some(4), name), (6, None, ""), (7, Some(6), name)]);
            for (asks, meant) in [(4, 5), (5, 5), (6, 7), (7, 7)] {
                let caller = Caller { uid: 7, run: Some(RunId::from_u64(asks)) };
                assert_eq!(engine.find(name, caller), Ok(RunId::from_u64(meant)), "{name}");
            }
            let engine = world(&[(4, None, ""), (5, Some(4), name), (6, None, ""), (7, None, name)]);
            assert_eq!(engine.find(name, OPERATOR), Ok(RunId::from_u64(7)), "{name}");
        }
    }

    #[test]
    fn what_is_a_name_and_may_be_meant_as_an_id_hits_nobody() {
        let victim = RunId::from_u64(0x1234_5678_9abc_def0);
        let id = victim.to_string();
        for length in 4..id.len() {
            for name in [id[..length].to_owned(), id[..length].to_uppercase()] {
                let engine = world(&[(victim.as_u64(), None, ""), (5, None, &name)]);
                assert!(engine.find(&name, OPERATOR).unwrap_err().is_ambiguous(), "{name}");
                assert_eq!(engine.find(&id, OPERATOR), Ok(victim));
                assert_eq!(engine.find(&RunId::from_u64(5).to_string(), OPERATOR), Ok(RunId::from_u64(5)));
                // No child keeps an operator from using the beginning of an id.
                let engine = world(&[(victim.as_u64(), None, ""), (5, Some(victim.as_u64()), &name)]);
                assert_eq!(engine.find(&name, OPERATOR), Ok(victim), "{name}");
                let inside = Caller { uid: 7, run: Some(victim) };
                assert!(engine.find(&name, inside).unwrap_err().is_ambiguous(), "{name}");
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
