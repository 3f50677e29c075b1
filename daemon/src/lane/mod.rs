//! Decides which work gets the next permit of a lane. A lane is a width plus a queue: data in the world, without a
//! clock, a task or a lock.
//!
//! ```text
//!            enter                     grant
//!  (none) ─────────▶ Queued ──────────────────────────▶ Busy ──┐ grant_extra, keep
//!     │                │ park: Deferred, and by       │  ▲ ◀──┘ (more permits, fewer)
//!     │                ▼ resume back to Queued   park  │  │
//!     │ enter_parked                                   ▼  │ grant
//!     └────────────▶ Parked ◀────────────────────── Parked│
//!                      │ resume                           │
//!                      └───────────▶ Resuming ────────────┘
//!
//!  leave: from every state, at once
//! ```
//!
//! The next grant goes by class ([`Class`]: in any eight grants each class has a turn, if it has a ticket that may be
//! granted), within a class by share (in proportion to the weights), within a share round robin over the roots of the
//! trees, within a root first come first served. Every count of tickets and permits must follow from the tickets. The
//! module must not know what a ticket is for, or start anything: the world grants, and starts what the permit is for.
//! To enter, grant, park, resume and leave costs the same however long the queue is; a change of the shares, a jump of
//! the clock and reports look at all tickets.

#[cfg(test)]
mod model_test;
mod queue;
mod report;
mod saturation;
mod slab;
mod time;

use std::collections::BTreeMap;
use std::sync::Arc;

use harness_protocol::id::{ReliefId, RunId};
use harness_protocol::lane::Limiter;
use harness_protocol::spec::Priority;
use harness_protocol::time::Timestamp;

use queue::{Queues, SCALE};
use report::Waits;
pub use report::{Claimed, Places};
use saturation::Saturation;
pub use slab::TicketId;
use slab::{Slab, Ticket};
pub use time::TimeSet;

/// Largest width of a lane. A larger width would limit nothing on any machine.
pub const MAX_WIDTH: u32 = 1_000_000;

/// The configuration of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The lane's name, as commands and metrics show it.
    pub name: Arc<str>,
    /// Its width; 0 is taken as 1.
    pub width: u32,
    /// The shares of its capacity. Their order gives their numbers.
    pub shares: Vec<ShareSettings>,
}

/// A share of a lane's capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareSettings {
    /// The share's name in the configuration.
    pub name: Arc<str>,
    /// The share's part of the grants, in proportion to the weights of the others; 0 is taken as 1.
    pub weight: u32,
    /// Most permits at once; `None` for no limit.
    pub max: Option<u32>,
}

/// Number of a share, by its place in [`Settings::shares`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareId(pub u16);

/// The claim of a run on a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The run that wants the permit.
    pub run: RunId,
    /// The top run of its tree.
    pub root: RunId,
    /// The share that the permit is counted in.
    pub share: ShareId,
    /// The priority of the run, which gives the class of a new ticket.
    pub priority: Priority,
}

/// State of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TicketState {
    /// Waits for its first permit.
    Queued = 0,
    /// Holds at least one permit.
    Busy = 1,
    /// Waits for something else, without a permit.
    Parked = 2,
    /// Has finished waiting, and wants a permit again.
    Resuming = 3,
    /// Taken out of the queue before its first permit, because its run was paused; it returns to its old place.
    Deferred = 4,
}

impl TicketState {
    const COUNT: usize = 5;
}

/// Classes of tickets that wait for a permit, by precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Tickets that want a permit again after they were parked.
    Resumed = 0,
    /// New tickets of high priority.
    High = 1,
    /// New tickets of normal priority.
    Normal = 2,
    /// New tickets of low priority.
    Low = 3,
}

impl Class {
    const COUNT: usize = 4;
    const BY_PRECEDENCE: [Self; Self::COUNT] = [Self::Resumed, Self::High, Self::Normal, Self::Low];
    /// The class that is looked at first, turn by turn. Each class has a turn in any eight grants. If its class has no
    /// ticket to grant, the turn goes to the first class by precedence that has one.
    const TURNS: [Self; 8] =
        [Self::Resumed, Self::High, Self::Resumed, Self::Normal, Self::Resumed, Self::High, Self::Resumed, Self::Low];

