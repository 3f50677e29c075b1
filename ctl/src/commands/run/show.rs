//! `show`: prints one run.

use std::io::Write;

use harness_protocol::rpc::{Empty, ProcessView, ShowParams, Shown, method};
use harness_protocol::run::{Entry, RunState, RunView};
use serde::Serialize;

use crate::cli::runs::ShowArgs;
use crate::commands::provider;
use crate::context::Ctx;
use crate::error::Failure;
use crate::exit_code::worst;
use crate::output::note;
use crate::render;
use crate::render::text::{clean, why, with_newline};
use crate::render::units::now;
use crate::select::{choose, head, only_name};
use crate::session::long_poll::show_params;

/// A run with its whole transcript, as one object.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    run: &'a RunView,
    transcript: &'a [Entry],
    processes: &'a [ProcessView],
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<&'a str>,
}

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &ShowArgs) -> Result<u8, Failure> {
    if let Some(name) = only_name(&args.select) {
        return one(ctx, args, name);
    }
    let mut codes = Vec::new();
    for (index, run) in choose(ctx, &args.select)?.runs.iter().enumerate() {
        if !ctx.json && index > 0 {
            writeln!(ctx.out)?;
        }
        if !ctx.json && (args.answer || args.why) {
            writeln!(ctx.out, "{}", head(run))?;
        }
        match one(ctx, args, &run.id.to_string()) {
            Ok(code) => codes.push(code),
            // A run without an answer does not keep the others from being shown.
            Err(failure @ Failure::Other { .. }) => codes.push(failure.report()),
            Err(failure) => return Err(failure),
        }
    }
    Ok(worst(codes))
}

fn one(ctx: &mut Ctx, args: &ShowArgs, name: &str) -> Result<u8, Failure> {
    if ctx.json && !args.answer {
        let shown = whole(ctx, name)?;
        let Shown { run, transcript, processes, held, .. } = &shown;
        ctx.json(&Whole { run, transcript, processes, held: held.as_deref() })?;
        return ctx.done();
    }
    let shown = ctx.session.call::<method::RunShow>(&show_params(name))?;
    tell_held(shown.held.as_deref());
    let run = shown.run;
    if args.why {
        let look = ctx.look();
        render::time_and_usage::write(&mut ctx.out, look, &run)?;
        return ctx.done();
    }
    if !args.answer {
        let look = ctx.look();
        render::run::write(&mut ctx.out, look, &run, now())?;
        render::run::write_processes(&mut ctx.out, look, &shown.processes)?;
        // A run that has ended needs no further look.
        if !run.state.is_terminal()
            && let Some(fallbacks) = fallbacks_of(ctx, &run)
        {
            render::run::write_fallbacks(&mut ctx.out, look, &fallbacks)?;
        }
        return ctx.done();
    }
    let Some(answer) = &run.answer else {
        let why = match run.error.as_deref() {
            Some(error) => {
                let verb = if run.state == RunState::Cancelled { "was " } else { "" };
                format!("run {} {verb}{}{}", run.id, run.state, why(run.state.as_str(), error))
            }
            None => format!("run {} has no answer yet: it is {}", run.id, run.state),
        };
        return Err(Failure::nothing_applied(why));
    };
    if ctx.json {
        ctx.json(answer)?;
    } else {
        let text = with_newline(answer);
        let shown = if ctx.look().terminal { clean(&text) } else { text.as_ref().into() };
        ctx.out.write_all(shown.as_bytes())?;
    }
    ctx.done()
}

/// The fallbacks of a run's provider, with their prices. `None` where the caller may not ask for them.
fn fallbacks_of(ctx: &mut Ctx, run: &RunView) -> Option<String> {
    let providers = ctx.session.call::<method::ProviderList>(&Empty {}).ok()?.providers;
    let own = providers.iter().find(|provider| provider.name == run.provider)?;
    (!own.fallbacks.is_empty()).then(|| provider::fallbacks(own))
}

/// The shown state may still be undone, while it is not in the journal.
pub(in crate::commands) fn tell_held(held: Option<&str>) {
    if let Some(why) = held {
        note(format_args!(
            "harnessctl: held: {}; the latest of this is not on disk yet: harnessctl daemon status",
            clean(why)
        ));
    }
}

/// Fetches all pages of the transcript into one reply.
fn whole(ctx: &mut Ctx, run: &str) -> Result<Shown, Failure> {
    let mut params = ShowParams { run: run.to_owned(), transcript: true, limit: None, cursor: None };
    let mut shown = ctx.session.call::<method::RunShow>(&params)?;
    let mut transcript = std::mem::take(&mut shown.transcript);
    // A name may mean another run by the time of the next page; the id does not.
    params.run = shown.run.id.to_string();
    while let Some(cursor) = shown.cursor {
        params.cursor = Some(cursor);
        shown = ctx.session.call::<method::RunShow>(&params)?;
        transcript.append(&mut shown.transcript);
    }
    Ok(Shown { transcript, ..shown })
}
