//! Follows one run or several until they end, across restarts of the daemon.
//!
//! It keeps the list of the followed runs, and for each the number of the last event that was shown, so that nothing is
//! missed or shown twice after a restart. With several runs, each line begins with the name of its run. Runs that had
//! ended before are reported first, one after the other.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use harness_protocol::event::{EventBody, Gap};
use harness_protocol::id::{CallId, EpochId, RunId, Seq};
use harness_protocol::rpc::{OutputParams, OutputStream, SubscribeParams, method};
use harness_protocol::run::{RunView, exit};

use crate::client::timeouts::PATIENCE;
use crate::client::{Came, Note};
use crate::context::{Ctx, write_json};
use crate::error::Failure;
use crate::exit_code::worst;
use crate::output::{Out, Tagged, note};
use crate::progress::ask_inline::Asker;
use crate::progress::end_of_run::{end, write_answer};
use crate::progress::line_writer::Sink;
use crate::progress::long_prompt;
use crate::render::follow::{Ended, Follower};
use crate::render::result_line::Outcome;
use crate::select::tag;
use crate::session::Session;
use crate::session::long_poll::{of_runs, show_params};
use crate::session::wait_reasons::{LOOK_EVERY, Teller};

/// Bytes of one request for live output whose deltas were dropped.
const FETCH: u32 = 1024 * 1024;
/// How long the last events of an ended run may take, if some of its events were left out.
const LAST_EVENTS: Duration = Duration::from_secs(2);
/// Runs that one look examines.
const LOOKED_AT: usize = 16;

/// Options for following runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched<'a> {
    /// Only events after this number.
    pub(crate) after: Seq,
    /// Whether changes of state are printed on standard error.
    pub(crate) notes: bool,
    /// Whether prompts and messages of people are shown.
    pub(crate) prompts: bool,
    /// Whether questions are asked and answered, if there is a terminal.
    pub(crate) answers: bool,
    /// The file that gets the answer as well; for several runs, their lines.
    pub(crate) output: Option<&'a Path>,
}

/// A followed run.
#[derive(Debug)]
struct Followed {
    id: RunId,
    follower: Follower,
    teller: Teller,
    /// The tagged outputs of the run, if several runs are followed.
    lines: Option<(Tagged, Tagged)>,
    /// The view of the run, if it has ended and its last event was left out.
    missed: Option<Box<RunView>>,
}

/// Follows a run to its end. Returns its exit code.
pub(crate) fn watch(ctx: &mut Ctx, run: RunId, watched: &Watched<'_>) -> Result<u8, Failure> {
    let mut watch = Watch::new(ctx, watched, &[(run, None)])?;
    watch.until_the_end(ctx)?;
    Ok(worst(watch.codes))
}

/// Follows several runs to their ends. Returns the worst of their exit codes.
pub(crate) fn watch_several(ctx: &mut Ctx, runs: &[RunView], watched: &Watched<'_>) -> Result<u8, Failure> {
    let width = runs.iter().map(|run| tag(run).chars().count()).max().unwrap_or(0);
    let tagged = |run: &RunView| (run.id, Some(format!("{:<width$} | ", tag(run))));
    let (over, live): (Vec<&RunView>, Vec<&RunView>) = runs.iter().partition(|run| run.state.is_terminal());
    let mut watch = Watch::new(ctx, watched, &[])?;
    for group in over.chunks(1).chain([live.as_slice()]).filter(|group| !group.is_empty()) {
        // A subscription serves one group of runs.
        ctx.session.hang_up();
        watch.begin(ctx, &group.iter().map(|run| tagged(run)).collect::<Vec<_>>());
        watch.until_the_end(ctx)?;
    }
    watch.sink.iter_mut().try_for_each(|sink| sink.flush(&mut ctx.out))?;
    ctx.done()?;
    Ok(worst(watch.codes))
}

/// The followed runs, and the position in their events.
struct Watch<'a> {
    watched: &'a Watched<'a>,
    open: BTreeMap<RunId, Followed>,
    codes: Vec<u8>,
    /// The file that also gets the lines of several runs.
    sink: Option<Sink>,
    asker: Asker,
    after: Seq,
    epoch: Option<EpochId>,
    next_look: Instant,
    /// Position of the next look among the runs.
    looked_at: usize,
}

impl<'a> Watch<'a> {
    fn new(ctx: &mut Ctx, watched: &'a Watched<'a>, runs: &[(RunId, Option<String>)]) -> Result<Self, Failure> {
        ctx.session.heed_interrupts()?;
        let is_one = !runs.is_empty();
        let sink = watched.output.filter(|_| !is_one).map(|path| Sink::new(Some(path))).transpose()?;
        let asker = Asker::new(watched.answers && !ctx.json, ctx.look().terminal, ctx.notes);
        let mut watch = Self {
            watched,
            open: BTreeMap::new(),
            codes: Vec::new(),
            sink,
            asker,
            after: watched.after,
            epoch: None,
            next_look: Instant::now() + LOOK_EVERY,
            looked_at: 0,
        };
        watch.begin(ctx, runs);
        Ok(watch)
    }

