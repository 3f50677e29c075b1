//! Keeps the order in which tickets wait: a ring of roots for each class and share, a first-come-first-served list for
//! each root.
//!
//! ```text
//!   (class, share) ── cursor ─▶ root A ⇄ root B ⇄ root C ─┐      ring: whose turn it is
//!                                 │        │       ▲──────┘
//!                                 ▼        ▼
//!                                a2       b2                      list: in the order of their coming
//!                                 ▼
//!                                a3
//! ```
//!
//! The links lie in the tickets themselves, so that removing any ticket costs the same. It must not know permits or
//! time.

use std::collections::HashMap;

use harness_protocol::id::RunId;
use hashbrown::HashTable;

use super::slab::{NONE, Slab, TicketId};
use super::{Class, ShareId};

/// The stride of a share of weight 1.
pub(super) const SCALE: u64 = 1 << 20;

#[derive(Debug, Clone, Copy)]
struct Queue {
    /// First ticket of the root with the next turn.
    cursor: u32,
    /// Number of roots in the ring.
    roots: u32,
}

/// The queues of a lane.
#[derive(Debug)]
pub(super) struct Queues {
    by_share: Vec<[Queue; Class::COUNT]>,
    /// First tickets, by class, share and root.
    heads: HashTable<u32>,
}

/// The key under which a root's list is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    class: Class,
    share: ShareId,
    root: RunId,
}

impl Key {
    /// Run ids are spread evenly already; class and share only have to change some bits. The hash has no random seed,
    /// so that every replay is the same.
    fn hash(self) -> u64 {
        let salt = (u64::from(self.share.0) << 2) | self.class as u64;
        (self.root.as_u64() ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15))
            .wrapping_mul(0xD6E8_FEB8_6659_FD93)
            .rotate_left(32)
    }
}

/// The key of a ticket in a queue: its state gives the class.
fn key_of(slab: &Slab, slot: u32) -> Key {
    let ticket = slab.at(slot);
    Key { class: ticket.class().unwrap_or(Class::Normal), share: ticket.share, root: ticket.root }
}

impl Queues {
    pub(super) fn new(shares: usize) -> Self {
        let empty = Queue { cursor: NONE, roots: 0 };
        Self { by_share: vec![[empty; Class::COUNT]; shares], heads: HashTable::new() }
    }

    /// First ticket of the root with the next turn.
    pub(super) fn first(&self, class: Class, share: usize) -> Option<u32> {
        let cursor = self.by_share[share][class as usize].cursor;
        (cursor != NONE).then_some(cursor)
    }

    fn queue(&mut self, key: Key) -> &mut Queue {
        &mut self.by_share[usize::from(key.share.0)][key.class as usize]
    }

    fn head(&self, slab: &Slab, key: Key) -> Option<u32> {
        self.heads.find(key.hash(), |&slot| key_of(slab, slot) == key).copied()
    }

    /// Appends a ticket to its root's list. A root that is new in the ring gets the last turn.
    pub(super) fn insert(&mut self, slab: &mut Slab, id: TicketId) {
        let slot = id.slot;
        let key = key_of(slab, slot);
        if let Some(head) = self.head(slab, key) {
            let tail = slab.at(head).prev;
            slab.at_mut(tail).next = slot;
            slab.at_mut(head).prev = slot;
            let ticket = slab.at_mut(slot);
            (ticket.prev, ticket.next) = (tail, NONE);
            return;
        }
        let ticket = slab.at_mut(slot);
        (ticket.prev, ticket.next) = (slot, NONE);
        let queue = self.queue(key);
        queue.roots += 1;
        if queue.cursor == NONE {
            queue.cursor = slot;
            (ticket.ring_prev, ticket.ring_next) = (slot, slot);
        } else {
            let after = queue.cursor;
            let before = slab.at(after).ring_prev;
            slab.at_mut(before).ring_next = slot;
            slab.at_mut(after).ring_prev = slot;
            let ticket = slab.at_mut(slot);
            (ticket.ring_prev, ticket.ring_next) = (before, after);
        }
        let slab = &*slab;
        self.heads.insert_unique(key.hash(), slot, |&other| key_of(slab, other).hash());
    }

