//! Checks properties of a whole history of the simulation.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;

use harness_protocol::event::{Event, EventBody, ProviderFault};
use harness_protocol::interaction::{InteractionKind, Resolution};

use super::{Simulation, config, history, tools};
use crate::config::{Config, Provider, Share};
use crate::tools::Catalogue;
use crate::world::Engine;

/// Says on a panic how to repeat it.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("the simulation failed: repeat it with HARNESS_SIM_SEED={}", self.0);
            }
        }
    }
}

fn simulate(seed: u64, steps: u64) -> BTreeMap<&'static str, u64> {
    let _tell = Seed(seed);
    let mut simulation = Simulation::new(seed);
    for _ in 0..steps {
        simulation.turn();
    }
    simulation.wind_down();
    simulation.compare_with_rebuilt();
    let mut kinds = BTreeMap::new();
    for event in &simulation.journal {
        // C3: a limit, and a key that is missing, is waited for: nothing ends of it.
        if let EventBody::InferenceFailed { fault, retry_at, .. } = &event.body
            && matches!(fault, ProviderFault::RateLimit | ProviderFault::Quota | ProviderFault::NoKey)
        {
            assert!(retry_at.is_some(), "{event:?}");
            *kinds.entry("a limit").or_default() += 1;
        }
        match &event.body {
            EventBody::InteractionOpened { interaction_kind, .. } => {
                *kinds.entry(interaction_kind.as_str()).or_default() += 1;
            }
            EventBody::InteractionSettled { resolution, .. } => *kinds.entry(resolution.as_str()).or_default() += 1,
            _ => {}
        }
        *kinds.entry(event.body.kind()).or_default() += 1;
    }
    kinds
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[test]
fn the_invariants_hold_whatever_happens_in_whatever_order() {
    let steps = setting("HARNESS_SIM_STEPS").unwrap_or(500);
    if let Some(seed) = setting("HARNESS_SIM_SEED") {
        simulate(seed, steps);
        return;
    }
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..setting("HARNESS_SIM_SEEDS").unwrap_or(24) {
        for (kind, count) in simulate(seed, steps) {
            *kinds.entry(kind).or_default() += count;
        }
    }
    // A simulation in which something never happens says nothing about it.
    assert!(kinds.contains_key("a limit"));
    for kind in InteractionKind::ALL {
        assert!(kinds.contains_key(kind.as_str()), "no {kind} in all the histories");
    }
    for resolution in Resolution::ALL {
        assert!(kinds.contains_key(resolution.as_str()), "nothing is {resolution} in all the histories");
    }
    for kind in harness_protocol::event::EVENT_KINDS {
        assert!(kinds.contains_key(kind), "no {kind} in all the histories");
    }
}

/// What has happened means the same whatever is configured when it is read: `apply` reads events alone.
#[test]
fn one_history_under_two_configurations_gives_one_world() {
    let mut other = Config { tool_width: 77, ..Config::default() };
    other.shares.insert("novel".into(), Share { weight: 9, max: Some(1) });
    other.providers.insert("novel".into(), Provider::scripted(5));
    for seed in [3, 8, 21] {
        let _tell = Seed(seed);
        let (_, commits) = history(seed, 120);
        let events: Vec<Arc<Event>> = commits.into_iter().flat_map(|(events, _)| events).collect();
        let fold = |config: &Config, tools| {
            Engine::rebuild(config.clone(), tools, 7, events.iter().map(|event| &**event)).digest()
        };
        let there = fold(&config(), tools());
        assert_eq!(fold(&other, Catalogue::default()), there);
        assert_eq!(fold(&Config::default(), crate::tools::catalogue()), there);
    }
}

#[test]
fn the_same_inputs_at_the_same_times_give_the_same_events() {
    let history = |seed| {
        let mut simulation = Simulation::new(seed);
        (0..300).for_each(|_| simulation.turn());
        serde_json::to_string(&simulation.journal).unwrap()
    };
    assert_eq!(history(11), history(11));
    assert_ne!(history(11), history(12));
}

/// A crash leaves the steps up to some commit; whichever that is, everything goes on from there and comes to its end.
#[test]
fn a_history_that_is_cut_after_any_step_can_be_gone_on_from() {
    for seed in 100..100 + setting("HARNESS_SIM_SEEDS").unwrap_or(24) / 8 {
        let _tell = Seed(seed);
        let (_, commits) = history(seed, 60);
        for kept in 0..=commits.len() {
            let mut simulation = Simulation::new(seed);
            simulation.out.clear();
            simulation.unanswered.clear();
            simulation.journal = commits[..kept].iter().flat_map(|(events, _)| events.iter().cloned()).collect();
            simulation.wall += 100_000_000;
            simulation.crash();
            simulation.wind_down();
            simulation.compare_with_rebuilt();
        }
    }
}

/// The fold of any number of events is a world that says so of itself: nothing of an event waits for the next.
#[test]
fn the_world_of_the_first_events_is_the_world_that_was_live_after_them() {
    let (_, commits) = history(7, 200);
    let events: Vec<Arc<Event>> = commits.into_iter().flat_map(|(events, _)| events).collect();
    let mut live = Engine::new(config(), tools(), 7);
    for (count, event) in events.iter().enumerate() {
        live.replay(event);
        // Each is compared with a world that was made from what is read back from JSON.
        if count % 7 == 0 {
            let text = serde_json::to_string(&events[..=count]).unwrap();
            let read: Vec<Event> = serde_json::from_str(&text).unwrap();
            assert_eq!(Engine::rebuild(config(), tools(), 7, &read).digest(), live.digest(), "after {}", event.seq);
        }
    }
}
