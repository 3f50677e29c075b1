//! Runs the command that the arguments name. Each command has a file: it takes its arguments, sends requests and prints
//! the replies.

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

use crate::cli::{Cli, Verb};
use crate::context::Ctx;
use crate::error::Failure;

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
