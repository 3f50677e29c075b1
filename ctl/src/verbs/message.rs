//! `message`: tells a run something.

use harness_protocol::rpc::{MessageParams, method};

use crate::cli::runs::MessageArgs;
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::{specify, then};

pub(super) fn run(ctx: &mut Ctx, args: &MessageArgs) -> Result<u8, Failure> {
    then::check(&args.then)?;
    let params = MessageParams { run: args.run.clone(), text: specify::text(&args.text, "the message")? };
    let submitted = ctx.session.call::<method::RunMessage>(&params)?;
    then::go_on(ctx, &submitted, &args.then, false)
}
