//! Applies the events about the health of providers.

use std::sync::Arc;

use bevy_ecs::world::World;
use harness_protocol::event::ProviderFault;
use harness_protocol::lane::Limiter;
use harness_protocol::time::Timestamp;

use super::super::model::indexes::{Breaker, Hold, Lanes, ProviderHealth, Timer, Timers};

fn edit(world: &mut World, provider: &Arc<str>, change: impl FnOnce(&mut Breaker)) {
    let mut breakers = world.resource_mut::<ProviderHealth>();
    let breaker = breakers.0.entry(Arc::clone(provider)).or_default();
    change(breaker);
    let (limiter, at_most) = (breaker.hold.as_ref().map(|hold| hold.limiter), breaker.at_most);
    if *breaker == Breaker::default() {
        breakers.0.remove(provider);
    }
    world.resource_mut::<Lanes>().provider(provider).set_gate(limiter, at_most);
}

pub(super) fn held(world: &mut World, provider: &Arc<str>, hold: Hold) {
    world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(provider)), hold.until);
    edit(world, provider, |breaker| {
        if hold.probe {
            // Of holds that follow upon each other each is longer; one that only becomes longer is still the same.
            breaker.rests = breaker.rests.saturating_add(u32::from(breaker.hold.is_none()));
            breaker.at_most = None;
        }
        breaker.hold = Some(hold);
    });
}

pub(super) fn released(world: &mut World, provider: &Arc<str>, at_most: Option<u32>) {
    world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(provider)), None);
    edit(world, provider, |breaker| {
        let was = breaker.hold.take().map(|hold| hold.limiter);
        // A release by hand, or at the end of a mere rate limit, means that the provider is well.
        let by_time = at_most.is_some() || was == Some(Limiter::RateLimit);
        if !by_time {
            (breaker.failures, breaker.failed_at, breaker.rests) = (0, Timestamp::default(), 0);
        }
        let probed = at_most.map(|most| (most, was.unwrap_or(Limiter::Failing)));
        breaker.at_most = probed.or(breaker.at_most.filter(|_| by_time));
    });
}

/// It answered, or refused as one that is well does.
pub(super) fn is_well(world: &mut World, provider: &Arc<str>) {
    if world.resource::<ProviderHealth>().get(provider).is_none() {
        return;
    }
    let width = world.resource_mut::<Lanes>().provider(provider).width();
    let failing = world.resource::<ProviderHealth>().get(provider).and_then(|breaker| breaker.hold.as_ref());
    let ends_hold = failing.is_some_and(|hold| hold.limiter == Limiter::Failing);
    if ends_hold {
        world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(provider)), None);
    }
    edit(world, provider, |breaker| {
        (breaker.failures, breaker.failed_at) = (0, Timestamp::default());
        if ends_hold {
            // An inference succeeded while the breaker was open.
            breaker.hold = None;
            breaker.at_most = Some((1, Limiter::Failing));
        }
        let doubled = breaker.at_most.map(|(most, why)| (most.saturating_mul(2), why));
        breaker.at_most = doubled.filter(|&(most, _)| most < width);
        if breaker.at_most.is_none() {
            breaker.rests = 0;
        }
    });
}

/// An inference failed that had begun at `began`. Of many that fail together the first one counts: that is one thing
/// that went wrong, and they come back at different times anyway.
pub(super) fn failed(
    world: &mut World,
    provider: &Arc<str>,
    fault: ProviderFault,
    (began, at): (Timestamp, Timestamp),
) {
    match fault {
        ProviderFault::Failing => edit(world, provider, |breaker| {
            if breaker.failures == 0 || began >= breaker.failed_at {
                breaker.failures = breaker.failures.saturating_add(1);
                breaker.failed_at = at;
            }
        }),
        ProviderFault::Refused | ProviderFault::ContextTooLong | ProviderFault::AnswerTooLarge => {
            is_well(world, provider);
        }
        ProviderFault::Unknown
        | ProviderFault::RateLimit
        | ProviderFault::Quota
        | ProviderFault::Credentials
        | ProviderFault::NoKey => {}
    }
}

/// At the start of the daemon: clears the holds without a known end. After a problem with the account or the key, one
/// run tries first. A hold with a known end stays.
pub(super) fn forgive(world: &mut World) {
    let names: Vec<Arc<str>> = world.resource::<ProviderHealth>().0.keys().cloned().collect();
    for name in names {
        let hold = world.resource::<ProviderHealth>().get(&name).and_then(|breaker| breaker.hold.as_ref());
        let why = hold.map(|hold| (hold.limiter, hold.until));
        let at_most = match why {
            Some((_, Some(_))) => continue,
            Some((limiter @ (Limiter::Quota | Limiter::Credentials | Limiter::Key), _)) => Some((1, limiter)),
            _ => None,
        };
        world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(&name)), None);
        edit(world, &name, |breaker| *breaker = Breaker { at_most, ..Breaker::default() });
    }
}
