//! Plays persons in the simulation: what is asked of them, what they say, and what may never come of it.
#![cfg(test)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::{CallId, InteractionId};
use harness_protocol::interaction::{CallAsk, InteractionKind, Resolution, Scope};
use harness_protocol::time::Span;

use super::{OPERATOR, Random, Simulation};
use crate::world::api::{Asked, Command, Input, Settlement};
use crate::world::model::components::{Asker, Batch, Identity, Stage};
use crate::world::model::indexes::{Interactions, Runs, Timer, Timers};

/// What the events tell of calls that a person has to allow.
#[derive(Debug, Default)]
pub(super) struct Persons {
    /// Calls that may not begin before they are allowed.
    guarded: BTreeSet<CallId>,
    /// What is asked about which call.
    about: BTreeMap<InteractionId, CallId>,
    asked: BTreeSet<CallId>,
    allowed: BTreeSet<CallId>,
    begun: BTreeSet<CallId>,
}

impl Persons {
    pub(super) fn of<'e>(events: impl IntoIterator<Item = &'e Arc<Event>>) -> Self {
        let mut persons = Self::default();
        events.into_iter().for_each(|event| persons.note(event));
        persons
    }

    /// Takes an event that was committed.
    pub(super) fn note(&mut self, event: &Event) {
        match &event.body {
            EventBody::InferenceFinished { calls, .. } => {
                let guarded = calls.iter().filter(|call| call.ask.as_ref().is_some_and(|ask| ask.kind.comes_first()));
                self.guarded.extend(guarded.map(|call| call.call));
            }
            EventBody::InteractionOpened { interaction, call, interaction_kind, .. } => {
                if interaction_kind.comes_first() {
                    assert!(self.asked.insert(*call), "a person is asked about {call} again");
                    assert!(!self.begun.contains(call), "{call} had begun before a person was asked about it");
                }
                self.about.insert(*interaction, *call);
            }
            EventBody::InteractionSettled { interaction, resolution: Resolution::Allowed, .. } => {
                self.allowed.insert(self.about[interaction]);
            }
            EventBody::CallStarted { call } => {
                let may = !self.guarded.contains(call) || self.allowed.contains(call);
                assert!(may, "{call} begins, and no person has allowed it");
                self.begun.insert(*call);
            }
            _ => {}
        }
    }
}

fn some_time(random: &mut Random) -> Option<Span> {
    random.chance(40).then(|| Span::from_secs(random.below(20) as u64))
}

impl Simulation {
    /// What a script may say that a person is asked about a call.
    pub(super) fn some_ask(&mut self) -> Option<Arc<CallAsk>> {
        let random = &mut self.random;
        let kind = random.chance(25).then(|| random.pick(InteractionKind::ALL).unwrap())?;
        Some(Arc::new(CallAsk { kind, text: None, expires_seconds: some_time(random) }))
    }

    /// What a job asks while it executes.
    pub(super) fn something_to_ask(&mut self) -> Asked {
        let random = &mut self.random;
        let kinds: Vec<_> = InteractionKind::ALL.iter().copied().filter(|kind| !kind.comes_first()).collect();
        let kind = random.pick(&kinds).unwrap();
        Asked { kind, question: "and?".into(), subject: None, within: some_time(random) }
    }

    /// Mostly something that fits what is asked, and sometimes something else, or something for what is over.
    pub(super) fn settle(&mut self) -> Option<Input> {
        let interactions = self.engine.world.resource::<Interactions>();
        let open = interactions.open.iter().map(|(id, open)| (*id, Some(open.kind)));
        let all: Vec<_> = open.chain(interactions.closed.keys().map(|id| (*id, None))).collect();
        let (interaction, kind) = self.random.pick(&all)?;
        let resolution = match kind {
            Some(kind) if self.random.chance(70) => going_on(kind),
            _ => self.random.pick(Resolution::ALL).unwrap(),
        };
        let scope = self.random.chance(20).then_some(Scope::Run);
        let settlement = Settlement { scope, ..Settlement::of(resolution) };
        Some(self.command(OPERATOR, Command::Answer { interaction: interaction.to_string(), settlement }))
    }

    /// Lets everything go on that a person is asked.
    pub(super) fn settle_all(&mut self) -> Vec<Input> {
        let open = self.engine.world.resource::<Interactions>().open.iter();
        let open: Vec<_> = open.map(|(id, open)| (id.to_string(), Settlement::of(going_on(open.kind)))).collect();
        let answer = |(interaction, settlement)| Command::Answer { interaction, settlement };
        open.into_iter().map(|one| self.command(OPERATOR, answer(one))).collect()
    }

    /// What is open is what calls wait for, and each time limit has its timer.
    pub(super) fn check_persons(&self) {
        let world = &self.engine.world;
        let interactions = world.resource::<Interactions>();
        let mut awaited = BTreeMap::new();
        for (_, entity) in world.resource::<Runs>().by_id.iter() {
            let Some(batch) = world.get::<Batch>(entity) else { continue };
            let run = world.get::<Identity>(entity).unwrap().id;
            for call in &batch.0.calls {
                if let Stage::Asking(interaction, asker) = call.stage {
                    assert!(awaited.insert(interaction, (run, call.id)).is_none(), "{interaction} is asked twice");
                    let is_first = interactions.open[&interaction].kind.comes_first();
                    assert!(!is_first || asker == Asker::Call, "a job asks whether {} may begin", call.id);
                }
            }
        }
        let open: BTreeMap<_, _> = interactions.open.iter().map(|(id, open)| (*id, (open.run, open.call))).collect();
        assert_eq!(open, awaited);
        let due = world.resource::<Timers>().due(harness_protocol::time::Timestamp::MAX, usize::MAX);
        let timers = due.into_iter().filter_map(|timer| match timer {
            Timer::Expiry(interaction) => Some(interaction),
            _ => None,
        });
        let limited = interactions.open.iter().filter(|(_, open)| open.expires_at.is_some()).map(|(id, _)| *id);
        assert_eq!(timers.collect::<BTreeSet<_>>(), limited.collect());
    }
}

fn going_on(kind: InteractionKind) -> Resolution {
    if kind.comes_first() { Resolution::Allowed } else { Resolution::Answered }
}
