//! Reads the configuration of the daemon from its files, and checks it.
//!
//! `read` finds and reads the files, `toml_reader` parses one, `load` and `provider_builder` check the values. The
//! result is a [`Config`] (`settings`), which is always valid. A wrong file gives a [`ConfigError`] with every problem,
//! by file and line, and no configuration.

pub mod diff;
mod load;
mod origins;
mod provider;
mod provider_builder;
mod read;
mod reload_error;
mod settings;
mod toml_reader;

use std::fmt;
use std::path::PathBuf;

pub use origins::Origins;
pub use provider::{
    BESIDE_THINKING, DialectRules, Dialects, Endpoint, KeySource, Price, Provider, Quirks, SCRIPTED, Thinking,
};
pub use read::{ConfigSource, LoadError, Loaded, ReadError};
pub use reload_error::ReloadError;
pub use settings::{Bounds, Config, Control, JournalConfig, Retention, RunDefaults, Share, Shell};

/// All problems of the configuration, in the order of files and lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The problems; at least one.
    pub problems: Vec<Problem>,
}

/// A problem of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The configuration file that has the problem.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The problem, and the allowed values.
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
