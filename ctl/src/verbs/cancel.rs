//! `cancel`: ends runs and what is below them.

use harness_protocol::rpc::{CancelParams, method};

use crate::cli::runs::CancelArgs;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::selecting::selector;
use crate::verbs::changed::{change, confirm_many, tell_or_fail};

pub(super) fn run(ctx: &mut Ctx, args: &CancelArgs) -> Result<u8, Failure> {
    let params = CancelParams { select: selector(&args.change.select)?, force: args.force };
    confirm_many(ctx, &params.select, args.change.yes, "cancel")?;
    let changed = change::<method::RunCancel>(ctx, &params, &params.select, "cancelling")?;
    tell_or_fail(ctx, &changed, "cancelled")
}
