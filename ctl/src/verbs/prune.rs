//! `prune`: forgets finished runs.

use harness_protocol::rpc::{PruneParams, method};

use crate::cli::runs::PruneArgs;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::output::note;
use crate::render::units::count;
use crate::verbs::changed::{selector, tell, tell_or_fail};

pub(super) fn run(ctx: &mut Ctx, args: &PruneArgs) -> Result<u8, Failure> {
    let params = PruneParams { select: selector(&args.select)?, dry_run: args.dry_run, ..PruneParams::default() };
    let changed = ctx.session.call::<method::RunPrune>(&params)?;
    let what = if args.dry_run { "found" } else { "forgotten" };
    if !args.select.runs.is_empty() {
        return tell_or_fail(ctx, &changed, what);
    }
    // Housekeeping that finds nothing to do has done its work.
    tell(ctx, &changed, what)?;
    if !ctx.json {
        let what = if args.dry_run { "would be forgotten" } else { what };
        note(ctx.notes.dim(format_args!("{} {what}", count(changed.runs.len(), "run"))));
    }
    ctx.done()
}
