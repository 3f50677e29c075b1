//! Computes the indexes anew from components alone, and compares them with the real ones after every step of the
//! simulation.
#![cfg(test)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bevy_ecs::entity::Entity;
use harness_protocol::run::RunState;

use super::{Simulation, history};
use crate::world::Engine;
use crate::world::api::KeySpace;
use crate::world::model::components::{CouldUseMore, Identity, SpawnedBy, WantsInference};
use crate::world::model::indexes::{Interactions, Postponed, Runs, Texts, Timer, Timers, WantsExtra};
use crate::world::model::names::Names;
use crate::world::model::phase::Phase;
use crate::world::model::run_data::{RunData, RunDataItem};

fn all(engine: &Engine, check: impl FnMut(Entity, RunDataItem<'_, '_>)) {
    let world = &engine.world;
    let query = world.try_query::<(Entity, RunData)>().unwrap();
    let mut check = check;
    for (entity, run) in query.query_manual(world) {
        check(entity, run);
    }
}

impl Simulation {
    /// Every index holds what the components say, and nothing else; every marker what the phase says.
    pub(super) fn check_indexes(&self) {
        let world = &self.engine.world;
        let (mut made, mut postponed, mut extra) = (Runs::default(), Postponed::default(), WantsExtra::default());
        let mut names = Names::default();
        let mut texts = Texts::default();
        let mut states: BTreeMap<RunState, u32> = BTreeMap::new();
        let mut closed = 0;
        all(&self.engine, |entity, run| {
            let (id, number) = (run.identity.id, run.identity.number);
            let tree = run.identity.parent.is_some().then_some(run.identity.root);
            made.by_id.insert(id, entity);
            texts.came(&run.spec.0);
            *states.entry(run.shown.0).or_default() += 1;
            match run.ended {
                None => drop(made.live.insert(number, entity)),
                Some(ended) => {
                    made.finished.insert(number, entity);
                    made.finished_bytes += ended.bytes;
                    match run.may_leave {
                        Some(since) => assert!(since.0 == ended.at && made.by_end.insert((ended.at, number))),
                        None => *made.kept.entry(run.identity.root).or_default() += 1,
                    }
                }
            }
            if let Some(name) = run.spec.0.name.clone().filter(|_| run.ended.is_none()) {
                names.insert(name, tree, id);
            }
            if let Some(key) = run.origin.and_then(|origin| origin.idempotency_key.clone()) {
                made.keys.insert((KeySpace::of(tree, run.identity.owner), key), id);
            }
            let told = run.told_under.into_iter().flat_map(|told| told.0.iter().map(|(key, _)| *key));
            made.submit_keys.extend(run.sent_as.map(|sent| sent.0).into_iter().chain(told).map(|key| (key, id)));
            match run.deferred {
                Some(crate::world::model::components::Deferred::ByBudget(owner)) => {
                    postponed.by_budget.entry(*owner).or_default().insert((number, id));
                }
                Some(crate::world::model::components::Deferred::Stalled) => {
                    postponed.stalled.insert((number, id));
                }
                None => {}
            }
            if run.could_use_more == Some(&CouldUseMore) {
                extra.0.insert((number, id));
            }
            closed += run.closed_questions.map_or(0, |questions| questions.0.len());
            let wants = matches!(run.life.phase(), Phase::Wanting(_));
            assert_eq!(run.wants_inference.is_some(), wants, "{id} is {:?}", run.life.phase());
            let is_deferred = matches!(run.life.phase(), Phase::Postponed(_)) && !run.life.paused;
            assert_eq!(run.deferred.is_some(), is_deferred, "{id} is {:?}", run.life.phase());
            // A run has its parent above it as long as that is in the world.
            let above = run.identity.parent.and_then(|parent| world.resource::<Runs>().by_id.get(&parent).copied());
            assert_eq!(run.spawned_by.copied(), above.map(SpawnedBy), "{id}");
            let numbers = run.children.map(|children| children.runs().iter().map(|&child| number_of(world, child)));
            assert!(
                numbers.into_iter().flatten().is_sorted(),
                "the children of {id} are in the order of their numbers"
            );
        });
        let runs = world.resource::<Runs>();
        let kept = |states: &BTreeMap<RunState, u32>| -> Vec<(RunState, u32)> {
            states.iter().filter(|(_, count)| **count > 0).map(|(state, count)| (*state, *count)).collect()
        };
        assert!(runs.by_id.iter().eq(made.by_id.iter()));
        assert_eq!((&runs.live, &runs.finished), (&made.live, &made.finished));
        assert_eq!((&runs.by_end, &runs.kept, runs.finished_bytes), (&made.by_end, &made.kept, made.finished_bytes));
        assert_eq!((&runs.keys, &runs.submit_keys), (&made.keys, &made.submit_keys));
        assert_eq!((runs.names.all(), kept(&runs.states)), (names.all(), kept(&states)));
        assert_eq!(world.resource::<Postponed>(), &postponed);
        assert_eq!(world.resource::<WantsExtra>(), &extra);
        assert_eq!(world.resource::<Texts>(), &texts);
        assert_eq!(world.resource::<Interactions>().closed.len(), closed);
        self.check_components();
    }

