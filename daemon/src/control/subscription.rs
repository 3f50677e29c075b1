//! Serves one subscription: follows the feed from the subscription's cursor, and writes the events that its filter
//! selects.
//!
//! The subscriber sees each event that its filter selects once, or an explicit gap in its place. Without a filter by
//! runs every missing number is told; what the filter leaves out is not. Deltas may be dropped. All subscriptions take
//! turns in encoding events, so that a request does not wait behind a thousand of them. While the peer does not read,
//! the subscription holds its cursor, and one event at most; while it reads, the next page of the journal is read as
//! the present one is encoded.

use std::sync::Arc;
use std::time::Duration;

use harness_protocol::MAX_FRAME_BYTES;
use harness_protocol::event::{Delta, Event, EventBody, Gap};
use harness_protocol::id::{RunId, Seq, SubscriptionId};
use harness_protocol::rpc::Notification;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot};
use tokio::task::yield_now;

use super::outgoing::{Outgoing, ROOM, encoded};
use super::request::Follow;
use crate::blob;
use crate::blocking::Blocking;
use crate::fair_queue::Party;
use crate::feed::{Feed, Tail};
use crate::journal::Record;
use crate::journal::epochs::{self, Epoch};
use crate::journal::history::History;
use crate::refusal::JournalRefusal;

/// Records of one read of the journal, and about its bytes.
const PAGE: usize = 256;
const PAGE_BYTES: usize = 128 * 1024;
/// Attempts at one read, a second apart.
const MOST_ATTEMPTS: u32 = 10;
/// Bytes that are encoded in one turn.
const OF_A_TURN: usize = 16 * 1024;

