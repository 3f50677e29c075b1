//! Builds the line of a run in a table, without the parts of its view that a line does not have.

use bevy_ecs::entity::Entity;
use harness_protocol::event::Ending;
use harness_protocol::run::{RunLine, exit};

use super::reads::Reads;
use super::run::{PlacesSeen, inference, shown_wait, spent, title};
use super::size_limits::fit_line;

pub(in crate::world) fn line(world: &Reads<'_, '_>, entity: Entity, places: &PlacesSeen) -> Option<RunLine> {
    let run = &world.whole(entity)?;
    let (identity, life, ended) = (run.identity, run.life, run.ended);
    let spec = &*run.spec.0;
    let exit_code = ended.map(|ended| match &ended.ending {
        Ending::Succeeded { .. } => exit::SUCCEEDED,
        Ending::Failed { exit_code, .. } => *exit_code,
        Ending::Cancelled { .. } => exit::CANCELLED,
    });
    let mut line = RunLine {
        id: identity.id,
        name: spec.name.clone(),
        parent: identity.parent,
        labels: spec.labels.clone(),
        share: spec.share.clone().unwrap_or_else(|| "default".into()),
        owner: identity.owner,
        state: run.shown.0,
        waiting_for: shown_wait(world, run, Some(places)),
        provider: spec.provider.clone().unwrap_or_else(|| "".into()),
        model: spec.model.clone(),
        title: title(spec),
        steps: life.step,
        submitted_at: life.submitted_at,
        ended_at: ended.map(|ended| ended.at),
        exit_code,
        usage: spent(run),
        inference: inference(life),
    };
    fit_line(&mut line);
    Some(line)
}