    /// Removes a ticket from any place.
    pub(super) fn remove(&mut self, slab: &mut Slab, id: TicketId) {
        let slot = id.slot;
        let key = key_of(slab, slot);
        let ticket = slab.at(slot);
        let (prev, next) = (ticket.prev, ticket.next);
        if self.head(slab, key) != Some(slot) {
            slab.at_mut(prev).next = next;
            if next != NONE {
                slab.at_mut(next).prev = prev;
            } else if let Some(head) = self.head(slab, key) {
                slab.at_mut(head).prev = prev;
            }
            return;
        }
        let (ring_prev, ring_next) = (slab.at(slot).ring_prev, slab.at(slot).ring_next);
        if next == NONE {
            self.leave_ring(slab, key, slot, ring_prev, ring_next);
            return;
        }
        // The second ticket of the list becomes its first, and takes the place in the ring.
        let alone = ring_next == slot;
        let second = slab.at_mut(next);
        second.prev = if prev == slot { next } else { prev };
        (second.ring_prev, second.ring_next) = if alone { (next, next) } else { (ring_prev, ring_next) };
        if !alone {
            slab.at_mut(ring_prev).ring_next = next;
            slab.at_mut(ring_next).ring_prev = next;
        }
        let queue = self.queue(key);
        if queue.cursor == slot {
            queue.cursor = next;
        }
        if let Some(entry) = self.heads.find_mut(key.hash(), |&other| other == slot) {
            *entry = next;
        }
    }

    fn leave_ring(&mut self, slab: &mut Slab, key: Key, slot: u32, ring_prev: u32, ring_next: u32) {
        let queue = self.queue(key);
        queue.roots -= 1;
        if ring_next == slot {
            queue.cursor = NONE;
        } else {
            if queue.cursor == slot {
                queue.cursor = ring_next;
            }
            slab.at_mut(ring_prev).ring_next = ring_next;
            slab.at_mut(ring_next).ring_prev = ring_prev;
        }
        if let Ok(entry) = self.heads.find_entry(key.hash(), |&other| other == slot) {
            entry.remove();
        }
    }

    /// Removes a ticket that is granted: its root's next turn comes after those of the others.
    pub(super) fn remove_granted(&mut self, slab: &mut Slab, id: TicketId) {
        let key = key_of(slab, id.slot);
        let had_turn = self.queue(key).cursor == id.slot;
        self.remove(slab, id);
        let queue = self.queue(key);
        if had_turn && queue.cursor != NONE && slab.at(queue.cursor).root == key.root {
            queue.cursor = slab.at(queue.cursor).ring_next;
        }
    }

    /// The number of grants in its class and share up to this ticket, itself included, if nothing changes. Exact if
    /// each root has one ticket; `None` beyond `most`.
    pub(super) fn position(&self, slab: &Slab, id: TicketId, most: u32) -> Option<u32> {
        let key = key_of(slab, id.slot);
        let queue = self.by_share[usize::from(key.share.0)][key.class as usize];
        let head = self.head(slab, key)?;
        let (mut before, mut at) = (0, head);
        while at != id.slot {
            at = slab.at(at).next;
            before += queue.roots;
            if at == NONE || before >= most {
                return None;
            }
        }
        let mut ring = queue.cursor;
        while ring != head {
            ring = slab.at(ring).ring_next;
            before += 1;
            if before >= most {
                return None;
            }
        }
        Some(before + 1)
    }

    /// The same for all tickets at once, if fewer than `most` are before them in their class and share.
    pub(super) fn places(&self, slab: &Slab, most: u32) -> HashMap<u32, u32> {
        let mut places = HashMap::new();
        for queue in self.by_share.iter().flatten() {
            let mut head = queue.cursor;
            for turn in 0..queue.roots.min(most) {
                let (mut at, mut before) = (head, turn);
                while at != NONE && before < most {
                    places.insert(at, before + 1);
                    at = slab.at(at).next;
                    before = before.saturating_add(queue.roots);
                }
                head = slab.at(head).ring_next;
            }
        }
        places
    }

    /// The queues in order, for comparing two lanes.
    pub(super) fn order(&self, slab: &Slab) -> Vec<(ShareId, u8, Vec<Vec<RunId>>)> {
        let mut order = Vec::new();
        for (share, queues) in self.by_share.iter().enumerate() {
            for class in Class::BY_PRECEDENCE {
                let queue = queues[class as usize];
                let mut roots = Vec::new();
                let mut head = queue.cursor;
                for _ in 0..queue.roots {
                    let mut list = Vec::new();
                    let mut at = head;
                    while at != NONE {
                        list.push(slab.at(at).run);
                        at = slab.at(at).next;
                    }
                    roots.push(list);
                    head = slab.at(head).ring_next;
                }
                order.push((ShareId(u16::try_from(share).unwrap_or(u16::MAX)), class as u8, roots));
            }
        }
        order
    }

    /// Bytes that the index takes, beside the tickets themselves.
    pub(super) fn index_bytes(&self) -> usize {
        self.heads.allocation_size()
    }
}