/// Serves the subscription until the connection is gone.
pub(super) async fn run(
    subscription: SubscriptionId,
    mut follow: Follow,
    mut deltas: Option<broadcast::Receiver<Arc<Delta>>>,
    feed: &Feed,
    past: &Past,
    mut sink: Sink<'_>,
) {
    let mut watch = feed.watch();
    let mut cursor = follow.after;
    let mut ahead = None;
    if let Some(gap) = follow.gap
        && !(sink.room().await && sink.send(&Notification::Gap { subscription, gap }).await)
    {
        return;
    }
    loop {
        watch.mark_unchanged();
        loop {
            if !sink.has_room() {
                ahead = None;
            }
            if !sink.room().await {
                return;
            }
            match feed.after(cursor) {
                Tail::Nothing => break,
                Tail::Older(to) => {
                    match catch_up(subscription, &mut follow, (cursor, to), past, &mut sink, &mut ahead).await {
                        Some(at) => cursor = at,
                        None => return,
                    }
                }
                Tail::Events(events) => {
                    for event in events {
                        if !sink.has_room() {
                            break;
                        }
                        if follow.runs.is_none() && event.seq > cursor.next() {
                            let (from, to) = (cursor.next(), Seq(event.seq.0 - 1));
                            if !sink.gaps(subscription, &follow.epochs, from, to).await {
                                return;
                            }
                        }
                        cursor = event.seq;
                        if follow.wants(&event) && !sink.event(subscription, event).await {
                            return;
                        }
                    }
                }
            }
        }
        sink.end_turn();
        ahead = None;
        let delta = async {
            match &mut deltas {
                Some(deltas) => deltas.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Events go first: the start of a call is shown before its output.
            biased;
            changed = watch.changed() => if changed.is_err() { return },
            delta = delta => match delta {
                Ok(delta) if follow.wants_delta(&delta) => {
                    if !(sink.room().await && sink.send(&Notification::Delta { subscription, delta }).await) {
                        return;
                    }
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => deltas = None,
            },
        }
    }
}

/// Writes about a page of the journal between `cursor` and `to`, as far as there is room. Gives how far it came; `None`
/// where the peer is gone.
async fn catch_up(
    subscription: SubscriptionId,
    follow: &mut Follow,
    (mut cursor, to): (Seq, Seq),
    past: &Past,
    sink: &mut Sink<'_>,
    ahead: &mut Option<Ahead>,
) -> Option<Seq> {
    let mut large = None;
    loop {
        match page(subscription, follow, (cursor, to), past, sink, (&mut large, ahead)).await? {
            Came::To(at) => return Some(at),
            Came::NoPlace(at) => {
                (cursor, *ahead) = (at, None);
                large = sink.outgoing.place_for_large().await;
            }
        }
    }
}

/// How far a page came.
enum Came {
    /// Up to this event.
    To(Seq),
    /// Up to this event; the next one is large and has no place.
    NoPlace(Seq),
}

/// Writes one page. The page is dropped before a wait for a place: a large event is read again when it has the place,
/// `large`.
async fn page(
    subscription: SubscriptionId,
    follow: &mut Follow,
    (cursor, to): (Seq, Seq),
    past: &Past,
    sink: &mut Sink<'_>,
    (large, ahead): (&mut Option<OwnedSemaphorePermit>, &mut Option<Ahead>),
) -> Option<Came> {
    // The events of one run are looked up; those of many are filtered from all events.
    let of = follow.runs.as_ref().filter(|runs| runs.len() == 1 && !follow.with_children);
    let of = of.and_then(|runs| runs.first().copied());
    let epochs = Arc::clone(&follow.epochs);
    sink.end_turn();
    let read = match ahead.take().filter(|ahead| (ahead.cursor, ahead.of) == (cursor, of)) {
        Some(ahead) => ahead.page.await.ok(),
        None => None,
    };
    let (read, _place) = match read {
        Some((Ok(read), place)) => (Some(read), Some(place)),
        // The semaphore is never closed.
        _ => {
            let place = Arc::clone(&past.pages).acquire_owned().await.ok();
            (past.read(cursor, of).await, place)
        }
    };
    let Some((records, end)) = read else {
        sink.gaps(subscription, &epochs, cursor.next(), to).await.then_some(())?;
        return Some(Came::To(to));
    };
    if !end && let Some(last) = records.last().map(Record::seq).filter(|last| *last < to) {
        *ahead = past.read_ahead(last, of);
    }
    let (mut at, mut end) = (cursor, end);
    for record in records {
        if !sink.has_room() {
            return Some(Came::To(at));
        }
        let seq = record.seq();
        if seq > to {
            // The rest is in the feed.
            end = true;
            break;
        }
        // A run that is followed is complete; elsewhere a missing number was pruned.
        if follow.runs.is_none() && seq > at.next() {
            sink.gaps(subscription, &epochs, at.next(), Seq(seq.0 - 1)).await.then_some(())?;
        }
        let sent = match record {
            Record::Event(event) => {
                if follow.wants(&event) {
                    sink.try_event(subscription, event, large).await
                } else {
                    Some(true)
                }
            }
            Record::Unknown(_, run, event) if follow.wants_of(run) && follow.kinds.is_empty() => {
                let params = json!({"subscription": subscription, "event": event});
                let frame = json!({"jsonrpc": "2.0", "method": "event", "params": params});
                match sink.try_frame(&frame, large).await {
                    Sent::Lives(lives) => Some(lives),
                    Sent::TooLarge => Some(sink.gaps(subscription, &epochs, seq, seq).await),
                    Sent::NoPlace => None,
                }
            }
            Record::Unreadable(_, run, why) if follow.wants_of(run) => {
                tracing::error!(%seq, why, "a record cannot be read");
                Some(sink.gaps(subscription, &epochs, seq, seq).await)
            }
            Record::Unknown(..) | Record::Unreadable(..) => Some(true),
        };
        // The earlier events were written.
        let Some(lives) = sent else { return Some(Came::NoPlace(Seq(seq.0 - 1))) };
        lives.then_some(())?;
        (at, *large) = (seq, None);
    }
    if end {
        if follow.runs.is_none() && at < to {
            sink.gaps(subscription, &epochs, at.next(), to).await.then_some(())?;
        }
        at = to;
    }
    Some(Came::To(at))
}

/// The outcome of writing a frame.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    /// It was queued; whether the connection still lives.
    Lives(bool),
    /// It is larger than a frame may be.
    TooLarge,
    /// It is large, and there is no place for it now.
    NoPlace,
}

/// The destination of a subscription's frames, which takes turns with other subscriptions.
pub(super) struct Sink<'o> {
    outgoing: &'o Outgoing,
    /// The turns of all subscriptions.
    turns: &'o Semaphore,
    /// The present turn, and how many of its bytes are left. `None` during any wait.
    turn: Option<(SemaphorePermit<'o>, usize)>,
}

impl<'o> Sink<'o> {
    pub(super) const fn new(outgoing: &'o Outgoing, turns: &'o Semaphore) -> Self {
        Self { outgoing, turns, turn: None }
    }

    fn end_turn(&mut self) {
        self.turn = None;
    }

    fn has_room(&self) -> bool {
        self.outgoing.has_room()
    }

    /// Waits until there is room. Gives whether the connection still lives.
    async fn room(&mut self) -> bool {
        if !self.has_room() {
            self.end_turn();
        }
        self.outgoing.room().await
    }

    /// Encodes and writes a value, for which there is room, when it is this one's turn; a large one waits for a place.
    /// `None` where it is larger than a frame; otherwise whether the connection still lives.
    async fn frame(&mut self, value: &(impl Serialize + Sync)) -> Option<bool> {
        let mut large = None;
        loop {
            match self.try_frame(value, &mut large).await {
                Sent::Lives(lives) => return Some(lives),
                Sent::TooLarge => return None,
                // While it waits, only the value is kept, which is shared.
                Sent::NoPlace => large = self.outgoing.place_for_large().await,
            }
        }
    }

    /// The same without a wait for a place among the large ones: takes `large`, or a free one.
    async fn try_frame(&mut self, value: &(impl Serialize + Sync), large: &mut Option<OwnedSemaphorePermit>) -> Sent {
        if self.turn.is_none() {
            // It is never closed.
            self.turn = self.turns.acquire().await.ok().map(|turn| (turn, OF_A_TURN));
        }
        let Some(frame) = encoded(value, ROOM) else {
            self.end_turn();
            if large.is_none() {
                match self.outgoing.try_place_for_large() {
                    Ok(place) => *large = place,
                    Err(_) => return Sent::NoPlace,
                }
            }
            let frame = encoded(value, MAX_FRAME_BYTES);
            return frame.map_or(Sent::TooLarge, |frame| Sent::Lives(self.outgoing.notify(frame, large.take())));
        };
        let bytes = frame.len();
        let lives = self.outgoing.notify(frame, None);
        if let Some((_, left)) = &mut self.turn {
            *left = left.saturating_sub(bytes);
            if *left == 0 || !self.outgoing.has_room() {
                // Clients that ask go first meanwhile; the other subscriptions wait for this turn.
                yield_now().await;
                self.end_turn();
            }
        }
        Sent::Lives(lives)
    }

    async fn send(&mut self, notification: &Notification) -> bool {
        self.frame(&Framed::new(notification)).await.unwrap_or(true)
    }

    /// Writes the gaps between two numbers. Gives whether the connection still lives.
    async fn gaps(&mut self, subscription: SubscriptionId, epochs: &[Epoch], from: Seq, to: Seq) -> bool {
        for gap in epochs::gaps(epochs, from, to) {
            if !self.send(&Notification::Gap { subscription, gap }).await {
                return false;
            }
        }
        true
    }

    async fn event(&mut self, subscription: SubscriptionId, event: Arc<Event>) -> bool {
        let mut large = None;
        loop {
            match self.try_event(subscription, Arc::clone(&event), &mut large).await {
                Some(lives) => return lives,
                None => large = self.outgoing.place_for_large().await,
            }
        }
    }

    /// Writes an event. `None` where it is large and has no place; otherwise whether the connection still lives.
    async fn try_event(
        &mut self,
        subscription: SubscriptionId,
        event: Arc<Event>,
        large: &mut Option<OwnedSemaphorePermit>,
    ) -> Option<bool> {
        let seq = event.seq;
        let event = shown(event);
        match self.try_frame(&Framed::new(&Notification::Event { subscription, event }), large).await {
            Sent::Lives(lives) => Some(lives),
            Sent::NoPlace => None,
            // It is larger than a frame: a gap at least says that it is missing.
            Sent::TooLarge => {
                let gap = Gap { from: seq, to: seq, reason: None };
                Some(self.send(&Notification::Gap { subscription, gap }).await)
            }
        }
    }
}

/// The older events, and the party that takes turns at reading them.
#[derive(Debug, Clone)]
pub(super) struct Past {
    /// Reads of the journal.
    pub(super) history: History,
    /// Executes the reads.
    pub(super) blocking: Blocking,
    /// Places for pages in memory, of all subscriptions of this kind of peer. None is held while a peer does not read.
    pub(super) pages: Arc<Semaphore>,
    /// The party of the connection.
    pub(super) party: Party,
}

/// A page that is read before it is needed.
struct Ahead {
    /// Number of the event before the page.
    cursor: Seq,
    /// The run that the page is of.
    of: Option<RunId>,
    page: oneshot::Receiver<(Page, OwnedSemaphorePermit)>,
}

/// The records of a page, and whether they are the last ones.
type Page = Result<(Vec<Record>, bool), JournalRefusal>;

impl Past {
    /// Begins to read a page, if there is a place for it in memory. The place goes with the page.
    fn read_ahead(&self, cursor: Seq, of: Option<RunId>) -> Option<Ahead> {
        let place = Arc::clone(&self.pages).try_acquire_owned().ok()?;
        let reader = self.history.clone();
        let read = move || (reader.after(cursor, of, PAGE, PAGE_BYTES), place);
        Some(Ahead { cursor, of, page: self.blocking.begin(self.party, read) })
    }

    /// Reads a page of the journal. A failed read is repeated for a while: the events are there.
    async fn read(&self, cursor: Seq, of: Option<RunId>) -> Option<(Vec<Record>, bool)> {
        for attempt in 1.. {
            let reader = self.history.clone();
            let read = self.blocking.get(self.party, move || reader.after(cursor, of, PAGE, PAGE_BYTES)).await;
            let why = match read {
                Some(Ok(read)) => return Some(read),
                Some(Err(error)) => error.to_string(),
                None => "an internal error (bug) ended the reading".to_owned(),
            };
            tracing::error!(why, attempt, "what a subscriber follows cannot be read");
            if attempt == MOST_ATTEMPTS {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        None
    }
}

impl Follow {
    /// Whether the run of an event is followed.
    fn wants_of(&self, run: Option<RunId>) -> bool {
        self.runs.as_ref().is_none_or(|runs| run.is_some_and(|run| runs.contains(&run)))
    }

    /// Whether the filter selects an event. A run that a followed one spawns is followed from here on.
    fn wants(&mut self, event: &Event) -> bool {
        if let Some(runs) = &mut self.runs {
            if self.with_children
                && let EventBody::RunSubmitted { parent: Some(parent), .. } = &event.body
                && runs.contains(parent)
            {
                runs.extend(event.run);
            }
            if !event.run.is_some_and(|run| runs.contains(&run)) {
                return false;
            }
        }
        self.kinds.is_empty() || self.kinds.contains(event.body.kind())
    }

    fn wants_delta(&self, delta: &Delta) -> bool {
        self.runs.as_ref().is_none_or(|runs| runs.contains(&delta.run))
    }
}

/// An event as subscribers get it: with the names of long texts in their place.
fn shown(event: Arc<Event>) -> Arc<Event> {
    match blob::named_form(&event.body) {
        Some(body) => without_values(Arc::new(Event { body, ..Event::clone(&event) })),
        None => without_values(event),
    }
}

/// Removes the values of environment variables for subscribers, and the transcript of the earlier run, which that run
/// shows itself.
pub fn without_values(event: Arc<Event>) -> Arc<Event> {
    let EventBody::RunSubmitted { spec, earlier, submit_key, .. } = &event.body else { return event };
    if spec.env.is_empty() && earlier.is_empty() && submit_key.is_none() {
        return event;
    }
    let mut shown = Event::clone(&event);
    if let EventBody::RunSubmitted { spec, earlier, submit_key, .. } = &mut shown.body {
        *submit_key = None;
        Arc::make_mut(spec).env.values_mut().for_each(|value| *value = "(not shown)".to_owned());
        *earlier = Arc::default();
    }
    Arc::new(shown)
}

#[derive(Serialize)]
struct Framed<'a> {
    jsonrpc: &'static str,
    #[serde(flatten)]
    notification: &'a Notification,
}

impl<'a> Framed<'a> {
    const fn new(notification: &'a Notification) -> Self {
        Self { jsonrpc: "2.0", notification }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A7: with a page in hand no place is waited for; the place that was waited for without one is then used.
    #[tokio::test]
    async fn what_is_large_and_has_no_place_is_told_and_nothing_of_it_is_kept() {
        let places = Arc::new(Semaphore::new(1));
        let taken = Arc::clone(&places).acquire_owned().await.unwrap();
        let (outgoing, turns) =
            (Outgoing::new(Arc::clone(&places), tokio::runtime::Handle::current()), Semaphore::new(1));
        let mut sink = Sink::new(&outgoing, &turns);
        let value = "x".repeat(2 * ROOM);
        let mut large = None;
        assert_eq!(sink.try_frame(&value, &mut large).await, Sent::NoPlace);
        assert!(outgoing.is_drained() && turns.available_permits() == 1);
        large = Some(taken);
        assert_eq!(sink.try_frame(&value, &mut large).await, Sent::Lives(true));
        assert!(large.is_none() && places.available_permits() == 0);
        outgoing.written(outgoing.next().await.unwrap());
        assert_eq!(places.available_permits(), 1);
        assert_eq!(sink.try_frame(&value, &mut None).await, Sent::Lives(true), "a free one is taken");
    }
}
