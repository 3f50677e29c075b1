//! `submit`: submits one run from the command line.

use std::os::fd::AsFd;

use harness_protocol::rpc::{SubmitParams, method};
use harness_protocol::submit_key::SubmitKey;

use crate::cli::submit::SubmitArgs;
use crate::commands::run::key_held::held;
use crate::commands::run::submit_batch;
use crate::context::Ctx;
use crate::error::Failure;
use crate::launch::inside_run::inside;
use crate::progress::after_submit;
use crate::session::submit_once;
use crate::spec;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &SubmitArgs) -> Result<u8, Failure> {
    if let Some(file) = &args.batch {
        return submit_batch::run(ctx, args, file);
    }
    after_submit::check(&args.then)?;
    let idempotency_key = args.idempotency_key.as_deref().map(Into::into);
    let (submit_key, first) = own_key(args)?;
    let (spec, workdir) = spec::run(args)?;
    // No descriptor is taken from a process of a run. Its folder is named by device and inode, as in every submit.
    let is_inside = inside().is_some();
    let params = SubmitParams {
        spec,
        passes_workdir: !is_inside,
        asks_variables: true,
        submit_key: idempotency_key.is_none().then_some(submit_key),
        first: idempotency_key.is_none() && first,
        idempotency_key,
    };
    let passed = (!is_inside).then(|| workdir.as_fd());
    let submitted = submit_once::one_passing::<method::RunSubmit>(&mut ctx.session, params, passed, args.retry_for)
        .map_err(|failure| explain(args, failure))?;
    after_submit::go_on(ctx, &submitted, &args.then, args.quiet)
}

/// The key of this submit, and whether it is sent for the first time.
pub(in crate::commands) fn own_key(args: &SubmitArgs) -> Result<(SubmitKey, bool), Failure> {
    key_of(args.again)
}

/// The key of a request, and whether it is sent for the first time.
pub(in crate::commands) fn key_of(again: Option<SubmitKey>) -> Result<(SubmitKey, bool), Failure> {
    Ok(match again {
        Some(key) => (key, false),
        None => (submit_once::fresh_key()?, true),
    })
}

/// A key belongs to one request.
pub(in crate::commands) fn only_one(again: Option<SubmitKey>) -> Result<(), Failure> {
    let several = again.map(|_| Failure::usage("--again is for one run; name it"));
    several.map_or(Ok(()), Err)
}

fn explain(args: &SubmitArgs, failure: Failure) -> Failure {
    match (&args.idempotency_key, failure) {
        (Some(key), Failure::Refused(error)) => held(key, &error).unwrap_or(Failure::Refused(error)),
        (_, failure) => failure,
    }
}
