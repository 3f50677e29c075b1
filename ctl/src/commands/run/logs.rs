//! `logs`: prints the whole transcript as text, or the output of one call.

use std::collections::VecDeque;
use std::io::Write;
use std::ops::ControlFlow;

use harness_protocol::id::{RunId, Seq};
use harness_protocol::run::{Entry, RunState, RunView};
use serde::Serialize;

use crate::cli::runs::LogsArgs;
use crate::commands::run::logs_call;
use crate::commands::run::transcript_pages::pages;
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::note;
use crate::progress::follow_one::{Watched, watch, watch_several};
use crate::render::run::short;
use crate::render::text::{first_line, harmless_json};
use crate::render::transcript;
use crate::select::{choose, head, only_name};
use crate::session::wait_reasons::Teller;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &LogsArgs) -> Result<u8, Failure> {
    let only = only_name(&args.select);
    match (&args.call, only) {
        (Some(call), Some(run)) => return logs_call::run(ctx, args, run, call),
        (Some(_), None) => return Err(Failure::usage("--call is of one run, which is to be named")),
        (None, _) => {}
    }
    if args.follow && args.tail.is_some() {
        return Err(Failure::usage("--tail with -f takes --call"));
    }
    if args.follow {
        let watched = Watched { after: Seq(0), notes: false, prompts: true, answers: false, output: None };
        let chosen = choose(ctx, &args.select)?;
        match chosen.runs.as_slice() {
            [run] if chosen.is_one => watch(ctx, run.id, &watched)?,
            runs => watch_several(ctx, runs, &watched)?,
        };
        // The command succeeds, however the call ended.
        return ctx.done();
    }
    let one = |ctx: &mut Ctx, run: &str, of_several| match args.tail {
        Some(lines) => tail(ctx, run, lines, of_several),
        None => whole(ctx, run, of_several),
    };
    if let Some(run) = only {
        return one(ctx, run, false);
    }
    for (index, run) in choose(ctx, &args.select)?.runs.iter().enumerate() {
        if !ctx.json {
            let before = if index > 0 { "\n" } else { "" };
            writeln!(ctx.out, "{before}{}", head(run))?;
        }
        one(ctx, &run.id.to_string(), true)?;
    }
    ctx.done()
}

/// An entry of the transcript, with its run, where there are several.
#[derive(Serialize)]
struct OfRun<'a> {
    run: RunId,
    #[serde(flatten)]
    entry: &'a Entry,
}

fn entry_as_json(run: &RunView, entry: &Entry, of_several: bool) -> Result<String, Failure> {
    let json =
        if of_several { serde_json::to_string(&OfRun { run: run.id, entry }) } else { serde_json::to_string(entry) };
    Ok(json.map_err(std::io::Error::from)?)
}

fn whole(ctx: &mut Ctx, run: &str, of_several: bool) -> Result<u8, Failure> {
    let look = ctx.look();
    let mut last = None;
    pages(ctx, run, |ctx, run, page| {
        last = Some(run.clone());
        for entry in &page {
            if ctx.json {
                ctx.out.json_text(&entry_as_json(run, entry, of_several)?)?;
            } else {
                transcript::write(&mut ctx.out, look, entry)?;
            }
        }
        // A reader that has closed the pipe is noticed here, before the next page is fetched.
        ctx.out.flush()?;
        Ok(ControlFlow::Continue(()))
    })?;
    if let Some(run) = last {
        tell_how_it_stands(&run);
    }
    ctx.done()
}

/// Tells what no transcript contains: why the run does not proceed, or why it failed.
fn tell_how_it_stands(run: &RunView) {
    Teller::default().look(run);
    if let (RunState::Failed, Some(error)) = (run.state, &run.error) {
        let code = run.exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
        note(format_args!("harnessctl: run {} failed: {}{code}", short(run.id), first_line(error)));
    }
}

fn tail(ctx: &mut Ctx, run: &str, lines: usize, of_several: bool) -> Result<u8, Failure> {
    let look = ctx.look();
    let mut last: VecDeque<Vec<u8>> = VecDeque::new();
    pages(ctx, run, |ctx, run, page| {
        for entry in &page {
            let mut text = Vec::new();
            if ctx.json {
                let json = entry_as_json(run, entry, of_several)?;
                let json = if look.terminal { harmless_json(&json) } else { json.as_str().into() };
                writeln!(text, "{json}")?;
            } else {
                transcript::write(&mut text, look, entry)?;
            }
            last.extend(text.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec));
            last.drain(..last.len().saturating_sub(lines));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for line in last {
        ctx.out.write_all(&line)?;
    }
    ctx.done()
}
