//! Defines the settings of the daemon: each with its meaning, its default, and the range that a file may set.
//!
//! The only place with the defaults and ranges of all settings but those of a provider (`provider`, `provider_builder`)
//! and the limits of calls (`harness_protocol::limit`). Must not read or check a value: `load` does that, by the ranges
//! in [`allowed`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use harness_protocol::limit::CallLimits;
use harness_protocol::time::Span;

use super::provider::{Endpoint, KeySource, Provider};

/// The complete configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The tool lane: `[lane.tool]`.
    pub tool_width: u32,
    /// Providers by name: `[provider.NAME]`. `scripted` is always there.
    pub providers: BTreeMap<Arc<str>, Provider>,
    /// Shares by name: `[share.NAME]`. `default` is always there.
    pub shares: BTreeMap<Arc<str>, Share>,
    /// Defaults of a submit: `[run]`.
    pub run: RunDefaults,
    /// The shell tool: `[tool.shell]`.
    pub shell: Shell,
    /// Bounds on runs, connections and memory: `[limits]`.
    pub limits: Bounds,
    /// The control socket: `[control]`.
    pub control: Control,
    /// Which finished runs the daemon removes: `[retention]`.
    pub retention: Retention,
    /// Guarantees of commits: `[journal]`.
    pub journal: JournalConfig,
}

impl Config {
    /// The variables of the environment that hold keys.
    pub fn variables_with_keys(&self) -> BTreeSet<String> {
        let endpoints = self.providers.values().filter_map(|provider| provider.endpoint.as_deref());
        let variable = |endpoint: &Endpoint| match &endpoint.key {
            Some(KeySource::Environment(name)) => Some(name.to_string()),
            _ => None,
        };
        endpoints.filter_map(variable).collect()
    }
}

/// A share of the lanes' capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The share's part of the grants, in proportion to the weights of the others; at least 1.
    pub weight: u32,
    /// Most permits at once; `None` for no limit.
    pub max: Option<u32>,
}

/// The values that a run gets if its submit names none.
#[derive(Debug, Clone, PartialEq)]
pub struct RunDefaults {
    /// The provider, by its name in the configuration.
    pub provider: Arc<str>,
    /// The model; `None` means the provider's configured one.
    pub model: Option<Arc<str>>,
    /// The number of inferences after which a run ends.
    pub max_steps: u32,
}

/// The shell tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Shell {
    /// Time limit of a call that names none.
    pub timeout: Span,
    /// Bytes of each stream that an envelope keeps.
    pub envelope_bytes: u32,
    /// Bytes of each stream that are kept on disk.
    pub output_bytes: u64,
    /// Limits for each process of a call, if its run names none: `[tool.shell.limits]`.
    pub limits: CallLimits,
    /// Environment variables that each call gets, with the values of the client that submits the run.
    pub pass: Vec<Arc<str>>,
}

/// Upper bounds. A request beyond one of them gets an error that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Runs that have not ended.
    pub live_runs: u32,
    /// Finished runs that stay in memory; the journal answers for the others.
    pub finished_runs: u32,
    /// Approximate bytes of the transcripts and specifications of finished runs that stay in memory.
    pub finished_bytes: u64,
    /// Children of one run.
    pub children: u32,
    /// Depth of a tree of runs; a run without a parent has depth 1.
    pub depth: u32,
    /// Calls of one answer.
    pub calls_per_step: u32,
    /// Bytes of a prompt, a message or an answer.
    pub text_bytes: u32,
    /// Requests that wait for the driver.
    pub inbox: u32,
    /// Connections at once.
    pub connections: u32,
    /// Requests of one connection without a reply.
    pub requests_per_connection: u32,
    /// Subscriptions of one connection.
    pub subscriptions_per_connection: u32,
    /// Events that stay in memory for subscribers.
    pub events: u32,
    /// Approximate bytes of these: a quarter of `memory_bytes`.
    pub event_bytes: u64,
    /// Bytes of memory for unfinished frames, requests without an answer, answers that clients have not read, and the
    /// events that stay in memory, together, with the overhead of the allocator.
    pub memory_bytes: u64,
}

/// Guarantees of commits in addition to that of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalConfig {
    /// Sync the event that a call starts before its command starts: after a power loss the call is not executed a
    /// second time.
    pub sync_calls: bool,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self { sync_calls: true }
    }
}

