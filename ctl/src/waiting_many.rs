//! Waiting for many runs to end: one subscription to their ends, a thousand cost one line each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use harness_protocol::event::EventBody;
use harness_protocol::id::{EpochId, RunId, Seq};
use harness_protocol::rpc::{ErrorKind, ShowParams, SubscribeParams, method};
use harness_protocol::run::{RunState, RunView, exit};

use crate::client::{Flow, Note};
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::outcome::Outcome;
use crate::output::{Progress, note};
use crate::patience::PATIENCE;
use crate::sink::Sink;
use crate::standing::{LOOK_EVERY, TellerOfMany};
use crate::waiting::{of_runs, remaining, show_params};

/// Several runs that are waited for.
#[derive(Debug)]
pub(crate) struct Many {
    runs: Vec<RunId>,
    /// Those of them that are not known to have ended.
    open: BTreeSet<RunId>,
    outcomes: BTreeMap<RunId, Outcome>,
    printed: usize,
    progress: Progress,
    teller: TellerOfMany,
    sink: Sink,
    /// The epoch of the cursor.
    epoch: Option<EpochId>,
}

impl Many {
    /// These runs; lines are written to `sink`, in this order.
    pub(crate) fn new(runs: Vec<RunId>, sink: Sink) -> Self {
        let open = runs.iter().copied().collect();
        Self {
            runs,
            open,
            outcomes: BTreeMap::new(),
            printed: 0,
            progress: Progress::new(),
            teller: TellerOfMany::default(),
            sink,
            epoch: None,
        }
    }

    /// Takes what is known already.
    pub(crate) fn know(&mut self, run: &RunView) {
        if run.state.is_terminal() {
            self.settle(run.id, Outcome::of(run));
        }
    }

    fn settle(&mut self, run: RunId, outcome: Outcome) {
        if self.open.remove(&run) {
            self.outcomes.insert(run, outcome);
        }
    }

    /// Waits until all have ended, or the time is up, and prints a line for each; gives the exit code of section 12.
    ///
    /// `after`: their ends have higher numbers than this. Without it they are asked for their states first.
    pub(crate) fn wait(mut self, ctx: &mut Ctx, mut after: Option<Seq>, until: Option<Instant>) -> Result<u8, Failure> {
        ctx.session.heed_interrupts()?;
        let mut ask_first = after.is_none();
        loop {
            match self.listen(ctx, &mut after, ask_first, until) {
                Ok(()) => break,
                Err(failure) if failure.is_loss() => ctx.session.recover(&failure),
                // The journal is not the one that the number is of: they are asked for.
                Err(failure) if failure.is_unknown() && after.is_some() => Ok(()),
                Err(failure) => Err(failure),
            }
            .map_err(|failure| {
                of_runs(failure, &ctx.session, || self.open.iter().map(ToString::to_string).collect())
            })?;
            // Some may have ended in between, whichever journal the daemon has: they are asked for, and followed from now on.
            (ask_first, after) = (true, None);
        }
        self.progress.clear();
        let still_live = !self.open.is_empty();
        self.finish(ctx)?;
        let all_well = self.outcomes.values().all(|outcome| outcome.state == Some(RunState::Succeeded));
        ctx.done()?;
        Ok(match (still_live, all_well) {
            (true, _) => exit::STILL_RUNNING,
            (false, true) => exit::SUCCEEDED,
            (false, false) => exit::FAILED,
        })
    }

