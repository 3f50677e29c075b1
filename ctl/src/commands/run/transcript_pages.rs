//! Requests a transcript from the daemon page by page, and gives the entries to the caller in order.

use std::ops::ControlFlow;

use harness_protocol::rpc::{ShowParams, method};
use harness_protocol::run::{Entry, RunView};

use crate::context::Ctx;
use crate::error::Failure;

/// Entries of the first page. It is small, so that the start is shown soon.
const FIRST_PAGE: u32 = 50;
/// Entries of the later pages.
const PAGE: u32 = 1000;

/// Passes on the transcript page by page, each with the run as it was then.
pub(in crate::commands) fn pages(
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
