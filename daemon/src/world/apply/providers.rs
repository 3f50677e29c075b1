//! Events that tell how a provider is.

use std::sync::Arc;

use bevy_ecs::world::World;
use harness_protocol::event::ProviderFault;
use harness_protocol::lane::Limiter;
use harness_protocol::time::Timestamp;

use super::super::resources::{Gate, Gates, Hold, Lanes, Timer, Timers};

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

pub(super) fn held(
    world: &mut World,
    provider: &Arc<str>,
    limiter: Limiter,
    until: Option<Timestamp>,
    error: &Arc<str>,
    at: Timestamp,
) {
    world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(provider)), until);
    edit(world, provider, |gate| {
        if limiter == Limiter::Failing {
            gate.rests = gate.rests.saturating_add(1);
            gate.at_most = None;
        }
        gate.hold = Some(Hold { limiter, since: at, until, error: Arc::clone(error) });
    });
}

pub(super) fn released(world: &mut World, provider: &Arc<str>, at_most: Option<u32>) {
    world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(provider)), None);
    edit(world, provider, |gate| {
        let was = gate.hold.take();
        // Whoever lets it go on by hand, or after a mere limit, believes it to be well.
        let by_time = at_most.is_some() || was.is_some_and(|hold| hold.limiter == Limiter::RateLimit);
        if !by_time {
            (gate.failures, gate.failed_at, gate.rests) = (0, Timestamp::default(), 0);
        }
        gate.at_most = at_most.or(gate.at_most.filter(|_| by_time));
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
            gate.at_most = Some(1);
        }
        gate.at_most = gate.at_most.map(|most| most.saturating_mul(2)).filter(|&most| most < width);
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
        ProviderFault::Refused | ProviderFault::ContextTooLong => is_well(world, provider),
        ProviderFault::Unknown | ProviderFault::RateLimit | ProviderFault::Credentials => {}
    }
}

/// Nothing is held against anybody any more.
pub(super) fn forget(world: &mut World) {
    let names: Vec<Arc<str>> = world.resource::<Gates>().0.keys().cloned().collect();
    for name in names {
        world.resource_mut::<Timers>().set(Timer::Rest(Arc::clone(&name)), None);
        edit(world, &name, |gate| *gate = Gate::default());
    }
}
