//! `logs`: the whole transcript as text, or the output of one call.

use std::collections::VecDeque;
use std::io::Write;
use std::ops::ControlFlow;

use harness_protocol::id::Seq;
use harness_protocol::rpc::method;
use harness_protocol::run::{RunState, RunView};

use crate::cli::runs::LogsArgs;
use crate::ctx::{Ctx, write_json};
use crate::exit::Failure;
use crate::output::note;
use crate::render::run::short;
use crate::render::text::first_line;
use crate::render::transcript;
use crate::standing::Teller;
use crate::verbs::logs_call;
use crate::verbs::pages::pages;
use crate::waiting::show_params;
use crate::watching::{Watched, watch};

pub(super) fn run(ctx: &mut Ctx, args: &LogsArgs) -> Result<u8, Failure> {
    if args.call.is_some() {
        return logs_call::run(ctx, args);
    }
    match (args.follow, args.tail) {
        (true, Some(_)) => Err(Failure::usage("--tail with -f takes --call")),
        (true, None) => {
            let run = ctx.session.call::<method::RunShow>(&show_params(&args.run))?.run.id.to_string();
            watch(ctx, &Watched { run, after: Seq(0), notes: false, prompts: true, output: None })?;
            // Reading a log is done well whatever it tells.
            ctx.done()
        }
        (false, Some(lines)) => tail(ctx, &args.run, lines),
        (false, None) => whole(ctx, &args.run),
    }
}

fn whole(ctx: &mut Ctx, run: &str) -> Result<u8, Failure> {
    let look = ctx.look();
    let mut last = None;
    pages(ctx, run, |ctx, run, page| {
        last = Some(run.clone());
        for entry in &page {
            if ctx.json {
                write_json(&mut ctx.out, entry)?;
            } else {
                transcript::write(&mut ctx.out, look, entry)?;
            }
        }
        // Whoever has read enough is noticed here, before the next page is fetched.
        ctx.out.flush()?;
        Ok(ControlFlow::Continue(()))
    })?;
    if let Some(run) = last {
        tell_how_it_stands(&run);
    }
    ctx.done()
}

/// What is in no transcript: what the run stands still for, or why it failed.
fn tell_how_it_stands(run: &RunView) {
    Teller::default().look(run);
    if let (RunState::Failed, Some(error)) = (run.state, &run.error) {
        let code = run.exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
        note(format_args!("harnessctl: run {} failed: {}{code}", short(run.id), first_line(error)));
    }
}

fn tail(ctx: &mut Ctx, run: &str, lines: usize) -> Result<u8, Failure> {
    let look = ctx.look();
    let mut last: VecDeque<Vec<u8>> = VecDeque::new();
    pages(ctx, run, |ctx, _, page| {
        for entry in &page {
            let mut text = Vec::new();
            if ctx.json {
                write_json(&mut text, entry)?;
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
