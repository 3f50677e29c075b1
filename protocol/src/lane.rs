//! Defines the report of a lane: width, queue, holders, and why no permit is granted. The only place with the format
//! `harness.lane/1`. Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::id::{CallId, ReliefId, RunId};
use crate::time::{Span, Timestamp};

/// Value of `schema` in a lane report.
pub const LANE_SCHEMA: &str = "harness.lane/1";

/// State of one lane at one instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaneReport {
    /// Version of this format: always [`LANE_SCHEMA`].
    pub schema: String,
    /// `tool`, or the name of a provider.
    pub name: Arc<str>,
    /// Permits in all: the configured or set width, and the permits that reliefs add.
    pub width: u32,
    /// Configured width, without changes by hand.
    pub configured_width: u32,
    /// Tickets that want a permit: `queued` and `resuming` together. In the tool lane, `waiting_for: ["lane"]` selects
    /// the runs of these tickets. Absent in reports of older daemons; read it by [`LaneReport::wanted`].
    #[serde(default)]
    pub wanted: u32,
    /// Tickets among them that wait for their first permit. A run in the state `queued` is something else: it waits for
    /// its first inference.
    pub queued: u32,
    /// Tickets that hold a permit.
    pub busy: u32,
    /// Tickets that wait without a permit for something with no time bound.
    pub parked: u32,
    /// Tickets among them that want their permit back, after a wait for a person or another run.
    pub resuming: u32,
    /// Permits in use. More than `width` only while a narrowed lane runs down.
    pub permits: u32,
    /// Whether no permit is free while a ticket is queued or resuming.
    pub saturated: bool,
    /// When it became saturated.
    pub saturated_since: Option<Timestamp>,
    /// Why no permit is granted just now.
    pub limiter: Limiter,
    /// Whether granting is paused.
    pub paused: bool,
    /// The open circuit breaker of the provider, while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<LaneHold>,
    /// Reliefs in force now.
    pub reliefs: Vec<ReliefView>,
    /// Share of time saturated over 1, 5 and 15 minutes, between 0 and 1.
    pub saturation: [f64; 3],
    /// How long tickets waited for their first permit, over the last 15 to 30 minutes.
    pub queue_wait: QueueWait,
    /// How long the oldest ticket in the queue has waited.
    pub oldest_queued_seconds: Option<Span>,
    /// Permits granted since the daemon started or the lane was made.
    pub granted_total: u64,
    /// Shares with at least one ticket.
    pub shares: Vec<ShareReport>,
    /// Permits in use, longest held first; at most 100 of them.
    pub holders: Vec<Holder>,
}

impl LaneReport {
    /// Tickets that want a permit, also in the report of an older daemon.
    pub const fn wanted(&self) -> u32 {
        self.queued.saturating_add(self.resuming)
    }
}

impl ShareReport {
    /// Tickets that want a permit, also in the report of an older daemon.
    pub const fn wanted(&self) -> u32 {
        self.queued.saturating_add(self.resuming)
    }
}

/// Why a lane grants no permit now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Limiter {
    /// Nothing: each ticket gets its permit at once.
    None,
    /// Every permit is in use.
    Width,
    /// The bounds of the shares that have queued tickets.
    Share,
    /// The provider's rate limit.
    RateLimit,
    /// A limit of the account behind the provider is used up: quota, credit, a plan's window.
    Quota,
    /// The provider refused the credentials.
    Credentials,
    /// The provider's key cannot be found where the configuration says.
    Key,
    /// The provider fails; its circuit breaker is open for a while.
    Failing,
    /// The journal cannot commit.
    Storage,
    /// A client paused the lane.
    Paused,
    /// The daemon drains.
    Draining,
}

impl Limiter {
    /// The name of the limiter, as in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// An open circuit breaker: why no run asks the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaneHold {
    /// The reason, also while the lane is paused as well. Absent in reports of older daemons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limiter: Option<Limiter>,
    /// When the hold began.
    pub since: Timestamp,
    /// Time of the next probe. `None`: after the configuration is read again, or a check of the provider succeeds.
    pub until: Option<Timestamp>,
    /// The provider's error, in words.
    pub error: Arc<str>,
}

/// A relief in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReliefView {
    /// Id by which it can be undone.
    pub id: ReliefId,
    /// Permits that it adds.
    pub by: u32,
    /// When it began.
    pub since: Timestamp,
    /// Time at which it ends by itself; `None`: it does not.
    pub until: Option<Timestamp>,
}

/// How long tickets waited in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueWait {
    /// Number of tickets that were counted.
    pub count: u64,
    /// Half of them waited no longer than this.
    pub p50_seconds: Span,
    /// 95 of 100 waited no longer than this.
    pub p95_seconds: Span,
    /// 99 of 100 waited no longer than this.
    pub p99_seconds: Span,
    /// The longest wait of all.
    pub max_seconds: Span,
}

/// The use of a lane by one share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShareReport {
    /// Name of the share.
    pub share: Arc<str>,
    /// Weight of the share: it gets permits in proportion to it.
    pub weight: u32,
    /// Most permits at once; `None` for no limit.
    pub max: Option<u32>,
    /// Tickets that want a permit: `queued` and `resuming` together.
    #[serde(default)]
    pub wanted: u32,
    /// Tickets among them that wait for their first permit.
    pub queued: u32,
    /// Tickets that hold a permit.
    pub busy: u32,
    /// Tickets that are parked, without a permit.
    pub parked: u32,
    /// Tickets that want their permit back.
    pub resuming: u32,
    /// Permits in use.
    pub permits: u32,
}

/// A run that holds a permit, for a call or an inference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Holder {
    /// Id of the run.
    pub run: RunId,
    /// Name of the run, if it has one.
    pub run_name: Option<Arc<str>>,
    /// The call; `None` for an inference.
    pub call: Option<CallId>,
    /// Name of the tool, or of the provider.
    pub tool: Arc<str>,
    /// The command or the task, shortened to one line.
    pub command: String,
    /// Since when it has held the permit.
    pub since: Timestamp,
}

/// Reply to a change of a lane: its capacity before and after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaneChanged {
    /// Name of the lane: `tool`, or the name of a provider.
    pub lane: Arc<str>,
    /// Permits in all before the change.
    pub width_before: u32,
    /// Permits in all after the change.
    pub width: u32,
    /// The relief that was made or undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relief: Option<ReliefId>,
    /// A remark, such as: a width of 0 was taken as 1, a relief of 0 did nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