    /// Follows the ends of the runs on one connection; `Ok` when all have ended or the time is up.
    fn listen(
        &mut self,
        ctx: &mut Ctx,
        after: &mut Option<Seq>,
        ask_first: bool,
        until: Option<Instant>,
    ) -> Result<(), Failure> {
        if self.open.is_empty() {
            return Ok(());
        }
        let kinds = vec!["run-finished".to_owned()];
        let params = SubscribeParams { after: *after, kinds, epoch: self.epoch, ..SubscribeParams::default() };
        let subscribed = ctx.session.client()?.call::<method::EventSubscribe>(&params)?;
        after.get_or_insert(subscribed.last_seq);
        self.epoch = subscribed.epoch;
        if ask_first {
            self.ask(ctx)?;
        }
        let mut next_look = Instant::now() + LOOK_EVERY;
        loop {
            self.print(ctx)?;
            if self.open.is_empty() {
                return Ok(());
            }
            if Instant::now() >= next_look {
                self.tell(ctx)?;
                next_look = Instant::now() + LOOK_EVERY;
            }
            let patience = remaining(until).map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
            let Some(note) = ctx.session.client()?.note(Some(patience))? else {
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Ok(());
                }
                continue;
            };
            match note {
                Note::Event(event) => {
                    *after = Some(event.seq);
                    // Others' answers are not even read.
                    if let Some(run) = event.run.filter(|run| self.open.contains(run))
                        && let Some(EventBody::RunFinished { ending }) = event.event().map(|event| event.body)
                    {
                        self.settle(run, Outcome::ended(&ending));
                    }
                }
                Note::Gap(gap) => {
                    *after = Some(gap.to);
                    self.ask(ctx)?;
                }
                Note::Delta(_) => {}
            }
        }
    }

    /// Tells what some of those that are open stand still for; a few of them each time, so that many cost no more.
    fn tell(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let places = self.teller.next_places(self.open.len());
        let all = places.len() == self.open.len();
        let open: Vec<RunId> = self.open.iter().copied().collect();
        let params: Vec<ShowParams> = places.iter().filter_map(|&place| open.get(place)).map(show_params).collect();
        let mut looked_at = Vec::new();
        ctx.session.client()?.pipeline::<method::RunShow>(&params, Some(PATIENCE), |_, reply| {
            looked_at.extend(reply.map(|shown| shown.run));
            Flow::Go
        })?;
        for line in self.teller.news(&looked_at, all) {
            self.progress.clear();
            note(line);
        }
        Ok(())
    }

    /// Asks for the states of those that are not known to have ended.
    fn ask(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let open: Vec<RunId> = self.open.iter().copied().collect();
        let params: Vec<ShowParams> = open.iter().map(show_params).collect();
        let mut refused = None;
        ctx.session.client()?.pipeline::<method::RunShow>(&params, Some(PATIENCE), |index, reply| {
            match reply {
                Ok(shown) => self.know(&shown.run),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.settle(open[index], Outcome::refused(&error));
                }
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
            Flow::Go
        })?;
        refused.map_or(Ok(()), |error| Err(Failure::Refused(error)))
    }

    /// Prints the lines that can be printed in order.
    fn print(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let before = self.printed;
        while !ctx.json
            && let Some(run) = self.runs.get(self.printed)
            && let Some(outcome) = self.outcomes.get(run)
        {
            self.progress.clear();
            self.sink.line(&mut ctx.out, &outcome.line(&run.to_string()))?;
            self.printed += 1;
        }
        if self.printed > before {
            self.sink.flush(&mut ctx.out)?;
        }
        self.progress.show(format_args!("{} of {} ended", self.outcomes.len(), self.runs.len()));
        Ok(())
    }

    /// Prints the rest: lines of those that are live still, or everything as JSON.
    fn finish(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        self.print(ctx)?;
        self.progress.clear();
        let rest = &self.runs[self.printed..];
        let params: Vec<ShowParams> = rest.iter().map(show_params).collect();
        let mut views = vec![None; params.len()];
        if !params.is_empty() {
            ctx.session.client()?.pipeline::<method::RunShow>(&params, Some(PATIENCE), |index, reply| {
                views[index] = Some(reply);
                Flow::Go
            })?;
        }
        for (run, view) in rest.iter().zip(views) {
            let id = run.to_string();
            match view {
                Some(Ok(shown)) if ctx.json => self.sink.json(&mut ctx.out, &shown.run)?,
                Some(Ok(shown)) => self.sink.line(&mut ctx.out, &Outcome::of(&shown.run).line(&id))?,
                Some(Err(error)) if ctx.json => {
                    self.sink.json(&mut ctx.out, &serde_json::json!({"id": run, "error": error}))?
                }
                Some(Err(error)) => self.sink.line(&mut ctx.out, &Outcome::refused(&error).line(&id))?,
                None => {}
            }
        }
        self.sink.flush(&mut ctx.out)
    }
}
