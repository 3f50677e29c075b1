//! Updates the indexes by hooks, whenever a component is added to a run or removed from it. So each of these indexes
//! follows from the components alone.
//!
//! Which of these indexes have a run follows from its components; a run leaves all of them by its despawn. A hook must
//! read nothing but components and change nothing but indexes, timers and the agenda. On a despawn the run still has
//! all of its components in each hook; the hooks execute in no fixed order.

use std::sync::Arc;

use bevy_ecs::entity::Entity;
use bevy_ecs::lifecycle::HookContext;
use bevy_ecs::world::DeferredWorld;
use harness_protocol::id::RunId;

use super::{Agenda, Interactions, Postponed, Runs, Texts, Timer, Timers, WantsExtra};
use crate::world::api::KeySpace;
use crate::world::model::components::{
    ClosedQuestions, Deferred, Ended, Identity, MayLeave, Origin, SentAs, Shown, Spec, ToldUnder,
};

/// What is copied of a run's identity, so that an index can be changed.
#[derive(Clone, Copy)]
struct Who {
    id: RunId,
    number: u64,
    /// The top of its tree.
    root: RunId,
    is_child: bool,
    owner: u32,
}

impl Who {
    /// The tree in which its name and its keys are unique; `None` for a run of an operator.
    fn tree(self) -> Option<RunId> {
        self.is_child.then_some(self.root)
    }
}

fn who(world: &DeferredWorld<'_>, entity: Entity) -> Option<Who> {
    let identity = world.get::<Identity>(entity)?;
    let is_child = identity.parent.is_some();
    Some(Who { id: identity.id, number: identity.number, root: identity.root, is_child, owner: identity.owner })
}

fn name(world: &DeferredWorld<'_>, entity: Entity) -> Option<Arc<str>> {
    world.get::<Spec>(entity)?.0.name.clone()
}

/// A run is live from the moment in which it is in the world.
pub(in crate::world::model) fn run_came(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(who) = who(&world, entity) else { return };
    let name = name(&world, entity);
    let mut runs = world.resource_mut::<Runs>();
    runs.by_id.insert(who.id, entity);
    runs.live.insert(who.number, entity);
    // What a run spawned is not what its owner submitted.
    if !who.is_child {
        runs.last_of.insert(who.owner, who.id);
    }
    if let Some(name) = name {
        runs.names.insert(name, who.tree(), who.id);
    }
}

pub(in crate::world::model) fn run_left(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(who) = who(&world, entity) else { return };
    let name = name(&world, entity);
    let mut runs = world.resource_mut::<Runs>();
    runs.by_id.remove(&who.id);
    runs.live.remove(&who.number);
    if runs.last_of.get(&who.owner) == Some(&who.id) {
        runs.last_of.remove(&who.owner);
    }
    if let Some(name) = name {
        runs.names.remove(name, who.tree(), who.id);
    }
    world.resource_mut::<Agenda>().0.remove(&(who.number, who.id));
    no_timers(&mut world, who.id);
}

/// No timer of this run goes off any more.
fn no_timers(world: &mut DeferredWorld<'_>, run: RunId) {
    let mut timers = world.resource_mut::<Timers>();
    for timer in [Timer::Deadline(run), Timer::MaxTime(run), Timer::Retry(run)] {
        timers.set(timer, None);
    }
}

/// A run that has ended is listed with the finished ones, and its name is free.
pub(in crate::world::model) fn end_came(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let (Some(who), Some(bytes)) = (who(&world, entity), world.get::<Ended>(entity).map(|ended| ended.bytes)) else {
        return;
    };
    let name = name(&world, entity);
    let mut runs = world.resource_mut::<Runs>();
    runs.live.remove(&who.number);
    runs.finished.insert(who.number, entity);
    runs.finished_bytes += bytes;
    *runs.kept.entry(who.root).or_default() += 1;
    if let Some(name) = name {
        runs.names.remove(name, who.tree(), who.id);
    }
    no_timers(&mut world, who.id);
}

pub(in crate::world::model) fn end_left(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let (Some(who), Some(bytes)) = (who(&world, entity), world.get::<Ended>(entity).map(|ended| ended.bytes)) else {
        return;
    };
    let was_kept = world.get::<MayLeave>(entity).is_none();
    let mut runs = world.resource_mut::<Runs>();
    runs.finished.remove(&who.number);
    runs.finished_bytes = runs.finished_bytes.saturating_sub(bytes);
    if was_kept {
        keeps_one_less(&mut runs, who.root);
    }
}

/// The tree of this top keeps one finished run less.
fn keeps_one_less(runs: &mut Runs, root: RunId) {
    if let Some(count) = runs.kept.get_mut(&root) {
        *count -= 1;
        if *count == 0 {
            runs.kept.remove(&root);
        }
    }
}

/// The whole tree of a finished run has ended: nothing keeps it any more.
pub(in crate::world::model) fn not_kept(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(who) = who(&world, entity) else { return };
    keeps_one_less(&mut world.resource_mut::<Runs>(), who.root);
}

pub(in crate::world::model) fn may_leave(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let (Some(who), Some(&MayLeave(at))) = (who(&world, entity), world.get::<MayLeave>(entity)) else { return };
    world.resource_mut::<Runs>().by_end.insert((at, who.number));
}

