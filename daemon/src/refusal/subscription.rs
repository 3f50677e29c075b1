//! Defines the refusals of subscriptions to events.

use harness_protocol::event::EVENT_KINDS;
use harness_protocol::id::{Seq, SubscriptionId};

use super::{listed, shown};

/// Why there can be no such subscription.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubscriptionRefusal {
    /// Both kinds of selections are given.
    #[error("a subscription is of one run, or of several")]
    OneOrSeveral,
    /// More runs than one subscription can follow.
    #[error("the tree has more than {most} runs; follow all events, or a part of the tree")]
    TreeTooLarge {
        /// Most runs of a subscription.
        most: u32,
    },
    /// It is to begin after an event that has not happened.
    #[error("event {after} has not happened; the last one is {last}")]
    NotHappened {
        /// The number of the event that was named.
        after: Seq,
        /// The last one that has happened.
        last: Seq,
    },
    /// There is no such kind of event.
    #[error("no kind of event is called {}; there are: {}", shown(.kind), listed(EVENT_KINDS))]
    NoKind {
        /// The kind that was named.
        kind: String,
    },
    /// The connection has as many subscriptions as it may have.
    #[error("a connection has at most {most} subscriptions (limits.subscriptions_per_connection)")]
    TooMany {
        /// The configured bound.
        most: u32,
    },
    /// The connection has no such subscription.
    #[error("no such subscription")]
    NoneSuch {
        /// The number that was named.
        subscription: SubscriptionId,
    },
}
