//! Defines the arguments of `submit`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use harness_protocol::limit::CallLimit;
use harness_protocol::spec::{OnInteraction, Priority};
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Span;

use super::values::{Deadline, call_limit, deadline, duration, label, some_time, steps, tokens, usd};

const EXAMPLES: &str = "\
Examples:
  harnessctl submit \"summarise the failures in ./log\"             queue it, and print the id
  harnessctl submit --wait \"name the capital of France\"           print only the answer
  git diff | harnessctl submit - --follow                          the prompt from standard input
  harnessctl submit --script demo.toml --follow                    turns from a file: no key, no network
  harnessctl submit -C ~/src/app --name nightly -l team=a --max-time 30m \"run the tests\"
  harnessctl submit --batch runs.jsonl --wait                      one run for each line: {\"prompt\":\"…\"}";

/// Arguments of `submit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SubmitArgs {
    /// The task; `-` reads it from standard input
    #[arg(value_name = "PROMPT | -")]
    pub(crate) prompt: Option<String>,
    /// Print only the id
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) then: ThenArgs,
    /// Directory in which its calls start; the current directory if left out. Refused if the path means another folder
    /// to the daemon, as from inside a container
    #[arg(short = 'C', long = "workdir", value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    /// Turns for the scripted provider, in TOML (`-`: standard input); no prompt is needed with it
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// Submit one run for each line of FILE (`-`: standard input). A line is a JSON object with the fields of a run
    /// specification, and perhaps `script_file`; the other options are defaults for every line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "follow"])]
    pub(crate) batch: Option<PathBuf>,
    /// Make the submit repeatable: the same key gives the same run
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// Repeat a submit with an unknown outcome, under the key that it printed: a run that was queued is found, and no
    /// run is queued twice
    #[arg(long, value_name = "KEY", conflicts_with = "idempotency_key")]
    pub(crate) again: Option<SubmitKey>,
    /// A label; may be repeated
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) settings: ChangesArgs,
    /// Retry for this long while the daemon refuses for now, or is gone; the run is queued once
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) retry_for: Option<Span>,
}

/// Settings of a run beside its task: a submit sets them, and a retry changes them.
#[derive(Debug, Args, Default)]
pub(crate) struct ChangesArgs {
    /// A name, unique among live runs
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The share of the lanes' capacity that it uses
    #[arg(long)]
    pub(crate) share: Option<String>,
    /// The provider, by its name in the configuration
    #[arg(short, long)]
    pub(crate) provider: Option<String>,
    /// The model, as its provider names it
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// An environment variable for its calls: KEY=VALUE, or KEY for its value here; may be repeated. From this
    /// environment calls get only these, PATH, and the variables of [tool.shell] pass in the configuration (git and ssh
    /// often need --env SSH_AUTH_SOCK); from the daemon's: HOME, USER, LOGNAME, SHELL, LANG, LC_*, TZ, TMPDIR
    #[arg(long, value_name = "KEY[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// A file with such variables, one on each line
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Vec<PathBuf>,
    /// End it after this number of inferences
    #[arg(long, value_name = "N", value_parser = steps)]
    pub(crate) max_steps: Option<u32>,
    /// End it after this number of tokens
    #[arg(long, value_name = "N", value_parser = tokens)]
    pub(crate) max_tokens: Option<u64>,
    /// End it before it costs more than this, in USD; refused if no price is configured
    #[arg(long, value_name = "USD", value_parser = usd)]
    pub(crate) max_cost: Option<f64>,
    /// End it after this time in inference and execution: 90, 1.5s, 10m, 2h
    #[arg(long, value_name = "DURATION", value_parser = some_time)]
    pub(crate) max_time: Option<Span>,
    /// End it this long after the submit, or at an instant (RFC 3339)
    #[arg(long, value_name = "DURATION | TIME", value_parser = deadline)]
    pub(crate) deadline: Option<Deadline>,
    /// Limits of the processes of its calls: cpu_seconds, address_space_bytes, open_files, file_size_bytes, processes;
    /// bytes may be written as 64MiB; may be repeated
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = call_limit)]
    pub(crate) limits: Vec<(CallLimit, u64)>,
    /// Precedence within a lane
    #[arg(long)]
    pub(crate) priority: Option<PriorityWord>,
    /// What happens when it asks a person a question; without a terminal `fail`, else `wait`
    #[arg(long, value_name = "WHAT")]
    pub(crate) on_interaction: Option<OnInteractionWord>,
}

/// The steps after a submit.
#[derive(Debug, Args, Default)]
pub(crate) struct ThenArgs {
    /// Follow it until it ends, and exit with its exit code
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Wait until it ends, print only the answer, and exit with its exit code
    #[arg(short, long)]
    pub(crate) wait: bool,
    /// Wait, and write the answer to FILE instead; with a batch, the lines
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Values of `--priority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PriorityWord {
    /// Before normal and low
    High,
    /// Between high and low
    Normal,
    /// After high and normal
    Low,
}

impl From<PriorityWord> for Priority {
    fn from(word: PriorityWord) -> Self {
        match word {
            PriorityWord::High => Self::High,
            PriorityWord::Normal => Self::Normal,
            PriorityWord::Low => Self::Low,
        }
    }
}

/// Values of `--on-interaction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnInteractionWord {
    /// The run waits, without a time limit
    Wait,
    /// The question is refused, and the run continues
    Deny,
    /// The run fails with exit code 3
    Fail,
}

impl From<OnInteractionWord> for OnInteraction {
    fn from(word: OnInteractionWord) -> Self {
        match word {
            OnInteractionWord::Wait => Self::Wait,
            OnInteractionWord::Deny => Self::Deny,
            OnInteractionWord::Fail => Self::Fail,
        }
    }
}
