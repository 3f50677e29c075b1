//! `submit`: one run from the command line.

use std::time::{Duration, Instant};

use harness_protocol::rpc::{RpcError, SubmitParams, Submitted};
use harness_protocol::time::Span;

use crate::cli::submit::SubmitArgs;
use crate::client::is_for_now;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::verbs::submit_batch;
use crate::{specify, then};

/// Between two attempts, where the daemon does not say when to come back.
const TRY_AGAIN: Duration = Duration::from_secs(1);

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
            Err(Failure::Refused(error)) if is_for_now(&error) => match pause_before_retry(&error, until) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(Failure::Refused(error)),
            },
            other => return other,
        }
    }
}

/// How long to wait before the next attempt; `None` when there is no more time.
pub(super) fn pause_before_retry(error: &RpcError, until: Option<Instant>) -> Option<Duration> {
    let left = until?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
    Some(error.data.retry_after_seconds.map_or(TRY_AGAIN, Span::to_std).min(left))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use harness_protocol::rpc::ErrorKind;

    #[test]
    fn the_daemon_says_when_to_come_back_and_the_caller_how_long_to_try() {
        let error = RpcError::new(ErrorKind::Busy, "full").retry_after(Span::from_secs(3));
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(pause_before_retry(&error, Some(soon)), Some(Duration::from_secs(3)));
        let sooner = Instant::now() + Duration::from_millis(500);
        assert!(pause_before_retry(&error, Some(sooner)).unwrap() <= Duration::from_millis(500));
        assert_eq!(pause_before_retry(&error, Some(Instant::now())), None);
        assert_eq!(pause_before_retry(&error, None), None);
    }
}
