//! Events that concern a lane, or the daemon as a whole.

use bevy_ecs::world::World;
use harness_protocol::event::EventBody;
use harness_protocol::lane::Limiter;
use harness_protocol::time::Timestamp;

use super::super::ids::Ids;
use super::super::resources::{Daemon, Lanes, Timer, Timers};
use crate::lane::Lane;

pub(super) fn about_daemon(world: &mut World, body: &EventBody, at: Timestamp) {
    match body {
        EventBody::DaemonStarted { lanes } => {
            drain(world, false);
            for lane in lanes {
                change(world, &lane.lane, |l| {
                    l.configure(lane.width, at);
                });
            }
        }
        EventBody::DrainStarted => drain(world, true),
        EventBody::DrainEnded => drain(world, false),
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
        EventBody::LaneConfigured { lane, width } => change(world, lane, |l| {
            l.configure(*width, at);
        }),
        EventBody::LanePaused { lane } => change(world, lane, |l| l.set_paused(true)),
        EventBody::LaneResumed { lane } => change(world, lane, |l| l.set_paused(false)),
        _ => {}
    }
}

fn change(world: &mut World, lane: &str, change: impl FnOnce(&mut Lane)) {
    if let Some(lane) = world.resource_mut::<Lanes>().get_mut(lane) {
        change(lane);
    }
}

fn drain(world: &mut World, draining: bool) {
    world.resource_mut::<Daemon>().draining = draining;
    for lane in world.resource_mut::<Lanes>().iter_mut() {
        lane.set_hold(draining.then_some(Limiter::Paused));
    }
}
