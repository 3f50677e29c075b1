//! Checks the invariants that hold after every step of the simulation.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss)]

use std::collections::{BTreeMap, BTreeSet};

use bevy_ecs::entity::Entity;
use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::RunId;
use harness_protocol::rpc::Selector;
use harness_protocol::run::{CallState, RunLine, RunState, Usage, WaitKind};

use super::{Simulation, config, tools};
use crate::lane::TicketState;
use crate::world::Engine;
use crate::world::api::{JobId, Work};
use crate::world::commands::select;

use crate::world::model::components::{
    Batch, BudgetReserve, Compacting, Ended, Identity, Life, Pool, Shown, Spec, Stopwatch, UsageTotal,
};
use crate::world::model::indexes::{Agenda, Lanes, Postponed, Runs, is_stalled};
use crate::world::model::phase::Phase;
use crate::world::model::step_io::Incoming;
use crate::world::view::line::line;
use crate::world::view::run::{PlacesSeen, view, while_held};

impl Simulation {
    /// What holds after every step, whatever happened.
    pub(super) fn check_world(&mut self) {
        let world = &self.engine.world;
        let runs = world.resource::<Runs>();
        let lanes = world.resource::<Lanes>();
        assert!(world.resource::<Agenda>().0.is_empty(), "something is left undecided");
        assert_eq!(runs.kept.values().sum::<usize>(), runs.finished.len() - runs.by_end.len(), "kept by their trees");
        for lane in lanes.iter() {
            assert_eq!(lane.check(), Ok(()));
            assert!(self.held || lane.peek().is_none(), "a permit idles while something is queued");
        }
        let bound = lanes.tool.width().max(self.permits_before);
        assert!(lanes.tool.permits() <= bound, "{} permits of {}", lanes.tool.permits(), bound);
        let (mut tickets, mut executing, mut states) = (0, 0, BTreeMap::<RunState, u32>::new());
        let now = world.resource::<Incoming>().now;
        for (_, entity) in runs.by_id.iter() {
            let life = world.get::<Life>(entity).unwrap();
            let watch = world.get::<Stopwatch>(entity).unwrap();
            let id = world.get::<Identity>(entity).unwrap().id;
            let Shown(shown) = *world.get::<Shown>(entity).unwrap();
            *states.entry(shown).or_default() += 1;
            let until = world.get::<Ended>(entity).map_or(now, |ended| ended.at);
            let passed = until.since(life.submitted_at).as_micros().saturating_add_signed(-life.moved);
            assert_eq!(watch.timing_at(until).total().as_micros(), passed, "timing of {id}");
            let batch = world.get::<Batch>(entity);
            assert_eq!(batch.is_some(), life.phase() == Phase::Acting, "{id} is {:?}", life.phase());
            assert_eq!(shown.is_terminal(), world.get::<Ended>(entity).is_some());
            let wants_summary = world.get::<Compacting>(entity).is_some();
            let asks = matches!(life.phase(), Phase::Wanting(_) | Phase::Thinking(_));
            assert!(asks || life.stopping.is_some() || !wants_summary, "{id} is {:?}", life.phase());
            self.check_wait(id, entity);
            let Some(batch) = batch else { continue };
            let at_work = batch.0.executing();
            executing += u32::from(at_work);
            assert!(batch.0.ticket.is_some() || life.stopping.is_some(), "the batch of {id} has no ticket");
            if let Some(ticket) = batch.0.ticket {
                tickets += 1;
                let state = lanes.tool.state(ticket).unwrap();
                assert_eq!(state == TicketState::Busy, at_work > 0, "{id} has a ticket that is {state:?}");
                assert_eq!(lanes.tool.held(ticket), at_work, "{id} holds permits that it does not use");
                let waits = matches!(state, TicketState::Queued | TicketState::Resuming);
                assert!(!waits || (batch.0.candidate().is_some() && !life.paused), "{id} is queued for nothing");
            }
        }
        assert_eq!(executing, lanes.tool.permits());
        let counted: u32 =
            [TicketState::Queued, TicketState::Busy, TicketState::Parked, TicketState::Resuming, TicketState::Deferred]
                .into_iter()
                .map(|state| lanes.tool.tickets(state))
                .sum();
        assert_eq!(counted, tickets, "tickets and live batches");
        let kept: BTreeMap<_, _> = runs.states.iter().filter(|(_, n)| **n > 0).map(|(s, n)| (*s, *n)).collect();
        assert_eq!(kept, states);
        self.permits_before = lanes.tool.permits();
        self.check_pools();
        self.check_indexes();
        self.check_persons();
    }

