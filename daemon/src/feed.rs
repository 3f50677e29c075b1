//! Gives subscribers the latest events and the live deltas from memory.
//!
//! Subscribers pull. Each has a cursor of its own, so a slow subscriber delays no other one and costs nothing but its
//! cursor. Older events are in the journal, where a subscriber reads them itself. Deltas may be dropped. The driver
//! must publish an event only when it is in the journal. Must not know the subscribers.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use harness_protocol::event::{Delta, Event, EventBody};
use harness_protocol::id::{RunId, Seq};
use tokio::sync::{broadcast, watch};

/// Deltas that wait for a slow reader before the oldest of them are dropped.
const DELTAS: usize = 1_024;
/// Most events of one read.
const BATCH: usize = 256;

/// The events after a cursor.
#[derive(Debug, PartialEq)]
pub enum Tail {
    /// The next events. A missing number belongs to a pruned run.
    Events(Vec<Arc<Event>>),
    /// The next events, up to and including this number, are only in the journal.
    Older(Seq),
    /// There is no event after the cursor yet.
    Nothing,
}

/// The feed. Clones are the same feed.
#[derive(Debug, Clone)]
pub struct Feed {
    tail: Arc<Mutex<Kept>>,
    last: watch::Sender<Seq>,
    deltas: broadcast::Sender<Arc<Delta>>,
    most: usize,
    most_bytes: usize,
}

/// The latest events, and their approximate memory in bytes.
#[derive(Debug, Default)]
struct Kept {
    /// Events, each with its approximate memory in bytes.
    events: VecDeque<(Arc<Event>, usize)>,
    bytes: usize,
}

impl Kept {
    /// Drops events that were pruned from the journal.
    fn forget(&mut self, is_gone: impl Fn(&Event) -> bool) {
        let bytes = &mut self.bytes;
        self.events.retain(|(event, taken)| {
            let stays = !is_gone(event);
            if !stays {
                *bytes -= taken;
            }
            stays
        });
    }
}

impl Feed {
    /// A feed that keeps at most `most` events, of about `most_bytes` bytes together. Events up to `last` are only in
    /// the journal.
    pub fn new(most: usize, most_bytes: usize, last: Seq) -> Self {
        Self {
            tail: Arc::default(),
            last: watch::Sender::new(last),
            deltas: broadcast::Sender::new(DELTAS),
            most: most.max(1),
            most_bytes,
        }
    }

    fn tail(&self) -> MutexGuard<'_, Kept> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows events to subscribers. They must be in the journal.
    pub fn publish(&self, events: &[Arc<Event>]) {
        let Some(last) = events.last() else { return };
        let kept: Vec<_> = events.iter().map(|event| (Arc::clone(event), event.approximate_bytes())).collect();
        {
            let mut tail = self.tail();
            tail.bytes += kept.iter().map(|(_, bytes)| bytes).sum::<usize>();
            tail.events.extend(kept);
            for event in events {
                match &event.body {
                    EventBody::RunsPruned { runs } => {
                        let runs: BTreeSet<RunId> = runs.iter().copied().collect();
                        tail.forget(|event| event.run.is_some_and(|run| runs.contains(&run)));
                    }
                    EventBody::EventsPruned { events } => {
                        let gone: BTreeSet<Seq> = events.iter().copied().collect();
                        tail.forget(|event| event.run.is_none() && gone.contains(&event.seq));
                    }
                    _ => {}
                }
            }
            while tail.events.len() > self.most || (tail.bytes > self.most_bytes && tail.events.len() > 1) {
                let Some((_, bytes)) = tail.events.pop_front() else { break };
                tail.bytes -= bytes;
            }
        }
        self.last.send_replace(last.seq);
    }

    /// The events after `cursor`.
    pub fn after(&self, cursor: Seq) -> Tail {
        let last = *self.last.borrow();
        if cursor >= last {
            return Tail::Nothing;
        }
        let tail = self.tail();
        let Some(first) = tail.events.front().map(|(event, _)| event.seq) else { return Tail::Older(last) };
        if cursor.next() < first {
            return Tail::Older(Seq(first.0 - 1));
        }
        // Pruned runs leave holes, so the position does not follow from the number.
        let skip = tail.events.partition_point(|(event, _)| event.seq <= cursor);
        Tail::Events(tail.events.iter().skip(skip).take(BATCH).map(|(event, _)| Arc::clone(event)).collect())
    }

    /// Reports each new last number.
    pub fn watch(&self) -> watch::Receiver<Seq> {
        self.last.subscribe()
    }

    /// Number of the last event that was shown.
    pub fn last(&self) -> Seq {
        *self.last.borrow()
    }

    /// The sending end for deltas; jobs use it.
    pub fn deltas(&self) -> broadcast::Sender<Arc<Delta>> {
        self.deltas.clone()
    }

    /// Receives deltas from now on.
    pub fn listen(&self) -> broadcast::Receiver<Arc<Delta>> {
        self.deltas.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use harness_protocol::event::Cause;
    use harness_protocol::time::Timestamp;

    use super::*;

    fn event(seq: u64) -> Arc<Event> {
        let body = EventBody::DrainStarted;
        Arc::new(Event { seq: Seq(seq), version: 1, at: Timestamp::default(), run: None, cause: Cause::HARNESS, body })
    }

    fn numbers(tail: Tail) -> Vec<u64> {
        match tail {
            Tail::Events(events) => events.iter().map(|event| event.seq.0).collect(),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn a_reader_gets_what_comes_after_its_cursor() {
        let feed = Feed::new(10, 1_000_000, Seq(0));
        assert_eq!(feed.after(Seq(0)), Tail::Nothing);
        feed.publish(&[event(1), event(2), event(3)]);
        assert_eq!(numbers(feed.after(Seq(0))), [1, 2, 3]);
        assert_eq!(numbers(feed.after(Seq(2))), [3]);
        assert_eq!(feed.after(Seq(3)), Tail::Nothing);
    }

    #[test]
    fn events_that_left_the_tail_are_in_the_journal() {
        let feed = Feed::new(2, 1_000_000, Seq(0));
        feed.publish(&[event(1), event(2), event(3), event(4)]);
        assert_eq!(feed.after(Seq(0)), Tail::Older(Seq(2)));
        assert_eq!(numbers(feed.after(Seq(2))), [3, 4]);
    }

    #[test]
    fn pruned_events_are_gone_from_the_tail_as_well() {
        let feed = Feed::new(10, 1_000_000, Seq(0));
        let run = RunId::from_u64(7);
        let of_run = |seq| Arc::new(Event { run: Some(run), ..(*event(seq)).clone() });
        feed.publish(&[of_run(1), event(2), of_run(3)]);
        let body = EventBody::RunsPruned { runs: vec![run] };
        feed.publish(&[of_run(4), Arc::new(Event { body, ..(*event(5)).clone() }), event(6)]);
        assert_eq!(feed.after(Seq(0)), Tail::Older(Seq(1)));
        assert_eq!(numbers(feed.after(Seq(1))), [2, 5, 6]);
        assert_eq!(numbers(feed.after(Seq(3))), [5, 6]);
    }

    #[test]
    fn the_tail_is_bounded_by_bytes_as_well() {
        let feed = Feed::new(1_000, 10 * event(1).approximate_bytes(), Seq(0));
        (1..=100).for_each(|seq| feed.publish(&[event(seq)]));
        assert_eq!(feed.after(Seq(0)), Tail::Older(Seq(90)));
    }
}
