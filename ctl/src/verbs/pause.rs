//! `pause`: nothing new starts in these runs.

use harness_protocol::rpc::{SelectParams, method};

use crate::cli::runs::SelectArgs;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::verbs::changed::{change, selector, tell_or_fail};

pub(super) fn run(ctx: &mut Ctx, args: &SelectArgs) -> Result<u8, Failure> {
    let params = SelectParams { select: selector(args)? };
    let changed = change::<method::RunPause>(ctx, &params, &params.select, "pausing")?;
    tell_or_fail(ctx, &changed, "paused")
}
