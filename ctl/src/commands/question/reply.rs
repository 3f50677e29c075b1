//! `reply`: answers a question of a run, or decides about an approval.

use harness_protocol::interaction::Resolution;
use harness_protocol::rpc::{AnswerParams, method};

use crate::cli::runs::ReplyArgs;
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::note;
use crate::spec;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &ReplyArgs) -> Result<u8, Failure> {
    // An empty answer is allowed. Text from a pipe ends with a line break that is no part of the answer.
    let answer = match args.text.as_deref().unwrap_or_default() {
        "-" => spec::stdin::read("the answer")?.trim_end_matches('\n').into(),
        text => text.into(),
    };
    let (resolution, done) = match (args.allow, args.deny) {
        (true, _) => (Resolution::Allowed, "allowed"),
        (_, true) => (Resolution::Denied, "denied"),
        _ => (Resolution::Answered, "answered"),
    };
    let params = AnswerParams { interaction: args.id.clone(), answer, resolution, scope: None };
    let answered = ctx
        .session
        .call::<method::InteractionAnswer>(&params)
        .map_err(|failure| failure.look_in("`harnessctl pending` lists the open ones"))?;
    if ctx.json {
        ctx.json(&answered)?;
    } else {
        note(ctx.notes.dim(format_args!("{done}; run {} goes on", answered.run)));
    }
    ctx.done()
}
