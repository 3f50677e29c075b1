//! Defines the commands of `harnessctl` with their help, and runs the one that was typed. Each has a file: it takes its
//! arguments, sends requests and prints the replies. Arguments that several commands share are in `cli/`.

mod completions;
mod daemon;
mod doctor;
mod events;
pub(crate) mod lane;
mod provider;
mod question;
mod run;
mod schema;
pub(crate) mod stop_daemon;
mod usage;

#[cfg(test)]
mod tests;

use clap::{Parser, Subcommand};

use crate::cli::{Global, lane as lane_args, provider as provider_args, runs, select, submit, usage as usage_args};
use crate::context::Ctx;
use crate::error::Failure;

const EXIT_CODES: &str = "\
Exit codes:
  0  succeeded (of several: all)           8    still running: the wait's time is up
  1  the run failed (of several: any)      9    a budget ended it
  2  usage or configuration error          70   internal error (bug)
  3  asks, and no person may answer        75   refused for now: try later
  4  the provider refused the credentials  124  its own time limit ended it
  5  cancelled                             130  detached with Ctrl-C, the run goes on
  6  no such run, or no longer applies
  7  the daemon cannot be reached

With several runs, the exit code is the worst of theirs: 8 before 70, 4, 1, 9, 124, 3, 6, 5 and 0.

A RUN is an id, the start of an id, a name, or @last (your latest run); - reads ids from standard input.
Options select runs as well: -l KEY=VALUE, --state STATE, --waiting-for lane, --all.";

const LANES: &str = "\
Example: harnessctl lane tool --watch

  permits   permits in use; width is the number of permits in all
  wanted    permits that runs wait for: harnessctl list --waiting-for lane (resuming: of runs that had one before)
  busy      runs that hold a permit
  parked    runs that wait for a person or another run, without a permit
  limiter   the reason why the next permit is not granted
A run in the state `queued` waits for its first inference, in the lane of its provider.";

const WAITED: &str = "\
Examples:
  harnessctl wait nightly                             print only its answer
  harnessctl wait A B C                               print a line for each run as it ends: ID STATE EXIT TEXT
  harnessctl wait --any A B C                         print the line of the first run that ends
  harnessctl wait -l team=a --timeout 10m             all runs that match now, also ended ones
  harnessctl submit --batch runs.jsonl | harnessctl wait -

If exactly one run is named, its answer is printed; otherwise a line for each run. --all alone means every live run.
A question of a run, or of a run below it, is printed on standard error, with the command that answers it.";

const FOLLOWED: &str = "\
Example: harnessctl follow nightly

With several runs, each line begins with the name of its run, or the start of its id. --all alone means every live run.
If standard input and standard error are a terminal, a question of a run, or of a run below it, is asked there, and
one line is read as its answer. Ctrl-D leaves the question open and continues; Ctrl-C leaves it open and detaches.
harnessctl reply answers it later.";

const RETRIED: &str = "\
Examples:
  harnessctl retry --follow @last
  harnessctl retry -l job=nightly --state failed --model big --max-cost 2 --max-steps 800

A setting that is given replaces the setting of the run; labels and variables are added.
Selected runs, without --state, are those that failed. Runs that were retried already are left out, and so are runs
below a run that is retried.";

const EXPORTED: &str = "\
Example: harnessctl export nightly --dir /tmp/nightly

The directory is made if it is missing, or else must be empty. It gets:
  run.json                the run as `show --json` prints it, without its transcript
  events.jsonl            its events, one on each line
  transcript.jsonl        its transcript, one entry on each line
  script.toml             its model's answers, as a script: harnessctl submit --script DIR/script.toml
  outputs/CALL.stdout     the output of its calls, as bytes; likewise CALL.stderr
The directory gets its name when it is complete. For variables of the environment it has the names and no values.";

