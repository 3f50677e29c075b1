//! Defines the resources of the world beside its runs: indexes, interactions, timers, lanes, configuration.
//!
//! Only `apply` writes them, with four exceptions: the configuration (`Engine::configure`), the indexes that follow
//! from components (`hooks.rs`), the agenda, from which a step takes its runs, and the last number and time, which a
//! start sets (`Folded::catch_up`).

pub(super) mod hooks;
mod texts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use bevy_ecs::entity::Entity;
use bevy_ecs::resource::Resource;
use harness_protocol::event::Cause;
use harness_protocol::id::{CallId, InteractionId, ReliefId, RunId, Seq};
use harness_protocol::interaction::{InteractionKind, Resolution};
use harness_protocol::lane::Limiter;
use harness_protocol::run::RunState;
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Timestamp;

use super::by_id::ById;
use super::names::Names;
use super::toolsets::Toolset;
use crate::config::Config;
use crate::lane::{Lane, Settings, ShareSettings};
use crate::tools::Catalogue;
use crate::world::api::KeySpace;

pub(crate) use self::texts::Texts;

/// Name of the tool lane.
pub(crate) const TOOL_LANE: &str = "tool";

/// What is configured. The one resource that does not follow from the events.
#[derive(Resource, Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) tools: Catalogue,
    /// These tools, as runs are prepared with them.
    pub(crate) toolset: Arc<Toolset>,
}

/// The runs by id, number, name, key and owner.
#[derive(Resource, Debug, Default)]
pub(crate) struct Runs {
    pub(crate) by_id: ById,
    /// Those that have not ended, in the order of their numbers.
    pub(crate) live: BTreeMap<u64, Entity>,
    /// Those that have, in the order of their numbers.
    pub(crate) finished: BTreeMap<u64, Entity>,
    /// Of these, those whose whole tree's top has ended, in the order of their ends: they can leave.
    pub(crate) by_end: BTreeSet<(Timestamp, u64)>,
    /// How many of the finished runs cannot leave, by the top of the tree that keeps them.
    pub(crate) kept: BTreeMap<RunId, usize>,
    /// Bytes of the transcripts and the specifications of finished runs, about.
    pub(crate) finished_bytes: u64,
    /// Live runs by name.
    pub(crate) names: Names,
    pub(crate) keys: HashMap<(KeySpace, Arc<str>), RunId>,
    /// By the keys that clients made, as long as the runs are here: bounded like them. Later the journal tells.
    pub(crate) submit_keys: BTreeMap<SubmitKey, RunId>,
    pub(crate) last_of: HashMap<u32, RunId>,
    /// How many there are in each state.
    pub(crate) states: BTreeMap<RunState, u32>,
    /// Jobs that are out.
    pub(crate) executing: u32,
}

/// Open interactions, and by whom the settled ones were settled.
#[derive(Resource, Debug, Default, Clone, PartialEq)]
pub(crate) struct Interactions {
    pub(crate) open: BTreeMap<InteractionId, OpenInteraction>,
    /// The open ones in the order of asking.
    in_order: BTreeMap<u64, InteractionId>,
    /// The open ones of children, once for each run above, in the order of asking.
    below: BTreeSet<(RunId, u64)>,
    pub(crate) closed: BTreeMap<InteractionId, ClosedInteraction>,
}

impl Interactions {
    /// A person is asked.
    pub(crate) fn opened(&mut self, id: InteractionId, open: OpenInteraction) {
        self.in_order.insert(open.number, id);
        self.below.extend(open.above.iter().map(|&above| (above, open.number)));
        self.open.insert(id, open);
    }

    /// Removes an interaction that is no longer open. Returns it, if it was open.
    pub(crate) fn close(&mut self, id: InteractionId) -> Option<OpenInteraction> {
        let open = self.open.remove(&id)?;
        self.in_order.remove(&open.number);
        for &above in &open.above {
            self.below.remove(&(above, open.number));
        }
        Some(open)
    }

    /// The open ones of the runs below one, in the order of asking.
    pub(crate) fn open_below(&self, top: RunId) -> impl Iterator<Item = (InteractionId, &OpenInteraction)> {
        let asked = self.below.range((top, 0)..=(top, u64::MAX));
        asked.filter_map(|(_, number)| self.in_order.get(number)).filter_map(|id| Some((*id, self.open.get(id)?)))
    }

    /// The open ones that were asked after the event `number`, in the order of asking.
    pub(crate) fn open_after(&self, number: u64) -> impl Iterator<Item = (InteractionId, &OpenInteraction)> {
        let after = self.in_order.range((Bound::Excluded(number), Bound::Unbounded));
        after.filter_map(|(_, id)| Some((*id, self.open.get(id)?)))
    }
}

