//! What a restart does to the runs: nothing that was executing is executed again, everything else goes on.

use bevy_ecs::world::World;
use harness_protocol::event::{Ending, EventBody, LaneWidth, ProviderFault, StopReason};
use harness_protocol::id::RunId;
use harness_protocol::run::{CallResult, Entry, RunState, RunView, exit};

use super::api::Damage;
use super::ending::{self, emit_result, stop};
use super::inference::usage_estimate;
use super::model::components::{Identity, Mail, Stage, Transcript};
use super::model::indexes::{Daemon, Runs, TOOL_LANE};
use super::model::phase::Phase;
use super::tx::Scene;

/// What a model is told whose calls had left processes running.
const CHILDREN_GONE: &str =
    "[The harness was restarted: the processes that earlier calls had left running in the background are gone.]";

/// Lets the world know that its jobs are gone.
pub(super) fn start(world: &mut World) {
    let mut scene = Scene::new(world);
    let config = &scene.setup().config;
    let tool = LaneWidth { lane: TOOL_LANE.into(), width: config.tool_width };
    let providers =
        config.providers.iter().map(|(name, provider)| LaneWidth { lane: name.clone(), width: provider.width });
    let lanes = std::iter::once(tool).chain(providers).collect();
    let last_at = scene.res::<Daemon>().last_at;
    scene.emit(None, EventBody::DaemonStarted { lanes, last_at });
}

/// Settles what was out.
pub(super) fn recover(world: &mut World, damage: Damage) {
    let mut scene = Scene::new(world);
    let live: Vec<RunId> =
        scene.res::<Runs>().live.values().filter_map(|&e| scene.get::<Identity>(e)).map(|i| i.id).collect();
    for run in live {
        interrupt(&mut scene, run);
        if damage.unreadable.contains(&run) {
            // How far it was is not known.
            stop(&mut scene, run, StopReason::Unreadable, true);
        }
        scene.wake(run);
    }
    damage.lost.into_iter().for_each(|run| let_go(&mut scene, run));
}

/// Ends a run that is in no world, and lets it leave: it is listed, as far as something is known of it.
fn let_go(scene: &mut Scene<'_>, mut view: RunView) {
    if !view.state.is_terminal() {
        let error = ending::UNREADABLE;
        view.state = RunState::Failed;
        (view.error, view.exit_code, view.ended_at) = (Some(error.into()), Some(exit::INTERNAL), Some(scene.now()));
        let ending = Ending::Failed { error: error.into(), exit_code: exit::INTERNAL };
        scene.emit(Some(view.id), EventBody::RunFinished { ending });
    }
    scene.archive_as(view);
}

fn interrupt(scene: &mut Scene<'_>, run: RunId) {
    let Some(life) = scene.life(run) else { return };
    if let Phase::Thinking(_) = life.phase {
        let (step, attempt) = (life.step, life.attempt);
        let retry_at = life.stopping.is_none().then(|| scene.now());
        let error = "the daemon was restarted while the model was asked".into();
        // How far it was is not known; the prompt is paid for.
        let usage = usage_estimate::of(scene, run, None, 1);
        scene.emit(
            Some(run),
            EventBody::InferenceFailed { step, attempt, error, retry_at, fault: ProviderFault::Unknown, usage },
        );
    }
    let executing: Vec<_> = scene.batch(run).map_or_else(Vec::new, |batch| {
        let out = batch.0.calls.iter().filter(|call| call.stage.has_job() && call.stage != Stage::Done);
        out.map(|call| (call.id, call.tool.clone())).collect()
    });
    for (call, tool) in executing {
        let text = "Interrupted: the daemon was restarted while this call was executing. It was not run again, and how far it came is not known.";
        emit_result(scene, run, CallResult { interrupted: true, ..CallResult::plain(call, tool, text, true) });
    }
    if left_some_running(scene, run) {
        scene.emit(Some(run), EventBody::MessageReceived { text: CHILDREN_GONE.into(), submit_key: None });
    }
}

/// Whether calls have left something running since the run was last told that all of that is gone.
fn left_some_running(scene: &Scene<'_>, run: RunId) -> bool {
    let Some(entity) = scene.entity(run) else { return false };
    let told = |text: &str| text == CHILDREN_GONE;
    if scene.get::<Mail>(entity).is_some_and(|mail| mail.0.iter().any(|text| told(text))) {
        return false;
    }
    let entries = scene.get::<Transcript>(entity).map_or(&[][..], |transcript| &transcript.0);
    let since = entries.iter().rev().take_while(|entry| !matches!(entry, Entry::User { text } if told(text)));
    since.into_iter().any(|entry| matches!(entry, Entry::Result { result } if result.left_running))
}
