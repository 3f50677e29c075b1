//! Sends a change of runs (`cancel`, `pause`, `resume`), and prints its outcome: the ids of the changed runs, and why
//! the others did not change.

use std::io::Write;
use std::time::Instant;

use harness_protocol::rpc::{Changed, ListParams, Method, Selector, method};

use crate::context::Ctx;
use crate::error::Failure;
use crate::output::{Progress, note};
use crate::render::units::span;
use crate::select::confirm;
use crate::select::is_selected;

/// Runs that are counted before it is asked.
const COUNTED: u32 = 1_000;

/// Up to this number of names, a request is answered within the usual time.
const FEW: usize = 100;

/// Requests a change of runs. A change of many runs is made in pieces, and has no time limit.
pub(in crate::commands) fn change<M: Method<Reply = Changed>>(
    ctx: &mut Ctx,
    params: &M::Params,
    select: &Selector,
    doing: &str,
) -> Result<Changed, Failure> {
    if (1..=FEW).contains(&select.runs.len()) {
        return ctx.session.call::<M>(params);
    }
    let (mut progress, begun) = (Progress::new(), Instant::now());
    ctx.session.call_watched::<M>(params, || {
        progress.show(format_args!("{doing} runs: {}", span(begun.elapsed().into())));
    })
}

/// Asks on a terminal before more than one live run is changed. Runs that were named one by one need no question.
pub(in crate::commands) fn confirm_many(
    ctx: &mut Ctx,
    select: &Selector,
    yes: bool,
    what: &str,
) -> Result<(), Failure> {
    if !is_selected(select) || yes || !confirm::is_attended() {
        return Ok(());
    }
    let params = ListParams { select: select.clone(), limit: Some(COUNTED), ..ListParams::default() };
    let page = ctx.session.call::<method::RunList>(&params)?;
    let live = page.runs.iter().filter(|run| !run.state.is_terminal()).count();
    let more = if page.cursor.is_some() { " or more" } else { "" };
    confirm::more_than_one(live, yes, &format!("{what} {live}{more} runs?"))
}

/// Prints the changed runs. `what` is the verb for the change.
pub(in crate::commands) fn tell(ctx: &mut Ctx, changed: &Changed, what: &str) -> Result<(), Failure> {
    write(ctx, changed).map_err(|failure| {
        failure.although(&match changed.runs.as_slice() {
            [run] => format!("run {run} was {what}"),
            runs => format!("{} runs were {what}", runs.len()),
        })
    })?;
    if changed.not_listed > 0 {
        note(format_args!("harnessctl: {} more were {what}", changed.not_listed));
    }
    for unchanged in &changed.unchanged {
        note(format_args!("harnessctl: run {}: {}", unchanged.run, unchanged.words()));
    }
    Ok(())
}

fn write(ctx: &mut Ctx, changed: &Changed) -> Result<(), Failure> {
    if ctx.json {
        ctx.json(changed)?;
    } else {
        for run in &changed.runs {
            writeln!(ctx.out, "{run}")?;
        }
    }
    Ok(ctx.out.flush()?)
}

/// The same; a change that affected no run is a failure.
pub(in crate::commands) fn tell_or_fail(ctx: &mut Ctx, changed: &Changed, what: &str) -> Result<u8, Failure> {
    tell(ctx, changed, what)?;
    if changed.runs.is_empty() {
        let why = if changed.unchanged.is_empty() { "no run matches" } else { "it applies to none of them" };
        return Err(Failure::nothing_applied(format!("nothing was {what}: {why}")));
    }
    ctx.done()
}
