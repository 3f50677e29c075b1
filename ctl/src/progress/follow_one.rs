//! Follows runs until they end, across restarts of the daemon.
//!
//! Owns which runs are followed, and how far. With several runs, each line begins with the name of its run; runs that
//! had ended before are told first, one after the other.

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
use crate::output::{Out, Tagged, note};
use crate::progress::ask_inline::Asker;
use crate::progress::line_writer::Sink;
use crate::progress::report::{end, write_answer};
use crate::render::follow::{Ended, Follower};
use crate::render::result_line::Outcome;
use crate::select::{tag, worst};
use crate::session::Session;
use crate::session::long_poll::{of_runs, show_params};
use crate::session::stand_still::{LOOK_EVERY, Teller};

/// Bytes of live output that are fetched at once where pieces of it were dropped.
const FETCH: u32 = 1024 * 1024;
/// How long the last events of a run may take that has ended and some of whose events were left out.
const LAST_EVENTS: Duration = Duration::from_secs(2);
/// Runs that are looked at together for what they stand still for.
const LOOKED_AT: usize = 16;

/// How runs are followed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched<'a> {
    /// Events after this one.
    pub(crate) after: Seq,
    /// States are told on standard error.
    pub(crate) notes: bool,
    /// What people told the run is shown, too.
    pub(crate) prompts: bool,
    /// Questions are asked and answered where a terminal is there.
    pub(crate) answers: bool,
    /// Where the answer goes, too; of several runs their lines.
    pub(crate) output: Option<&'a Path>,
}

/// One run that is followed.
#[derive(Debug)]
struct Followed {
    id: RunId,
    follower: Follower,
    teller: Teller,
    /// Of several runs: what their lines go through.
    lines: Option<(Tagged, Tagged)>,
    /// It has ended, and its last event is among those that were left out.
    missed: Option<Box<RunView>>,
}

/// Follows a run to its end, and gives its exit code.
pub(crate) fn watch(ctx: &mut Ctx, run: RunId, watched: &Watched<'_>) -> Result<u8, Failure> {
    let mut watch = Watch::new(ctx, watched, &[(run, None)])?;
    watch.until_the_end(ctx)?;
    Ok(worst(watch.codes))
}

/// Follows several runs to their ends, and gives the worst of their exit codes.
pub(crate) fn watch_several(ctx: &mut Ctx, runs: &[RunView], watched: &Watched<'_>) -> Result<u8, Failure> {
    let width = runs.iter().map(|run| tag(run).chars().count()).max().unwrap_or(0);
    let tagged = |run: &RunView| (run.id, Some(format!("{:<width$} | ", tag(run))));
    let (over, live): (Vec<&RunView>, Vec<&RunView>) = runs.iter().partition(|run| run.state.is_terminal());
    let mut watch = Watch::new(ctx, watched, &[])?;
    for group in over.chunks(1).chain([live.as_slice()]).filter(|group| !group.is_empty()) {
        // A subscription serves one group.
        ctx.session.hang_up();
        watch.begin(ctx, &group.iter().map(|run| tagged(run)).collect::<Vec<_>>());
        watch.until_the_end(ctx)?;
    }
    watch.sink.iter_mut().try_for_each(|sink| sink.flush(&mut ctx.out))?;
    ctx.done()?;
    Ok(worst(watch.codes))
}

/// Some runs, and how far they were followed.
struct Watch<'a> {
    watched: &'a Watched<'a>,
    open: BTreeMap<RunId, Followed>,
    codes: Vec<u8>,
    /// Where the lines of several runs go, too.
    sink: Option<Sink>,
    asker: Asker,
    after: Seq,
    epoch: Option<EpochId>,
    next_look: Instant,
    /// Where the next look begins.
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

    /// Follows them on one connection until they have ended.
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

    /// Tells what runs stand still for, and which questions are open. A few of them each time, so that many cost no
    /// more.
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
            // Those that are asked here need not be told.
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

    /// After a gap: which of them have ended.
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

    /// Tells the ends of runs whose last event was missed.
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
    match note {
        Note::Event(event) => {
            // What a newer daemon tells beyond this program's words is passed over.
            let Some(event) = event.event() else { return Ok(None) };
            Ok(follower.event(out, notes, &event, &mut fetch)?)
        }
        Note::Delta(delta) => {
            follower.delta(out, delta, &mut fetch)?;
            Ok(None)
        }
        Note::Gap(_) => Ok(None),
    }
}

fn fetch(session: &mut Session, run: &str, call: CallId, stream: OutputStream, from: u64) -> Option<Vec<u8>> {
    let offset = i64::try_from(from).ok()?;
    let params = OutputParams { run: run.to_owned(), call, stream, offset, limit: Some(FETCH) };
    // Where it fails the text says what is missing; a lost connection shows at the next note.
    let reply = session.client().ok()?.call_within::<method::RunOutput>(&params, Some(PATIENCE)).ok()?;
    (reply.offset == from).then_some(reply.bytes)
}

/// The event as it came; tells when it was the last one of its run.
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
