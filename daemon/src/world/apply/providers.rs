//! Events that tell how a provider is.

use std::sync::Arc;

use bevy_ecs::world::World;
use harness_protocol::event::ProviderFault;
use harness_protocol::lane::Limiter;
use harness_protocol::time::Timestamp;

use super::super::model::indexes::{Gate, Gates, Hold, Lanes, Timer, Timers};

fn edit(world: &mut World, provider: &Arc<str>, change: impl FnOnce(&mut Gate)) {
    let mut gates = world.resource_mut::<Gates>();
    let gate = gates.0.entry(Arc::clone(provider)).or_default();
    change(gate);
    let (limiter, at_most) = (gate.hold.as_ref().map(|hold| hold.limiter), gate.at_most);
    if *gate == Gate::default() {
        gates.0.remove(provider);
    }
    world.resource_mut::<Lanes>().provider(provider).set_gate(limiter, at_most);
}

pub(super) fn held(world: &mut World, provider: &Arc<str>, hold: Hold) {
    world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(provider)), hold.until);
    edit(world, provider, |gate| {
        if hold.probe {
            // Of holds that follow upon each other each is longer; one that only becomes longer is still the same.
            gate.rests = gate.rests.saturating_add(u32::from(gate.hold.is_none()));
            gate.at_most = None;
        }
        gate.hold = Some(hold);
    });
}

pub(super) fn released(world: &mut World, provider: &Arc<str>, at_most: Option<u32>) {
    world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(provider)), None);
    edit(world, provider, |gate| {
        let was = gate.hold.take().map(|hold| hold.limiter);
        // Whoever lets it go on by hand, or after a mere limit, believes it to be well.
        let by_time = at_most.is_some() || was == Some(Limiter::RateLimit);
        if !by_time {
            (gate.failures, gate.failed_at, gate.rests) = (0, Timestamp::default(), 0);
        }
        let probed = at_most.map(|most| (most, was.unwrap_or(Limiter::Failing)));
        gate.at_most = probed.or(gate.at_most.filter(|_| by_time));
    });
}

/// It answered, or refused as one that is well does.
pub(super) fn is_well(world: &mut World, provider: &Arc<str>) {
    if world.resource::<Gates>().get(provider).is_none() {
        return;
    }
    let width = world.resource_mut::<Lanes>().provider(provider).width();
    let failing = world.resource::<Gates>().get(provider).and_then(|gate| gate.hold.as_ref());
    let ends_hold = failing.is_some_and(|hold| hold.limiter == Limiter::Failing);
    if ends_hold {
        world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(provider)), None);
    }
    edit(world, provider, |gate| {
        (gate.failures, gate.failed_at) = (0, Timestamp::default());
        if ends_hold {
            // Somebody got through while it was left alone.
            gate.hold = None;
            gate.at_most = Some((1, Limiter::Failing));
        }
        let doubled = gate.at_most.map(|(most, why)| (most.saturating_mul(2), why));
        gate.at_most = doubled.filter(|&(most, _)| most < width);
        if gate.at_most.is_none() {
            gate.rests = 0;
        }
    });
}

/// An inference failed that had begun at `began`. Of many that fail together the first one counts: that is one thing that went wrong, and
/// they come back at different times anyway.
pub(super) fn failed(
    world: &mut World,
    provider: &Arc<str>,
    fault: ProviderFault,
    (began, at): (Timestamp, Timestamp),
) {
    match fault {
        ProviderFault::Failing => edit(world, provider, |gate| {
            if gate.failures == 0 || began >= gate.failed_at {
                gate.failures = gate.failures.saturating_add(1);
                gate.failed_at = at;
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

/// The daemon was started: what failed may be well by now, and somebody may have seen to the rest, which one run finds
/// out. A hold whose end is known lasts all the same.
pub(super) fn forgive(world: &mut World) {
    let names: Vec<Arc<str>> = world.resource::<Gates>().0.keys().cloned().collect();
    for name in names {
        let hold = world.resource::<Gates>().get(&name).and_then(|gate| gate.hold.as_ref());
        let why = hold.map(|hold| (hold.limiter, hold.until));
        let at_most = match why {
            Some((_, Some(_))) => continue,
            Some((limiter @ (Limiter::Quota | Limiter::Credentials | Limiter::Key), _)) => Some((1, limiter)),
            _ => None,
        };
        world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(&name)), None);
        edit(world, &name, |gate| *gate = Gate { at_most, ..Gate::default() });
    }
}
