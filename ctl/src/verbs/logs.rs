//! `logs`: the whole transcript as text, or the output of one call.

use std::collections::VecDeque;
use std::io::Write;
use std::ops::ControlFlow;

use harness_protocol::id::Seq;
use harness_protocol::rpc::{ShowParams, method};
use harness_protocol::run::{Entry, RunView};

use crate::cli::runs::LogsArgs;
use crate::ctx::{Ctx, write_json};
use crate::exit::Failure;
use crate::render::transcript;
use crate::verbs::follow::{self, Watched};
use crate::verbs::logs_call;
use crate::waiting::show_params;

/// Entries of the first page: whoever reads only the start has it soon.
const FIRST_PAGE: u32 = 50;
/// Entries of the others.
const PAGE: u32 = 1000;

pub(super) fn run(ctx: &mut Ctx, args: &LogsArgs) -> Result<u8, Failure> {
    if args.call.is_some() {
        return logs_call::run(ctx, args);
    }
    match (args.follow, args.tail) {
        (true, Some(_)) => Err(Failure::usage("--tail with -f takes --call")),
        (true, None) => {
            let run = ctx.session.call::<method::RunShow>(&show_params(&args.run))?.run.id.to_string();
            follow::watch(ctx, &Watched { run, after: Seq(0), notes: false, prompts: true, output: None })?;
            // Reading a log is done well whatever it tells.
            ctx.done()
        }
        (false, Some(lines)) => tail(ctx, &args.run, lines),
        (false, None) => whole(ctx, &args.run),
    }
}

fn whole(ctx: &mut Ctx, run: &str) -> Result<u8, Failure> {
    let look = ctx.look();
    pages(ctx, run, |ctx, _, page| {
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
    ctx.done()
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

/// Hands over the transcript page by page, each with the run as it was then.
pub(super) fn pages(
    ctx: &mut Ctx,
    run: &str,
    mut each: impl FnMut(&mut Ctx, &RunView, Vec<Entry>) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    let mut params = ShowParams { run: run.to_owned(), transcript: true, limit: Some(FIRST_PAGE), cursor: None };
    loop {
        let shown = ctx.session.call::<method::RunShow>(&params)?;
        let flow = each(ctx, &shown.run, shown.transcript)?;
        match (shown.cursor, flow) {
            (Some(cursor), ControlFlow::Continue(())) => {
                // A name may mean another run by the time of the next page; the id does not.
                params = ShowParams {
                    run: shown.run.id.to_string(),
                    transcript: true,
                    limit: Some(PAGE),
                    cursor: Some(cursor),
                };
            }
            _ => return Ok(()),
        }
    }
}
