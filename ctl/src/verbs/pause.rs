//! `pause`: nothing new starts in these runs.

use harness_protocol::rpc::{SelectParams, method};

use crate::cli::select::ChangeArgs;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::selecting::selector;
use crate::verbs::changed::{change, confirm_many, tell_or_fail};

pub(super) fn run(ctx: &mut Ctx, args: &ChangeArgs) -> Result<u8, Failure> {
    let params = SelectParams { select: selector(&args.select)? };
    confirm_many(ctx, &params.select, args.yes, "pause")?;
    let changed = change::<method::RunPause>(ctx, &params, &params.select, "pausing")?;
    tell_or_fail(ctx, &changed, "paused")
}
