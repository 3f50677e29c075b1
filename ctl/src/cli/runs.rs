//! Defines the arguments of the commands about existing runs, such as `list`, `show`, `wait` and `logs`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use harness_protocol::rpc::OutputStream;
use harness_protocol::run::RunState;
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Span;

use super::select::{ChangeArgs, FilterArgs, SelectArgs};
use super::submit::{ChangesArgs, ThenArgs};
use super::values::{duration, label, lines, runs, state};

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Show children below their parents
    #[arg(long)]
    pub(crate) tree: bool,
    /// Only the tree below this run
    #[arg(long, value_name = "RUN")]
    pub(crate) root: Option<String>,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Print only the answer
    #[arg(long)]
    pub(crate) answer: bool,
    /// Print how the time and the money of a run were used
    #[arg(long, conflicts_with = "answer")]
    pub(crate) why: bool,
}

/// Arguments of `follow`.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Also write the answer to FILE; with several runs, a line for each: ID STATE EXIT TEXT
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Only the output of this call: the N-th of the run, or its id
    #[arg(long, value_name = "N | ID")]
    pub(crate) call: Option<String>,
    /// Only this stream of the call
    #[arg(long, requires = "call")]
    pub(crate) stream: Option<StreamWord>,
    /// Print the bytes unchanged; those of standard output if no stream is named
    #[arg(long, requires = "call")]
    pub(crate) raw: bool,
    /// Only the last N lines
    #[arg(long, value_name = "N", value_parser = lines)]
    pub(crate) tail: Option<usize>,
    /// Follow the output until it ends
    #[arg(short, long)]
    pub(crate) follow: bool,
}

/// Values of `--stream`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamWord {
    /// Standard output of the call
    Stdout,
    /// Standard error of the call
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

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Wait for the first run that ends, print its line, and exit with its exit code
    #[arg(long)]
    pub(crate) any: bool,
    /// Wait for this state instead of the end; may be repeated. Reaching the state is success
    #[arg(id = "reached", long = "for", value_name = "STATE", value_parser = state, value_delimiter = ',')]
    pub(crate) reached: Vec<RunState>,
    /// Wait at most this long (exit code 8)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Span>,
    /// Write the answer, or the lines, to FILE instead
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Arguments of `cancel`.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    /// Kill at once, without SIGTERM and a grace period
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Arguments of `prune`. All given criteria must hold.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    /// Only runs that ended at least this long ago: 12h, 30d
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Option<Span>,
    /// Keep those N of the selected runs that ended last
    #[arg(long, value_name = "N", value_parser = runs)]
    pub(crate) keep: Option<u32>,
    /// Remove nothing, only print the runs
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// The directory to write: new or empty; with several runs, it gets a directory for each run, named by its id
    #[arg(short, long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Arguments of `retry`.
#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    /// Also runs that other runs have submitted: the new runs are yours, and belong to no tree
    #[arg(long, help_heading = "Which runs")]
    pub(crate) children: bool,
    /// A label to add to the new runs, or to change in them; may be repeated
    #[arg(long = "add-label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) add_labels: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) settings: ChangesArgs,
    #[command(flatten)]
    pub(crate) once: OnceArgs,
    #[command(flatten)]
    pub(crate) then: ThenArgs,
}

/// Options for a request that must take effect exactly once.
#[derive(Debug, Args)]
pub(crate) struct OnceArgs {
    /// Repeat a request with an unknown outcome, under the key that it printed: it never takes effect twice
    #[arg(long, value_name = "KEY")]
    pub(crate) again: Option<SubmitKey>,
    /// Retry for this long while the daemon refuses for now, or is gone; the request takes effect once
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) retry_for: Option<Span>,
}

/// Arguments of `message`.
#[derive(Debug, Args)]
pub(crate) struct MessageArgs {
    /// The runs, and the text of the message; `-` as the text reads it from standard input
    #[arg(value_name = "RUN... TEXT | -", required = true)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Do not ask before more than one run is changed
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) once: OnceArgs,
    #[command(flatten)]
    pub(crate) then: ThenArgs,
}

/// Arguments of `pending`.
#[derive(Debug, Args)]
pub(crate) struct PendingArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
}

/// Arguments of `reply`.
#[derive(Debug, Args)]
pub(crate) struct ReplyArgs {
    /// The question or the approval, by its id or the start of its id; or the run that waits for it
    pub(crate) id: String,
    /// The answer, or the reason of a refusal; `-` reads it from standard input
    #[arg(value_name = "TEXT | -", required_unless_present_any = ["allow", "deny"])]
    pub(crate) text: Option<String>,
    /// Let the call begin that waits for an approval
    #[arg(long, conflicts_with = "deny")]
    pub(crate) allow: bool,
    /// Refuse what is asked; the model reads the reason
    #[arg(long)]
    pub(crate) deny: bool,
}
