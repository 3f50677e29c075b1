//! What is done once a run is there: its id is printed, or it is watched, or waited for.

use std::io::{IsTerminal, Write};

use harness_protocol::id::Seq;
use harness_protocol::rpc::Submitted;

use crate::cli::submit::ThenArgs;
use crate::ctx::Ctx;
use crate::ending::{check_output, end};
use crate::exit::Failure;
use crate::output::note;
use crate::standing::Teller;
use crate::waiting;
use crate::watching::{Watched, watch};

/// Checks what can be checked before there is a run.
pub(crate) fn check(then: &ThenArgs) -> Result<(), Failure> {
    then.output.as_deref().map_or(Ok(()), check_output)
}

/// Goes on with a run that was submitted.
pub(crate) fn go_on(ctx: &mut Ctx, submitted: &Submitted, then: &ThenArgs, quiet: bool) -> Result<u8, Failure> {
    let id = submitted.id.to_string();
    if then.follow {
        let watched = Watched {
            run: id,
            after: Seq(submitted.seq.0.saturating_sub(1)),
            notes: !quiet,
            prompts: false,
            output: then.output.as_deref(),
        };
        return watch(ctx, &watched);
    }
    if then.wait || then.output.is_some() {
        if !quiet && std::io::stderr().is_terminal() {
            note(ctx.notes.dim(format_args!("run {id}")));
        }
        let reply = waiting::one(&mut ctx.session, &id, &[], None, &mut Teller::new(quiet))?;
        return end(ctx, &reply.run, then.output.as_deref());
    }
    let told = if ctx.json { ctx.json(submitted) } else { writeln!(ctx.out, "{id}").map_err(Failure::from) };
    // The run is there, whether its id can be told or not.
    told.and_then(|()| Ok(ctx.out.flush()?)).map_err(|failure| failure.although(&format!("run {id} was queued")))?;
    if !quiet && std::io::stderr().is_terminal() {
        let existing = if submitted.existing { "it was there already; " } else { "" };
        note(ctx.notes.dim(format_args!("{existing}watch it: harnessctl follow {id}")));
    }
    ctx.done()
}
