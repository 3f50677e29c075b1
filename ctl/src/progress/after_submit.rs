//! Does what a submit asks for after it: prints the id, follows the run, or waits for it. It must not submit a run.

use std::io::{IsTerminal, Write};

use harness_protocol::id::{RunId, Seq};
use harness_protocol::rpc::Submitted;
use harness_protocol::run::exit;

use crate::cli::submit::ThenArgs;
use crate::context::Ctx;
use crate::error::Failure;
use crate::exit_code::worst;
use crate::output::note;
use crate::progress::end_of_run::{check_output, end};
use crate::progress::follow_one::{Watched, watch, watch_several};
use crate::progress::line_writer::Sink;
use crate::progress::wait_many::Many;
use crate::select::named;
use crate::session::long_poll;
use crate::session::wait_reasons::Teller;

/// Checks the output file before there is a run.
pub(crate) fn check(then: &ThenArgs) -> Result<(), Failure> {
    then.output.as_deref().map_or(Ok(()), check_output)
}

/// Continues with several runs. `refused` is the exit code of the first refused one.
pub(crate) fn go_on_with(ctx: &mut Ctx, runs: &[Submitted], then: &ThenArgs, refused: u8) -> Result<u8, Failure> {
    let ids: Vec<RunId> = runs.iter().map(|submitted| submitted.id).collect();
    let code = match (ids.is_empty(), then.follow, then.wait || then.output.is_some()) {
        (false, true, _) => {
            let names: Vec<String> = ids.iter().map(ToString::to_string).collect();
            let views = named(ctx, &names)?;
            let output = then.output.as_deref();
            let watched = Watched { after: Seq(0), notes: true, prompts: false, answers: true, output };
            watch_several(ctx, &views, &watched)?
        }
        (false, false, true) => {
            Many::new(ids, Sink::new(then.output.as_deref())?).line_by_line().wait(ctx, None, None)?
        }
        _ => exit::SUCCEEDED,
    };
    ctx.done()?;
    Ok(worst([code, refused]))
}

/// Continues with a submitted run.
pub(crate) fn go_on(ctx: &mut Ctx, submitted: &Submitted, then: &ThenArgs, quiet: bool) -> Result<u8, Failure> {
    let id = submitted.id.to_string();
    if then.follow {
        let watched = Watched {
            after: Seq(submitted.seq.0.saturating_sub(1)),
            notes: !quiet,
            prompts: false,
            answers: !quiet,
            output: then.output.as_deref(),
        };
        return watch(ctx, submitted.id, &watched);
    }
    if then.wait || then.output.is_some() {
        if !quiet && std::io::stderr().is_terminal() {
            note(ctx.notes.dim(format_args!("run {id}")));
        }
        let reply = long_poll::one(&mut ctx.session, &id, &[], None, &mut Teller::new(quiet))?;
        return end(ctx, &reply.run, then.output.as_deref());
    }
    let told = if ctx.json { ctx.json(submitted) } else { writeln!(ctx.out, "{id}").map_err(Failure::from) };
    // The run exists, even if its id cannot be printed.
    told.and_then(|()| Ok(ctx.out.flush()?)).map_err(|failure| failure.although(&format!("run {id} was queued")))?;
    if !quiet && std::io::stderr().is_terminal() {
        let existing = if submitted.existing { "it was there already; " } else { "" };
        note(ctx.notes.dim(format_args!("{existing}watch it: harnessctl follow {id}")));
    }
    ctx.done()
}
