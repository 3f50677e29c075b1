//! A run watched as it goes, until it ends, across restarts of the daemon.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use harness_protocol::event::{Ending, EventBody, Gap};
use harness_protocol::id::{EpochId, Seq};
use harness_protocol::rpc::{OutputParams, SubscribeParams, method};
use harness_protocol::run::{RunView, exit};

use crate::client::Note;
use crate::ctx::{Ctx, write_json};
use crate::ending::{end, write_answer};
use crate::exit::Failure;
use crate::output::{Out, note};
use crate::patience::PATIENCE;
use crate::render::follow::{Ended, Follower};
use crate::session::Session;
use crate::standing::{LOOK_EVERY, Teller};
use crate::waiting::{of_runs, show_params};

/// Bytes of live output that are fetched at once where pieces of it were dropped.
const FETCH: u32 = 1024 * 1024;
/// How long the last events of a run may take that has ended and some of whose events were left out.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// What is followed, and how.
#[derive(Debug)]
pub(crate) struct Watched<'a> {
    /// The run, by id.
    pub(crate) run: String,
    /// Events after this one.
    pub(crate) after: Seq,
    /// States are told on standard error.
    pub(crate) notes: bool,
    /// What people told the run is shown, too.
    pub(crate) prompts: bool,
    /// Where the answer goes, too.
    pub(crate) output: Option<&'a Path>,
}

/// Follows a run to its end, and gives its exit code.
pub(crate) fn watch(ctx: &mut Ctx, watched: &Watched<'_>) -> Result<u8, Failure> {
    ctx.session.heed_interrupts()?;
    let mut follower = Follower::new(ctx.look(), ctx.notes, watched.prompts);
    let mut teller = Teller::default();
    let mut after = watched.after;
    let mut epoch = None;
    loop {
        match listen(ctx, watched, (&mut follower, &mut teller), (&mut after, &mut epoch)) {
            Ok(End::Seen(ended)) => {
                if let (Some(path), Some(answer)) = (watched.output, &ended.answer) {
                    write_answer(path, answer, &watched.run)?;
                }
                ctx.done()?;
                return Ok(ended.code);
            }
            Ok(End::Missed(run)) => return end(ctx, &run, watched.output),
            Err(failure) if failure.is_loss() => {
                ctx.out.flush()?;
                ctx.session.recover(&failure)
            }
            Err(failure) => {
                ctx.out.flush()?;
                Err(failure)
            }
        }
        .map_err(|failure| of_runs(failure, &ctx.session, || vec![watched.run.clone()]))?;
    }
}

enum End {
    /// Its last event came.
    Seen(Ended),
    /// It has ended, and its last event is among those that were left out.
    Missed(Box<RunView>),
}

/// Tells what the run stands still for, while nothing happens to it.
fn look(ctx: &mut Ctx, watched: &Watched<'_>, teller: &mut Teller) -> Result<(), Failure> {
    if watched.notes {
        let run = ctx.session.client()?.call::<method::RunShow>(&show_params(&watched.run))?.run;
        if let Some(news) = teller.news(&run) {
            note(ctx.notes.dim(format_args!("[{news}]")));
        }
    }
    Ok(())
}

fn listen(
    ctx: &mut Ctx,
    watched: &Watched<'_>,
    (follower, teller): (&mut Follower, &mut Teller),
    (after, epoch): (&mut Seq, &mut Option<EpochId>),
) -> Result<End, Failure> {
    let params = SubscribeParams {
        after: Some(*after),
        run: Some(watched.run.clone()),
        tree: false,
        kinds: Vec::new(),
        deltas: !ctx.json,
        epoch: *epoch,
    };
    *epoch = ctx.session.client()?.call::<method::EventSubscribe>(&params)?.epoch;
    let mut missed: Option<Box<RunView>> = None;
    loop {
        let client = ctx.session.client()?;
        let note = match client.note_at_hand() {
            Some(note) => note,
            None => {
                ctx.out.flush()?;
                let patience = if missed.is_some() { LAST_EVENTS } else { LOOK_EVERY };
                match (client.note(Some(patience))?, missed.take()) {
                    (Some(note), run) => {
                        missed = run;
                        note
                    }
                    (None, Some(run)) => return Ok(End::Missed(run)),
                    (None, None) => {
                        look(ctx, watched, teller)?;
                        continue;
                    }
                }
            }
        };
        if let Note::Event(event) = &note {
            *after = event.seq;
        }
        if let Note::Gap(gap) = &note {
            *after = gap.to;
            missed = ended_meanwhile(ctx, watched, gap)?;
        }
        let ended = if ctx.json { raw(&mut ctx.out, &note)? } else { shown(ctx, watched, follower, &note)? };
        if let Some(ended) = ended {
            return Ok(End::Seen(ended));
        }
    }
}

/// After a gap: the run, if it has ended.
fn ended_meanwhile(ctx: &mut Ctx, watched: &Watched<'_>, gap: &Gap) -> Result<Option<Box<RunView>>, Failure> {
    if !ctx.json {
        let why = gap.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        note(format_args!(
            "harnessctl: events {} to {} were left out{why}: harnessctl logs {}",
            gap.from, gap.to, watched.run
        ));
    }
    let shown = ctx.session.client()?.call::<method::RunShow>(&show_params(&watched.run))?;
    Ok(shown.run.state.is_terminal().then(|| Box::new(shown.run)))
}

fn shown(ctx: &mut Ctx, watched: &Watched<'_>, follower: &mut Follower, note: &Note) -> Result<Option<Ended>, Failure> {
    let Ctx { session, out, .. } = ctx;
    let mut fetch = |call, stream, from| fetch(session, &watched.run, call, stream, from);
    match note {
        Note::Event(event) => {
            // What a newer daemon tells beyond this program's words is passed over.
            let Some(event) = event.event() else { return Ok(None) };
            let mut notes: Box<dyn Write> =
                if watched.notes { Box::new(io::stderr().lock()) } else { Box::new(io::sink()) };
            Ok(follower.event(out, &mut *notes, &event, &mut fetch)?)
        }
        Note::Delta(delta) => {
            follower.delta(out, delta, &mut fetch)?;
            Ok(None)
        }
        Note::Gap(_) => Ok(None),
    }
}

fn fetch(
    session: &mut Session,
    run: &str,
    call: harness_protocol::id::CallId,
    stream: harness_protocol::rpc::OutputStream,
    from: u64,
) -> Option<Vec<u8>> {
    let offset = i64::try_from(from).ok()?;
    let params = OutputParams { run: run.to_owned(), call, stream, offset, limit: Some(FETCH) };
    // Where it fails the text says what is missing; a lost connection shows at the next note.
    let reply = session.client().ok()?.call_within::<method::RunOutput>(&params, Some(PATIENCE)).ok()?;
    (reply.offset == from).then_some(reply.bytes)
}

/// The event as it came; tells when it was the last one.
fn raw(out: &mut Out, note: &Note) -> Result<Option<Ended>, Failure> {
    match note {
        Note::Event(event) => {
            writeln!(out, "{}", event.json)?;
            let body = (event.kind == "run-finished").then(|| event.event()).flatten().map(|event| event.body);
            Ok(match body {
                Some(EventBody::RunFinished { ending }) => Some(match ending {
                    Ending::Succeeded { answer } => Ended { code: exit::SUCCEEDED, answer: Some(answer) },
                    Ending::Failed { exit_code, .. } => Ended { code: exit_code, answer: None },
                    Ending::Cancelled { .. } => Ended { code: exit::CANCELLED, answer: None },
                }),
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