/// Which finished trees of runs the daemon removes. Without configuration it removes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Trees that ended longer ago than this.
    pub age: Option<Span>,
    /// Trees that are not among this many of the latest.
    pub runs: Option<u32>,
    /// The number of latest events of the daemon, its lanes and providers that always stay. Older ones are removed once
    /// they no longer affect the present state.
    pub events: u32,
    /// Interval between removals.
    pub every: Span,
}

impl Default for Retention {
    fn default() -> Self {
        Self { age: None, runs: None, events: 10_000, every: Span::from_secs(60) }
    }
}

/// The control socket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Control {
    /// The group that may connect, in addition to the owner.
    pub group: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        let scripted = Provider::scripted(Provider::WIDTH);
        Self {
            tool_width: 8,
            providers: BTreeMap::from([("scripted".into(), scripted)]),
            shares: BTreeMap::from([("default".into(), Share { weight: 1, max: None })]),
            run: RunDefaults { provider: "scripted".into(), model: None, max_steps: 500 },
            shell: Shell {
                timeout: Span::from_secs(120),
                envelope_bytes: 32 * 1024,
                output_bytes: 64 * 1024 * 1024,
                limits: CallLimits::default(),
                pass: Vec::new(),
            },
            limits: Bounds::default(),
            control: Control::default(),
            retention: Retention::default(),
            journal: JournalConfig::default(),
        }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            live_runs: 100_000,
            finished_runs: 1_000,
            finished_bytes: 64 * 1024 * 1024,
            children: 1_000,
            depth: 8,
            calls_per_step: 128,
            text_bytes: 7 * 1024 * 1024,
            inbox: 4_096,
            connections: 1_024,
            requests_per_connection: 1_024,
            subscriptions_per_connection: 16,
            events: 200_000,
            event_bytes: 128 * 1024 * 1024,
            memory_bytes: 512 * 1024 * 1024,
        }
    }
}

/// The range that a file may set, by the name of the key.
pub(super) mod allowed {
    use std::ops::RangeInclusive;

    /// Largest width of a lane, and largest number of connections.
    const WIDEST: u32 = 100_000;
    /// Largest value of a key that is a plain count.
    const MANY: u32 = 10_000_000;

    pub(in crate::config) const WIDTH: RangeInclusive<u32> = 1..=WIDEST;
    pub(in crate::config) const SHARE_WEIGHT: RangeInclusive<u32> = 1..=10_000;
    pub(in crate::config) const SHARE_MAX: RangeInclusive<u32> = 1..=WIDEST;
    pub(in crate::config) const MAX_STEPS: RangeInclusive<u32> = 1..=1_000_000;

    pub(in crate::config) const ENVELOPE_BYTES: RangeInclusive<u32> = 1024..=1024 * 1024;
    pub(in crate::config) const OUTPUT_BYTES: RangeInclusive<u64> = 0..=1 << 40;
    /// Most variables that are passed.
    pub(in crate::config) const MOST_PASSED: usize = 64;

    pub(in crate::config) const LIVE_RUNS: RangeInclusive<u32> = 1..=MANY;
    pub(in crate::config) const FINISHED_RUNS: RangeInclusive<u32> = 0..=MANY;
    pub(in crate::config) const CHILDREN: RangeInclusive<u32> = 0..=MANY;
    pub(in crate::config) const DEPTH: RangeInclusive<u32> = 1..=64;
    pub(in crate::config) const CALLS_PER_STEP: RangeInclusive<u32> = 1..=10_000;
    /// The largest text fits a frame, with room for what surrounds it.
    pub(in crate::config) const TEXT_BYTES: RangeInclusive<u32> = 1024..=7 * 1024 * 1024;
    pub(in crate::config) const INBOX: RangeInclusive<u32> = 1..=MANY;
    pub(in crate::config) const CONNECTIONS: RangeInclusive<u32> = 1..=WIDEST;
    pub(in crate::config) const REQUESTS_PER_CONNECTION: RangeInclusive<u32> = 1..=MANY;
    pub(in crate::config) const SUBSCRIPTIONS_PER_CONNECTION: RangeInclusive<u32> = 1..=10_000;
    pub(in crate::config) const EVENTS: RangeInclusive<u32> = 1..=MANY;
    /// At least room for two of the largest frames.
    pub(in crate::config) const MEMORY_BYTES: RangeInclusive<u64> = 32 * 1024 * 1024..=1 << 40;

    pub(in crate::config) const RETENTION_AGE_DAYS: RangeInclusive<u32> = 1..=36_500;
    pub(in crate::config) const RETENTION_RUNS: RangeInclusive<u32> = 0..=MANY;
    pub(in crate::config) const RETENTION_EVENTS: RangeInclusive<u32> = 10..=MANY;
}