/// An open interaction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OpenInteraction {
    /// Order of asking: number of the event.
    pub(crate) number: u64,
    pub(crate) run: RunId,
    /// The runs above that one.
    pub(crate) above: Box<[RunId]>,
    pub(crate) call: CallId,
    pub(crate) kind: InteractionKind,
    pub(crate) question: Arc<str>,
    pub(crate) subject: Option<Arc<str>>,
    pub(crate) since: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
}

/// An interaction that is no longer open.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClosedInteraction {
    pub(crate) run: RunId,
    pub(crate) at: Timestamp,
    /// How it was settled, and by whom; `None` where its run ended first.
    pub(crate) settled: Option<(Resolution, Cause)>,
}

/// What a timer is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Deadline(RunId),
    MaxTime(RunId),
    Retry(RunId),
    Expiry(InteractionId),
    Relief(Arc<str>, ReliefId),
    /// The provider was left alone for long enough.
    Rest(Arc<str>),
}

/// How the providers are, as far as that is not well.
#[derive(Resource, Debug, Default, Clone, PartialEq)]
pub(crate) struct ProviderHealth(pub(crate) BTreeMap<Arc<str>, Breaker>);

/// How a provider is.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Breaker {
    /// Inferences in a row that it failed, each begun after the one before had failed.
    pub(crate) failures: u32,
    /// When the last of these did.
    pub(crate) failed_at: Timestamp,
    /// How often it was left alone since it last answered, each time for longer.
    pub(crate) rests: u32,
    /// That it is left alone.
    pub(crate) hold: Option<Hold>,
    /// Inferences at once, until it has answered often enough, and why it was left alone before.
    pub(crate) at_most: Option<(u32, Limiter)>,
}

/// That a provider is left alone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hold {
    pub(crate) limiter: Limiter,
    pub(crate) since: Timestamp,
    pub(crate) until: Option<Timestamp>,
    pub(crate) error: Arc<str>,
    /// One run asks first when its time is over.
    pub(crate) probe: bool,
}

impl Breaker {
    pub(crate) fn is_held_for_good(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.until.is_none())
    }

    /// For hours, or for good.
    pub(crate) fn is_held_for_long(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.until.is_none() || hold.limiter == Limiter::Quota)
    }
}

impl ProviderHealth {
    pub(crate) fn get(&self, provider: &str) -> Option<&Breaker> {
        self.0.get(provider)
    }
}

/// When the world has to look again. At most one time for each timer.
#[derive(Resource, Debug, Default, Clone, PartialEq)]
pub(crate) struct Timers {
    by_time: BTreeSet<(Timestamp, Timer)>,
    at: BTreeMap<Timer, Timestamp>,
}

impl Timers {
    /// Sets a timer, or takes it away.
    pub(crate) fn set(&mut self, timer: Timer, at: Option<Timestamp>) {
        let before = match at {
            Some(at) => self.at.insert(timer.clone(), at),
            None => self.at.remove(&timer),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.by_time.remove(&(before, timer.clone()));
        }
        if let Some(at) = at {
            self.by_time.insert((at, timer));
        }
    }

    /// Moves all of them. Tells which there are.
    pub(crate) fn moved(&mut self, to: impl Fn(Timestamp) -> Timestamp) -> Vec<Timer> {
        self.at.values_mut().for_each(|at| *at = to(*at));
        self.by_time = self.at.iter().map(|(timer, at)| (*at, timer.clone())).collect();
        self.at.keys().cloned().collect()
    }

    /// The time of the earliest timer; `None` without timers.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Those whose time has come, the earliest first: at most `most`.
    pub(crate) fn due(&self, now: Timestamp, most: usize) -> Vec<Timer> {
        self.by_time.iter().take_while(|(at, _)| *at <= now).take(most).map(|(_, timer)| timer.clone()).collect()
    }
}

/// The lanes: for tools, and for each provider.
#[derive(Resource, Debug)]
pub(crate) struct Lanes {
    pub(crate) tool: Lane,
    pub(crate) providers: BTreeMap<Arc<str>, Lane>,
    /// The default share is number 0: runs whose share is not among these fall to it.
    pub(crate) shares: Vec<ShareSettings>,
}

impl Lanes {
    /// The shares that are configured.
    pub(crate) fn shares_of(config: &Config) -> Vec<ShareSettings> {
        // The default share is number 0: where a share has gone from the configuration, its runs fall to this one.
        let mut shares: Vec<ShareSettings> = config
            .shares
            .iter()
            .map(|(name, share)| ShareSettings { name: name.clone(), weight: share.weight, max: share.max })
            .collect();
        shares.sort_by_key(|share| (&*share.name != "default", share.name.clone()));
        shares
    }

