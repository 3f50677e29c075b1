//! Finds the events of the daemon, its lanes and providers that later events make redundant: without them a replay
//! gives the same world.
//!
//! The counterpart of `apply`: of each piece of state, the last event stays, and so does every event that accounts for
//! a run that has not left the world. Reads only: housekeeping decides whether these events are removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::{ReliefId, Seq};

/// What a later event has said again.
#[derive(Default)]
struct Later<'e> {
    started: bool,
    drain: bool,
    /// Lanes that were given a width by configuration, set by hand, paused or let go on.
    configured: BTreeSet<&'e str>,
    resized: BTreeSet<&'e str>,
    switched: BTreeSet<&'e str>,
    /// Lanes whose width by hand stays: whether it was another one than that by configuration is told by what was
    /// configured before.
    compared: BTreeSet<&'e str>,
    held: BTreeSet<&'e str>,
    released: BTreeSet<&'e str>,
    ended: BTreeSet<ReliefId>,
}

/// Of the first `count` of these events, which are all that are about no run, in order: those that can go. What is
/// accounted to runs that have not left, of which the first begins at `needed_from`, stays.
pub fn spent(events: &[Arc<Event>], count: usize, needed_from: Option<Seq>) -> Vec<Seq> {
    let mut later = Later::default();
    let mut spent = Vec::new();
    for (index, event) in events.iter().enumerate().rev() {
        let needed = needed_from.is_some_and(|from| event.seq >= from);
        let goes = index < count && later.has(event, needed);
        if goes {
            spent.push(event.seq);
        }
        // A relief that has ended goes with its end.
        if !goes || matches!(event.body, EventBody::LaneReliefEnded { .. }) {
            later.keep(event);
        }
    }
    spent.reverse();
    spent
}

impl<'e> Later<'e> {
    /// Whether what follows makes this superfluous. `needed`: runs that have not left were there.
    fn has(&self, event: &'e Event, needed: bool) -> bool {
        match &event.body {
            EventBody::DaemonStarted { lanes, .. } => {
                let is_compared = lanes.iter().any(|width| self.compared.contains(&*width.lane));
                self.started && !needed && !is_compared
            }
            EventBody::ClockSet { .. } => !needed,
            EventBody::DrainStarted | EventBody::DrainEnded => self.drain,
            EventBody::LaneConfigured { lane, .. } => {
                self.configured.contains(&**lane) && !self.compared.contains(&**lane)
            }
            EventBody::LaneResized { lane, .. } => self.resized.contains(&**lane),
            EventBody::LanePaused { lane } | EventBody::LaneResumed { lane } => self.switched.contains(&**lane),
            EventBody::LaneRelieved { relief, .. } => self.ended.contains(relief),
            EventBody::ProviderHeld { provider, .. } => self.held.contains(&**provider),
            EventBody::ProviderReleased { provider, .. } => self.released.contains(&**provider),
            // An end without its beginning changes nothing; what was removed is removed.
            EventBody::LaneReliefEnded { .. } | EventBody::RunsPruned { .. } | EventBody::EventsPruned { .. } => true,
            _ => false,
        }
    }

