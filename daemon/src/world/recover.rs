//! Recovers the runs after a restart. A call that was executing is not executed again, because it may have had effects:
//! its result says that it was interrupted. An interrupted inference fails and is tried again. A call that waits for a
//! person's answer goes on waiting. Runs that cannot be read are ended. Everything else continues.

use bevy_ecs::query::Without;
use harness_protocol::event::{Ending, EventBody, LaneShare, LaneWidth, ProviderFault, StopReason};
use harness_protocol::id::RunId;
use harness_protocol::run::{Entry, RunState, RunView, exit};

use super::api::Damage;
use super::ending::{self, interrupted, stop};
use super::inference::usage_estimate;
use super::model::components::{Ended, Identity, QueuedMessages, Stage, Transcript};
use super::model::indexes::{Daemon, Lanes, TOOL_LANE};
use super::model::phase::Phase;
use super::tx::Tx;
use crate::lane::ShareSettings;

/// What a model is told whose calls had left processes running.
const CHILDREN_GONE: &str =
    "[The harness was restarted: the processes that earlier calls had left running in the background are gone.]";

/// Lets the world know that its jobs are gone.
pub(super) fn start(tx: &mut Tx<'_>) {
    let config = &tx.setup().config;
    let tool = LaneWidth { lane: TOOL_LANE.into(), width: config.tool_width };
    let providers =
        config.providers.iter().map(|(name, provider)| LaneWidth { lane: name.clone(), width: provider.width });
    let lanes = std::iter::once(tool).chain(providers).collect();
    let last_at = tx.res::<Daemon>().last_at;
    let shares = Lanes::shares_of(config).into_iter();
    let shares = shares.map(|ShareSettings { name, weight, max }| LaneShare { name, weight, max }).collect();
    tx.emit(None, EventBody::DaemonStarted { lanes, last_at, shares: Some(shares) });
}

/// Settles what was out.
pub(super) fn recover(tx: &mut Tx<'_>, damage: Damage) {
    let mut live = tx.all::<&Identity, Without<Ended>, _>(|identity| Some((identity.number, identity.id)));
    live.sort_unstable();
    for (_, run) in live {
        interrupt(tx, run);
        if damage.unreadable.contains(&run) {
            // How far it was is not known.
            stop(tx, run, StopReason::Unreadable, true);
        }
        tx.wake(run);
    }
    damage.lost.into_iter().for_each(|run| let_go(tx, run));
}

/// Ends a run that is in no world, and lets it leave: it is listed, as far as something is known of it.
fn let_go(tx: &mut Tx<'_>, mut view: RunView) {
    if !view.state.is_terminal() {
        let error = ending::UNREADABLE;
        view.state = RunState::Failed;
        (view.error, view.exit_code, view.ended_at) = (Some(error.into()), Some(exit::INTERNAL), Some(tx.now()));
        let ending = Ending::Failed { error: error.into(), exit_code: exit::INTERNAL };
        tx.emit(Some(view.id), EventBody::RunFinished { ending });
    }
    tx.archive_as(view);
}

fn interrupt(tx: &mut Tx<'_>, run: RunId) {
    let Some(life) = tx.life(run) else { return };
    if let Phase::Thinking(_) = life.phase() {
        let (step, attempt) = (life.step, life.attempt);
        let retry_at = life.stopping.is_none().then(|| tx.now());
        let error = "the daemon was restarted while the model was asked".into();
        // How far it was is not known; the prompt is paid for.
        let usage = usage_estimate::of(tx, run, None, 1);
        tx.emit(
            Some(run),
            EventBody::InferenceFailed { step, attempt, error, retry_at, fault: ProviderFault::Unknown, usage },
        );
    }
    let stopping = tx.life(run).is_some_and(|life| life.stopping.is_some());
    let out: Vec<_> = tx.batch(run).map_or_else(Vec::new, |batch| {
        let out = batch.0.calls.iter().filter(|call| call.stage.has_job());
        out.map(|call| (call.id, call.stage.clone())).collect()
    });
    for (call, stage) in out {
        if let Stage::Asking(interaction, _) = stage {
            if !stopping {
                // A person may be about to answer: the call has its result then.
                tx.emit(Some(run), EventBody::CallInterrupted { call });
                continue;
            }
            tx.emit(Some(run), EventBody::InteractionClosed { interaction });
        }
        interrupted(tx, run, call);
    }
    if left_some_running(tx, run) {
        tx.emit(Some(run), EventBody::MessageReceived { text: CHILDREN_GONE.into(), submit_key: None });
    }
}

/// Whether calls have left something running since the run was last told that all of that is gone.
fn left_some_running(tx: &Tx<'_>, run: RunId) -> bool {
    let Some(entity) = tx.entity(run) else { return false };
    let told = |text: &str| text == CHILDREN_GONE;
    if tx.get::<QueuedMessages>(entity).is_some_and(|mail| mail.0.iter().any(|text| told(text))) {
        return false;
    }
    let entries = tx.get::<Transcript>(entity).map_or(&[][..], |transcript| &transcript.0);
    let since = entries.iter().rev().take_while(|entry| !matches!(entry, Entry::User { text } if told(text)));
    since.into_iter().any(|entry| matches!(entry, Entry::Result { result } if result.left_running))
}