    /// No run has a component that is missing in the one list of them.
    fn check_components(&self) {
        let world = &self.engine.world;
        let listed = world.try_query::<RunData>().unwrap();
        let identity = world.component_id::<Identity>().unwrap();
        for archetype in world.archetypes().iter().filter(|archetype| archetype.contains(identity)) {
            for &component in archetype.components() {
                let name = world.components().get_name(component);
                assert!(listed.component_access().access().has_read(component), "{name:?} is missing in RunData");
            }
        }
    }
}

fn number_of(world: &bevy_ecs::world::World, run: Entity) -> u64 {
    world.get::<Identity>(run).unwrap().number
}

/// No index can be forgotten where a run leaves, in whatever state it is and in whatever order.
#[test]
fn a_despawn_takes_a_run_out_of_every_index() {
    for seed in 0..6 {
        let (mut engine, _) = history(seed, 400);
        let mut runs: Vec<(u64, Entity)> = Vec::new();
        all(&engine, |entity, run| runs.push((run.identity.id.as_u64().wrapping_mul(seed * 2 + 1), entity)));
        assert!(runs.len() > 5, "{} runs to leave", runs.len());
        runs.sort_unstable();
        for (_, entity) in runs {
            engine.world.despawn(entity);
        }
        let world = &engine.world;
        let runs = world.resource::<Runs>();
        assert_eq!((runs.by_id.iter().count(), runs.live.len(), runs.finished.len()), (0, 0, 0));
        assert_eq!((runs.by_end.len(), &runs.kept, runs.finished_bytes), (0, &BTreeMap::new(), 0));
        assert_eq!((runs.names.all(), &runs.keys, &runs.submit_keys), (vec![], &HashMap::new(), &BTreeMap::new()));
        assert_eq!((runs.last_of.len(), runs.states.values().sum::<u32>()), (0, 0));
        assert_eq!(world.resource::<Postponed>(), &Postponed::default());
        assert_eq!(world.resource::<WantsExtra>().0, BTreeSet::new());
        assert_eq!(world.resource::<Interactions>().closed.len(), 0);
        let is_of_a_run = |timer: &Timer| matches!(timer, Timer::Deadline(_) | Timer::MaxTime(_) | Timer::Retry(_));
        let due = world.resource::<Timers>().due(harness_protocol::time::Timestamp::MAX, usize::MAX);
        assert!(!due.iter().any(is_of_a_run), "{due:?}");
    }
}

/// A tree is a relationship without `linked_spawn`.
#[test]
fn a_run_that_leaves_takes_none_of_its_children_along() {
    let mut seen = 0;
    for seed in 0..6 {
        let (mut engine, _) = history(seed, 400);
        let mut parents: Vec<(Entity, Vec<Entity>)> = Vec::new();
        all(&engine, |entity, run| {
            parents.extend(run.children.map(|children| (entity, children.runs().to_vec())));
        });
        for (parent, children) in parents {
            let there = |engine: &Engine| -> Vec<Entity> {
                children.iter().copied().filter(|&child| engine.world.get::<Identity>(child).is_some()).collect()
            };
            let before = there(&engine);
            engine.world.despawn(parent);
            assert_eq!(there(&engine), before, "they stay");
            assert!(before.iter().all(|&child| engine.world.get::<SpawnedBy>(child).is_none()), "and are tops");
            seen += before.len();
        }
    }
    assert!(seen > 10, "{seen} children");
}

/// A marker is of use only where queries find by it what its phase says.
#[test]
fn a_query_by_marker_finds_the_runs_that_stand_in_the_lane_of_their_provider() {
    let mut seen = 0;
    for seed in 0..6 {
        let (mut engine, _) = history(seed, 400);
        let mut wanting = BTreeSet::new();
        all(&engine, |_, run| {
            if let Phase::Wanting(_) = run.life.phase() {
                wanting.insert(run.identity.id);
            }
        });
        let mut query = engine.world.query_filtered::<&Identity, bevy_ecs::query::With<WantsInference>>();
        let found: BTreeSet<_> = query.iter(&engine.world).map(|identity| identity.id).collect();
        assert_eq!(found, wanting);
        seen += found.len();
    }
    assert!(seen > 5, "{seen} runs");
}
