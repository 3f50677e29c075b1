//! Waits for several runs to reach a state, and reports each as soon as it has.
//!
//! It sends a long-poll request for each run, at most 256 at once, which is fewer than the daemon takes from one
//! connection; the others wait for a free place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use harness_protocol::rpc::{RpcError, WaitReply, method};
use harness_protocol::run::RunState;

use crate::client::timeouts::PATIENCE;
use crate::client::{Flow, Ticket, WINDOW, is_stopping};
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::note;
use crate::session::long_poll::{of_runs, show_params, wait_params};
use crate::session::wait_reasons::{LOOK_EVERY, TellerOfMany};

/// The reply to a wait.
type Reply = Result<WaitReply, RpcError>;

/// Waits for each of several runs, named by their ids, to reach one of `states`, or only for the first run that does.
/// `each` gets every reply as it comes. The result has the order of the runs; for a wait for the first, it has only the
/// replies that came.
/// replies that came.
pub(crate) fn each_for(
    ctx: &mut Ctx,
    runs: &[String],
    (states, until, any): (&[RunState], Option<Instant>, bool),
    mut each: impl FnMut(&mut Ctx, &str, &Reply) -> Result<(), Failure>,
) -> Result<Vec<Reply>, Failure> {
    ctx.session.heed_interrupts()?;
    let mut replies: Vec<Option<Reply>> = vec![None; runs.len()];
    let mut teller = TellerOfMany::default();
    loop {
        let wanted = Wanted { runs, states, until, any };
        match wanted.listen(ctx, &mut replies, &mut teller, &mut each) {
            Ok(()) => {
                // The pending requests have no further use.
                ctx.session.hang_up();
                return Ok(replies.into_iter().flatten().collect());
            }
            Err(failure) if failure.is_loss() => ctx.session.recover(&failure),
            Err(failure) => Err(failure),
        }
        .map_err(|failure| of_runs(failure, &ctx.session, || runs.to_vec()))?;
    }
}

/// The conditions of the wait.
struct Wanted<'a> {
    runs: &'a [String],
    states: &'a [RunState],
    until: Option<Instant>,
    any: bool,
}

impl Wanted<'_> {
    /// Waits on one connection for all runs without a reply.
    fn listen(
        &self,
        ctx: &mut Ctx,
        replies: &mut [Option<Reply>],
        teller: &mut TellerOfMany,
        each: &mut impl FnMut(&mut Ctx, &str, &Reply) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut unsent: BTreeSet<usize> = (0..self.runs.len()).filter(|&index| replies[index].is_none()).collect();
        let mut out: BTreeMap<Ticket, usize> = BTreeMap::new();
        let mut next_look = Instant::now() + LOOK_EVERY;
        loop {
            while out.len() < WINDOW
                && let Some(index) = unsent.pop_first()
            {
                let params = wait_params(&self.runs[index], self.states, self.until);
                out.insert(ctx.session.client()?.send::<method::RunWait>(&params)?, index);
            }
            if out.is_empty() {
                return Ok(());
            }
            if Instant::now() >= next_look {
                self.tell(ctx, replies, teller)?;
                next_look = Instant::now() + LOOK_EVERY;
            }
            let patience = next_look.saturating_duration_since(Instant::now());
            let Some((ticket, reply)) = ctx.session.client()?.any_reply::<WaitReply>(&out, patience)? else { continue };
            let Some(index) = out.remove(&ticket) else { continue };
            if let Err(error) = &reply
                && is_stopping(error)
            {
                return Err(Failure::Refused(error.clone()));
            }
            each(ctx, &self.runs[index], &reply)?;
            let is_enough = self.any && reply.as_ref().is_ok_and(|reply| reply.reached);
            replies[index] = Some(reply);
            if is_enough {
                return Ok(());
            }
        }
    }

    /// Prints why some of the open runs do not proceed, unless that is the wanted state.
    fn tell(&self, ctx: &mut Ctx, replies: &[Option<Reply>], teller: &mut TellerOfMany) -> Result<(), Failure> {
        let open: Vec<usize> = (0..self.runs.len()).filter(|&index| replies[index].is_none()).collect();
        let places = teller.next_places(open.len());
        let params: Vec<_> = places.iter().map(|&place| show_params(&self.runs[open[place]])).collect();
        let mut looked_at = Vec::new();
        ctx.session.client()?.pipeline::<method::RunShow>(&params, Some(PATIENCE), |_, reply| {
            looked_at.extend(reply.map(|shown| shown.run));
            Flow::Go
        })?;
        teller.news(&looked_at, places.len() == open.len()).into_iter().for_each(note);
        Ok(())
    }
}
