//! `prune`: forgets finished runs.

use harness_protocol::rpc::{PruneParams, method};

use crate::cli::runs::PruneArgs;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::output::note;
use crate::render::units::count;
use crate::verbs::changed::{selector, tell, tell_or_fail};

pub(super) fn run(ctx: &mut Ctx, args: &PruneArgs) -> Result<u8, Failure> {
    let params = PruneParams { select: selector(&args.select)?, dry_run: args.dry_run };
    let changed = ctx.session.call::<method::RunPrune>(&params)?;
    if !args.select.runs.is_empty() {
        return tell_or_fail(ctx, &changed, "forgotten");
    }
    // Housekeeping that finds nothing to do has done its work.
    tell(ctx, &changed)?;
    if !ctx.json {
        let verb = if args.dry_run { "would be forgotten" } else { "forgotten" };
        note(ctx.notes.dim(format_args!("{} {verb}", count(changed.runs.len(), "run"))));
    }
    ctx.done()
}
