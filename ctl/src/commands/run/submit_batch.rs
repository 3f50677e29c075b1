//! `submit --batch`: submits many runs over one connection, and prints their ids in the order of the lines that
//! describe them.

use std::io::Write;
use std::path::Path;

use harness_protocol::id::Seq;
use harness_protocol::rpc::{RpcError, Submitted, method};
use harness_protocol::run::exit;
use harness_protocol::submit_key::SubmitKey;

use crate::cli::submit::SubmitArgs;
use crate::client::timeouts::PATIENCE;
use crate::client::{Flow, is_for_now};
use crate::commands::run::key_held::held;
use crate::commands::run::submit::own_key;
use crate::context::{Ctx, write_json};
use crate::error::Failure;
use crate::output::{Out, Progress, note};
use crate::progress::end_of_run::check_output;
use crate::progress::line_writer::Sink;
use crate::progress::wait_many::Many;
use crate::session::submit_once::{self, Attempts};
use crate::spec;
use crate::spec::batch::{Item, read};

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &SubmitArgs, file: &Path) -> Result<u8, Failure> {
    let own = own_key(args)?;
    let mut items = read(file, &spec::defaults(args)?, args.idempotency_key.as_deref(), own)?;
    let waits = args.then.wait || args.then.output.is_some();
    // The file is emptied before the first submit, so that an unwritable file is noticed then.
    args.then.output.as_deref().map_or(Ok(()), check_output)?;
    let sink = Sink::new(args.then.output.as_deref())?;
    let mut batch = Batch { replies: vec![None; items.len()], printed: 0, print: !waits, progress: Progress::new() };
    let stopped = submit(ctx, &mut items, &mut batch, Attempts::new(args.retry_for), own.0);
    batch.progress.clear();
    let code = batch.complain(&items);
    if let Err(failure) = stopped {
        let mut ids = batch.submitted().map(|submitted| submitted.id);
        let range = match (ids.next(), ids.last()) {
            (Some(first), Some(last)) => format!(", from {first} to {last}"),
            (Some(only), None) => format!(": {only}"),
            _ => String::new(),
        };
        note(format_args!("harnessctl: {} of {} were submitted{range}", batch.submitted().count(), items.len()));
        return Err(failure);
    }
    if !waits {
        ctx.done()?;
        return Ok(code);
    }
    // A run that existed already may have ended long ago, so its state is requested.
    let old = batch.submitted().any(|submitted| submitted.existing);
    let first = batch.submitted().map(|submitted| submitted.seq.0).min().unwrap_or(1);
    let runs: Vec<_> = batch.submitted().map(|submitted| submitted.id).collect();
    if runs.is_empty() {
        return Ok(exit::FAILED);
    }
    let waited = Many::new(runs, sink).wait(ctx, (!old).then(|| Seq(first.saturating_sub(1))), None)?;
    Ok(if code == exit::SUCCEEDED { waited } else { exit::FAILED })
}

/// Submits all items without a reply, again and again: under their keys nothing is queued twice.
fn submit(
    ctx: &mut Ctx,
    items: &mut [Item],
    batch: &mut Batch,
    mut attempts: Attempts,
    own: SubmitKey,
) -> Result<(), Failure> {
    loop {
        let before = batch.replies.iter().flatten().count();
        let failure = match what_it_knows(ctx, items).and_then(|()| attempt(ctx, items, batch)) {
            Ok(None) => return Ok(()),
            Ok(Some(refusal)) if submit_once::wants_variables(&refusal) => {
                items.iter_mut().for_each(|item| submit_once::pass_variables(&mut item.params, &refusal));
                continue;
            }
            Ok(Some(refusal)) => Failure::Refused(refusal),
            Err(failure) => failure,
        };
        let replies = batch.replies.iter().flatten().count();
        if replies > before {
            attempts.got_on();
        }
        items.iter_mut().for_each(|item| item.params.first = false);
        let key = items.iter().any(|item| item.params.submit_key.is_some()).then_some(own);
        let again = attempts.again(&mut ctx.session, failure);
        let done = batch.submitted().count();
        again.map_err(|failure| attempts.end(failure, key, items.len() - replies, done))?;
    }
}

/// Leaves out fields that a daemon of an earlier minor version does not know.
fn what_it_knows(ctx: &mut Ctx, items: &mut [Item]) -> Result<(), Failure> {
    items.iter_mut().try_for_each(|item| submit_once::leave_out(&mut ctx.session, &mut item.params).map(drop))
}

/// One pass over the items that have no reply; gives the refusal that stopped it, if one did.
fn attempt(ctx: &mut Ctx, items: &[Item], batch: &mut Batch) -> Result<Option<RpcError>, Failure> {
    let open: Vec<usize> = (0..items.len()).filter(|&index| batch.replies[index].is_none()).collect();
    let requests = open.iter().map(|&index| &items[index].params);
    let (mut refusal, mut failed) = (None, None);
    let json = ctx.json;
    let out = &mut ctx.out;
    ctx.session.client()?.pipeline::<method::RunSubmit>(requests, Some(PATIENCE), |index, reply| {
        match reply {
            Err(error) if is_for_now(&error) || submit_once::wants_variables(&error) => {
                refusal = Some(error);
                return Flow::Stop;
            }
            reply => batch.replies[open[index]] = Some(reply),
        }
        match batch.show(out, json) {
            Ok(()) => Flow::Go,
            Err(failure) => {
                failed = Some(failure);
                Flow::Stop
            }
        }
    })?;
    match failed {
        Some(failure) => Err(failure),
        None => Ok(refusal),
    }
}

#[derive(Debug)]
struct Batch {
    replies: Vec<Option<Result<Submitted, RpcError>>>,
    /// Number of replies, from the first on, that were printed.
    printed: usize,
    print: bool,
    progress: Progress,
}

impl Batch {
    fn submitted(&self) -> impl Iterator<Item = &Submitted> {
        self.replies.iter().flatten().flatten()
    }

    /// Prints the ids that can be printed in order.
    fn show(&mut self, out: &mut Out, json: bool) -> Result<(), Failure> {
        let before = self.printed;
        while let Some(Some(reply)) = self.replies.get(self.printed) {
            self.printed += 1;
            match reply {
                Ok(submitted) if self.print && json => write_json(out, submitted)?,
                Ok(submitted) if self.print => writeln!(out, "{}", submitted.id)?,
                _ => {}
            }
        }
        // Acknowledged ids should be visible even after an interrupt; a flush for each line would be too many.
        if self.printed / 256 > before / 256 || self.printed == self.replies.len() {
            out.flush()?;
        }
        self.progress.show(format_args!("{} of {} submitted", self.printed, self.replies.len()));
        Ok(())
    }

    /// Reports the refused lines; gives the exit code of the first.
    fn complain(&self, items: &[Item]) -> u8 {
        let refused = items.iter().zip(&self.replies).filter_map(|(item, reply)| match reply {
            Some(Err(error)) => Some((item, error)),
            _ => None,
        });
        let mut code = exit::SUCCEEDED;
        for (item, error) in refused {
            if code == exit::SUCCEEDED {
                code = error.data.exit_code;
            }
            let key = item.params.idempotency_key.as_deref();
            let error = match key.and_then(|key| held(key, error)) {
                Some(held) => held.to_string(),
                None => error.to_string(),
            };
            note(format_args!("harnessctl: line {}: {error}", item.line));
        }
        code
    }
}
