//! One subscription: follows the feed from its cursor, and writes what its filter lets through.
//!
//! It sees the next number or an explicit gap; never silence, never a duplicate. Deltas may be dropped.

use std::sync::Arc;

use harness_protocol::MAX_FRAME_BYTES;
use harness_protocol::event::{Delta, Event, EventBody, Gap};
use harness_protocol::framing;
use harness_protocol::id::{Seq, SubscriptionId};
use harness_protocol::rpc::Notification;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::outgoing::Outgoing;
use super::request::Follow;
use crate::feed::{Feed, Tail};

/// Runs until the connection is gone.
pub(super) async fn run(
    subscription: SubscriptionId,
    mut follow: Follow,
    mut deltas: Option<broadcast::Receiver<Arc<Delta>>>,
    feed: &Feed,
    outgoing: &Outgoing,
) {
    let mut watch = feed.watch();
    let mut cursor = follow.after;
    loop {
        watch.mark_unchanged();
        loop {
            match feed.after(cursor) {
                Tail::Nothing => break,
                Tail::Missing(gap) => {
                    cursor = gap.to;
                    if !send(outgoing, &Notification::Gap { subscription, gap }).await {
                        return;
                    }
                }
                Tail::Events(events) => {
                    for event in events {
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

impl Follow {
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
    send(outgoing, &Notification::Gap { subscription, gap: Gap { from: seq, to: Seq(seq.0) } }).await
}

/// The variables of a run's environment have names for subscribers, and no values.
fn without_values(event: Arc<Event>) -> Arc<Event> {
    let EventBody::RunSubmitted { spec, .. } = &event.body else { return event };
    if spec.env.is_empty() {
        return event;
    }
    let mut shown = Event::clone(&event);
    if let EventBody::RunSubmitted { spec, .. } = &mut shown.body {
        Arc::make_mut(spec).env.values_mut().for_each(|value| *value = "(not shown)".to_owned());
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
