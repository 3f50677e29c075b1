//! Sends a request for each selected run, one after the other, for `retry` and `message`, and prints each outcome as it
//! comes.
//!
//! The only place with the rule for their errors: if one request is refused, the others are sent all the same, and the
//! command ends with the worst exit code. A daemon that stops or is lost ends the command at once, which says how many
//! requests were done.

use std::io::Write;

use harness_protocol::rpc::Submitted;
use harness_protocol::run::{RunView, exit};

use crate::cli::submit::ThenArgs;
use crate::context::Ctx;
use crate::error::Failure;
use crate::exit_code::worst;
use crate::output::note;
use crate::progress::after_submit;
use crate::render::text::clean;

/// Makes the request for each of several runs, and continues with the new runs.
pub(in crate::commands) fn each(
    ctx: &mut Ctx,
    runs: &[RunView],
    then: &ThenArgs,
    what: &str,
    mut ask: impl FnMut(&mut Ctx, String) -> Result<Submitted, Failure>,
) -> Result<u8, Failure> {
    let tells_ids = !(then.follow || then.wait || then.output.is_some());
    let mut made = Vec::new();
    let mut refused = exit::SUCCEEDED;
    for run in runs {
        let submitted = match ask(ctx, run.id.to_string()) {
            Ok(submitted) => submitted,
            Err(failure @ Failure::Refused(_)) if !failure.is_stopping() => {
                note(format_args!("harnessctl: run {}: {}", run.id, clean(&failure.to_string())));
                refused = worst([refused, failure.code()]);
                continue;
            }
            Err(failure) => {
                note(format_args!("harnessctl: {} of {} runs were {what}", made.len(), runs.len()));
                return Err(failure);
            }
        };
        if tells_ids {
            let told = if ctx.json { ctx.json(&submitted) } else { Ok(writeln!(ctx.out, "{}", submitted.id)?) };
            told.and_then(|()| Ok(ctx.out.flush()?))
                .map_err(|failure| failure.although(&format!("run {} was queued", submitted.id)))?;
        }
        made.push(submitted);
    }
    after_submit::go_on_with(ctx, &made, then, refused)
}
