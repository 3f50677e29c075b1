//! Writes the whole state of a world as text, to compare a rebuilt world with the live one.

use std::fmt::Write as _;

use bevy_ecs::entity::Entity;

use super::Folded;
use super::model::ids::Ids;
use super::model::indexes::{Daemon, Interactions, Lanes, Postponed, ProviderHealth, Runs, Timers, WantsExtra};
use super::model::run_data::{RunData, RunDataItem};

impl Folded {
    /// Everything but the lanes, which remember whom they served.
    pub fn digest_of_runs(&self) -> String {
        let world = &self.world;
        let mut text = String::new();
        let runs = world.resource::<Runs>();
        let names = runs.names.all();
        let mut keys: Vec<_> = runs.keys.iter().collect();
        let mut last: Vec<_> = runs.last_of.iter().collect();
        keys.sort();
        last.sort();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:?}\n{:?}", world.resource::<Daemon>(), world.resource::<Ids>());
        let _ = writeln!(
            text,
            "{names:?} {keys:?} {:?} {last:?} {:?} {}",
            runs.submit_keys,
            runs.states.iter().filter(|(_, n)| **n > 0).collect::<Vec<_>>(),
            runs.executing
        );
        let _ = writeln!(
            text,
            "{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
            world.resource::<Postponed>(),
            world.resource::<ProviderHealth>(),
            world.resource::<Interactions>(),
            world.resource::<Timers>(),
            world.resource::<WantsExtra>()
        );
        let _ = writeln!(text, "{:?} {:?}", runs.live.keys().collect::<Vec<_>>(), runs.by_end);
        let Some(runs_of_the_world) = world.try_query::<RunData>() else { return text };
        let all = runs_of_the_world.query_manual(world);
        let number = |of: Entity| all.get(of).map(|run| run.identity.number).unwrap_or_default();
        for run in runs.by_id.iter().filter_map(|(_, entity)| all.get(entity).ok()) {
            // Entities are numbered anew in each world.
            let children: Vec<u64> =
                run.children.into_iter().flat_map(|below| below.runs().iter().copied().map(number)).collect();
            let above = run.spawned_by.map(|above| number(above.0));
            let _ =
                writeln!(text, "{above:?} {children:?} {:?}", RunDataItem { children: None, spawned_by: None, ..run });
        }
        text
    }

    /// Everything that the world holds, except what is configured.
    pub fn digest(&self) -> String {
        let mut text = self.digest_of_runs();
        for lane in self.world.resource::<Lanes>().iter() {
            let _ = writeln!(text, "{}", lane.digest());
        }
        text
    }
}