    /// U10: what a run is shown to wait for is what it is selected by, and a lane counts the same runs as waiting.
    fn check_wait(&self, id: RunId, entity: Entity) {
        let world = &self.engine.world;
        let now = world.resource::<Incoming>().now;
        // Some of them in each step: a view is a lot of work.
        if !id.as_u64().wrapping_add(now.as_micros()).is_multiple_of(5) {
            return;
        }
        let shown = self.engine.read(|reads| view(reads, entity, now)).unwrap();
        let listed = self.engine.read(|reads| line(reads, entity, &PlacesSeen::default())).unwrap();
        assert_eq!(listed, RunLine::from(shown.clone()), "a line has what the view of its run has");
        let executes = shown.calls.iter().any(|call| call.state == CallState::Executing);
        let kind = shown.waiting_for.as_ref().map(|wait| wait.kind);
        let kind = if self.held { while_held(kind, shown.state.is_terminal(), executes) } else { kind };
        for &asked in WaitKind::ALL {
            let select = Selector { waiting_for: vec![asked], ..Selector::default() };
            let fits = self.engine.read(|reads| select::fits(reads, entity, &select));
            assert_eq!(fits, kind == Some(asked), "{id} waits for {kind:?}");
        }
        let ticket = world.get::<Batch>(entity).and_then(|batch| batch.0.ticket);
        let in_lane = ticket.and_then(|ticket| world.resource::<Lanes>().tool.state(ticket));
        let waits = matches!(in_lane, Some(TicketState::Queued | TicketState::Resuming));
        let says_so = matches!(kind, Some(WaitKind::Lane | WaitKind::Storage));
        assert!(!waits || says_so, "{id} waits in the lane, and is shown to wait for {kind:?}");
    }

    /// What pools count is what the runs that draw from them have, and no budget is overdrawn.
    fn check_pools(&self) {
        let world = &self.engine.world;
        let runs = world.resource::<Runs>();
        for (run, entity) in runs.by_id.iter() {
            let Some(pool) = world.get::<Pool>(entity) else { continue };
            let mut counted = Pool::default();
            for (_, below) in runs.by_id.iter() {
                let id = world.get::<Identity>(below).unwrap().id;
                if !self.engine.is_in_tree(id, run) {
                    continue;
                }
                counted.live += u32::from(world.get::<Ended>(below).is_none());
                if let Some(held) = world.get::<BudgetReserve>(below) {
                    counted.held.add(&held.0);
                    counted.holding += 1;
                }
                if let Some(spent) = world.get::<UsageTotal>(below) {
                    counted.spent.get_or_insert(Usage { cost_usd: Some(0.0), ..Usage::default() }).add(&spent.0);
                }
            }
            let tokens = |pool: &Pool| pool.spent.map_or(0, |spent| spent.tokens());
            assert_eq!((pool.live, pool.holding, pool.held), (counted.live, counted.holding, counted.held), "{run}");
            assert_eq!(tokens(pool), tokens(&counted), "{run}");
            let limits = &world.get::<Spec>(entity).unwrap().0.limits;
            let (max, most) = (limits.max_tokens, tokens(pool) + pool.held.tokens);
            assert!(max.is_none_or(|max| most <= max), "{run} has a budget of {max:?} and comes to {most}");
            let cost = pool.spent.map_or(Some(0.0), |spent| spent.cost_usd);
            let (max, most) = (limits.max_cost_usd, cost.map(|cost| cost + pool.held.nano_usd as f64 / 1e9));
            let kept = max.zip(most).is_none_or(|(max, most)| most <= max + 1e-7);
            assert!(kept, "{run} has a budget of {max:?} USD and comes to {most:?}");
        }
        self.check_postponed();
    }

