//! The verbs, a file each: what was typed in, requests out, what came back shown.

mod cancel;
mod changed;
mod completions;
mod daemon;
mod doctor;
mod each;
mod events;
mod export;
mod export_script;
mod follow;
mod key_held;
mod lane;
mod lane_change;
pub(crate) mod lane_check;
mod lane_named;
mod list;
mod logs;
mod logs_call;
mod message;
mod pages;
mod pause;
mod pending;
mod provider;
mod prune;
mod reply;
mod resume;
mod retry;
mod schema;
mod show;
mod submit;
mod submit_batch;
mod usage;
mod wait;

use crate::cli::{Cli, Verb};
use crate::ctx::Ctx;
use crate::exit::Failure;

/// Does what was typed, and gives the exit code.
pub(crate) fn run(cli: Cli) -> Result<u8, Failure> {
    let mut ctx = Ctx::new(&cli.global)?;
    let ctx = &mut ctx;
    match cli.verb {
        Verb::Submit(args) => submit::run(ctx, &args),
        Verb::List(args) => list::run(ctx, &args),
        Verb::Show(args) => show::run(ctx, &args),
        Verb::Follow(args) => follow::run(ctx, &args),
        Verb::Logs(args) => logs::run(ctx, &args),
        Verb::Wait(args) => wait::run(ctx, &args),
        Verb::Cancel(args) => cancel::run(ctx, &args),
        Verb::Pause(args) => pause::run(ctx, &args),
        Verb::Resume(args) => resume::run(ctx, &args),
        Verb::Retry(args) => retry::run(ctx, &args),
        Verb::Message(args) => message::run(ctx, &args),
        Verb::Prune(args) => prune::run(ctx, &args),
        Verb::Export(args) => export::run(ctx, &args),
        Verb::Pending(args) => pending::run(ctx, &args),
        Verb::Reply(args) => reply::run(ctx, &args),
        Verb::Lane(args) => lane::run(ctx, &args),
        Verb::Relieve(args) => lane_change::relieve(ctx, &args),
        Verb::Provider(args) => provider::run(ctx, &args),
        Verb::Doctor(args) => doctor::run(ctx, &args),
        Verb::Usage(args) => usage::run(ctx, &args),
        Verb::Events(args) => events::run(ctx, &args),
        Verb::Daemon(args) => daemon::run(ctx, &args.what),
        Verb::Schema(args) => schema::run(ctx, &args),
        Verb::Completions { shell } => completions::run(ctx, shell),
    }
}
