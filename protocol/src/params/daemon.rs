//! Defines the parameters and replies of the methods about the daemon itself. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ConfigReport, JournalReport};
use crate::id::Seq;
use crate::run::RunState;
use crate::time::{Span, Timestamp};

/// Parameters of `daemon.hello`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HelloParams {
    /// Major version of the caller's protocol. 0, or no value, only asks for the daemon's version.
    #[serde(default)]
    pub protocol_major: u32,
    /// Minor version of the caller's protocol.
    #[serde(default)]
    pub protocol_minor: u32,
    /// Program and version of the caller, for the log.
    #[serde(default)]
    pub client: Option<String>,
}

/// Reply to `daemon.hello`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hello {
    /// Version of the daemon.
    pub version: String,
    /// Major version of the protocol. Another major version is incompatible.
    pub protocol_major: u32,
    /// Minor version of the protocol. A greater one adds to a smaller one.
    pub protocol_minor: u32,
    /// Bytes of the largest frame that the daemon reads or sends.
    pub max_frame_bytes: u64,
}

/// Reply to `daemon.status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DaemonStatusReply {
    /// Version of this format: always `harness.status/1`.
    pub schema: String,
    /// Version of the daemon.
    pub version: String,
    /// Version of the protocol, as `major.minor`.
    pub protocol: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// When it began to serve.
    pub started_at: Timestamp,
    /// `serving`, `draining` or `held`.
    pub health: Health,
    /// Why it is held, while it is held.
    pub held: Option<String>,
    /// Whether it is held and cannot even record cancels, answers and prunes.
    #[serde(default)]
    pub stuck: bool,
    /// Path of the socket that it serves.
    pub socket: String,
    /// Path of its state directory.
    pub state_dir: String,
    /// Whether systemd owns the socket.
    pub socket_activated: bool,
    /// Number of runs in each state.
    pub runs: BTreeMap<RunState, u32>,
    /// Interactions that wait for an answer.
    pub pending: u32,
    /// Number of calls and inferences that execute now.
    pub executing: u32,
    /// Number of the last event.
    pub last_seq: Seq,
    /// Connections that are open now.
    pub connections: u32,
    /// Resident memory of the daemon in bytes, if it can be read.
    pub rss_bytes: Option<u64>,
    /// Open descriptors of the daemon, if they can be counted.
    pub open_files: Option<u32>,
    /// Bytes that its state takes on disk.
    #[serde(default)]
    pub disk: DiskUsage,
    /// The most requests of other clients that a request of this connection has waited behind, counted once it was the
    /// first of its connection.
    #[serde(default)]
    pub waited_behind: u64,
    /// Its journal, and the problems that a start found there.
    #[serde(default)]
    pub journal: JournalReport,
    /// Its configuration, and the files that it comes from.
    #[serde(default)]
    pub config: ConfigReport,
    /// Processes that an earlier daemon's runs have left and that this daemon may not end, as long as they live. They
    /// are below a run, and have no rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_processes: Vec<LeftProcess>,
}

/// A process that an earlier daemon's run has left, of a user whose processes the daemon may not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftProcess {
    /// Its process id.
    pub pid: i32,
    /// Its user id.
    pub user: u32,
}

impl fmt::Display for LeftProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, user } = self;
        write!(
            f,
            "process {pid} of user {user} was left by a run of an earlier daemon, and this daemon may not end it: as \
             root, kill -9 {pid}"
        )
    }
}

/// Bytes that the state takes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskUsage {
    /// The journal, with its write-ahead log.
    pub journal_bytes: u64,
    /// The outputs of calls, if they have been counted.
    pub output_bytes: Option<u64>,
    /// The reserve file, which the daemon removes when the disk is full.
    pub ballast_bytes: u64,
    /// Free bytes of that disk, if known.
    pub free_bytes: Option<u64>,
}

/// The condition of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// It serves, and commits.
    Serving,
    /// It drains: it starts nothing new.
    Draining,
    /// The journal cannot commit.
    Held,
}

/// Parameters of `daemon.drain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DrainParams {
    /// Reply at the latest after this long, even if something still executes. Without it, wait as long as it takes.
    #[serde(default)]
    pub timeout_seconds: Option<Span>,
}

/// Reply to `daemon.drain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DrainReply {
    /// Calls and inferences that still execute.
    pub executing: u32,
}

/// Parameters of `daemon.backup`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BackupParams {
    /// File to write, absolute. It must not exist.
    pub to: String,
    /// Whether to copy the outputs of calls as well, into a directory beside the file: its name with `.outputs` at the
    /// end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outputs: bool,
}

/// Reply to `daemon.backup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackedUp {
    /// Bytes of the copy.
    pub bytes: u64,
    /// Bytes of the outputs, if they were copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}