/// Submit agent runs, follow them, answer them, and watch the lanes fill up.
#[derive(Debug, Parser)]
#[command(name = "harnessctl", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
#[command(arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The commands of `harnessctl`, each with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Queue a run, and print its id
    Submit(Box<submit::SubmitArgs>),
    /// List runs: all live runs, and the latest finished ones
    #[command(visible_alias = "ls", after_help = "Example: harnessctl list -l team=a --waiting-for lane,provider")]
    List(runs::ListArgs),
    /// Show a run, or several
    #[command(after_help = "Example: harnessctl show --answer @last")]
    Show(runs::ShowArgs),
    /// Follow runs until they end, and exit with their exit code. On a terminal, their questions are asked and answered
    #[command(after_help = FOLLOWED)]
    Follow(runs::FollowArgs),
    /// Print the transcripts of runs, or the output of one call
    #[command(after_help = "Example: harnessctl logs @last --call 1 --stream stderr --tail 20")]
    Logs(runs::LogsArgs),
    /// Wait for runs, and print the result of each as soon as it ends
    #[command(after_help = WAITED)]
    Wait(runs::WaitArgs),
    /// End runs and the runs below them
    #[command(after_help = "Example: harnessctl cancel -l team=a --waiting-for lane")]
    Cancel(runs::CancelArgs),
    /// Pause runs: nothing new starts in them
    #[command(after_help = "Example: harnessctl pause nightly")]
    Pause(select::ChangeArgs),
    /// Let paused runs continue
    #[command(after_help = "Example: harnessctl resume --state paused")]
    Resume(select::ChangeArgs),
    /// Submit the specifications of finished runs again, as new runs
    #[command(after_help = RETRIED)]
    Retry(Box<runs::RetryArgs>),
    /// Send a message to runs; a finished run continues as a new run
    #[command(after_help = "Example: harnessctl message nightly \"leave the tests alone\"")]
    Message(runs::MessageArgs),
    /// Remove finished runs for good: their events, transcripts and outputs. A live run is never removed
    #[command(after_help = "Example: harnessctl prune --older-than 30d --keep 1000 --dry-run")]
    Prune(runs::PruneArgs),
    /// Write all data of a run into a directory, complete enough for a replay; with several runs, a directory each
    #[command(after_help = EXPORTED)]
    Export(runs::ExportArgs),
    /// List the questions and approvals that wait for a person
    #[command(after_help = "Example: harnessctl pending -l team=a")]
    Pending(runs::PendingArgs),
    /// Answer a question, or decide about an approval; the first answer wins
    #[command(after_help = "Examples: harnessctl reply nightly yes, harnessctl reply nightly --deny 'not on Fridays'")]
    Reply(runs::ReplyArgs),
    /// Show the lanes, or change a lane
    #[command(after_help = LANES)]
    Lane(lane_args::LaneArgs),
    /// Widen a lane so that waiting calls or inferences can run
    #[command(after_help = "Example: harnessctl relieve --by 4 --for 30m")]
    Relieve(lane_args::RelieveArgs),
    /// List the providers, or check a provider
    #[command(after_help = "Example: harnessctl provider check local")]
    Provider(provider_args::ProviderArgs),
    /// Check the daemon, its lanes, and each provider, with a short request
    #[command(after_help = "Example: harnessctl doctor")]
    Doctor(provider_args::DoctorArgs),
    /// Add up the tokens and the cost of runs, in groups
    #[command(after_help = "Example: harnessctl usage --by label.team --since 30d")]
    Usage(usage_args::UsageArgs),
    /// Print events, one JSON object on each line
    #[command(after_help = "Example: harnessctl events -f --after 0 --kind run-finished")]
    Events(events::EventsArgs),
    /// Start, stop, inspect or back up the daemon
    #[command(after_help = "Example: harnessctl daemon status")]
    Daemon(daemon::DaemonArgs),
    /// Print the JSON Schema of the control protocol, or of one method
    #[command(after_help = "Example: harnessctl schema run.submit")]
    Schema(schema::SchemaArgs),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example: harnessctl completions bash > ~/.local/share/bash-completion/completions/harnessctl"
    )]
    Completions {
        /// The shell that the script is for
        shell: clap_complete::Shell,
    },
}

/// Executes the command, and gives the exit code.
pub(crate) fn run(cli: Cli) -> Result<u8, Failure> {
    let mut ctx = Ctx::new(&cli.global)?;
    let ctx = &mut ctx;
    match cli.verb {
        Verb::Submit(args) => run::submit::run(ctx, &args),
        Verb::List(args) => run::list::run(ctx, &args),
        Verb::Show(args) => run::show::run(ctx, &args),
        Verb::Follow(args) => run::follow::run(ctx, &args),
        Verb::Logs(args) => run::logs::run(ctx, &args),
        Verb::Wait(args) => run::wait::run(ctx, &args),
        Verb::Cancel(args) => run::cancel::run(ctx, &args),
        Verb::Pause(args) => run::pause::run(ctx, &args),
        Verb::Resume(args) => run::resume::run(ctx, &args),
        Verb::Retry(args) => run::retry::run(ctx, &args),
        Verb::Message(args) => run::message::run(ctx, &args),
        Verb::Prune(args) => run::prune::run(ctx, &args),
        Verb::Export(args) => run::export::run(ctx, &args),
        Verb::Pending(args) => question::pending::run(ctx, &args),
        Verb::Reply(args) => question::reply::run(ctx, &args),
        Verb::Lane(args) => lane::run(ctx, &args),
        Verb::Relieve(args) => lane::change::relieve(ctx, &args),
        Verb::Provider(args) => provider::run(ctx, &args),
        Verb::Doctor(args) => doctor::run(ctx, &args),
        Verb::Usage(args) => usage::run(ctx, &args),
        Verb::Events(args) => events::run(ctx, &args),
        Verb::Daemon(args) => daemon::run(ctx, &args.what),
        Verb::Schema(args) => schema::run(ctx, &args),
        Verb::Completions { shell } => completions::run(ctx, shell),
    }
}
