//! Arguments of the commands about runs.

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
    /// Children below their parents
    #[arg(long)]
    pub(crate) tree: bool,
    /// Only the tree under this run
    #[arg(long, value_name = "RUN")]
    pub(crate) root: Option<String>,
}

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Print the answer alone
    #[arg(long)]
    pub(crate) answer: bool,
    /// Print where its time and its money went
    #[arg(long, conflicts_with = "answer")]
    pub(crate) why: bool,
}

/// Arguments of `follow`.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Write the answer to FILE, too; of several runs, a line each: ID STATE EXIT TEXT
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
    /// Wait for the first of them that ends, print its line, and exit as it did
    #[arg(long)]
    pub(crate) any: bool,
    /// Wait for this state in place of an end; may be repeated. Reaching it is success
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
    /// Kill at once instead of asking first
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// `prune`. What is given must all hold.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    /// Only those that ended at least this long ago: 12h, 30d
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Option<Span>,
    /// Not the N that ended last, of those that fit
    #[arg(long, value_name = "N", value_parser = runs)]
    pub(crate) keep: Option<u32>,
    /// Remove nothing, only print which
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// The directory to write: a new one, or one that is empty; of several runs, one in it for each, called by its id
    #[arg(short, long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Arguments of `retry`.
#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    /// A label that the new runs have as well, or with another value; may be repeated
    #[arg(long = "add-label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) add_labels: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) settings: ChangesArgs,
    #[command(flatten)]
    pub(crate) once: OnceArgs,
    #[command(flatten)]
    pub(crate) then: ThenArgs,
}

/// How a request is done exactly once.
#[derive(Debug, Args)]
pub(crate) struct OnceArgs {
    /// Repeat a request whose end is not known, under the key that it told then: nothing is done twice
    #[arg(long, value_name = "KEY")]
    pub(crate) again: Option<SubmitKey>,
    /// Try so long again while the daemon refuses for now, or has gone; it is done once, however often it is tried
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) retry_for: Option<Span>,
}

/// Arguments of `message`.
#[derive(Debug, Args)]
pub(crate) struct MessageArgs {
    /// The runs, and what to tell them; `-` as the text reads it from standard input
    #[arg(value_name = "RUN... TEXT | -", required = true)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Do not ask on a terminal where it is more than one run
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
    /// The question by its id or the start of it, or the run that waits for the answer
    pub(crate) id: String,
    /// The answer; `-` reads it from standard input
    #[arg(value_name = "TEXT | -")]
    pub(crate) text: String,
}
