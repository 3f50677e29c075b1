//! `pause`: pauses runs. A paused run starts no inference and no call; what it has started already goes on to its end.

use harness_protocol::rpc::{SelectParams, method};

use crate::cli::select::ChangeArgs;
use crate::commands::run::change_outcome::{change, confirm_many, tell_or_fail};
use crate::context::Ctx;
use crate::error::Failure;
use crate::select::selector;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &ChangeArgs) -> Result<u8, Failure> {
    let params = SelectParams { select: selector(&args.select)? };
    confirm_many(ctx, &params.select, args.yes, "pause")?;
    let changed = change::<method::RunPause>(ctx, &params, &params.select, "pausing")?;
    tell_or_fail(ctx, &changed, "paused")
}
