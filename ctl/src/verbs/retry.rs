//! `retry`: a finished run's specification, as a new run.

use harness_protocol::rpc::{RetryParams, method};

use crate::cli::runs::RetryArgs;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::then;

pub(super) fn run(ctx: &mut Ctx, args: &RetryArgs) -> Result<u8, Failure> {
    then::check(&args.then)?;
    let submitted = ctx.session.call::<method::RunRetry>(&RetryParams { run: args.run.clone() })?;
    then::go_on(ctx, &submitted, &args.then, false)
}
