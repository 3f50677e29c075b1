//! `follow`: prints the output of runs while they execute, until they end.

use harness_protocol::id::Seq;

use crate::cli::runs::FollowArgs;
use crate::context::Ctx;
use crate::error::Failure;
use crate::progress::end_of_run::check_output;
use crate::progress::follow_one::{Watched, watch, watch_several};
use crate::select::choose;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &FollowArgs) -> Result<u8, Failure> {
    args.output.as_deref().map_or(Ok(()), check_output)?;
    let chosen = choose(ctx, &args.select)?;
    let output = args.output.as_deref();
    let watched = Watched { after: Seq(0), notes: true, prompts: false, answers: true, output };
    match chosen.runs.as_slice() {
        [run] if chosen.is_one => watch(ctx, run.id, &watched),
        runs => watch_several(ctx, runs, &watched),
    }
}
