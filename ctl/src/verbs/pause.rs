//! `pause`: nothing new starts in these runs.

use harness_protocol::rpc::{SelectParams, method};

use crate::cli::runs::SelectArgs;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::verbs::changed::{selector, tell_or_fail};

pub(super) fn run(ctx: &mut Ctx, args: &SelectArgs) -> Result<u8, Failure> {
    let changed = ctx.session.call::<method::RunPause>(&SelectParams { select: selector(args)? })?;
    tell_or_fail(ctx, &changed, "paused")
}