    fn begin(&mut self, ctx: &Ctx, runs: &[(RunId, Option<String>)]) {
        (self.after, self.epoch) = (self.watched.after, None);
        for (id, tag) in runs {
            let follower = Follower::new(ctx.look(), ctx.notes, self.watched.prompts);
            let lines = tag.as_ref().map(|tag| (Tagged::new(tag.clone()), Tagged::new(tag.clone())));
            let followed = Followed { id: *id, follower, teller: Teller::default(), lines, missed: None };
            self.open.insert(*id, followed);
        }
    }

    fn until_the_end(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        while !self.open.is_empty() {
            match self.listen(ctx) {
                Ok(()) => Ok(()),
                Err(failure) => {
                    self.flush(ctx)?;
                    if failure.is_loss() { ctx.session.recover(&failure) } else { Err(failure) }
                }
            }
            .map_err(|failure| {
                self.asker.leave();
                of_runs(failure, &ctx.session, || self.open.keys().map(ToString::to_string).collect())
            })?;
        }
        ctx.done()?;
        Ok(())
    }

    /// Follows the runs on one connection until they have ended.
    fn listen(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let one = self.open.first_key_value().filter(|_| self.open.len() == 1).map(|(run, _)| run.to_string());
        let params = SubscribeParams {
            after: Some(self.after),
            runs: if one.is_some() { Vec::new() } else { self.open.keys().copied().collect() },
            run: one,
            deltas: !ctx.json,
            epoch: self.epoch,
            ..SubscribeParams::default()
        };
        self.epoch = ctx.session.client()?.call::<method::EventSubscribe>(&params)?.epoch;
        while !self.open.is_empty() {
            if Instant::now() >= self.next_look {
                self.look(ctx)?;
                self.next_look = Instant::now() + LOOK_EVERY;
            }
            let note = match ctx.session.client()?.note_at_hand() {
                Some(note) => note,
                None => {
                    self.flush(ctx)?;
                    let has_missed = self.open.values().any(|run| run.missed.is_some());
                    let patience = self.next_look.saturating_duration_since(Instant::now());
                    let patience = if has_missed { LAST_EVENTS } else { patience };
                    self.asker.prompt(ctx)?;
                    match ctx.session.client()?.note_or_input(patience, self.asker.input())? {
                        Came::Note(note) => note,
                        Came::Input => {
                            self.asker.read(ctx)?;
                            continue;
                        }
                        Came::Nothing if has_missed => {
                            self.tell_missed(ctx)?;
                            continue;
                        }
                        Came::Nothing => continue,
                    }
                }
            };
            self.take(ctx, &note)?;
        }
        Ok(())
    }

    /// Prints why runs do not proceed, and their open questions. Each look examines only a few runs, so that many runs
    /// cost no more.
    fn look(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        if !self.watched.notes && !self.asker.is_on() {
            return Ok(());
        }
        let all: Vec<RunId> = self.open.keys().copied().collect();
        let first = self.looked_at;
        self.looked_at = first.wrapping_add(LOOKED_AT);
        for place in 0..LOOKED_AT.min(all.len()) {
            let run = all[first.wrapping_add(place) % all.len()];
            let view = ctx.session.client()?.call::<method::RunShow>(&show_params(&run))?.run;
            self.asker.see(&view);
            let Some(followed) = self.open.get_mut(&run).filter(|_| self.watched.notes) else { continue };
            // Questions that are asked here need no note.
            let asks = if self.asker.is_on() { Vec::new() } else { followed.teller.questions(&view) };
            for news in followed.teller.news(&view).into_iter().chain(asks) {
                self.asker.interrupt();
                let tag = followed.lines.as_ref().map_or("", |(_, notes)| notes.tag());
                note(format_args!("{tag}{}", ctx.notes.dim(format_args!("[{news}]"))));
            }
        }
        Ok(())
    }

    fn take(&mut self, ctx: &mut Ctx, note: &Note) -> Result<(), Failure> {
        let run = match note {
            Note::Event(event) => {
                self.after = event.seq;
                if event.kind.starts_with("interaction-") {
                    // A person who could answer is asked at once, or told that the question is settled.
                    self.next_look = Instant::now();
                }
                event.run
            }
            Note::Delta(delta) => Some(delta.run),
            Note::Gap(gap) => {
                self.after = gap.to;
                self.missed(ctx, gap)?;
                None
            }
        };
        if ctx.json {
            let ended = raw(&mut ctx.out, note)?;
            return match (run, ended) {
                (Some(run), Some(ended)) => self.ended(ctx, run, &ended),
                _ => Ok(()),
            };
        }
        let Some(followed) = run.and_then(|run| self.open.get_mut(&run)) else { return Ok(()) };
        self.asker.interrupt();
        let notes = self.watched.notes;
        match shown(ctx, followed, notes, note)? {
            Some(ended) => {
                let run = followed.id;
                self.ended(ctx, run, &ended)
            }
            None => Ok(()),
        }
    }

