//! `submit`: one run from the command line.

use std::os::fd::AsFd;

use harness_protocol::rpc::{SubmitParams, method};
use harness_protocol::submit_key::SubmitKey;

use crate::cli::submit::SubmitArgs;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::verbs::key_held::held;
use crate::verbs::submit_batch;
use crate::{specify, submitting, then};

pub(super) fn run(ctx: &mut Ctx, args: &SubmitArgs) -> Result<u8, Failure> {
    if let Some(file) = &args.batch {
        return submit_batch::run(ctx, args, file);
    }
    then::check(&args.then)?;
    let idempotency_key = args.idempotency_key.as_deref().map(Into::into);
    let (submit_key, first) = own_key(args)?;
    let (spec, workdir) = specify::run(args)?;
    let params = SubmitParams {
        spec,
        passes_workdir: true,
        asks_variables: true,
        submit_key: idempotency_key.is_none().then_some(submit_key),
        first: idempotency_key.is_none() && first,
        idempotency_key,
    };
    let passed = Some(workdir.as_fd());
    let submitted = submitting::one_passing::<method::RunSubmit>(&mut ctx.session, params, passed, args.retry_for)
        .map_err(|failure| explain(args, failure))?;
    then::go_on(ctx, &submitted, &args.then, args.quiet)
}

/// The key of this submit, and whether it is sent for the first time.
pub(super) fn own_key(args: &SubmitArgs) -> Result<(SubmitKey, bool), Failure> {
    key_of(args.again)
}

/// The key of a request, and whether it is sent for the first time.
pub(super) fn key_of(again: Option<SubmitKey>) -> Result<(SubmitKey, bool), Failure> {
    Ok(match again {
        Some(key) => (key, false),
        None => (submitting::fresh_key()?, true),
    })
}

/// A key is of one request.
pub(super) fn only_one(again: Option<SubmitKey>) -> Result<(), Failure> {
    let several = again.map(|_| Failure::usage("--again is for one run; name it"));
    several.map_or(Ok(()), Err)
}

fn explain(args: &SubmitArgs, failure: Failure) -> Failure {
    match (&args.idempotency_key, failure) {
        (Some(key), Failure::Refused(error)) => held(key, &error).unwrap_or(Failure::Refused(error)),
        (_, failure) => failure,
    }
}
