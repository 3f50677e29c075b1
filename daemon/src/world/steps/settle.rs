//! Handles the outcomes of jobs, their asks, and timers that are due (the set Settle). An outcome for a step that is
//! over is dropped.

use std::sync::Arc;

use bevy_ecs::schedule::{IntoScheduleConfigs as _, Schedule};
use harness_protocol::event::{EventBody, ProviderFault, StopReason};
use harness_protocol::id::{CallId, RunId};
use harness_protocol::interaction::Resolution;
use harness_protocol::json_size::{cut, text_bytes};
use harness_protocol::run::{CallRequest, CallResult, Carried, Compaction, GivenId, Usage, exit};
use harness_protocol::time::Span;

use super::{StepSystems, exclusive};
use crate::prompt::summarise::makeshift;
use crate::prompt::{Completion, ErrorClass, InferenceError, RequestedCall};
use crate::world::api::{Ask, Effect, Input, JobId, Outcome, Settlement, Work};
use crate::world::ending::{emit_result, fail_run, stop};
use crate::world::inference::{next_inference, prepare, provider_health, retry_delay, usage_estimate, when_to_compact};
use crate::world::interactions;
use crate::world::model::call_kind;
use crate::world::model::components::{Asker, Compacting, CompactionFailures, MAX_FAILURES, Stage, Transcript};
use crate::world::model::ids::Ids;
use crate::world::model::indexes::{ProviderHealth, Timer, Timers};
use crate::world::model::phase::Phase;
use crate::world::tx::Tx;
use crate::world::view::size_limits::MOST_ERROR;

/// How often a model is asked for a summary that gives none.
const SUMMARY_TRIES: u32 = 3;
/// Answers to one prompt of which nothing can be used, before the run fails: each is paid for.
const MOST_UNUSABLE: u32 = 4;
/// Calls of one answer that are looked at, though only `limits.calls_per_step` of them are executed.
const MOST_CALLS: usize = 1_024;
/// Timers of one step. Many runs may share a deadline; those that are due and left are due in the next step.
const MOST_DUE: usize = 200;
/// Bytes of one answer as JSON, so that its event fits into a frame, and beside it what else is shown of its run.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of the name of a tool that is asked for. A longer one names no tool, and its begin tells as much.
const MOST_TOOL_NAME: usize = 256;

pub(in crate::world) fn install(schedule: &mut Schedule) {
    schedule.add_systems((exclusive(take_reports), exclusive(fire_timers)).chain().in_set(StepSystems::Settle));
}

fn take_reports(tx: &mut Tx<'_>) {
    for input in tx.take_inputs() {
        match input {
            Input::Outcome { job, outcome } => settle(tx, job, outcome),
            Input::Ask { job, ask } => heard(tx, job, ask),
            Input::Command { .. } => {}
        }
    }
}

fn settle(tx: &mut Tx<'_>, job: JobId, outcome: Outcome) {
    match job.work {
        Work::Call(call) => {
            let has_job = tx.batch(job.run).and_then(|batch| batch.0.call(call)).is_some_and(|c| c.stage.has_job());
            if has_job {
                withdraw(tx, job.run, call);
                let result = call_result(tx, job.run, call, outcome);
                emit_result(tx, job.run, result);
            }
        }
        Work::Inference { step, attempt } => {
            let current = tx.life(job.run).is_some_and(|life| {
                matches!(life.phase(), Phase::Thinking(_)) && (life.step, life.attempt) == (step, attempt)
            });
            if current {
                let plan = tx.entity(job.run).and_then(|entity| tx.get::<Compacting>(entity));
                let plan = plan.map(|compacting| Arc::clone(&compacting.0));
                let answer = answer(outcome).and_then(within_bounds);
                match (answer, plan) {
                    (Ok(completion), None) => match no_answer(tx, job.run, &completion) {
                        Some(error) => unanswered(tx, job.run, step, attempt, &error),
                        None => answered(tx, job.run, step, completion),
                    },
                    (answer, Some(plan)) => summarised(tx, job.run, (step, attempt), &plan, answer),
                    (Err(error), None) => unanswered(tx, job.run, step, attempt, &error),
                }
            }
        }
    }
}

/// A job that has ended, or goes on, asks no person any more.
fn withdraw(tx: &mut Tx<'_>, run: RunId, call: CallId) {
    let stage = tx.batch(run).and_then(|batch| batch.0.call(call)).map(|call| &call.stage);
    if let Some(&Stage::Asking(interaction, _)) = stage {
        tx.emit(Some(run), EventBody::InteractionClosed { interaction });
    }
}

