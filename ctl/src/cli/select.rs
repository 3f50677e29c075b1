//! Defines the arguments that select runs (`RUN…`, `--label`, `--state`, `--all`): the same for every command that
//! takes runs.

use clap::Args;
use harness_protocol::rpc::Selector;
use harness_protocol::run::{RunState, WaitKind};

use super::values::{label, state, waiting};

/// Options that select runs, beside their names.
#[derive(Debug, Args, Default)]
pub(crate) struct FilterArgs {
    /// Only runs with this label; may be repeated: a run must have all of them
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = label, help_heading = "Which runs")]
    pub(crate) labels: Vec<(String, String)>,
    /// Only runs in this state; may be repeated
    #[arg(
        long = "state", value_name = "STATE", value_parser = state, value_delimiter = ',', help_heading = "Which runs"
    )]
    pub(crate) states: Vec<RunState>,
    /// Only runs that wait for this: lane, provider, person, run, budget, paused or storage; may be repeated
    #[arg(long, value_name = "WHAT", value_parser = waiting, value_delimiter = ',', help_heading = "Which runs")]
    pub(crate) waiting_for: Vec<WaitKind>,
    /// Every run, whatever its state
    #[arg(long, help_heading = "Which runs")]
    pub(crate) all: bool,
}

impl FilterArgs {
    /// The selector, with these runs by name.
    pub(crate) fn selector(&self, runs: &[String]) -> Selector {
        Selector {
            runs: runs.to_vec(),
            labels: self.labels.iter().cloned().collect(),
            states: self.states.clone(),
            waiting_for: self.waiting_for.clone(),
            all: self.all,
        }
    }
}

/// The runs of a command. All given criteria must hold.
#[derive(Debug, Args, Default)]
pub(crate) struct SelectArgs {
    /// The runs; `-` reads their ids from standard input: the first word of each line, or `id` of JSON objects
    #[arg(value_name = "RUN | -")]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

/// The runs of a command that changes them.
#[derive(Debug, Args, Default)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Do not ask before more than one run is changed
    #[arg(short, long)]
    pub(crate) yes: bool,
}
