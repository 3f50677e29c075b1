//! `follow`: a run as it goes, until it ends.

use harness_protocol::id::Seq;
use harness_protocol::rpc::method;

use crate::cli::runs::FollowArgs;
use crate::ctx::Ctx;
use crate::ending::check_output;
use crate::exit::Failure;
use crate::waiting::show_params;
use crate::watching::{Watched, watch};

pub(super) fn run(ctx: &mut Ctx, args: &FollowArgs) -> Result<u8, Failure> {
    args.output.as_deref().map_or(Ok(()), check_output)?;
    let run = ctx.session.call::<method::RunShow>(&show_params(&args.run))?.run.id.to_string();
    let watched = Watched { run, after: Seq(0), notes: true, prompts: false, output: args.output.as_deref() };
    watch(ctx, &watched)
}
