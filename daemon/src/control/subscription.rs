//! One subscription: follows the feed from its cursor, and writes what its filter lets through.
//!
//! It sees the next number or an explicit gap; never silence, never a duplicate. Deltas may be dropped.

use std::sync::Arc;
use std::time::Duration;

use harness_protocol::MAX_FRAME_BYTES;
use harness_protocol::event::{Delta, Event, EventBody, Gap};
use harness_protocol::framing;
use harness_protocol::id::{RunId, Seq, SubscriptionId};
use harness_protocol::rpc::Notification;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::outgoing::Outgoing;
use super::request::Follow;
use crate::blocking::Blocking;
use crate::fair::Party;
use crate::feed::{Feed, Tail};
use crate::journal::history::History;
use crate::journal::{Record, epochs};

/// Records read from the journal at a time, and about how many bytes.
const PAGE: usize = 512;
const PAGE_BYTES: usize = 1024 * 1024;
/// Attempts at reading one, a second apart.
const MOST_ATTEMPTS: u32 = 10;

/// Runs until the connection is gone.
pub(super) async fn run(
    subscription: SubscriptionId,
    mut follow: Follow,
    mut deltas: Option<broadcast::Receiver<Arc<Delta>>>,
    feed: &Feed,
    past: &Past,
    outgoing: &Outgoing,
) {
    let mut watch = feed.watch();
    let mut cursor = follow.after;
    if let Some(gap) = follow.gap
        && !send(outgoing, &Notification::Gap { subscription, gap }).await
    {
        return;
    }
    loop {
        watch.mark_unchanged();
        loop {
            match feed.after(cursor) {
                Tail::Nothing => break,
                Tail::Older(to) => match catch_up(subscription, &mut follow, cursor, to, past, outgoing).await {
                    Some(at) => cursor = at,
                    None => return,
                },
                Tail::Events(events) => {
                    for event in events {
                        if follow.runs.is_none() && event.seq > cursor.next() {
                            let gap = epochs::gap(&follow.epochs, cursor.next(), Seq(event.seq.0 - 1));
                            if !send(outgoing, &Notification::Gap { subscription, gap }).await {
                                return;
                            }
                        }
                        cursor = event.seq;
                        if follow.wants(&event) && !send_event(outgoing, subscription, event).await {
                            return;
                        }
                    }
                }
            }
        }
        let delta = async {
            match &mut deltas {
                Some(deltas) => deltas.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Events first: a call's start is told before its output.
            biased;
            changed = watch.changed() => if changed.is_err() { return },
            delta = delta => match delta {
                Ok(delta) if follow.wants_delta(&delta) => {
                    if !send(outgoing, &Notification::Delta { subscription, delta }).await {
                        return;
                    }
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => deltas = None,
            },
        }
    }
}

/// Writes a page of what the journal has between `cursor` and `to`. Tells how far that came; nothing where the peer is gone.
async fn catch_up(
    subscription: SubscriptionId,
    follow: &mut Follow,
    cursor: Seq,
    to: Seq,
    past: &Past,
    outgoing: &Outgoing,
) -> Option<Seq> {
    // The events of one run are looked up; those of many are picked out as they come.
    let of = follow.runs.as_ref().filter(|runs| runs.len() == 1 && !follow.with_children);
    let of = of.and_then(|runs| runs.first().copied());
    let epochs = Arc::clone(&follow.epochs);
    let gap = |from: Seq, to: Seq| Notification::Gap { subscription, gap: epochs::gap(&epochs, from, to) };
    let Some((records, end)) = past.read(cursor, of).await else {
        send(outgoing, &gap(cursor.next(), to)).await.then_some(())?;
        return Some(to);
    };
    let (mut at, mut end) = (cursor, end);
    for record in records {
        let seq = record.seq();
        if seq > to {
            // The tail has it.
            end = true;
            break;
        }
        // Of a run that is followed everything is there; elsewhere a hole is what was pruned.
        if follow.runs.is_none() && seq > at.next() {
            send(outgoing, &gap(at.next(), Seq(seq.0 - 1))).await.then_some(())?;
        }
        at = seq;
        let sent = match record {
            Record::Event(event) => !follow.wants(&event) || send_event(outgoing, subscription, event).await,
            Record::Unknown(_, run, event) if follow.wants_of(run) && follow.kinds.is_empty() => {
                match raw(subscription, &event) {
                    Some(frame) => outgoing.notify(frame).await,
                    None => send(outgoing, &gap(seq, seq)).await,
                }
            }
            Record::Unreadable(_, run, why) if follow.wants_of(run) => {
                tracing::error!(%seq, why, "a record cannot be read");
                send(outgoing, &gap(seq, seq)).await
            }
            Record::Unknown(..) | Record::Unreadable(..) => true,
        };
        sent.then_some(())?;
    }
    if end {
        if follow.runs.is_none() && at < to {
            send(outgoing, &gap(at.next(), to)).await.then_some(())?;
        }
        at = to;
    }
    Some(at)
}

/// What has happened before, and with whom a subscriber takes turns at reading it.
#[derive(Debug, Clone)]
pub(super) struct Past {
    /// Where it is.
    pub(super) history: History,
    /// Where the reading is done.
    pub(super) blocking: Blocking,
    /// Whose connection it is.
    pub(super) party: Party,
}

impl Past {
    /// A page of the journal. A read that fails is tried again for a while: what it would have shown is there.
    async fn read(&self, cursor: Seq, of: Option<RunId>) -> Option<(Vec<Record>, bool)> {
        for attempt in 1.. {
            let reader = self.history.clone();
            let read = self.blocking.get(self.party, move || reader.after(cursor, of, PAGE, PAGE_BYTES)).await;
            let why = match read {
                Some(Ok(read)) => return Some(read),
                Some(Err(error)) => error.message,
                None => "a fault of ours ended the reading".to_owned(),
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
    /// Whether a run that an event is about is followed.
    fn wants_of(&self, run: Option<RunId>) -> bool {
        self.runs.as_ref().is_none_or(|runs| run.is_some_and(|run| runs.contains(&run)))
    }

    /// Whether the filter lets an event through. A run that a followed one spawns is followed from here on.
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

async fn send_event(outgoing: &Outgoing, subscription: SubscriptionId, event: Arc<Event>) -> bool {
    let seq = event.seq;
    let event = without_values(event);
    if let Some(frame) = encode(&Notification::Event { subscription, event }) {
        return outgoing.notify(frame).await;
    }
    // It does not fit into a frame: told as missing, it is at least not missed.
    send(outgoing, &Notification::Gap { subscription, gap: Gap { from: seq, to: Seq(seq.0), reason: None } }).await
}

/// An event of a kind that a later daemon has written, as a frame; nothing where it does not fit into one.
fn raw(subscription: SubscriptionId, event: &Value) -> Option<Vec<u8>> {
    let params = json!({"subscription": subscription, "event": event});
    let mut frame = Vec::new();
    framing::encode(&json!({"jsonrpc": "2.0", "method": "event", "params": params}), &mut frame).ok()?;
    (frame.len() <= MAX_FRAME_BYTES + 1).then_some(frame)
}

/// The variables of a run's environment have names for subscribers, and no values; what a run goes on from is shown by the
/// run that it was.
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

async fn send(outgoing: &Outgoing, notification: &Notification) -> bool {
    match encode(notification) {
        Some(frame) => outgoing.notify(frame).await,
        None => true,
    }
}

fn encode(notification: &Notification) -> Option<Vec<u8>> {
    #[derive(serde::Serialize)]
    struct Framed<'a> {
        jsonrpc: &'static str,
        #[serde(flatten)]
        notification: &'a Notification,
    }
    let mut frame = Vec::with_capacity(512);
    framing::encode(&Framed { jsonrpc: "2.0", notification }, &mut frame).ok()?;
    (frame.len() <= MAX_FRAME_BYTES + 1).then_some(frame)
}
