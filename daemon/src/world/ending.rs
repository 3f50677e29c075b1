//! Ends runs and calls: stops a run, gives a call a result that comes from the world, and finishes a run that is
//! complete.

use std::sync::Arc;

use harness_protocol::event::{Ending, EventBody, StopReason};
use harness_protocol::id::{CallId, InteractionId, RunId};
use harness_protocol::interaction::Resolution;
use harness_protocol::run::{CallResult, exit};

use crate::world::api::{Effect, JobId, Work};
use crate::world::model::components::{Asker, Stage};
use crate::world::model::phase::Phase;
use crate::world::tx::Tx;
use crate::world::view::size_limits::{MOST_ERROR, fit_text};

/// Bytes of the result of one call as JSON, so that its event and its entry fit into a frame.
const MOST_RESULT: usize = 7 * 1024 * 1024;

/// What the model reads of a call whose job a restart has ended.
const INTERRUPTED: &str = "Interrupted: the daemon was restarted while this call was executing. It was not run again, \
                           and how far it came is not known.";

/// Why a run of which a record cannot be read has ended.
pub(in crate::world) const UNREADABLE: &str =
    "a record of this run cannot be read, so it cannot go on; the daemon's log names it";

/// Tells a run to end: what is out is cancelled, nothing else starts. Says whether that changed anything.
pub(in crate::world) fn stop(tx: &mut Tx<'_>, run: RunId, reason: StopReason, force: bool) -> bool {
    let Some(life) = tx.life(run) else { return false };
    if matches!(life.phase(), Phase::Ended(_)) || (life.stopping.is_some() && !force) {
        return false;
    }
    let jobs = jobs_out(tx, run);
    tx.emit(Some(run), EventBody::RunStopping { reason, force });
    for job in jobs {
        tx.effect(Effect::Cancel { job, force });
    }
    true
}

/// The jobs of a run that are out.
pub(in crate::world) fn jobs_out(tx: &Tx<'_>, run: RunId) -> Vec<JobId> {
    let Some(life) = tx.life(run) else { return Vec::new() };
    match life.phase() {
        Phase::Thinking(_) => {
            vec![JobId { run, work: Work::Inference { step: life.step, attempt: life.attempt } }]
        }
        Phase::Acting => tx.batch(run).map_or_else(Vec::new, |batch| {
            let out = batch.0.calls.iter().filter(|call| call.stage.has_job());
            out.map(|call| JobId { run, work: Work::Call(call.id) }).collect()
        }),
        _ => Vec::new(),
    }
}

/// Gives a call its result, as plain text.
pub(in crate::world) fn finish_call(
    tx: &mut Tx<'_>,
    run: RunId,
    call: CallId,
    text: impl Into<Arc<str>>,
    is_error: bool,
) {
    let tool = tx.batch(run).and_then(|batch| batch.0.call(call)).map(|call| Arc::clone(&call.tool));
    if let Some(tool) = tool {
        emit_result(tx, run, CallResult::plain(call, tool, text, is_error));
    }
}

pub(in crate::world) fn emit_result(tx: &mut Tx<'_>, run: RunId, result: CallResult) {
    let result = CallResult { envelope: fit_text(&result.envelope, MOST_RESULT), ..result };
    tx.emit(Some(run), EventBody::CallFinished { result: Arc::new(result) });
}

/// Ends a call whose job is gone since a restart, with what a person last said to it. What the job would have done is
/// not known.
pub(in crate::world) fn interrupted(tx: &mut Tx<'_>, run: RunId, call: CallId) {
    let Some(batch) = tx.batch(run) else { return };
    let Some((tool, told)) = batch.0.call(call).map(|call| (Arc::clone(&call.tool), call.told.clone())) else { return };
    let mut text = INTERRUPTED.to_owned();
    if let Some(told) = told {
        text += &match told.resolution {
            Resolution::Answered => format!(" The answer was: {}", told.text),
            Resolution::Allowed | Resolution::Denied | Resolution::Expired => format!(" {}", told.refusal()),
        };
    }
    emit_result(tx, run, CallResult { interrupted: true, ..CallResult::plain(call, tool, text, true) });
}

/// Ends a run. Nothing of it is out any more.
pub(in crate::world) fn finish_run(tx: &mut Tx<'_>, run: RunId, ending: Ending) {
    tx.emit(Some(run), EventBody::RunFinished { ending });
    tx.effect(Effect::Release(run));
}

pub(in crate::world) fn fail_run(tx: &mut Tx<'_>, run: RunId, error: impl Into<Arc<str>>, exit_code: u8) {
    let error = fit_text(&error.into(), MOST_ERROR);
    finish_run(tx, run, Ending::Failed { error, exit_code });
}

/// Goes on with ending a run that was told to: nothing more to do while jobs are out; then every call gets its result,
/// then the run its end.
pub(in crate::world) fn wind_up(tx: &mut Tx<'_>, run: RunId, reason: StopReason) {
    if !jobs_out(tx, run).is_empty() {
        close_what_jobs_ask(tx, run);
        give_back(tx, run);
        return;
    }
    let open: Vec<(CallId, Arc<str>, Stage)> = tx.batch(run).map_or_else(Vec::new, |batch| {
        let open = batch.0.calls.iter().filter(|call| call.stage != Stage::Done);
        open.map(|call| (call.id, Arc::clone(&call.tool), call.stage.clone())).collect()
    });
    for (call, tool, stage) in open {
        if let Stage::Asking(interaction, asker) = stage {
            tx.emit(Some(run), EventBody::InteractionClosed { interaction });
            if asker == Asker::Gone {
                // It executed before the restart.
                interrupted(tx, run, call);
                continue;
            }
        }
        let text = "Not run: the run was ended first.";
        let result = CallResult { cancelled: true, ..CallResult::plain(call, tool, text, true) };
        emit_result(tx, run, result);
    }
    let failed = |error: &str, exit_code| Ending::Failed { error: error.into(), exit_code };
    let ending = match reason {
        StopReason::Cancelled => Ending::Cancelled { error: "cancelled".into() },
        StopReason::MaxTime => failed("its time for inference and execution is used up (--max-time)", exit::TIME_LIMIT),
        StopReason::Deadline => failed("its deadline has passed (--deadline)", exit::TIME_LIMIT),
        StopReason::Unreadable => failed(UNREADABLE, exit::INTERNAL),
        StopReason::NeedsAnswer => {
            failed("it asked a person, and nobody may answer (--on-interaction=fail)", exit::NEEDS_ANSWER)
        }
    };
    finish_run(tx, run, ending);
}

/// Jobs that are being ended wait for no person.
fn close_what_jobs_ask(tx: &mut Tx<'_>, run: RunId) {
    let asked: Vec<InteractionId> = tx.batch(run).map_or_else(Vec::new, |batch| {
        let asked = batch.0.calls.iter().filter_map(|call| match call.stage {
            Stage::Asking(interaction, Asker::Job) => Some(interaction),
            _ => None,
        });
        asked.collect()
    });
    for interaction in asked {
        tx.emit(Some(run), EventBody::InteractionClosed { interaction });
    }
}

/// Lets go of permits under which nothing executes any more, while other jobs of the run are still being ended.
fn give_back(tx: &mut Tx<'_>, run: RunId) {
    let Some(batch) = tx.batch(run) else { return };
    let (executing, held) = (batch.0.executing(), batch.0.ticket.map_or(0, |ticket| tx.lanes().tool.held(ticket)));
    if held > executing {
        let keeps = u32::from(executing);
        tx.emit(Some(run), if executing == 0 { EventBody::BatchParked } else { EventBody::BatchYielded { keeps } });
    }
}
