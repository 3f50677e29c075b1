//! Defines the arguments of the commands about lanes.

use clap::{Args, Subcommand};
use harness_protocol::time::Span;

use super::values::{duration, permits, some_time, width};

/// Arguments of `lane`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LaneArgs {
    #[command(subcommand)]
    pub(crate) change: Option<LaneVerb>,
    /// Only this lane: `tool`, or the name of a provider
    #[arg(value_name = "LANE")]
    pub(crate) lane: Option<String>,
    /// Redraw the screen every SECS
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "2", value_parser = duration)]
    pub(crate) watch: Option<Span>,
    /// Check one number, for monitoring: wanted busy parked resuming oldest saturation1 saturation5 saturation15 p95.
    /// Exits 0, 1, 2 or 3 and never starts a daemon
    #[arg(long, value_name = "METRIC", conflicts_with = "watch")]
    pub(crate) check: Option<String>,
    /// With --check: warn above N
    #[arg(short, long, value_name = "N", requires = "check", allow_hyphen_values = true)]
    pub(crate) warning: Option<String>,
    /// With --check: critical above N
    #[arg(short, long, value_name = "N", requires = "check", allow_hyphen_values = true)]
    pub(crate) critical: Option<String>,
}

/// Changes of a lane.
#[derive(Debug, Subcommand)]
pub(crate) enum LaneVerb {
    /// Widen a lane so that waiting calls or inferences can run
    #[command(after_help = "Example: harnessctl lane relieve --by 4 --for 30m")]
    Relieve(RelieveArgs),
    /// Set the width of a lane: `resize 8`, `resize local 8`
    #[command(after_help = "Example: harnessctl lane resize local 8")]
    Resize(ResizeArgs),
    /// Grant no more permits of a lane; calls and inferences that have a permit continue
    #[command(after_help = "Example: harnessctl lane pause")]
    Pause(OneLane),
    /// Grant permits of a paused lane again
    #[command(after_help = "Example: harnessctl lane resume local")]
    Resume(OneLane),
}

/// Arguments of `relieve`.
#[derive(Debug, Args)]
pub(crate) struct RelieveArgs {
    /// The lane; `tool` if left out
    #[arg(value_name = "LANE")]
    pub(crate) lane: Option<String>,
    /// Permits to add; 1 if left out
    #[arg(long, value_name = "N", value_parser = permits, conflicts_with = "undo")]
    pub(crate) by: Option<u32>,
    /// Duration of the relief; without an end if left out
    #[arg(long = "for", value_name = "DURATION", value_parser = some_time, conflicts_with = "undo")]
    pub(crate) during: Option<Span>,
    /// Undo this relief
    #[arg(long, value_name = "ID")]
    pub(crate) undo: Option<String>,
}

/// Arguments of `lane resize`.
#[derive(Debug, Args)]
pub(crate) struct ResizeArgs {
    /// The lane (`tool` if left out) and the width, in any order
    #[arg(value_name = "LANE | N", required_unless_present = "width", num_args = 1..=2)]
    pub(crate) words: Vec<String>,
    /// The width, as an option instead of an argument
    #[arg(long, visible_alias = "to", value_name = "N", value_parser = width)]
    pub(crate) width: Option<u32>,
}

/// One lane, or the tool lane.
#[derive(Debug, Args)]
pub(crate) struct OneLane {
    /// The lane; `tool` if left out
    #[arg(value_name = "LANE")]
    pub(crate) lane: Option<String>,
}