pub(in crate::world::model) fn may_leave_no_more(
    mut world: DeferredWorld<'_>,
    HookContext { entity, .. }: HookContext,
) {
    let (Some(who), Some(&MayLeave(at))) = (who(&world, entity), world.get::<MayLeave>(entity)) else { return };
    world.resource_mut::<Runs>().by_end.remove(&(at, who.number));
}

pub(in crate::world::model) fn state_came(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(&Shown(state)) = world.get::<Shown>(entity) else { return };
    *world.resource_mut::<Runs>().states.entry(state).or_default() += 1;
}

pub(in crate::world::model) fn state_left(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(&Shown(state)) = world.get::<Shown>(entity) else { return };
    if let Some(count) = world.resource_mut::<Runs>().states.get_mut(&state) {
        *count = count.saturating_sub(1);
    }
}

/// The idempotency key of a run's submit, and where it is unique.
fn key(world: &DeferredWorld<'_>, entity: Entity) -> Option<((KeySpace, Arc<str>), RunId)> {
    let who = who(world, entity)?;
    let key = world.get::<Origin>(entity)?.idempotency_key.clone()?;
    Some(((KeySpace::of(who.tree(), who.owner), key), who.id))
}

pub(in crate::world::model) fn origin_came(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    if let Some((key, run)) = key(&world, entity) {
        world.resource_mut::<Runs>().keys.insert(key, run);
    }
}

pub(in crate::world::model) fn origin_left(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some((key, run)) = key(&world, entity) else { return };
    let keys = &mut world.resource_mut::<Runs>().keys;
    if keys.get(&key) == Some(&run) {
        keys.remove(&key);
    }
}

/// The long texts of a run are held for others that have the same.
pub(in crate::world::model) fn texts_came(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(Spec(spec)) = world.get::<Spec>(entity).cloned() else { return };
    world.resource_mut::<Texts>().came(&spec);
}

pub(in crate::world::model) fn texts_left(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(Spec(spec)) = world.get::<Spec>(entity).cloned() else { return };
    world.resource_mut::<Texts>().left(&spec);
}

pub(in crate::world::model) fn submit_key_came(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let (Some(who), Some(&SentAs(key))) = (who(&world, entity), world.get::<SentAs>(entity)) else { return };
    world.resource_mut::<Runs>().submit_keys.insert(key, who.id);
}

pub(in crate::world::model) fn submit_key_left(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(&SentAs(key)) = world.get::<SentAs>(entity) else { return };
    world.resource_mut::<Runs>().submit_keys.remove(&key);
}

pub(in crate::world::model) fn message_keys_came(
    mut world: DeferredWorld<'_>,
    HookContext { entity, .. }: HookContext,
) {
    let (Some(who), Some(told)) = (who(&world, entity), world.get::<ToldUnder>(entity).cloned()) else { return };
    world.resource_mut::<Runs>().submit_keys.extend(told.0.into_iter().map(|(key, _)| (key, who.id)));
}

pub(in crate::world::model) fn message_keys_left(
    mut world: DeferredWorld<'_>,
    HookContext { entity, .. }: HookContext,
) {
    let Some(told) = world.get::<ToldUnder>(entity).cloned() else { return };
    let keys = &mut world.resource_mut::<Runs>().submit_keys;
    for (key, _) in &told.0 {
        keys.remove(key);
    }
}

/// By whom its questions were settled is known as long as it is here.
pub(in crate::world::model) fn closed_questions_left(
    mut world: DeferredWorld<'_>,
    HookContext { entity, .. }: HookContext,
) {
    let Some(asked) = world.get::<ClosedQuestions>(entity).cloned() else { return };
    let closed = &mut world.resource_mut::<Interactions>().closed;
    for interaction in &asked.0 {
        closed.remove(interaction);
    }
}

pub(in crate::world::model) fn deferral_came(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let (Some(who), Some(&deferred)) = (who(&world, entity), world.get::<Deferred>(entity)) else { return };
    let (entry, mut postponed) = ((who.number, who.id), world.resource_mut::<Postponed>());
    match deferred {
        Deferred::ByBudget(owner) => postponed.by_budget.entry(owner).or_default().insert(entry),
        Deferred::Stalled => postponed.stalled.insert(entry),
    };
}

pub(in crate::world::model) fn deferral_left(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let (Some(who), Some(&deferred)) = (who(&world, entity), world.get::<Deferred>(entity)) else { return };
    let (entry, mut postponed) = ((who.number, who.id), world.resource_mut::<Postponed>());
    match deferred {
        Deferred::ByBudget(owner) => postponed.no_longer_by_budget(owner, entry),
        Deferred::Stalled => drop(postponed.stalled.remove(&entry)),
    }
}

pub(in crate::world::model) fn extra_came(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(who) = who(&world, entity) else { return };
    world.resource_mut::<WantsExtra>().0.insert((who.number, who.id));
}

pub(in crate::world::model) fn extra_left(mut world: DeferredWorld<'_>, HookContext { entity, .. }: HookContext) {
    let Some(who) = who(&world, entity) else { return };
    world.resource_mut::<WantsExtra>().0.remove(&(who.number, who.id));
}