fn call_result(tx: &Tx<'_>, run: RunId, call: CallId, outcome: Outcome) -> CallResult {
    let tool = tx.batch(run).and_then(|batch| batch.0.call(call)).map_or_else(|| "".into(), |c| Arc::clone(&c.tool));
    let text = match outcome {
        Outcome::Call(result) if result.call == call => return Arc::unwrap_or_clone(result),
        Outcome::Call(_) | Outcome::Inference(_) => {
            "The harness mixed up this call's result; it is not known.".to_owned()
        }
        Outcome::Panicked(message) => format!("A fault of the harness ended this call: {message}"),
        Outcome::Lost => "Whoever executed this call is gone; how it ended is not known.".to_owned(),
    };
    CallResult::plain(call, tool, text, true)
}

fn answer(outcome: Outcome) -> Result<Completion, InferenceError> {
    let fault = |message: String| InferenceError::new(ErrorClass::Never, message);
    match outcome {
        Outcome::Inference(result) => result,
        Outcome::Panicked(message) => Err(fault(format!("a fault of the harness ended the inference: {message}"))),
        Outcome::Lost => Err(InferenceError::new(ErrorClass::Retry, "whoever made the inference is gone")),
        Outcome::Call(_) => Err(fault("the harness mixed up the inference's result".to_owned())),
    }
}

/// Why an answer is none. Whatever its provider calls it, one without text and calls is never one; one that is doubted
/// is none the first time.
fn no_answer(tx: &Tx<'_>, run: RunId, completion: &Completion) -> Option<InferenceError> {
    let was_asked_again = tx.life(run).is_some_and(|life| life.unusable > 0);
    let why = match &completion.doubt {
        _ if completion.is_empty() => "the model neither said nor called anything",
        Some(doubt) if !was_asked_again => doubt,
        _ => return None,
    };
    let usage = Some(usage_estimate::of_answer(tx, run, completion));
    Some(InferenceError { usage, ..InferenceError::new(ErrorClass::Unusable, why) })
}

/// An answer that no frame and no step could hold is no answer.
fn within_bounds(completion: Completion) -> Result<Completion, InferenceError> {
    let usage = Some(completion.usage);
    let fault = |message: String| InferenceError { usage, ..InferenceError::new(ErrorClass::AnswerTooLarge, message) };
    let calls = completion.calls.len();
    if calls > MOST_CALLS {
        return Err(fault(format!("the model asked for {calls} calls at once; at most {MOST_CALLS} are looked at")));
    }
    let carried = completion.carried.as_ref().map_or(0, |carried| text_bytes(&carried.parts));
    let args = completion.calls.iter().map(|call| {
        let tool = text_bytes(&call.tool).min(MOST_TOOL_NAME);
        tool + text_bytes(&call.args)
            + text_bytes(&call.given)
            + call.unusable.as_ref().map_or(0, |text| text_bytes(text))
            + call.ask.as_ref().and_then(|ask| ask.text.as_ref()).map_or(0, |text| text_bytes(text))
    });
    let bytes = text_bytes(&completion.text) + args.sum::<usize>() + carried;
    if bytes > MOST_BYTES {
        return Err(fault(format!("the model's answer takes {bytes} bytes as JSON; at most {MOST_BYTES} are taken")));
    }
    Ok(completion)
}

/// The provider that a run asks.
fn asked(tx: &Tx<'_>, run: RunId) -> Option<Arc<str>> {
    tx.life(run)?.provider.clone().or_else(|| tx.spec(run)?.0.provider.clone())
}

