//! Writes events as log lines, each a message with fields. Level info has what an operator must know; level debug has
//! the life of runs and calls. Frequent events of one kind are counted in one line. Reads events and changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use harness_protocol::event::{Cause, Ending, Event, EventBody, StopReason, Via};
use harness_protocol::id::RunId;
use harness_protocol::interaction::Resolution;
use harness_protocol::time::Timestamp;
use harness_protocol::waiting_words::{self, Clock};
use jiff::tz::TimeZone;
use tracing::{Level, debug, enabled, info, warn};

/// Most failed runs of one step that get a line each.
const MOST_FAILED: usize = 20;
/// Most characters of an error in a line.
const LONGEST_ERROR: usize = 500;

/// Logs the events of one step. They are in the journal already.
pub fn log(events: &[Arc<Event>]) {
    if enabled!(Level::INFO) {
        let mut crowds = Crowds::default();
        events.iter().for_each(|event| at_info(event, &mut crowds));
        crowds.tell();
    }
    if enabled!(Level::DEBUG) {
        events.iter().for_each(|event| at_debug(event));
    }
}

/// Counts of events that one step may have thousands of.
#[derive(Default)]
struct Crowds {
    failed: usize,
    /// Actions on runs, by action and user: their number, and the first run.
    done: BTreeMap<(&'static str, u32), (usize, Option<RunId>)>,
}

impl Crowds {
    fn done(&mut self, what: &'static str, event: &Event) {
        if let Some(uid) = operator(&event.cause) {
            let (count, _) = self.done.entry((what, uid)).or_insert((0, event.run));
            *count += 1;
        }
    }

    fn tell(self) {
        if self.failed > MOST_FAILED {
            info!(runs = self.failed - MOST_FAILED, "more runs failed");
        }
        for ((what, uid), (runs, first)) in self.done {
            let first = first.map(|run| run.to_string()).unwrap_or_default();
            info!(uid, runs, %first, "{what}");
        }
    }
}

/// The user behind an event, if the request came from outside all runs.
fn operator(cause: &Cause) -> Option<u32> {
    cause.uid.filter(|_| cause.via == Via::Socket && cause.by_run.is_none())
}

fn short(error: &str) -> String {
    let line: String = error.chars().take(LONGEST_ERROR).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if error.chars().nth(LONGEST_ERROR).is_some() { format!("{line}…") } else { line }
}

fn time(at: Option<Timestamp>) -> String {
    at.map(|at| at.to_string()).unwrap_or_default()
}

fn at_info(event: &Event, crowds: &mut Crowds) {
    let uid = operator(&event.cause);
    match &event.body {
        EventBody::ProviderHeld { provider, limiter, until, error, .. } => {
            let clock = Clock { now: event.at, zone: TimeZone::system() };
            let held = waiting_words::hold(*limiter, *until, 0, &clock);
            let (limiter, until, error) = (limiter.as_str(), time(*until), short(error));
            info!(%provider, limiter, %until, %error, "provider {provider} is left alone: {held}");
        }
        EventBody::ProviderReleased { provider, at_most } => {
            let how = if at_most.is_some() { ", one run first" } else { "" };
            info!(%provider, uid, "provider {provider} is asked again{how}");
        }
        EventBody::RunFinished { ending: Ending::Failed { error, exit_code } } => {
            crowds.failed += 1;
            if crowds.failed <= MOST_FAILED {
                let run = event.run.map(|run| run.to_string()).unwrap_or_default();
                let error = short(error);
                info!(%run, exit_code, %error, "run {run} failed: {error}");
            }
        }
        EventBody::RunStopping { reason: StopReason::Cancelled, .. } => crowds.done("runs cancelled", event),
        EventBody::RunPaused => crowds.done("runs paused", event),
        EventBody::RunResumed => crowds.done("runs resumed", event),
        EventBody::InteractionSettled { resolution, .. } => match resolution {
            Resolution::Answered => crowds.done("questions answered", event),
            Resolution::Allowed => crowds.done("calls allowed", event),
            Resolution::Denied => crowds.done("calls or questions denied", event),
            Resolution::Expired => {}
        },
        EventBody::ClockSet { from } => {
            let (from, to) = (from.to_string(), event.at.to_string());
            warn!(%from, %to, "the time of events was set: the clock says {to} where it was {from}");
        }
        EventBody::DrainStarted => info!(uid, "draining: nothing new starts"),
        EventBody::DrainEnded => info!(uid, "no longer draining"),
        EventBody::LaneRelieved { lane, relief, by, until } => {
            let until = time(*until);
            info!(%lane, uid, %relief, by, %until, "lane {lane} relieved by {by}");
        }
        EventBody::LaneReliefEnded { lane, relief, undone } => {
            info!(%lane, uid, %relief, undone, "a relief of lane {lane} ended");
        }
        EventBody::LaneResized { lane, width } => info!(%lane, uid, width, "lane {lane} resized to {width}"),
        EventBody::LaneConfigured { lane, width } => {
            info!(%lane, uid, width, "lane {lane} has width {width} by configuration")
        }
        EventBody::LanePaused { lane } => info!(%lane, uid, "lane {lane} paused"),
        EventBody::LaneResumed { lane } => info!(%lane, uid, "lane {lane} resumed"),
        EventBody::EventsPruned { events } => {
            info!(events = events.len(), "old events of the daemon and its lanes pruned")
        }
        EventBody::RunsPruned { runs } => info!(runs = runs.len(), "runs pruned"),
        _ => {}
    }
}

fn at_debug(event: &Event) {
    let Some(run) = event.run else { return };
    let kind = event.body.kind();
    match &event.body {
        EventBody::RunSubmitted { owner, parent, .. } => {
            let parent = parent.map(|parent| parent.to_string()).unwrap_or_default();
            debug!(%run, owner, %parent, "{kind}");
        }
        EventBody::StepBegun { step, provider, .. } => {
            debug!(%run, step, stand_in = provider.as_deref().unwrap_or_default(), "{kind}");
        }
        EventBody::InferenceStarted { step, attempt } => debug!(%run, step, attempt, "{kind}"),
        EventBody::InferenceFinished { step, usage, calls, .. } => {
            debug!(%run, step, tokens = usage.tokens(), calls = calls.len(), "{kind}");
        }
        EventBody::InferenceFailed { step, attempt, error, retry_at, .. } => {
            let (error, retry_at) = (short(error), time(*retry_at));
            debug!(%run, step, attempt, %error, %retry_at, "{kind}");
        }
        EventBody::CallStarted { call } => debug!(%run, %call, "{kind}"),
        EventBody::CallFinished { result } => {
            debug!(%run, call = %result.call, tool = %result.tool, exit_code = result.exit_code, "{kind}");
        }
        EventBody::RunFinished { ending } => {
            let state = match ending {
                Ending::Succeeded { .. } => "succeeded",
                Ending::Failed { .. } => "failed",
                Ending::Cancelled { .. } => "cancelled",
            };
            debug!(%run, state, "{kind}");
        }
        _ => debug!(%run, "{kind}"),
    }
}