    const fn of(priority: Priority) -> Self {
        match priority {
            Priority::High => Self::High,
            Priority::Normal => Self::Normal,
            Priority::Low => Self::Low,
        }
    }
}

/// The state of a share.
#[derive(Debug)]
struct Share {
    settings: ShareSettings,
    /// Stride scheduling (Waldspurger and Weihl, 1995): the share with the smallest pass is next, and pays for a grant
    /// with a stride in inverse proportion to its weight.
    ///
    /// A share has a pass for each class: its grants in one class do not count against it in another, where it could
    /// starve for them.
    pass: [u64; Class::COUNT],
    permits: u32,
    tickets: [u32; TicketState::COUNT],
}

impl Share {
    fn new(settings: ShareSettings) -> Self {
        Self { settings, pass: [0; Class::COUNT], permits: 0, tickets: [0; TicketState::COUNT] }
    }

    fn is_full(&self) -> bool {
        self.settings.max.is_some_and(|max| self.permits >= max.max(1))
    }
}

/// A relief in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Relief {
    by: u32,
    since: Timestamp,
    until: Option<Timestamp>,
}

/// The result of a change of capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widths {
    /// Width before the change, reliefs included.
    pub before: u32,
    /// Width after the change, reliefs included.
    pub after: u32,
}

/// A lane: its width, its tickets and their queue. See the module's documentation.
#[derive(Debug)]
pub struct Lane {
    name: Arc<str>,
    configured_width: u32,
    width: u32,
    reliefs: BTreeMap<ReliefId, Relief>,
    /// Permits that the reliefs add.
    relieved: u32,
    paused: bool,
    /// A reason other than the provider's health that holds grants back: a drain.
    hold: Option<Limiter>,
    /// The reason why the provider is not asked.
    gate: Option<Limiter>,
    /// Most permits in use while the provider is being probed, and the reason why it was held before.
    at_most: Option<(u32, Limiter)>,
    shares: Vec<Share>,
    slab: Slab,
    queues: Queues,
    permits: u32,
    tickets: [u32; TicketState::COUNT],
    turn: u8,
    /// For each class, the pass of the share that was served last. A share that comes back starts with this pass.
    virtual_time: [u64; Class::COUNT],
    granted: u64,
    waits: Waits,
    saturation: Saturation,
}

impl Lane {
    /// An empty lane.
    pub fn new(settings: Settings) -> Self {
        let width = settings.width.clamp(1, MAX_WIDTH);
        let shares: Vec<Share> = settings.shares.into_iter().map(Share::new).collect();
        Self {
            name: settings.name,
            configured_width: width,
            width,
            reliefs: BTreeMap::new(),
            relieved: 0,
            paused: false,
            hold: None,
            gate: None,
            at_most: None,
            queues: Queues::new(shares.len()),
            shares,
            slab: Slab::default(),
            permits: 0,
            tickets: [0; TicketState::COUNT],
            turn: 0,
            virtual_time: [0; Class::COUNT],
            granted: 0,
            waits: Waits::default(),
            saturation: Saturation::default(),
        }
    }

    /// Its name: `tool`, or that of a provider.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether any ticket stands in it.
    pub fn has_tickets(&self) -> bool {
        self.tickets.iter().any(|&count| count > 0)
    }

    /// The share with that name.
    pub fn share(&self, name: &str) -> Option<ShareId> {
        let index = self.shares.iter().position(|share| &*share.settings.name == name)?;
        u16::try_from(index).ok().map(ShareId)
    }

