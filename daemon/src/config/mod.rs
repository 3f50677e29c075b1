//! The configuration: `toml_reader` reads the text, [`Config`] is the checked result, which is always valid.
//!
//! Owns every default and every bound of the daemon. Only [`read_files`] reads files; the checks get the texts.

mod build;
pub mod diff;
mod load;
mod provider;
mod read;
mod toml_reader;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use harness_protocol::limit::CallLimits;
use harness_protocol::time::Span;

pub use provider::{BESIDE_THINKING, Dialect, Endpoint, KeySource, Price, Provider, Quirks, Thinking};
pub use read::{ConfigSource, LoadError, ReadError, read_files};

/// Everything that can be configured, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The tool lane: `[lane.tool]`.
    pub tool_width: u32,
    /// Providers by name: `[provider.NAME]`. `scripted` is always there.
    pub providers: BTreeMap<Arc<str>, Provider>,
    /// Shares by name: `[share.NAME]`. `default` is always there.
    pub shares: BTreeMap<Arc<str>, Share>,
    /// What a submit leaves out: `[run]`.
    pub run: RunDefaults,
    /// The shell tool: `[tool.shell]`.
    pub shell: Shell,
    /// Bounds on runs, connections and memory: `[limits]`.
    pub limits: Bounds,
    /// The control socket: `[control]`.
    pub control: Control,
    /// What is removed by itself: `[retention]`.
    pub retention: Retention,
    /// What commits promise: `[journal]`.
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
    /// Grants in proportion to the others'; at least 1.
    pub weight: u32,
    /// Most permits at once.
    pub max: Option<u32>,
}

/// What a submit leaves out.
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
    /// What each process of a call may use where its run does not say: `[tool.shell.limits]`.
    pub limits: CallLimits,
    /// Environment variables that each call gets, with the values of the client that submits the run.
    pub pass: Vec<Arc<str>>,
}

/// Bounds. At each the caller gets a clear answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Runs that have not ended.
    pub live_runs: u32,
    /// Finished runs that stay in memory; the rest are answered from the journal.
    pub finished_runs: u32,
    /// Bytes of the transcripts and the specifications of finished runs that stay in memory, about.
    pub finished_bytes: u64,
    /// Children of one run.
    pub children: u32,
    /// Depth of a tree of runs; a run without a parent has depth 1.
    pub depth: u32,
    /// Calls of one step.
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
    /// Bytes of these, about: a quarter of `memory_bytes`.
    pub event_bytes: u64,
    /// Bytes that frames which are not finished, requests which are not answered, answers which are not read, and the
    /// events that stay in memory take together, with what the allocator holds beside them.
    pub memory_bytes: u64,
}

/// What commits promise beyond what is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalConfig {
    /// That a call starts is on disk before its command does: after a power loss it is not executed a second time.
    pub sync_calls: bool,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self { sync_calls: true }
    }
}

/// Which finished trees of runs are removed by themselves. Nothing is where nothing is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Those that ended longer ago than this.
    pub age: Option<Span>,
    /// Those beyond this many of the latest.
    pub runs: Option<u32>,
    /// Events of the daemon, its lanes and providers that stay in any case; older ones go when they say nothing any
    /// more.
    pub events: u32,
    /// How often that is looked at.
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
    /// A group that may connect beside the owner.
    pub group: Option<String>,
}

/// Everything that is wrong with what was typed, in the order of the files and their lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The configuration file that has the problem.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what is allowed.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{}: {}", problem.file.display(), problem.line, problem.what)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

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
