//! The verbs about runs, as they are typed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use harness_protocol::rpc::{OutputStream, Selector};
use harness_protocol::run::RunState;
use harness_protocol::time::Span;

use super::submit::ThenArgs;
use super::values::{duration, label, lines, runs, state};

/// Which runs, beside those named.
#[derive(Debug, Args, Default)]
pub(crate) struct FilterArgs {
    /// Those with this label; may be repeated, then all must hold
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Those in this state; may be repeated
    #[arg(long = "state", value_name = "STATE", value_parser = state, value_delimiter = ',')]
    pub(crate) states: Vec<RunState>,
    /// Every run
    #[arg(long)]
    pub(crate) all: bool,
}

impl FilterArgs {
    /// The selector, with these runs by name.
    pub(crate) fn selector(&self, runs: &[String]) -> Selector {
        Selector {
            runs: runs.to_vec(),
            labels: self.labels.iter().cloned().collect(),
            states: self.states.clone(),
            all: self.all,
        }
    }
}

/// `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only these
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Children below their parents
    #[arg(long)]
    pub(crate) tree: bool,
    /// Only the tree under this run
    #[arg(long, value_name = "RUN")]
    pub(crate) root: Option<String>,
}

/// `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The run
    pub(crate) run: String,
    /// Print the answer alone
    #[arg(long)]
    pub(crate) answer: bool,
    /// Print where its time and its money went
    #[arg(long, conflicts_with = "answer")]
    pub(crate) why: bool,
}

/// `follow`.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// The run
    pub(crate) run: String,
    /// Write the answer to FILE, too
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// `logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The run
    pub(crate) run: String,
    /// Only the output of this call: the N-th of the run, or its id
    #[arg(long, value_name = "N | ID")]
    pub(crate) call: Option<String>,
    /// Only this stream of the call
    #[arg(long, requires = "call")]
    pub(crate) stream: Option<StreamWord>,
    /// The bytes as they are; standard output where no stream is named
    #[arg(long, requires = "call")]
    pub(crate) raw: bool,
    /// Only the last N lines
    #[arg(long, value_name = "N", value_parser = lines)]
    pub(crate) tail: Option<usize>,
    /// Go on as it grows, until the end
    #[arg(short, long)]
    pub(crate) follow: bool,
}

/// `--stream`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamWord {
    /// Standard output
    Stdout,
    /// Standard error
    Stderr,
}

impl From<StreamWord> for OutputStream {
    fn from(word: StreamWord) -> Self {
        match word {
            StreamWord::Stdout => Self::Stdout,
            StreamWord::Stderr => Self::Stderr,
        }
    }
}

/// `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The runs. Of one, the answer is printed; of several, a line each: ID STATE EXIT TEXT
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    /// Wait for this state in place of an end; may be repeated. Reaching it is success
    #[arg(long = "for", value_name = "STATE", value_parser = state, value_delimiter = ',')]
    pub(crate) states: Vec<RunState>,
    /// Wait at most this long (exit code 8)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Span>,
    /// Write the answer, or the lines, to FILE instead
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// `pause`, `resume`.
#[derive(Debug, Args)]
pub(crate) struct SelectArgs {
    /// The runs
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

/// `cancel`.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Kill at once instead of asking first
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Do not ask on a terminal where it is more than one run
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `prune`. What is given must all hold.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Only those that ended at least this long ago: 12h, 30d
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Option<Span>,
    /// Not the N that ended last, of those that fit
    #[arg(long, value_name = "N", value_parser = runs)]
    pub(crate) keep: Option<u32>,
    /// Do not ask on a terminal where it is more than one run
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Remove nothing, only print which
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The run
    pub(crate) run: String,
    /// The directory to write: a new one, or one that is empty
    #[arg(short, long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// `retry`.
#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    /// The finished run
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) then: ThenArgs,
}

/// `message`.
#[derive(Debug, Args)]
pub(crate) struct MessageArgs {
    /// The run
    pub(crate) run: String,
    /// What to tell it; `-` reads it from standard input
    #[arg(value_name = "TEXT | -")]
    pub(crate) text: String,
    #[command(flatten)]
    pub(crate) then: ThenArgs,
}

/// `reply`.
#[derive(Debug, Args)]
pub(crate) struct ReplyArgs {
    /// The question by its id or the start of it, or the run that waits for the answer
    pub(crate) id: String,
    /// The answer; `-` reads it from standard input
    #[arg(value_name = "TEXT | -")]
    pub(crate) text: String,
}