    /// A run that is deferred for a budget has other runs to wait for: that budget has a reserve, or a run below its
    /// owner waits for a reserve of a budget further above.
    fn check_postponed(&self) {
        let world = &self.engine.world;
        let (runs, postponed) = (world.resource::<Runs>(), world.resource::<Postponed>());
        let life = |number: &u64| world.get::<Life>(runs.live[number]).unwrap();
        let parent = |run: RunId| world.get::<Identity>(*runs.by_id.get(&run).unwrap()).unwrap().parent;
        let is_below =
            |run: RunId, top: RunId| std::iter::successors(Some(run), |&run| parent(run)).any(|at| at == top);
        let all: Vec<(RunId, u64, RunId)> = postponed
            .by_budget
            .iter()
            .flat_map(|(owner, waiting)| waiting.iter().map(|(number, run)| (*owner, *number, *run)))
            .collect();
        for &(owner, number, run) in &all {
            assert_eq!(life(&number).phase(), Phase::Postponed(owner), "{run}");
            let is_held = |owner: RunId| world.get::<Pool>(*runs.by_id.get(&owner).unwrap()).unwrap().holding > 0;
            let above = |&(other, _, waiting): &(RunId, u64, RunId)| {
                other != owner && is_held(other) && is_below(waiting, owner) && is_below(owner, other)
            };
            assert!(is_held(owner) || all.iter().any(above), "{run} waits for nobody");
        }
        let asked = |number: &u64| {
            let own = || world.get::<Spec>(runs.live[number]).unwrap().0.provider.clone();
            life(number).provider.clone().or_else(own).unwrap()
        };
        for (number, run) in &postponed.stalled {
            assert!(matches!(life(number).phase(), Phase::Postponed(_)), "{run}");
            assert!(
                is_stalled(world.resource(), world.resource(), &asked(number)),
                "{run} waits for a provider that can be asked"
            );
        }
        let waits = |entity: &&Entity| {
            let life = world.get::<Life>(**entity).unwrap();
            matches!(life.phase(), Phase::Postponed(_)) && !life.paused
        };
        assert_eq!(runs.live.values().filter(waits).count(), all.len() + postponed.stalled.len());
    }

    /// What the world believes to be out is what is out.
    pub(super) fn check_jobs(&self) {
        let world = &self.engine.world;
        let mut believed = BTreeSet::new();
        for (run, entity) in world.resource::<Runs>().by_id.iter() {
            let life = world.get::<Life>(entity).unwrap();
            if let Phase::Thinking(_) = life.phase() {
                believed.insert(JobId { run, work: Work::Inference { step: life.step, attempt: life.attempt } });
            }
            if let Some(batch) = world.get::<Batch>(entity) {
                let out = batch.0.calls.iter().filter(|call| call.stage.has_job());
                believed.extend(out.map(|call| JobId { run, work: Work::Call(call.id) }));
            }
        }
        let out: BTreeSet<JobId> = self.out.keys().copied().collect();
        assert_eq!(believed, out, "{}", self.history_of(believed.symmetric_difference(&out).next().map(|job| job.run)));
        assert_eq!(world.resource::<Runs>().executing as usize, believed.len());
    }

    /// The last events of a run, for a failure's message.
    pub(super) fn history_of(&self, run: Option<RunId>) -> String {
        let events: Vec<_> = self.journal.iter().filter(|event| event.run == run).collect();
        format!(
            "{:#?}",
            &events[events.len().saturating_sub(12)..].iter().map(|e| (e.seq, &e.body)).collect::<Vec<_>>()
        )
    }

    pub(super) fn compare_with_rebuilt(&self) {
        let rebuilt = Engine::rebuild(config(), tools(), self.engine_key(), self.journal.iter().map(|e| &**e));
        let (live, rebuilt) = (self.engine.digest(), rebuilt.digest());
        if live != rebuilt {
            let differ = live.lines().zip(rebuilt.lines()).find(|(a, b)| a != b);
            panic!("the rebuilt world differs: {differ:#?}");
        }
        // What is written is what is read: nothing of an event is lost on the wire or on disk.
        for event in self.journal.iter().rev().take(20) {
            let text = serde_json::to_string(event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), **event, "{text}");
            let body = serde_json::to_string(&event.body).unwrap();
            assert_eq!(EventBody::of_kind(event.body.kind(), &body).unwrap(), event.body, "{body}");
        }
    }
}