    /// This one stays.
    fn keep(&mut self, event: &'e Event) {
        match &event.body {
            EventBody::DaemonStarted { lanes, .. } => {
                (self.started, self.drain) = (true, true);
                for width in lanes {
                    self.configured.insert(&width.lane);
                    self.compared.remove(&*width.lane);
                }
            }
            EventBody::DrainStarted | EventBody::DrainEnded => self.drain = true,
            EventBody::LaneConfigured { lane, .. } => {
                self.configured.insert(lane);
                self.compared.remove(&**lane);
            }
            EventBody::LaneResized { lane, .. } => {
                self.resized.insert(lane);
                self.compared.insert(lane);
            }
            EventBody::LanePaused { lane } | EventBody::LaneResumed { lane } => {
                self.switched.insert(lane);
            }
            EventBody::LaneReliefEnded { relief, .. } => {
                self.ended.insert(*relief);
            }
            EventBody::ProviderHeld { provider, .. } => {
                self.held.insert(provider);
            }
            EventBody::ProviderReleased { provider, .. } => {
                self.released.insert(provider);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use harness_protocol::event::{Cause, LaneWidth};
    use harness_protocol::id::RunId;
    use harness_protocol::lane::Limiter;
    use harness_protocol::time::Timestamp;

    use super::super::Engine;
    use super::super::api::Made;
    use super::super::testing::simulation;
    use super::*;

    /// The world of these events, but for what a lane remembers of those it served, and how often a provider was left
    /// alone before.
    fn world(events: &[Arc<Event>], made: &Made) -> Vec<String> {
        let mut engine =
            Engine::rebuild(simulation::config(), simulation::tools(), 7, events.iter().map(|event| &**event));
        engine.catch_up(made);
        let text = engine.digest_of_runs();
        text.lines().filter(|line| !line.starts_with("ProviderHealth(")).map(ToOwned::to_owned).collect()
    }

    /// A19: in random histories, with crashes, however many are to stay.
    #[test]
    fn without_the_events_that_are_spent_the_world_is_made_as_it_is_with_them() {
        let mut gone = 0;
        for seed in 700..712 {
            let (engine, commits) = simulation::history(seed, 250);
            let all: Vec<Arc<Event>> = commits.into_iter().flat_map(|(events, _)| events).collect();
            let reliefs =
                all.iter().filter(|event| matches!(event.body, EventBody::LaneRelieved { .. })).count() as u64;
            let last = all.last().unwrap();
            let made = Made { reliefs, last_seq: last.seq, last_at: last.at, ..Made::default() };
            let ids: BTreeSet<RunId> = all.iter().filter_map(|event| event.run).collect();
            let needed = ids.iter().filter_map(|run| engine.made_by(*run)).min();
            let of_daemon: Vec<Arc<Event>> = all.iter().filter(|event| event.run.is_none()).cloned().collect();
            for keep in [0, 1, 3, 10, 40] {
                let spent: BTreeSet<Seq> =
                    spent(&of_daemon, of_daemon.len().saturating_sub(keep), needed).into_iter().collect();
                gone += spent.len();
                let rest: Vec<Arc<Event>> = all.iter().filter(|event| !spent.contains(&event.seq)).cloned().collect();
                let (with, without) = (world(&all, &made), world(&rest, &made));
                let differ = with.iter().zip(&without).find(|(with, without)| with != without);
                assert_eq!((differ, with.len()), (None, without.len()), "seed {seed}, {keep} stay");
                // What has gone once leaves nothing that goes because of it.
                let of_rest: Vec<Arc<Event>> = rest.iter().filter(|event| event.run.is_none()).cloned().collect();
                assert_eq!(super::spent(&of_rest, of_rest.len().saturating_sub(keep), needed), Vec::<Seq>::new());
            }
        }
        assert!(gone > 200, "{gone} have gone");
    }

    fn events(bodies: Vec<EventBody>) -> Vec<Arc<Event>> {
        let number = |index: usize| Seq(index as u64 + 1);
        let event = |(index, body)| Event {
            seq: number(index),
            version: 1,
            at: Timestamp::default(),
            run: None,
            cause: Cause::HARNESS,
            body,
        };
        bodies.into_iter().enumerate().map(event).map(Arc::new).collect()
    }

    /// A19: what is state stays: the last word of each kind.
    #[test]
    fn the_last_word_about_each_thing_stays() {
        let lane = || Arc::<str>::from("tool");
        let started = |width| {
            let lanes = vec![LaneWidth { lane: lane(), width }];
            EventBody::DaemonStarted { lanes, last_at: Timestamp::default(), shares: None }
        };
        let relief = ReliefId::from_u64(3);
        let relieved = || EventBody::LaneRelieved { lane: lane(), relief, by: 1, until: None };
        let ended = || EventBody::LaneReliefEnded { lane: lane(), relief, undone: false };
        let (paused, resumed) = (|| EventBody::LanePaused { lane: lane() }, || EventBody::LaneResumed { lane: lane() });
        let resized = |width| EventBody::LaneResized { lane: lane(), width };
        let held = |until| EventBody::ProviderHeld {
            provider: "local".into(),
            limiter: Limiter::Quota,
            until,
            error: "used up".into(),
            probe: true,
        };
        let released = || EventBody::ProviderReleased { provider: "local".into(), at_most: None };
        let pruned = || EventBody::RunsPruned { runs: vec![RunId::from_u64(1)] };
        /// What it is, the events, what runs have seen, what is spent.
        type Row = (&'static str, Vec<EventBody>, Option<u64>, Vec<u64>);
        let table: Vec<Row> = vec![
            ("starts", vec![started(8), started(8), started(8)], None, vec![1, 2]),
            ("starts that runs have seen", vec![started(8), started(8), started(8)], Some(2), vec![1]),
            ("a pause that is over", vec![paused(), resumed(), started(8)], None, vec![1]),
            ("a pause", vec![resumed(), paused(), started(8), started(8)], None, vec![1, 3]),
            (
                "a drain",
                vec![EventBody::DrainStarted, EventBody::DrainEnded, EventBody::DrainStarted],
                None,
                vec![1, 2],
            ),
            ("a drain before a start", vec![EventBody::DrainStarted, started(8)], None, vec![1]),
            ("a relief", vec![relieved(), started(8)], None, vec![]),
            ("a relief that has ended", vec![relieved(), started(8), ended()], None, vec![1, 3]),
            ("a width by hand", vec![started(8), resized(5), resized(6), started(8)], None, vec![2]),
            ("a width by hand, and by configuration again", vec![started(8), resized(8), started(9)], None, vec![]),
            ("a provider", vec![held(None), released(), held(None), released()], None, vec![1, 2]),
            ("a limit that lasts", vec![released(), held(Some(Timestamp::MAX)), started(8)], None, vec![]),
            ("what was pruned", vec![pruned(), pruned(), started(8)], None, vec![1, 2]),
            ("a clock", vec![EventBody::ClockSet { from: Timestamp::MAX }, started(8)], None, vec![1]),
            ("a clock that runs have seen", vec![EventBody::ClockSet { from: Timestamp::MAX }], Some(1), vec![]),
        ];
        for (what, bodies, needed, expected) in table {
            let events = events(bodies);
            let gone: Vec<u64> = spent(&events, events.len(), needed.map(Seq)).iter().map(|seq| seq.0).collect();
            assert_eq!(gone, expected, "{what}");
            assert_eq!(spent(&events, 0, None), Vec::<Seq>::new(), "{what}: all are to stay");
        }
    }
}
