//! Waits for many runs to end, by one subscription to the events of their ends: a thousand runs cost one line each. It
//! must not change a run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use harness_protocol::event::EventBody;
use harness_protocol::id::{EpochId, RunId, Seq};
use harness_protocol::rpc::{ErrorKind, ShowParams, SubscribeParams, method};
use harness_protocol::run::{RunView, exit};

use crate::client::timeouts::PATIENCE;
use crate::client::{Flow, Note};
use crate::context::Ctx;
use crate::error::Failure;
use crate::exit_code::worst;
use crate::output::{Progress, note};
use crate::progress::line_writer::Sink;
use crate::render::result_line::Outcome;
use crate::render::units::count;
use crate::session::long_poll::{of_runs, remaining, show_params};
use crate::session::wait_reasons::{LOOK_EVERY, LOOKED_AT, TellerOfMany};

/// Which lines are printed, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// A line for each run, in the order of the arguments.
    AsNamed,
    /// A line for each run, in the order of the ends.
    AsTheyEnd,
    /// A line for the first run that ends.
    First,
}

/// How long a run that asks a question is given to report it itself.
const SOON: Duration = Duration::from_millis(20);
/// Levels of a tree that are searched for a run above the asking run.
const MOST_LEVELS: usize = 64;

/// Several runs that the command waits for.
#[derive(Debug)]
pub(crate) struct Many {
    runs: Vec<RunId>,
    lines: Lines,
    /// Runs that are known to have ended, in the order of that knowledge.
    ended: Vec<RunId>,
    /// How often a run is named, if it is named more than once.
    times: BTreeMap<RunId, usize>,
    /// Runs that ask a question, or that have such a run below them: the next look examines them.
    asking: BTreeSet<RunId>,
    /// Runs that are not known to have ended.
    open: BTreeSet<RunId>,
    outcomes: BTreeMap<RunId, Outcome>,
    printed: usize,
    progress: Progress,
    teller: TellerOfMany,
    sink: Sink,
    /// The epoch that the cursor belongs to.
    epoch: Option<EpochId>,
}

impl Many {
    /// A wait for these runs; their lines are written to `sink`, in this order.
    pub(crate) fn new(runs: Vec<RunId>, sink: Sink) -> Self {
        let open = runs.iter().copied().collect();
        let mut times = BTreeMap::new();
        runs.iter().for_each(|run| *times.entry(*run).or_default() += 1);
        times.retain(|_, times| *times > 1);
        Self {
            runs,
            lines: Lines::AsNamed,
            ended: Vec::new(),
            times,
            asking: BTreeSet::new(),
            open,
            outcomes: BTreeMap::new(),
            printed: 0,
            progress: Progress::new(),
            teller: TellerOfMany::default(),
            sink,
            epoch: None,
        }
    }

    /// Writes each line as its run ends.
    #[must_use]
    pub(crate) fn line_by_line(self) -> Self {
        Self { lines: Lines::AsTheyEnd, ..self }
    }

    /// Ends with the first run that ends.
    #[must_use]
    pub(crate) fn any(self) -> Self {
        Self { lines: Lines::First, ..self }
    }

    /// Records known states, in the order of the runs' ends.
    pub(crate) fn know_all(&mut self, runs: &[RunView]) {
        let mut by_end: Vec<&RunView> = runs.iter().collect();
        by_end.sort_by_key(|run| run.ended_at);
        by_end.into_iter().for_each(|run| self.know(run));
        self.asking.extend(runs.iter().filter(|run| !run.questions.is_empty()).map(|run| run.id));
    }

    /// Records a known state.
    fn know(&mut self, run: &RunView) {
        if run.state.is_terminal() {
            self.settle(run.id, Outcome::of(run));
        }
    }

    fn settle(&mut self, run: RunId, outcome: Outcome) {
        if self.open.remove(&run) {
            self.outcomes.insert(run, outcome);
            // A run that is named twice has two lines.
            let times = self.times.get(&run).copied().unwrap_or(1);
            self.ended.extend(std::iter::repeat_n(run, times));
        }
    }

    /// Whether the wait is over.
    fn is_over(&self) -> bool {
        self.open.is_empty() || (self.lines == Lines::First && !self.ended.is_empty())
    }

    /// Waits until all runs have ended, or the time is up, and prints a line for each. Returns the exit code.
    ///
    /// With `after`, the ends of all runs have greater numbers than this. Without it, their states are requested first.
    pub(crate) fn wait(mut self, ctx: &mut Ctx, mut after: Option<Seq>, until: Option<Instant>) -> Result<u8, Failure> {
        ctx.session.heed_interrupts()?;
        let mut ask_first = after.is_none();
        loop {
            match self.listen(ctx, &mut after, ask_first, until) {
                Ok(()) => break,
                Err(failure) if failure.is_loss() => ctx.session.recover(&failure),
                // The number belongs to another journal, so the states are requested.
                Err(failure) if failure.is_unknown() && after.is_some() => Ok(()),
                Err(failure) => Err(failure),
            }
            .map_err(|failure| {
                of_runs(failure, &ctx.session, || self.open.iter().map(ToString::to_string).collect())
            })?;
            // Some runs may have ended in between, also in another journal: their states are requested, and they are
            // followed from now on.
            (ask_first, after) = (true, None);
        }
        self.progress.clear();
        self.finish(ctx)?;
        ctx.done()?;
        if self.lines == Lines::First {
            let first = self.ended.first().and_then(|run| self.outcomes.get(run));
            return match first {
                Some(outcome) => Ok(outcome.code.unwrap_or(exit::FAILED)),
                None => Err(none_ended(self.runs.len())),
            };
        }
        let live = (!self.open.is_empty()).then_some(exit::STILL_RUNNING);
        let codes = self.outcomes.values().map(|outcome| outcome.code.unwrap_or(exit::FAILED));
        Ok(worst(codes.chain(live)))
    }

