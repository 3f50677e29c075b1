//! Writes the whole state of a world as text, to compare a rebuilt world with the live one.

use std::fmt::Write as _;

use super::Engine;
use super::model::components::{
    Batch, BudgetReserve, Children, ClosedQuestions, Compacting, CompactionFailures, ContextOverflow, Denials, Ended,
    Identity, LastAsked, Life, Origin, Pool, QueuedMessages, Spec, Stopwatch, ToldUnder, Transcript, UsageTotal,
    WaitedOnBy,
};
use super::model::ids::Ids;
use super::model::indexes::{Daemon, Interactions, Lanes, Postponed, ProviderHealth, Runs, Timers, WantsExtra};

impl Engine {
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
        for (_, entity) in runs.by_id.iter() {
            let _ = writeln!(
                text,
                "{:?} {:?} {:?} {:?}",
                world.get::<Identity>(entity),
                world.get::<Origin>(entity),
                world.get::<Spec>(entity),
                world.get::<Life>(entity),
            );
            let _ = writeln!(
                text,
                "  {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
                world.get::<ToldUnder>(entity),
                world.get::<Stopwatch>(entity),
                world.get::<Transcript>(entity),
                world.get::<UsageTotal>(entity),
                world.get::<LastAsked>(entity),
                world.get::<QueuedMessages>(entity),
                world.get::<Children>(entity),
            );
            let _ = writeln!(
                text,
                "  {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
                world.get::<CompactionFailures>(entity),
                world.get::<Pool>(entity),
                world.get::<BudgetReserve>(entity),
                world.get::<ContextOverflow>(entity),
                world.get::<Compacting>(entity),
                world.get::<WaitedOnBy>(entity),
                world.get::<ClosedQuestions>(entity),
                world.get::<Denials>(entity),
                world.get::<Ended>(entity),
                world.get::<Batch>(entity),
            );
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
