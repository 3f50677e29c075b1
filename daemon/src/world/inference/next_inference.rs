//! Brings a run to its next inference: chooses the provider, compacts the conversation if it is too long, checks the
//! budget.

use std::sync::Arc;

use bevy_ecs::query::With;
use harness_protocol::event::EventBody;
use harness_protocol::id::RunId;
use harness_protocol::run::exit;

use super::budget::{self, Budget};
use super::when_to_compact::{self, Fit};
use super::{prepare, provider_health};
use crate::config::Provider;
use crate::world::ending::fail_run;
use crate::world::model::components::{BudgetReserve, Deferred, Identity, Life, Spec, WantsInference};
use crate::world::model::phase::Phase;
use crate::world::tx::Tx;

/// Takes its place in the lane of its provider, or of the one that stands in for it: for the step, or for a summary
/// before it. Where the budget is held by others, it waits for them.
pub(in crate::world) fn begin(tx: &mut Tx<'_>, run: RunId, step: u32) {
    prepare::prepare(tx, run);
    // A fallback may be too dear.
    let provider = next_provider(tx, run);
    let plan = match when_to_compact::fit(tx, run, provider.as_ref()) {
        Fit::Fits => None,
        Fit::Compact(plan) => Some(Arc::new(plan)),
        Fit::TooLong => {
            fail_run(tx, run, when_to_compact::NOTHING_TO_LEAVE_OUT, exit::FAILED);
            return;
        }
    };
    // Nothing is held for who would only stand still with it.
    let stalled = asked(tx, run, provider.as_ref()).filter(|asked| tx.is_stalled(asked));
    let reserve = match budget::of(tx, run, provider.as_ref(), plan.as_deref()) {
        Budget::UsedUp(why) => {
            fail_run(tx, run, why, exit::BUDGET);
            return;
        }
        Budget::Enough(Some(_)) | Budget::Held(_) if stalled.is_some() => {
            postpone(tx, run, step, budget::owner(tx, run), stalled);
            return;
        }
        Budget::Enough(reserve) => reserve,
        Budget::Held(budget_of) => {
            postpone(tx, run, step, Some(budget_of), None);
            return;
        }
    };
    let body = match plan {
        None => EventBody::StepBegun { step, provider, reserve },
        Some(plan) => EventBody::CompactionBegun { step, provider, plan, reserve },
    };
    tx.emit(Some(run), body);
}

/// The fallback that a run asks next, where it does not ask its own provider.
fn next_provider(tx: &Tx<'_>, run: RunId) -> Option<Arc<str>> {
    let can_be_paid = |instead: &Arc<str>| !matches!(budget::of(tx, run, Some(instead), None), Budget::UsedUp(_));
    provider_health::choice(tx, run, can_be_paid)
}

/// The provider that a run asks: its own, or the one that stands in.
fn asked(tx: &Tx<'_>, run: RunId, instead: Option<&Arc<str>>) -> Option<Arc<str>> {
    instead.or(tx.spec(run)?.0.provider.as_ref()).cloned()
}

/// Defers a run outside its provider's lane: until a reserve of the budget of `budget_of` is released, or until the
/// provider that is `stalled` may be used again.
fn postpone(tx: &mut Tx<'_>, run: RunId, step: u32, budget_of: Option<RunId>, stalled: Option<Arc<str>>) {
    let Some(budget_of) = budget_of else { return };
    let waits_already = tx.entity(run).zip(tx.life(run)).is_some_and(|(entity, life)| {
        let is_stalled = tx.get::<Deferred>(entity) == Some(&Deferred::Stalled);
        let is_same = life.phase() == Phase::Postponed(budget_of) && life.step == step;
        is_same && is_stalled == stalled.is_some()
    });
    if !waits_already {
        tx.emit(Some(run), EventBody::StepPostponed { step, budget_of, provider: stalled });
    }
}

/// Called when a provider must not be used until an operator acts: the runs in its lane release their budget reserves.
pub(in crate::world) fn give_back(tx: &mut Tx<'_>, provider: &Arc<str>) {
    if !tx.is_stalled(provider) {
        return;
    }
    let mut holders = tx.all::<(&Identity, &Life, &Spec), (With<WantsInference>, With<BudgetReserve>), _>(
        |(identity, life, spec)| {
            let asked = life.provider.as_ref().or(spec.0.provider.as_ref());
            (asked == Some(provider)).then_some((identity.number, identity.id, life.step))
        },
    );
    holders.sort_unstable();
    for (_, run, step) in holders {
        let budget_of = budget::owner(tx, run);
        postpone(tx, run, step, budget_of, Some(Arc::clone(provider)));
        // It may have stood in the lane of a stand-in, and its own provider answers again.
        tx.wake(run);
    }
}

/// A provider is left alone from here on, or is asked again, and it is the fallback of some, or has some: runs that
/// stand in a lane that is left alone go where they are served. Where no fallback is there for them, they wait for
/// their own provider.
pub(in crate::world) fn reconsider(tx: &mut Tx<'_>, provider: &Arc<str>) {
    let concerned = |(name, other): (&Arc<str>, &Provider)| {
        other.fallbacks.contains(provider) || (name == provider && !other.fallbacks.is_empty())
    };
    if !tx.setup().config.providers.iter().any(concerned) {
        return;
    }
    let mut waiting = tx.all::<(&Identity, &Life), With<WantsInference>, _>(|(identity, life)| {
        let may_go = !life.paused && life.stopping.is_none();
        may_go.then_some((identity.number, identity.id, life.step))
    });
    waiting.sort_unstable();
    for (_, run, step) in waiting {
        let stands_in = tx.life(run).and_then(|life| life.provider.clone());
        if !asked(tx, run, stands_in.as_ref()).is_some_and(|asked| provider_health::is_away(tx, &asked)) {
            continue;
        }
        let next = next_provider(tx, run);
        if next != stands_in {
            begin(tx, run, step);
        }
    }
}