    /// Sets the shares. Each ticket goes over to the share that `share_of` names for its run, or to the first.
    /// Waiting tickets keep the order of their ages, and the turns begin anew.
    pub fn set_shares<'n>(&mut self, shares: &[ShareSettings], share_of: &impl Fn(RunId) -> Option<&'n str>) {
        if self.shares.iter().map(|share| &share.settings).eq(shares) {
            return;
        }
        let mut waiting: Vec<(Timestamp, TicketId)> = Vec::new();
        for id in self.slab.ids() {
            if let Some(ticket) = self.slab.get(id)
                && ticket.class().is_some()
            {
                waiting.push((ticket.since, id));
            }
        }
        waiting.sort_by_key(|&(since, TicketId { slot, .. })| (since, slot));
        for &(_, id) in &waiting {
            self.queues.remove(&mut self.slab, id);
        }
        self.shares = shares.iter().cloned().map(Share::new).collect();
        self.queues = Queues::new(self.shares.len());
        (self.virtual_time, self.turn) = ([0; Class::COUNT], 0);
        for id in self.slab.ids() {
            let Some(ticket) = self.slab.get_mut(id) else { continue };
            let named = share_of(ticket.run).and_then(|name| {
                let index = shares.iter().position(|share| &*share.name == name)?;
                u16::try_from(index).ok()
            });
            ticket.share = ShareId(named.unwrap_or(0));
            let share = &mut self.shares[usize::from(ticket.share.0)];
            share.permits += u32::from(ticket.permits);
            share.tickets[ticket.state as usize] += 1;
        }
        waiting.into_iter().for_each(|(_, id)| self.enqueue(id));
    }

    /// Makes a ticket that waits for a permit.
    pub fn enter(&mut self, claim: Claim, now: Timestamp) -> TicketId {
        let id = self.slab.insert(Ticket::new(claim, TicketState::Queued, now));
        self.count(claim.share, TicketState::Queued, 1);
        self.enqueue(id);
        self.saturation.note(self.is_saturated(), now);
        id
    }

    /// Makes a ticket that waits for something else, and holds no permit.
    pub fn enter_parked(&mut self, claim: Claim, now: Timestamp) -> TicketId {
        let id = self.slab.insert(Ticket::new(claim, TicketState::Parked, now));
        self.count(claim.share, TicketState::Parked, 1);
        id
    }

    /// The ticket that is granted next, and its run; `None` if no ticket may be granted now.
    pub fn peek(&self) -> Option<(TicketId, RunId)> {
        let closed = self.paused || self.hold.is_some() || self.gate.is_some();
        let most = self.at_most.map_or(self.width(), |(most, _)| most.min(self.width()));
        if closed || self.permits >= most || self.waiting() == 0 {
            return None;
        }
        let preferred = Class::TURNS[usize::from(self.turn)];
        let slot = self
            .first_of(preferred)
            .or_else(|| Class::BY_PRECEDENCE.into_iter().find_map(|class| self.first_of(class)))?;
        let id = self.slab.id(slot);
        self.slab.get(id).map(|ticket| (id, ticket.run))
    }

    fn first_of(&self, class: Class) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        for (index, share) in self.shares.iter().enumerate() {
            if let Some(head) = self.queues.first(class, index)
                && !share.is_full()
                && best.is_none_or(|(pass, _)| share.pass[class as usize] < pass)
            {
                best = Some((share.pass[class as usize], head));
            }
        }
        best.map(|(_, head)| head)
    }

    /// Gives a permit to a queued or resuming ticket. [`Lane::peek`] tells before whether the lane has a permit to
    /// give.
    pub fn grant(&mut self, id: TicketId, now: Timestamp) {
        let Some(ticket) = self.slab.get(id) else { return };
        let (share, since, state) = (ticket.share, ticket.since, ticket.state);
        let Some(class) = ticket.class().map(|class| class as usize) else { return };
        self.queues.remove_granted(&mut self.slab, id);
        if state == TicketState::Queued {
            self.waits.record(now.since(since), now);
        }
        let granted = &mut self.shares[usize::from(share.0)];
        self.virtual_time[class] = granted.pass[class];
        granted.pass[class] = granted.pass[class].saturating_add(SCALE / u64::from(granted.settings.weight.max(1)));
        self.turn = (self.turn + 1) % 8;
        self.granted += 1;
        self.set_permits(id, 1);
        self.transition(id, TicketState::Busy, now);
    }

    /// Gives a busy ticket one more permit if one is free and no ticket waits for it. Returns whether it did.
    pub fn grant_extra(&mut self, id: TicketId, now: Timestamp) -> bool {
        let Some(ticket) = self.slab.get(id) else { return false };
        let possible = ticket.state == TicketState::Busy && self.has_extra(ticket.share);
        if possible {
            let permits = ticket.permits + 1;
            self.set_permits(id, permits);
            self.saturation.note(self.is_saturated(), now);
        }
        possible
    }

    /// Whether a busy ticket of that share may have one more permit.
    pub fn has_extra(&self, share: ShareId) -> bool {
        !self.paused
            && self.hold.is_none()
            && self.waiting() == 0
            && self.permits < self.width()
            && !self.shares[usize::from(share.0)].is_full()
    }

    /// Takes back the permits of a busy ticket beyond `permits`; at least one stays.
    pub fn keep(&mut self, id: TicketId, permits: u16, now: Timestamp) {
        if let Some(ticket) = self.slab.get(id)
            && ticket.state == TicketState::Busy
            && ticket.permits > permits
        {
            self.set_permits(id, permits.max(1));
            self.saturation.note(self.is_saturated(), now);
        }
    }

    /// Parks a ticket: its permits come back, and it no longer waits for one. A ticket that never had a permit is
    /// deferred.
    pub fn park(&mut self, id: TicketId, now: Timestamp) {
        let to = match ticket_state(&self.slab, id) {
            Some(TicketState::Queued | TicketState::Deferred) => TicketState::Deferred,
            _ => TicketState::Parked,
        };
        self.withdraw(id);
        self.transition(id, to, now);
    }

    /// Lets a parked ticket want a permit again.
    pub fn resume(&mut self, id: TicketId, now: Timestamp) {
        let to = match ticket_state(&self.slab, id) {
            Some(TicketState::Parked) => Some(TicketState::Resuming),
            Some(TicketState::Deferred) => Some(TicketState::Queued),
            _ => None,
        };
        if let Some(to) = to {
            self.transition(id, to, now);
            self.enqueue(id);
            self.saturation.note(self.is_saturated(), now);
        }
    }

    /// Ends a ticket, whatever its state.
    pub fn leave(&mut self, id: TicketId, now: Timestamp) {
        self.withdraw(id);
        if let Some(ticket) = self.slab.remove(id) {
            self.count(ticket.share, ticket.state, -1);
            self.saturation.note(self.is_saturated(), now);
        }
    }

    /// Ends the tickets of a run, except for `but`. Looks at every ticket, so it is only for a run whose records are
    /// incomplete.
    pub fn leave_all(&mut self, run: RunId, but: Option<TicketId>, now: Timestamp) {
        let of_run: Vec<TicketId> = self.slab.ids_of(run).filter(|id| Some(*id) != but).collect();
        of_run.into_iter().for_each(|id| self.leave(id, now));
    }

    /// Takes a ticket out of the queue and its permits back.
    fn withdraw(&mut self, id: TicketId) {
        let Some(ticket) = self.slab.get(id) else { return };
        if ticket.class().is_some() {
            self.queues.remove(&mut self.slab, id);
        }
        self.set_permits(id, 0);
    }

    fn enqueue(&mut self, id: TicketId) {
        let Some(ticket) = self.slab.get(id) else { return };
        let Some(class) = ticket.class() else { return };
        let share = usize::from(ticket.share.0);
        // A share that was absent from a class must not have saved up turns there.
        if self.queues.first(class, share).is_none() {
            let pass = &mut self.shares[share].pass[class as usize];
            *pass = (*pass).max(self.virtual_time[class as usize]);
        }
        self.queues.insert(&mut self.slab, id);
    }

    fn transition(&mut self, id: TicketId, to: TicketState, now: Timestamp) {
        let Some(ticket) = self.slab.get_mut(id) else { return };
        let (share, from) = (ticket.share, ticket.state);
        ticket.state = to;
        ticket.since = now;
        self.count(share, from, -1);
        self.count(share, to, 1);
        self.saturation.note(self.is_saturated(), now);
    }

    fn count(&mut self, share: ShareId, state: TicketState, by: i32) {
        let state = state as usize;
        let share = &mut self.shares[usize::from(share.0)].tickets[state];
        *share = share.saturating_add_signed(by);
        self.tickets[state] = self.tickets[state].saturating_add_signed(by);
    }

    fn set_permits(&mut self, id: TicketId, permits: u16) {
        let Some(ticket) = self.slab.get_mut(id) else { return };
        let was = u32::from(ticket.permits);
        ticket.permits = permits;
        let share = &mut self.shares[usize::from(ticket.share.0)];
        share.permits = share.permits - was + u32::from(permits);
        self.permits = self.permits - was + u32::from(permits);
    }

    /// State of a ticket; `None` once it has left.
    pub fn state(&self, id: TicketId) -> Option<TicketState> {
        ticket_state(&self.slab, id)
    }

    /// Permits that a ticket holds.
    pub fn held(&self, id: TicketId) -> u16 {
        self.slab.get(id).map_or(0, |ticket| ticket.permits)
    }

    /// Tickets that want a permit and have none.
    pub fn waiting(&self) -> u32 {
        self.tickets[TicketState::Queued as usize] + self.tickets[TicketState::Resuming as usize]
    }

    /// Number of tickets in a state.
    pub fn tickets(&self, state: TicketState) -> u32 {
        self.tickets[state as usize]
    }

    /// Permits in use.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Whether no permit is free while a ticket wants one.
    pub fn is_saturated(&self) -> bool {
        self.permits >= self.width() && self.waiting() > 0
    }

    /// The number of permits, reliefs included.
    pub fn width(&self) -> u32 {
        self.width.saturating_add(self.relieved).min(MAX_WIDTH)
    }

    /// The configured width.
    pub fn configured_width(&self) -> u32 {
        self.configured_width
    }

    fn changed(&mut self, now: Timestamp, change: impl FnOnce(&mut Self)) -> Widths {
        let before = self.width();
        change(self);
        self.relieved = self.reliefs.values().fold(0, |sum: u32, relief| sum.saturating_add(relief.by));
        self.saturation.note(self.is_saturated(), now);
        Widths { before, after: self.width() }
    }

    /// Widens the lane.
    pub fn relieve(&mut self, id: ReliefId, by: u32, until: Option<Timestamp>, now: Timestamp) -> Widths {
        self.changed(now, |lane| {
            if by > 0 {
                lane.reliefs.insert(id, Relief { by, since: now, until });
            }
        })
    }

    /// Ends a relief; nothing that executes is disturbed.
    pub fn end_relief(&mut self, id: ReliefId, now: Timestamp) -> Widths {
        self.changed(now, |lane| {
            lane.reliefs.remove(&id);
        })
    }

    /// Number of reliefs in force.
    pub fn reliefs(&self) -> usize {
        self.reliefs.len()
    }

    /// Whether that relief is in force.
    pub fn has_relief(&self, id: ReliefId) -> bool {
        self.reliefs.contains_key(&id)
    }

    /// Sets the width, without the reliefs; 0 is taken as 1. If it is less than the permits in use, these come back as
    /// their tickets finish.
    pub fn resize(&mut self, width: u32, now: Timestamp) -> Widths {
        self.changed(now, |lane| lane.width = width.clamp(1, MAX_WIDTH))
    }

    /// Takes a new width from the configuration. A width that an operator set by hand stays.
    pub fn configure(&mut self, width: u32, now: Timestamp) -> Widths {
        self.changed(now, |lane| {
            let width = width.clamp(1, MAX_WIDTH);
            if lane.width == lane.configured_width {
                lane.width = width;
            }
            lane.configured_width = width;
        })
    }

    /// Pauses granting, or continues it.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Whether granting is paused.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Sets the reason why the provider is not asked, or `None`. `at_most` limits the permits in use while the provider
    /// is probed, and has the reason why it was held before.
    pub fn set_gate(&mut self, gate: Option<Limiter>, at_most: Option<(u32, Limiter)>) {
        self.gate = gate;
        self.at_most = at_most;
    }

    /// Holds grants back for another reason, or ends that hold.
    pub fn set_hold(&mut self, hold: Option<Limiter>) {
        self.hold = hold;
    }
}

fn ticket_state(slab: &Slab, id: TicketId) -> Option<TicketState> {
    slab.get(id).map(|ticket| ticket.state)
}