    /// The lanes of a new world.
    pub(crate) fn new(config: &Config) -> Self {
        let shares = Self::shares_of(config);
        let lane = |name: &Arc<str>, width| Lane::new(Settings { name: name.clone(), width, shares: shares.clone() });
        Self {
            tool: lane(&TOOL_LANE.into(), config.tool_width),
            providers: config.providers.iter().map(|(name, p)| (name.clone(), lane(name, p.width))).collect(),
            shares,
        }
    }

    /// The lanes of a world before its first event: which providers there are, and how wide each lane is, its events
    /// tell. Of the first journals they do not tell the shares.
    pub(crate) fn before_all_events(&self) -> Self {
        let shares = self.shares.clone();
        let settings = Settings { name: TOOL_LANE.into(), width: 1, shares: shares.clone() };
        Self { tool: Lane::new(settings), providers: BTreeMap::new(), shares }
    }

    /// The lanes have these shares from here on. `share_of` is the share that a run names.
    pub(crate) fn set_shares<'n>(&mut self, shares: Vec<ShareSettings>, share_of: impl Fn(RunId) -> Option<&'n str>) {
        self.iter_mut().for_each(|lane| lane.set_shares(&shares, &share_of));
        self.shares = shares;
    }

    /// A provider's lane. One that has gone from the configuration has a lane of width 1.
    pub(crate) fn provider(&mut self, name: &Arc<str>) -> &mut Lane {
        let shares = &self.shares;
        self.providers
            .entry(name.clone())
            .or_insert_with(|| Lane::new(Settings { name: name.clone(), width: 1, shares: shares.clone() }))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Lane> {
        if name == TOOL_LANE { Some(&self.tool) } else { self.providers.get(name) }
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Lane> {
        if name == TOOL_LANE { Some(&mut self.tool) } else { self.providers.get_mut(name) }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        std::iter::once(&self.tool).chain(self.providers.values())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        std::iter::once(&mut self.tool).chain(self.providers.values_mut())
    }
}

/// Runs about which something has to be decided in this step, by number; empty after each step.
#[derive(Resource, Debug, Default)]
pub(crate) struct Agenda(pub(crate) BTreeSet<(u64, RunId)>);

/// How many runs were looked at. What a step costs is measured by it.
#[cfg(test)]
#[derive(Resource, Debug, Default)]
pub(crate) struct Visits(pub(crate) u64);

/// Which runs reads and steps looked at, since this was last emptied.
#[cfg(test)]
#[derive(Resource, Debug, Default)]
pub(crate) struct Looked(std::sync::Mutex<BTreeSet<Entity>>);

#[cfg(test)]
impl Looked {
    pub(crate) fn note(&self, run: Entity) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(run);
    }

    pub(crate) fn take(&self) -> BTreeSet<Entity> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// Runs whose batch could use one more permit, by number.
#[derive(Resource, Debug, Default, Clone, PartialEq)]
pub(crate) struct WantsExtra(pub(crate) BTreeSet<(u64, RunId)>);

/// Runs that wait outside their provider's lane, with their numbers. Those that are paused are in neither set.
#[derive(Resource, Debug, Default, Clone, PartialEq)]
pub(crate) struct Postponed {
    /// Until others give back what they hold of a budget, by the run whose budget that is.
    pub(crate) by_budget: BTreeMap<RunId, BTreeSet<(u64, RunId)>>,
    /// Until their provider may be asked again.
    pub(crate) stalled: BTreeSet<(u64, RunId)>,
}

impl Postponed {
    /// A run no longer waits for what others hold of the budget of `owner`.
    fn no_longer_by_budget(&mut self, owner: RunId, entry: (u64, RunId)) {
        let Some(waiting) = self.by_budget.get_mut(&owner) else { return };
        waiting.remove(&entry);
        if waiting.is_empty() {
            self.by_budget.remove(&owner);
        }
    }
}

/// What the daemon as a whole is about.
#[derive(Resource, Debug, Default, Clone, PartialEq)]
pub(crate) struct Daemon {
    pub(crate) draining: bool,
    pub(crate) last_seq: Seq,
    pub(crate) last_at: Timestamp,
}

/// Whether a provider is not used for hours, or until an operator acts.
pub(crate) fn is_stalled(health: &ProviderHealth, lanes: &Lanes, provider: &str) -> bool {
    health.get(provider).is_some_and(Breaker::is_held_for_long) || lanes.get(provider).is_some_and(Lane::is_paused)
}
