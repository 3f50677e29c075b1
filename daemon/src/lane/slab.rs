//! Stores the tickets of a lane in pages that never move, 48 bytes each, addressed by slot number.
//!
//! The id of a removed ticket finds nothing, also if another ticket has its slot (until that slot was used 32,768 times
//! more). Must not know what a ticket means.

use harness_protocol::id::RunId;
use harness_protocol::spec::Priority;
use harness_protocol::time::Timestamp;

use super::{Claim, Class, ShareId, TicketState};

const PAGE: usize = 1024;
/// The slot number that means "no slot".
pub(super) const NONE: u32 = u32::MAX;

/// A ticket, by its slot and the slot's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TicketId {
    pub(super) slot: u32,
    generation: u16,
}

/// A batch's claim on the lane.
#[derive(Debug, Clone)]
pub(super) struct Ticket {
    pub(super) run: RunId,
    pub(super) root: RunId,
    /// Since when it has been in its state.
    pub(super) since: Timestamp,
    /// Next ticket of the same root in the queue.
    pub(super) next: u32,
    /// Previous ticket of the same root; in the first ticket of a root, the last one.
    pub(super) prev: u32,
    /// First ticket of the next root. Used only in the first ticket of a root, like `ring_prev`.
    pub(super) ring_next: u32,
    pub(super) ring_prev: u32,
    pub(super) share: ShareId,
    pub(super) permits: u16,
    pub(super) state: TicketState,
    pub(super) priority: Priority,
    generation: u16,
}

const _: () = assert!(size_of::<Ticket>() == 48, "a ticket has to stay small: lanes hold a hundred thousand of them");

impl Ticket {
    pub(super) fn new(claim: Claim, state: TicketState, now: Timestamp) -> Self {
        Self {
            run: claim.run,
            root: claim.root,
            since: now,
            next: NONE,
            prev: NONE,
            ring_next: NONE,
            ring_prev: NONE,
            share: claim.share,
            permits: 0,
            state,
            priority: claim.priority,
            generation: 0,
        }
    }

    /// The class of its queue, if it is in a queue.
    pub(super) fn class(&self) -> Option<Class> {
        match self.state {
            TicketState::Queued => Some(Class::of(self.priority)),
            TicketState::Resuming => Some(Class::Resumed),
            TicketState::Busy | TicketState::Parked | TicketState::Deferred => None,
        }
    }
}

/// The tickets of a lane. A slot's generation is odd while a ticket lies in it; free slots are chained by `next`.
#[derive(Debug)]
pub(super) struct Slab {
    pages: Vec<Vec<Ticket>>,
    free: u32,
}

impl Default for Slab {
    fn default() -> Self {
        Self { pages: Vec::new(), free: NONE }
    }
}

impl Slab {
    pub(super) fn insert(&mut self, mut ticket: Ticket) -> TicketId {
        if self.free == NONE {
            let slot = self.push_slot();
            ticket.generation = 1;
            *self.at_mut(slot) = ticket;
            return TicketId { slot, generation: 1 };
        }
        let slot = self.free;
        let place = self.at_mut(slot);
        let next_free = place.next;
        let generation = place.generation.wrapping_add(1);
        ticket.generation = generation;
        *place = ticket;
        self.free = next_free;
        TicketId { slot, generation }
    }

    fn push_slot(&mut self) -> u32 {
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let full_pages = self.pages.len() - 1;
        let Some(page) = self.pages.last_mut() else { return NONE };
        let blank =
            Claim { run: RunId::from_u64(0), root: RunId::from_u64(0), share: ShareId(0), priority: Priority::Normal };
        page.push(Ticket::new(blank, TicketState::Parked, Timestamp::default()));
        u32::try_from(full_pages * PAGE + page.len() - 1).unwrap_or(NONE)
    }

    pub(super) fn remove(&mut self, id: TicketId) -> Option<Ticket> {
        self.get(id)?;
        let free = self.free;
        let place = self.at_mut(id.slot);
        let ticket = place.clone();
        place.generation = place.generation.wrapping_add(1);
        place.next = free;
        self.free = id.slot;
        Some(ticket)
    }

    pub(super) fn get(&self, id: TicketId) -> Option<&Ticket> {
        let ticket = self.pages.get(id.slot as usize / PAGE)?.get(id.slot as usize % PAGE)?;
        (ticket.generation == id.generation).then_some(ticket)
    }

    pub(super) fn get_mut(&mut self, id: TicketId) -> Option<&mut Ticket> {
        let ticket = self.pages.get_mut(id.slot as usize / PAGE)?.get_mut(id.slot as usize % PAGE)?;
        (ticket.generation == id.generation).then_some(ticket)
    }

    /// The ticket in a slot that is known to hold one.
    pub(super) fn at(&self, slot: u32) -> &Ticket {
        &self.pages[slot as usize / PAGE][slot as usize % PAGE]
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> &mut Ticket {
        &mut self.pages[slot as usize / PAGE][slot as usize % PAGE]
    }

    /// The id of the ticket in a slot that is known to hold one.
    pub(super) fn id(&self, slot: u32) -> TicketId {
        TicketId { slot, generation: self.at(slot).generation }
    }

    /// Bytes of all pages.
    pub(super) fn bytes(&self) -> usize {
        self.pages.iter().map(|page| page.capacity() * size_of::<Ticket>()).sum()
    }

    /// The tickets of a run.
    pub(super) fn ids_of(&self, run: RunId) -> impl Iterator<Item = TicketId> {
        let slots = self.pages.iter().flatten().zip(0u32..);
        let of_run = slots.filter(move |(ticket, _)| ticket.generation % 2 == 1 && ticket.run == run);
        of_run.map(|(ticket, slot)| TicketId { slot, generation: ticket.generation })
    }

    /// The ids of all tickets, in no order.
    pub(super) fn ids(&self) -> Vec<TicketId> {
        let slots = self.pages.iter().flatten().zip(0u32..).filter(|(ticket, _)| ticket.generation % 2 == 1);
        slots.map(|(ticket, slot)| TicketId { slot, generation: ticket.generation }).collect()
    }

    /// Every ticket, mutable.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Ticket> {
        self.pages.iter_mut().flatten().filter(|ticket| ticket.generation % 2 == 1)
    }

    /// Every ticket in the slab, in the order of slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Ticket> {
        self.pages.iter().flatten().filter(|ticket| ticket.generation % 2 == 1)
    }
}