    /// Follows the ends of the runs on one connection; `Ok` when all have ended or the time is up.
    fn listen(
        &mut self,
        ctx: &mut Ctx,
        after: &mut Option<Seq>,
        ask_first: bool,
        until: Option<Instant>,
    ) -> Result<(), Failure> {
        if self.is_over() {
            return Ok(());
        }
        let kinds = vec!["run-finished".to_owned(), "interaction-opened".to_owned()];
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
            if self.is_over() {
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
                    if let (Some(run), true) = (event.run, event.kind == "interaction-opened") {
                        self.asks(ctx, run)?;
                        // One of these runs may be the asking run itself.
                        next_look = next_look.min(Instant::now() + SOON);
                    }
                    // The answers of other runs are not even parsed.
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

    /// A run asks a question: the next look examines the runs above it that are waited for.
    fn asks(&mut self, ctx: &mut Ctx, run: RunId) -> Result<(), Failure> {
        let mut at = Some(run);
        for _ in 0..MOST_LEVELS {
            let Some(run) = at else { break };
            if self.open.contains(&run) {
                self.asking.insert(run);
                break;
            }
            // A run that this caller may not see is not below any of them.
            let shown = ctx.session.client()?.call::<method::RunShow>(&show_params(&run));
            let Ok(view) = shown.map(|shown| shown.run) else { break };
            if self.open.contains(&view.root) {
                self.asking.insert(view.root);
            }
            at = view.parent;
        }
        Ok(())
    }

    /// Prints why some open runs do not proceed. Each look examines only a few runs, so that many runs cost no more.
    fn tell(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let places = self.teller.next_places(self.open.len());
        let all = places.len() == self.open.len();
        let open: Vec<RunId> = self.open.iter().copied().collect();
        let asking: Vec<RunId> = self.asking.iter().copied().take(LOOKED_AT).collect();
        self.asking.retain(|run| !asking.contains(run));
        let runs = asking
            .iter()
            .filter(|run| self.open.contains(run))
            .chain(places.iter().filter_map(|&place| open.get(place)));
        let params: Vec<ShowParams> = runs.map(show_params).collect();
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

    /// Requests the states of runs that are not known to have ended.
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

    /// Prints the lines that are due.
    fn print(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let ready: Vec<RunId> = match self.lines {
            Lines::AsNamed if ctx.json => Vec::new(),
            Lines::AsNamed => {
                let rest = self.runs[self.printed..].iter().copied();
                rest.take_while(|run| self.outcomes.contains_key(run)).collect()
            }
            Lines::AsTheyEnd => self.ended[self.printed..].to_vec(),
            Lines::First => self.ended.iter().copied().take(1).skip(self.printed).collect(),
        };
        if !ready.is_empty() {
            self.progress.clear();
            self.write(ctx, &ready)?;
            self.printed += ready.len();
        }
        self.progress.show(format_args!("{} of {} ended", self.outcomes.len(), self.runs.len()));
        Ok(())
    }

    /// Writes the lines of these runs. In JSON they are whole run views, which are requested.
    fn write(&mut self, ctx: &mut Ctx, runs: &[RunId]) -> Result<(), Failure> {
        let known = |run: &RunId| self.outcomes.get(run).filter(|_| !ctx.json);
        let params: Vec<ShowParams> = runs.iter().filter(|run| known(run).is_none()).map(show_params).collect();
        let mut views = vec![None; params.len()];
        if !params.is_empty() {
            ctx.session.client()?.pipeline::<method::RunShow>(&params, Some(PATIENCE), |index, reply| {
                views[index] = Some(reply);
                Flow::Go
            })?;
        }
        let mut views = views.into_iter();
        for run in runs {
            let id = run.to_string();
            if let Some(outcome) = self.outcomes.get(run).filter(|_| !ctx.json) {
                self.sink.line(&mut ctx.out, &outcome.line(&id))?;
                continue;
            }
            match views.next().flatten() {
                Some(Ok(shown)) if ctx.json => self.sink.json(&mut ctx.out, &shown.run)?,
                Some(Ok(shown)) => self.sink.line(&mut ctx.out, &Outcome::of(&shown.run).line(&id))?,
                Some(Err(error)) if ctx.json => {
                    self.sink.json(&mut ctx.out, &serde_json::json!({"id": run, "error": error}))?;
                }
                Some(Err(error)) => self.sink.line(&mut ctx.out, &Outcome::refused(&error).line(&id))?,
                None => {}
            }
        }
        self.sink.flush(&mut ctx.out)
    }

    /// Prints the rest: lines of live runs, or lines that waited for their order.
    fn finish(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        self.print(ctx)?;
        self.progress.clear();
        let rest: Vec<RunId> = match self.lines {
            Lines::AsNamed => self.runs[self.printed..].to_vec(),
            Lines::AsTheyEnd => self.runs.iter().copied().filter(|run| self.open.contains(run)).collect(),
            Lines::First => Vec::new(),
        };
        self.write(ctx, &rest)
    }
}

fn none_ended(runs: usize) -> Failure {
    Failure::Other {
        code: exit::STILL_RUNNING,
        message: format!("none of {} has ended", count(runs, "run")),
        hint: Some("wait on, or look at them: harnessctl list".to_owned()),
    }
}
