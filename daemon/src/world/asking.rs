//! How a run comes to its next inference: by which provider, whether its prompt is short enough, and whether it can be paid for.

use std::sync::Arc;

use harness_protocol::event::EventBody;
use harness_protocol::id::RunId;
use harness_protocol::run::exit;

use super::budget::{self, Budget};
use super::compaction::{self, Fit};
use super::components::{Children, Held, Identity, Life};
use super::phase::Phase;
use super::provider;
use super::resources::Runs;
use super::scene::Scene;
use super::stop::fail_run;

/// Takes its place in the lane of its provider, or of the one that stands in for it: for the step, or for a summary before it. Where the budget is
/// held by others, it waits for them.
pub(super) fn begin(scene: &mut Scene<'_>, run: RunId, step: u32) {
    // Whoever stands in may be too dear; the own provider comes back.
    let provider = provider::choice(scene, run)
        .filter(|instead| !matches!(budget::of(scene, run, Some(instead), None), Budget::UsedUp(_)));
    let plan = match compaction::fit(scene, run, provider.as_ref()) {
        Fit::Fits => None,
        Fit::Compact(plan) => Some(Arc::new(plan)),
        Fit::TooLong => {
            fail_run(scene, run, compaction::NOTHING_TO_LEAVE_OUT, exit::FAILED);
            return;
        }
    };
    let mut budget = budget::of(scene, run, provider.as_ref(), plan.as_deref());
    // Who would stand still with it takes nothing from others that do.
    let goes_on = asked(scene, run, provider.as_ref()).is_some_and(|provider| !provider::is_stalled(scene, &provider));
    if let Budget::Held(owner) = budget
        && goes_on
        && give_back_idle(scene, owner)
    {
        budget = budget::of(scene, run, provider.as_ref(), plan.as_deref());
    }
    let reserve = match budget {
        Budget::Enough(reserve) => reserve,
        Budget::Held(budget_of) => {
            let waits_already = scene.life(run).is_some_and(|life| life.phase == Phase::Postponed(budget_of));
            if !waits_already {
                scene.emit(Some(run), EventBody::StepPostponed { step, budget_of });
            }
            return;
        }
        Budget::UsedUp(why) => {
            fail_run(scene, run, why, exit::BUDGET);
            return;
        }
    };
    let body = match plan {
        None => EventBody::StepBegun { step, provider, reserve },
        Some(plan) => EventBody::CompactionBegun { step, provider, plan, reserve },
    };
    scene.emit(Some(run), body);
}

/// The provider that a run asks: its own, or the one that stands in.
fn asked(scene: &Scene<'_>, run: RunId, instead: Option<&Arc<str>>) -> Option<Arc<str>> {
    instead.or(scene.spec(run)?.0.provider.as_ref()).cloned()
}

/// Lets runs of a budget wait that hold a part of it in a lane that grants nothing until somebody has seen to it. Says whether there were any.
fn give_back_idle(scene: &mut Scene<'_>, owner: RunId) -> bool {
    let mut tree = vec![owner];
    let mut next = 0;
    while let Some(&at) = tree.get(next) {
        next += 1;
        let children = scene.entity(at).and_then(|entity| scene.get::<Children>(entity));
        tree.extend(children.into_iter().flat_map(|children| children.0.iter().copied()));
    }
    let idle = |run: RunId| {
        let (entity, life) = (scene.entity(run)?, scene.life(run)?);
        let (Phase::Wanting(_), Some(_)) = (life.phase, scene.get::<Held>(entity)) else { return None };
        let provider = asked(scene, run, life.provider.as_ref())?;
        provider::is_stalled(scene, &provider).then_some((run, life.step))
    };
    let idle: Vec<(RunId, u32)> = tree.into_iter().filter_map(idle).collect();
    for &(run, step) in &idle {
        scene.emit(Some(run), EventBody::StepPostponed { step, budget_of: owner });
        // It takes what is left once the other has had its turn.
        scene.wake(run);
    }
    !idle.is_empty()
}

/// Runs that stand in the lane of a provider that is left alone go to its fallback, where it has one.
pub(super) fn move_to_fallback(scene: &mut Scene<'_>, provider: &Arc<str>) {
    let has_fallback = scene.setup().config.providers.get(provider).is_some_and(|p| p.fallback.is_some());
    if !has_fallback {
        return;
    }
    let waits = |entity| {
        let life = scene.get::<Life>(entity)?;
        let wants = matches!(life.phase, Phase::Wanting(_)) && !life.paused && life.stopping.is_none();
        (wants && life.provider.is_none()).then_some((scene.get::<Identity>(entity)?.id, life.step))
    };
    let waiting: Vec<(RunId, u32)> = scene.res::<Runs>().live.values().filter_map(|&entity| waits(entity)).collect();
    for (run, step) in waiting {
        if scene.spec(run).is_some_and(|spec| spec.0.provider.as_ref() == Some(provider))
            && provider::choice(scene, run).is_some()
        {
            begin(scene, run, step);
        }
    }
}
