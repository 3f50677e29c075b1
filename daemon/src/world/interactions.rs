//! Opens interactions (what a person is asked), and settles them. The only place that does; an interaction of a run
//! that ends, or of a job that gives up, is closed without a settlement elsewhere (`ending`, `steps/settle.rs`,
//! `recover`).
//!
//! ```text
//!                        answered, denied, expired
//!  Pending ──▶ Asking ─────────────────────────────▶ Done
//!     ▲           │ allowed (the call is cleared)
//!     └───────────┘
//!  Executing ──▶ Asking ──▶ OffLane ──▶ Returning ──▶ Executing    (its job asks, and gets the settlement)
//! ```
//!
//! Waiting for a person holds no permit. A job that asked is gone after a restart: the interaction stays open, and its
//! settlement ends the call, as the end of every interrupted call does; it is not run again.

use std::sync::Arc;

use harness_protocol::event::{EventBody, StopReason};
use harness_protocol::id::{CallId, InteractionId, RunId};
use harness_protocol::interaction::Resolution;
use harness_protocol::json_size::is_longer;
use harness_protocol::spec::OnInteraction;

use super::api::{Asked, Effect, JobId, Settlement, Work};
use super::ending::{finish_call, interrupted, stop};
use super::model::components::{Asker, Stage};
use super::model::ids::Ids;
use super::model::indexes::Interactions;
use super::tx::Tx;

/// Bytes of what is to be executed, as JSON, where a person is asked about it.
const MOST_SUBJECT: usize = 64 * 1024;

/// Asks a person about a call, unless its run says that none is there. What is to be executed is shown whole or not at
/// all: a call with more of it is refused.
pub(super) fn open(tx: &mut Tx<'_>, run: RunId, call: CallId, asked: Asked) {
    let Asked { kind, question, subject, within } = asked;
    let on_interaction = tx.spec(run).map(|spec| spec.0.on_interaction).unwrap_or_default();
    if on_interaction == OnInteraction::Wait {
        if subject.as_ref().is_some_and(|subject| is_longer(subject, MOST_SUBJECT)) {
            let kib = MOST_SUBJECT >> 10;
            refuse(tx, run, call, &format!("it is too long to be shown to a person (at most {kib} KiB). Not run."));
            return;
        }
        let interaction = tx.res::<Ids>().next_interaction();
        let expires_at = within.map(|within| tx.now() + within);
        let body =
            EventBody::InteractionOpened { interaction, call, question, interaction_kind: kind, subject, expires_at };
        tx.emit(Some(run), body);
        return;
    }
    tx.emit(Some(run), EventBody::Denied { what: format!("{kind}: {question}").into() });
    if on_interaction == OnInteraction::Fail {
        stop(tx, run, StopReason::NeedsAnswer, false);
        return;
    }
    let words = if kind.comes_first() {
        "no person is there to allow this. Go on without it."
    } else {
        "no person is there to answer. Go on without an answer."
    };
    refuse(tx, run, call, words);
}

/// Denies what a call wants to ask, without a person.
fn refuse(tx: &mut Tx<'_>, run: RunId, call: CallId, words: &str) {
    let has_job = tx.batch(run).and_then(|batch| batch.0.call(call)).is_some_and(|call| call.stage.has_job());
    let settlement = Settlement::denied(words);
    if has_job {
        // It has begun to wait, as it does for an answer.
        tx.emit(Some(run), EventBody::CallOffLane { call });
        answer_job(tx, run, call, settlement);
    } else {
        finish_call(tx, run, call, settlement.refusal(), true);
    }
}

/// Settles an open interaction. Says whose it was; `None` where it is not open.
pub(super) fn settle(tx: &mut Tx<'_>, interaction: InteractionId, settlement: Settlement) -> Option<RunId> {
    let (run, call) = tx.res::<Interactions>().open.get(&interaction).map(|open| (open.run, open.call))?;
    let asker = match tx.batch(run).and_then(|batch| batch.0.call(call)).map(|call| &call.stage) {
        Some(Stage::Asking(_, asker)) => Some(*asker),
        _ => None,
    };
    let Settlement { resolution, text, scope } = &settlement;
    let (resolution, scope) = (*resolution, *scope);
    tx.emit(Some(run), EventBody::InteractionSettled { interaction, answer: Arc::clone(text), resolution, scope });
    match (asker, resolution) {
        (Some(Asker::Call), Resolution::Answered) => finish_call(tx, run, call, settlement.text, false),
        // The event has cleared it: it wants a permit like any other.
        (Some(Asker::Call), Resolution::Allowed) => {}
        (Some(Asker::Call), Resolution::Denied | Resolution::Expired) => {
            finish_call(tx, run, call, settlement.refusal(), true);
        }
        (Some(Asker::Job), _) => answer_job(tx, run, call, settlement),
        (Some(Asker::Gone), _) => interrupted(tx, run, call),
        (None, _) => {}
    }
    Some(run)
}

fn answer_job(tx: &mut Tx<'_>, run: RunId, call: CallId, settlement: Settlement) {
    tx.effect(Effect::Answer { job: JobId { run, work: Work::Call(call) }, settlement });
}