fn answered(tx: &mut Tx<'_>, run: RunId, step: u32, completion: Completion) {
    let usage = usage_estimate::of_answer(tx, run, &completion);
    let said_by = asked(tx, run);
    let ids = tx.res::<Ids>();
    let toolset = prepare::toolset(tx, run).unwrap_or(&tx.setup().toolset);
    // A tool that is known has one name for all calls of it.
    let name = |tool: String| {
        toolset.get(&tool).map_or_else(|| cut(&tool, MOST_TOOL_NAME).into(), |(name, _)| Arc::clone(name))
    };
    let spec = tx.spec(run).map(|spec| Arc::clone(&spec.0)).unwrap_or_default();
    let kind = |tool: &str| call_kind::to_record(tool, toolset.get(tool).map(|(_, kind)| kind), &spec);
    let request = |(ahead, call): (u64, RequestedCall)| CallRequest {
        call: ids.next_call(ahead),
        kind: kind(&call.tool),
        tool: name(call.tool),
        args: call.args.into(),
        unusable: call.unusable.map(Into::into),
        ask: call.ask,
        given: Some(call.given)
            .filter(|id| !id.is_empty())
            .zip(said_by.clone())
            .map(|(id, provider)| Box::new(GivenId { id: id.into(), provider })),
    };
    let calls: Vec<CallRequest> = (0u64..).zip(completion.calls).map(request).collect();
    let cut = completion.cut;
    let carried = completion.carried.map(|carried| Arc::new(Carried { provider: said_by, ..carried }));
    let text = completion.text.into();
    let asked = asked(tx, run);
    let probed = asked.filter(|asked| tx.res::<ProviderHealth>().get(asked).is_some());
    tx.emit(Some(run), EventBody::InferenceFinished { step, text, calls, usage, carried, cut });
    if let Some(provider) = probed {
        // More may ask it from here on.
        next_inference::reconsider(tx, &provider);
    }
}

/// What a model answered that was asked for a summary. A run does not fail for the lack of one.
fn summarised(
    tx: &mut Tx<'_>,
    run: RunId,
    (step, attempt): (u32, u32),
    plan: &Compaction,
    answer: Result<Completion, InferenceError>,
) {
    let Some(life) = tx.life(run) else { return };
    let (stopping, provider) = (life.stopping.is_some(), life.provider.clone());
    let tries = tx.entity(run).and_then(|entity| tx.get::<CompactionFailures>(entity)).map_or(0, |tries| tries.0) + 1;
    // It may have thought for as long as it was let.
    let is_empty = match &answer {
        Ok(completion) => completion.text.trim().is_empty(),
        Err(error) => error.class == ErrorClass::Unusable,
    };
    let error = match answer {
        Ok(completion) if !completion.text.trim().is_empty() => {
            let usage = usage_estimate::of_answer(tx, run, &completion);
            let cut = if completion.cut { "\n[The summary was cut off here.]" } else { "" };
            let text = format!("{}{cut}", completion.text.trim()).into();
            finish_compaction(tx, run, step, plan, text, usage);
            return;
        }
        Ok(completion) => {
            let message = "the model gave no summary of what had become too long for it";
            let usage = Some(usage_estimate::of_answer(tx, run, &completion));
            InferenceError { usage, ..InferenceError::new(ErrorClass::Never, message) }
        }
        Err(error) => error,
    };
    let is_of_no_use = match error.class {
        ErrorClass::Never | ErrorClass::Unusable | ErrorClass::AnswerTooLarge => true,
        ErrorClass::ContextTooLong => !when_to_compact::can_shorten(tx, run, provider.as_ref()),
        ErrorClass::Retry
        | ErrorClass::RetryAfter(_)
        | ErrorClass::RateLimit(_)
        | ErrorClass::Quota(_)
        | ErrorClass::Credentials
        | ErrorClass::NoKey => false,
    };
    if stopping || !is_of_no_use {
        unanswered(tx, run, step, attempt, &error);
        return;
    }
    let (told, usage) = (told(&error), usage_estimate::of(tx, run, error.usage, error.answered));
    let (fault, retry_at) = (provider_health::fault_of(error.class), Some(tx.now()));
    tx.emit(Some(run), EventBody::InferenceFailed { step, attempt, error: told, retry_at, fault, usage });
    // What refuses once refuses again.
    if !is_empty || tries >= SUMMARY_TRIES {
        let entries = tx.entity(run).and_then(|entity| tx.get::<Transcript>(entity));
        let text = entries.map(|entries| makeshift(&entries.0, plan)).unwrap_or_default().into();
        // Nothing more was used, and that costs nothing.
        finish_compaction(tx, run, step, plan, text, Usage { cost_usd: Some(0.0), ..Usage::default() });
    }
}

fn finish_compaction(tx: &mut Tx<'_>, run: RunId, step: u32, plan: &Compaction, text: Arc<str>, usage: Usage) {
    let (entries, kept) = (plan.entries, plan.kept.clone());
    tx.emit(Some(run), EventBody::CompactionFinished { step, text, entries, kept, usage });
}

/// What is recorded and shown of an error: providers and scripts may say megabytes.
fn told(error: &InferenceError) -> Arc<str> {
    cut(&error.message, MOST_ERROR).into()
}

