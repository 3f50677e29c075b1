//! `cancel`: ends runs, and all runs that they have started.

use harness_protocol::rpc::{CancelParams, method};

use crate::cli::runs::CancelArgs;
use crate::commands::run::change_outcome::{change, confirm_many, tell_or_fail};
use crate::context::Ctx;
use crate::error::Failure;
use crate::select::selector;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &CancelArgs) -> Result<u8, Failure> {
    let params = CancelParams { select: selector(&args.change.select)?, force: args.force };
    confirm_many(ctx, &params.select, args.change.yes, "cancel")?;
    let changed = change::<method::RunCancel>(ctx, &params, &params.select, "cancelling")?;
    tell_or_fail(ctx, &changed, "cancelled")
}
