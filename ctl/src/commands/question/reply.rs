//! `reply`: answers a question of a run.

use harness_protocol::rpc::{AnswerParams, method};

use crate::cli::runs::ReplyArgs;
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::note;
use crate::spec;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &ReplyArgs) -> Result<u8, Failure> {
    // An empty answer is allowed. Text from a pipe ends with a line break that is no part of the answer.
    let answer = match args.text.as_str() {
        "-" => spec::stdin::read("the answer")?.trim_end_matches('\n').into(),
        text => text.into(),
    };
    let params = AnswerParams { interaction: args.id.clone(), answer };
    let answered = ctx
        .session
        .call::<method::InteractionAnswer>(&params)
        .map_err(|failure| failure.look_in("`harnessctl pending` lists the open ones"))?;
    if ctx.json {
        ctx.json(&answered)?;
    } else {
        note(ctx.notes.dim(format_args!("answered; run {} goes on", answered.run)));
    }
    ctx.done()
}