fn unanswered(tx: &mut Tx<'_>, run: RunId, step: u32, attempt: u32, error: &InferenceError) {
    let Some(life) = tx.life(run) else { return };
    let (stopping, answered, failures) = (life.stopping.is_some(), life.answered, life.failures + 1);
    let unusable = life.unusable + 1;
    let provider = asked(tx, run);
    let wait = match error.class {
        _ if stopping => None,
        // The credentials were accepted before, so an operator has to act; the run waits for that in its provider's
        // lane.
        ErrorClass::Credentials if answered => Some(Span::ZERO),
        ErrorClass::ContextTooLong => {
            when_to_compact::can_shorten(tx, run, life.provider.as_ref()).then_some(Span::ZERO)
        }
        // A limit is waited for, however long, and is no failure of the run.
        class @ (ErrorClass::RateLimit(_) | ErrorClass::Quota(_) | ErrorClass::NoKey) => {
            retry_delay::retry_delay(run, step, attempt, class)
        }
        _ if failures >= MAX_FAILURES => None,
        ErrorClass::Unusable if unusable >= MOST_UNUSABLE => None,
        class => retry_delay::retry_delay(run, step, failures, class),
    };
    let retry_at = wait.map(|span| tx.now() + span);
    let text = told(error);
    // The failure of an inference that was told to stop says nothing about its provider.
    let fault = if stopping { ProviderFault::Unknown } else { provider_health::fault_of(error.class) };
    let (told, usage) = (Arc::clone(&text), usage_estimate::of(tx, run, error.usage, error.answered));
    tx.emit(Some(run), EventBody::InferenceFailed { step, attempt, error: told, retry_at, fault, usage });
    let judged = provider.filter(|_| !stopping && (error.class != ErrorClass::Credentials || answered));
    if let Some(provider) = judged
        && provider_health::judge(tx, &provider, error.class, &text)
    {
        next_inference::reconsider(tx, &provider);
        next_inference::give_back(tx, &provider);
    }
    if retry_at.is_none() && !stopping {
        let exit_code = if error.class == ErrorClass::Credentials { exit::CREDENTIALS } else { exit::FAILED };
        let why = match error.class {
            ErrorClass::ContextTooLong => format!("{text}; {}", when_to_compact::NOTHING_TO_LEAVE_OUT).into(),
            _ => text,
        };
        fail_run(tx, run, why, exit_code);
    }
}

fn heard(tx: &mut Tx<'_>, job: JobId, ask: Ask) {
    let Work::Call(call) = job.work else { return };
    let stage = tx.batch(job.run).and_then(|batch| batch.0.call(call)).map(|call| call.stage.clone());
    let stopping = tx.life(job.run).is_some_and(|life| life.stopping.is_some());
    match (ask, stage) {
        (Ask::OffLane, Some(Stage::Executing)) => {
            tx.emit(Some(job.run), EventBody::CallOffLane { call });
        }
        // One that is to end is told so, and waits for no person.
        (Ask::Open(asked), Some(Stage::Executing)) if !stopping => interactions::open(tx, job.run, call, asked),
        (Ask::Found(folder), Some(_)) if tx.spec(job.run).is_some_and(|spec| spec.0.workdir_id != Some(folder)) => {
            tx.emit(Some(job.run), EventBody::WorkdirFound { folder });
        }
        (Ask::Return, Some(Stage::OffLane | Stage::Asking(_, Asker::Job))) => {
            // It has given up to wait for a person.
            withdraw(tx, job.run, call);
            tx.emit(Some(job.run), EventBody::CallReturning { call });
            // It is being cancelled already; standing still would keep it from seeing that.
            if stopping {
                tx.effect(Effect::Resume(job));
            }
        }
        _ => {}
    }
}

fn fire_timers(tx: &mut Tx<'_>) {
    for timer in tx.res::<Timers>().due(tx.now(), MOST_DUE) {
        match timer {
            Timer::Deadline(run) => {
                stop(tx, run, StopReason::Deadline, false);
            }
            Timer::MaxTime(run) => {
                stop(tx, run, StopReason::MaxTime, false);
            }
            Timer::Retry(run) => tx.wake(run),
            Timer::Expiry(interaction) => {
                interactions::settle(tx, interaction, Settlement::of(Resolution::Expired));
            }
            Timer::Rest(provider) => {
                provider_health::rested(tx, Arc::clone(&provider));
                next_inference::reconsider(tx, &provider);
            }
            Timer::Relief(lane, relief) => {
                tx.emit(None, EventBody::LaneReliefEnded { lane, relief, undone: false });
            }
        }
    }
}
