//! Defines arguments that several commands share, and reads their values. It must not decide what an argument means:
//! `commands/` does, where the commands themselves are.

pub(crate) mod lane;
pub(crate) mod provider;
pub(crate) mod runs;
pub(crate) mod select;
pub(crate) mod submit;
pub(crate) mod suggest;
pub(crate) mod usage;
pub(crate) mod values;

use std::path::PathBuf;

use clap::Args;

use crate::render::colour::ColourChoice;

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Write JSON: one object; for lists and streams, one object on each line
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// The daemon's socket, instead of HARNESS_SOCKET, the user's socket and the system's
    #[arg(long, global = true, value_name = "PATH", help_heading = "Everywhere")]
    pub(crate) socket: Option<PathBuf>,
    /// Never start a daemon
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) no_start: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Everywhere")]
    pub(crate) color: ColourChoice,
}