    fn ended(&mut self, ctx: &mut Ctx, run: RunId, ended: &Ended) -> Result<(), Failure> {
        self.flush(ctx)?;
        let Some(mut followed) = self.open.remove(&run) else { return Ok(()) };
        self.asker.over(run);
        if let Some((lines, notes)) = &mut followed.lines {
            lines.end(&mut ctx.out)?;
            notes.end(&mut io::stderr().lock())?;
        }
        match (&mut self.sink, self.watched.output, &ended.answer) {
            (Some(sink), ..) => sink.line(&mut ctx.out, &Outcome::of_followed(ended).line(&run.to_string()))?,
            (None, Some(path), Some(answer)) => write_answer(path, answer, &run.to_string())?,
            (None, ..) => {}
        }
        self.codes.push(ended.code);
        Ok(())
    }

    /// After a gap: finds out which of the runs have ended.
    fn missed(&mut self, ctx: &mut Ctx, gap: &Gap) -> Result<(), Failure> {
        let why = gap.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        for followed in self.open.values_mut() {
            if !ctx.json {
                note(format_args!(
                    "harnessctl: events {} to {} were left out{why}: harnessctl logs {}",
                    gap.from, gap.to, followed.id
                ));
            }
            let run = ctx.session.client()?.call::<method::RunShow>(&show_params(&followed.id))?.run;
            followed.missed = run.state.is_terminal().then(|| Box::new(run));
        }
        Ok(())
    }

    /// Reports the ends of runs whose last event was missed.
    fn tell_missed(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let missed: Vec<Box<RunView>> = self.open.values_mut().filter_map(|run| run.missed.take()).collect();
        for run in missed {
            let Some(mut followed) = self.open.remove(&run.id) else { continue };
            let code = match &mut followed.lines {
                None => end(ctx, &run, self.watched.output)?,
                Some((lines, _)) => {
                    let line = Outcome::of(&run).line(&run.id.to_string());
                    writeln!(lines.on(&mut ctx.out), "{line}")?;
                    self.sink.iter_mut().try_for_each(|sink| sink.line(&mut ctx.out, &line))?;
                    run.exit_code.unwrap_or(exit::STILL_RUNNING)
                }
            };
            self.codes.push(code);
        }
        Ok(())
    }

    fn flush(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        Ok(ctx.out.flush()?)
    }
}

fn shown(ctx: &mut Ctx, followed: &mut Followed, notes: bool, note: &Note) -> Result<Option<Ended>, Failure> {
    let Ctx { session, out, .. } = ctx;
    let run = followed.id.to_string();
    let mut event = None;
    if let Note::Event(raw) = note {
        // Kinds of events that this program does not know are skipped.
        let Some(mut known) = raw.event() else { return Ok(None) };
        if followed.follower.shows_prompts() {
            long_prompt::attach(session, &mut known);
        }
        event = Some(known);
    }
    let mut fetch = |call, stream, from| fetch(session, &run, call, stream, from);
    let follower = &mut followed.follower;
    let (mut tagged_out, mut tagged_notes);
    let mut stderr = io::stderr().lock();
    let mut nowhere = io::sink();
    let (out, notes): (&mut dyn Write, &mut dyn Write) = match &mut followed.lines {
        None if notes => (out, &mut stderr),
        None => (out, &mut nowhere),
        Some((lines, _)) if !notes => {
            tagged_out = lines.on(out);
            (&mut tagged_out, &mut nowhere)
        }
        Some((lines, notes)) => {
            (tagged_out, tagged_notes) = (lines.on(out), notes.on(&mut stderr));
            (&mut tagged_out, &mut tagged_notes)
        }
    };
    match (note, event) {
        (_, Some(event)) => Ok(follower.event(out, notes, &event, &mut fetch)?),
        (Note::Delta(delta), None) => {
            follower.delta(out, delta, &mut fetch)?;
            Ok(None)
        }
        (Note::Event(_) | Note::Gap(_), None) => Ok(None),
    }
}

fn fetch(session: &mut Session, run: &str, call: CallId, stream: OutputStream, from: u64) -> Option<Vec<u8>> {
    let offset = i64::try_from(from).ok()?;
    let params = OutputParams { run: run.to_owned(), call, stream, offset, limit: Some(FETCH) };
    // If this fails, the text says how much is missing; a lost connection is noticed at the next notification.
    let reply = session.client().ok()?.call_within::<method::RunOutput>(&params, Some(PATIENCE)).ok()?;
    (reply.offset == from).then_some(reply.bytes)
}

/// Prints the event as it came. Returns its ending if it is the last event of its run.
fn raw(out: &mut Out, note: &Note) -> Result<Option<Ended>, Failure> {
    match note {
        Note::Event(event) => {
            out.json_text(&event.json)?;
            let body = (event.kind == "run-finished").then(|| event.event()).flatten().map(|event| event.body);
            Ok(match body {
                Some(EventBody::RunFinished { ending }) => Some(Ended::of(&ending)),
                _ => None,
            })
        }
        Note::Gap(gap) => {
            write_json(out, &serde_json::json!({ "gap": gap }))?;
            Ok(None)
        }
        Note::Delta(_) => Ok(None),
    }
}
