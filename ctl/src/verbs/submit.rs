//! `submit`: one run from the command line.

use std::time::Instant;

use harness_protocol::rpc::{SubmitParams, Submitted};
use harness_protocol::time::Span;

use crate::cli::submit::SubmitArgs;
use crate::client::is_for_now;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::verbs::key_held::held;
use crate::verbs::submit_batch;
use crate::verbs::try_again::pause_before_retry;
use crate::{specify, then};

pub(super) fn run(ctx: &mut Ctx, args: &SubmitArgs) -> Result<u8, Failure> {
    if let Some(file) = &args.batch {
        return submit_batch::run(ctx, args, file);
    }
    then::check(&args.then)?;
    let params =
        SubmitParams { spec: specify::run(args)?, idempotency_key: args.idempotency_key.as_deref().map(Into::into) };
    let submitted = submit(ctx, &params, args.retry_for)?;
    then::go_on(ctx, &submitted, &args.then, args.quiet)
}

fn submit(ctx: &mut Ctx, params: &SubmitParams, retry_for: Option<Span>) -> Result<Submitted, Failure> {
    let until = retry_for.map(|span| Instant::now() + span.to_std());
    loop {
        match ctx.session.submit(params) {
            // Refused by one that leaves: another may come.
            Err(failure) if until.is_some() && failure.is_stopping() => ctx.session.recover(&failure)?,
            Err(Failure::Refused(error)) if is_for_now(&error) => match pause_before_retry(&error, until) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(Failure::Refused(error)),
            },
            Err(Failure::Refused(error)) => {
                let held = params.idempotency_key.as_deref().and_then(|key| held(key, &error));
                return Err(held.unwrap_or(Failure::Refused(error)));
            }
            other => return other,
        }
    }
}
