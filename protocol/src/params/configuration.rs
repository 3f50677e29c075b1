//! Defines the daemon's configuration as clients see it: its files, the outcome of a reload, and what is wrong with a
//! file.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The configuration that is in force, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigReport {
    /// The files that were read, the main file before the parts of `conf.d`. A later file overrides an earlier one.
    /// Without any file the defaults are in force.
    pub files: Vec<String>,
    /// When they were read. `None` where the daemon is too old to say.
    #[serde(default)]
    pub read_at: Option<Timestamp>,
    /// Where a reload looks for the main file: the first that exists counts. A new file belongs into the first place.
    #[serde(default)]
    pub places: Vec<String>,
    /// The last reload, if it failed. The configuration that was in force before it still is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedReload>,
}

/// A reload that changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailedReload {
    /// When it failed.
    pub at: Timestamp,
    /// Why, in words for people.
    pub message: String,
    /// What exactly is wrong, as far as it is about files.
    #[serde(default)]
    pub problems: Vec<ConfigProblem>,
}

/// A mistake in a file of the configuration, or a file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigProblem {
    /// Path of the file or directory.
    pub file: String,
    /// The line, from 1; `None` where the file as a whole is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

/// Reply to `daemon.reload`, when the new configuration is in force in every part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReloadReply {
    /// The first file that was read, if there is one.
    pub config: Option<String>,
    /// All files that were read, in the order in which they count.
    #[serde(default)]
    pub files: Vec<String>,
    /// Where the main file is looked for: the first that exists counts.
    #[serde(default)]
    pub places: Vec<String>,
    /// What changed, in words.
    pub changes: Vec<String>,
    /// What is in force and cannot be used yet, in words: a key that cannot be read.
    #[serde(default)]
    pub warnings: Vec<String>,
}
