//! `prune`: removes finished runs, with their transcripts and outputs, for good.

use std::time::{Duration, Instant};

use harness_protocol::rpc::{Changed, PruneParams, method};

use crate::cli::runs::PruneArgs;
use crate::client::ClientError;
use crate::commands::run::change_outcome::tell;
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::{Progress, note};
use crate::render::units::{count, span};
use crate::select::confirm;
use crate::select::typed;

/// Time between two updates of the progress line.
const SECOND: Duration = Duration::from_secs(1);
/// Number of runs that the daemon removes with one request; it may be twice as many. Then the request is repeated.
const MANY: usize = 100_000;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &PruneArgs) -> Result<u8, Failure> {
    let select = typed(&args.change.select)?;
    if !select.waiting_for.is_empty() {
        return Err(Failure::usage("only finished runs are removed, and they wait for nothing"));
    }
    let names_some = !select.runs.is_empty();
    if select == harness_protocol::rpc::Selector::default() && args.older_than.is_none() && args.keep.is_none() {
        return Err(Failure::usage_hint(
            "nothing says which runs",
            "name runs, or select them: --older-than DURATION, --keep N, -l KEY=VALUE, --state STATE, --all",
        ));
    }
    let params = PruneParams { select, older_than_seconds: args.older_than, keep: args.keep, dry_run: args.dry_run };
    if !args.change.yes && !args.dry_run && confirm::is_attended() {
        let found = prune(ctx, &PruneParams { dry_run: true, ..params.clone() })?.runs.len();
        confirm::more_than_one(found, args.change.yes, &format!("remove {found} runs for good?"))?;
    }
    let changed = prune(ctx, &params)?;
    let what = if args.dry_run { "found" } else { "removed for good" };
    if names_some && changed.runs.is_empty() {
        let whys: Vec<String> =
            changed.unchanged.iter().map(|one| format!("run {}: {}", one.run, one.words())).collect();
        let why = if whys.is_empty() { "no run matches".to_owned() } else { whys.join("; ") };
        return Err(Failure::nothing_applied(format!("nothing was {what}: {why}")));
    }
    tell(ctx, &changed, what)?;
    // A clean-up that finds nothing to do has succeeded.
    if !ctx.json && !names_some {
        let what = if args.dry_run { "would be removed for good" } else { what };
        note(ctx.notes.dim(format_args!("{} {what}", count(changed.runs.len(), "run"))));
    }
    ctx.done()
}

/// Repeats the request until no run is left that meets the criteria.
fn prune(ctx: &mut Ctx, params: &PruneParams) -> Result<Changed, Failure> {
    let mut progress = Progress::new();
    let begun = Instant::now();
    let mut all = Changed::default();
    loop {
        let client = ctx.session.client()?;
        let ticket = client.send::<method::RunPrune>(params)?;
        let mut changed: Changed = loop {
            match client.reply(ticket, Some(SECOND)) {
                // A disk may take any time.
                Err(ClientError::Silent { .. }) => {
                    let told = if all.runs.is_empty() { String::new() } else { format!(" {} so far,", all.runs.len()) };
                    progress.show(format_args!("removing runs:{told} {}", span(begun.elapsed().into())));
                }
                reply => break reply?,
            }
        };
        let more = changed.runs.len() >= MANY && !params.dry_run;
        all.runs.append(&mut changed.runs);
        all.unchanged = changed.unchanged;
        if !more {
            return Ok(all);
        }
    }
}
