//! Applies the events about a lane, or about the daemon as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use bevy_ecs::query::Without;
use bevy_ecs::world::World;
use harness_protocol::event::{EventBody, LaneShare};
use harness_protocol::id::RunId;
use harness_protocol::lane::Limiter;
use harness_protocol::time::Timestamp;

use super::super::model::components::{Batch, Call, Ended, Identity, Spec, Stage, Stopwatch};
use super::super::model::ids::Ids;
use super::super::model::indexes::{Daemon, Hold, Lanes, TOOL_LANE, Timer, Timers};
use super::wake;
use crate::lane::{Lane, ShareSettings};
use crate::tools::ToolKind;

pub(super) fn about_daemon(world: &mut World, body: &EventBody, at: Timestamp) {
    match body {
        EventBody::DaemonStarted { lanes, last_at, shares } => {
            drain(world, false);
            // What was wrong with a provider may be seen to by now.
            super::providers::forgive(world);
            account_for_downtime(world, *last_at, at);
            if let Some(shares) = shares {
                set_shares(world, shares);
            }
            for lane in lanes {
                make(world, &lane.lane);
                change(world, &lane.lane, |l| {
                    l.configure(lane.width, at);
                });
            }
        }
        EventBody::ClockSet { from } => super::clock::set(world, *from, at),
        EventBody::DrainStarted => drain(world, true),
        EventBody::DrainEnded => {
            drain(world, false);
            // Children that were put off can be started now.
            let put_off: Vec<RunId> = world
                .query::<(&Identity, &Batch)>()
                .iter(world)
                .filter(|(_, batch)| batch.0.calls.iter().any(is_put_off))
                .map(|(identity, _)| identity.id)
                .collect();
            put_off.into_iter().for_each(|run| wake(world, run));
        }
        EventBody::LaneRelieved { lane, relief, by, until } => {
            world.resource_mut::<Ids>().reliefs += 1;
            world.resource_mut::<Timers>().set(Timer::Relief(lane.clone(), *relief), *until);
            change(world, lane, |l| {
                l.relieve(*relief, *by, *until, at);
            });
        }
        EventBody::LaneReliefEnded { lane, relief, .. } => {
            world.resource_mut::<Timers>().set(Timer::Relief(lane.clone(), *relief), None);
            change(world, lane, |l| {
                l.end_relief(*relief, at);
            });
        }
        EventBody::LaneResized { lane, width } => change(world, lane, |l| {
            l.resize(*width, at);
        }),
        EventBody::LaneConfigured { lane, width } => {
            make(world, lane);
            change(world, lane, |l| {
                l.configure(*width, at);
            });
        }
        EventBody::ProviderHeld { provider, limiter, until, error, probe } => {
            let (limiter, until, error) = (*limiter, *until, Arc::clone(error));
            // Older journals say it of this one alone.
            let probe = *probe || limiter == Limiter::Failing;
            super::providers::held(world, provider, Hold { limiter, since: at, until, error, probe });
        }
        EventBody::ProviderReleased { provider, at_most } => {
            super::providers::released(world, provider, *at_most);
            super::pools::wake_stalled(world);
        }
        EventBody::LanePaused { lane } => change(world, lane, |l| l.set_paused(true)),
        EventBody::LaneResumed { lane } => {
            change(world, lane, |l| l.set_paused(false));
            super::pools::wake_stalled(world);
        }
        _ => {}
    }
}

/// Nothing worked while the daemon was away, whatever a run was about before: that time has a part of its own.
fn account_for_downtime(world: &mut World, before: Timestamp, at: Timestamp) {
    for mut watch in world.query_filtered::<&mut Stopwatch, Without<Ended>>().iter_mut(world) {
        watch.timing = watch.timing_at(before.max(watch.since));
        watch.timing.down = watch.timing.down + at.since(before.max(watch.since));
        watch.since = at;
    }
}

/// Whether a call may be that of a child that was put off while the daemon drained: what it is for, its run decides.
fn is_put_off(call: &Call) -> bool {
    call.stage == Stage::Pending && call.kind == Some(ToolKind::World)
}

/// A provider may be a new one.
fn make(world: &mut World, lane: &Arc<str>) {
    if &**lane != TOOL_LANE {
        world.resource_mut::<Lanes>().provider(lane);
    }
}

/// The lanes have these shares from here on. What stands in them goes over to the share that its run names now.
fn set_shares(world: &mut World, shares: &[LaneShare]) {
    let settings = |LaneShare { name, weight, max }: &LaneShare| ShareSettings {
        name: Arc::clone(name),
        weight: *weight,
        max: *max,
    };
    let shares: Vec<ShareSettings> = shares.iter().map(settings).collect();
    if world.resource::<Lanes>().shares == shares {
        return;
    }
    let share = |(identity, spec): (&Identity, &Spec)| Some((identity.id, spec.0.share.clone()?));
    let mut live = world.query_filtered::<(&Identity, &Spec), Without<Ended>>();
    let of_runs: BTreeMap<RunId, Arc<str>> = live.iter(world).filter_map(share).collect();
    world.resource_mut::<Lanes>().set_shares(shares, |run| of_runs.get(&run).map(|name| &**name));
}

fn change(world: &mut World, lane: &str, change: impl FnOnce(&mut Lane)) {
    if let Some(lane) = world.resource_mut::<Lanes>().get_mut(lane) {
        change(lane);
    }
}

fn drain(world: &mut World, draining: bool) {
    world.resource_mut::<Daemon>().draining = draining;
    for lane in world.resource_mut::<Lanes>().iter_mut() {
        lane.set_hold(draining.then_some(Limiter::Draining));
    }
}
