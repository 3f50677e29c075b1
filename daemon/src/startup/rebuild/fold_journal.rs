//! Rebuilds the world from the journal: applies every event again, and reports those that cannot be applied.
//!
//! The only place with this rule: if a record of a run is missing, cannot be read or does not fit, nothing of that run
//! is applied from there on but its end. Other runs are not affected.

use std::collections::BTreeMap;

use harness_protocol::event::{Ending, EventBody};
use harness_protocol::id::{IdMap, RunId, Seq};
use tracing::{error, warn};

use super::sharing::Shared;
use crate::journal::Record;
use crate::journal::replay::Row;
use crate::world::Engine;

/// Runs with an unreadable record, and how they ended, where that can be read.
pub(super) type Unreadable = BTreeMap<RunId, Option<Ending>>;

/// The applied events, and the runs with problems.
#[derive(Debug, Default)]
pub(super) struct Fold {
    /// Number of applied events.
    pub(super) events: u64,
    /// Runs with a record that is unreadable, missing or does not fit.
    pub(super) unreadable: Unreadable,
    /// Number of records so far, for each run that has not left the world.
    seen: IdMap<RunId, u64>,
    shared: Shared,
}

impl Fold {
    /// Applies a record to the world, if it follows the earlier ones.
    pub(super) fn take(&mut self, engine: &mut Engine, row: Row) {
        let Row { record, nth } = row;
        if let Some(run) = record.run() {
            let seen = self.seen.entry(run).or_default();
            let expected = seen.saturating_add(1);
            *seen = nth.unwrap_or(expected);
            if *seen != expected {
                self.ends_here(run, record.seq(), "a record before it is missing");
            }
        }
        match record {
            Record::Event(mut event) => {
                self.shared.share(&mut event);
                let ended = event.run.and_then(|run| self.unreadable.get_mut(&run));
                if let Some(end) = ended {
                    // It is unknown whether a record follows an unreadable one. Only an end counts, whatever came
                    // before.
                    if let EventBody::RunFinished { ending } = &event.body {
                        *end = Some(ending.clone());
                        if engine.can_follow(&event).is_ok() {
                            engine.replay(&event);
                        }
                    }
                    return;
                }
                if let (Err(why), Some(run)) = (engine.can_follow(&event), event.run) {
                    self.ends_here(run, event.seq, &why.to_string());
                    if let EventBody::RunFinished { ending } = &event.body {
                        self.unreadable.insert(run, Some(ending.clone()));
                    }
                    return;
                }
                self.events += 1;
                if let (EventBody::RunArchived, Some(run)) = (&event.body, event.run) {
                    self.seen.remove(&run);
                }
                engine.replay(&event);
            }
            Record::Unknown(seq, run, event) => {
                let kind = event.get("kind");
                warn!(%seq, ?run, ?kind, "an event of a kind that this daemon does not know is left as it is");
            }
            Record::Unreadable(seq, Some(run), why) => self.ends_here(run, seq, &why),
            Record::Unreadable(seq, None, why) => error!(%seq, why, "a record cannot be read, and is left out"),
        }
    }

    fn ends_here(&mut self, run: RunId, seq: Seq, why: &str) {
        error!(%seq, %run, why, "a record cannot be read; its run ends here, if it has not ended already");
        self.unreadable.entry(run).or_default();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;

    use harness_protocol::event::Event;
    use harness_protocol::run::RunView;
    use harness_protocol::time::{Span, Timestamp};
    use proptest::test_runner::{Config as Cases, TestRunner};

    use super::*;
    use crate::config::Config;
    use crate::journal::history::History as Records;
    use crate::tools;
    use crate::tools::Catalogue;
    use crate::world::api::{Damage, Now};
    use crate::world::testing::simulation;

    /// A history, and what it is folded with.
    struct History {
        name: String,
        rows: Vec<Row>,
        config: Config,
        tools: Catalogue,
    }

    /// What is done to a record.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Harm {
        Removed,
        Renamed,
        Unreadable,
        /// It changes places with the one so much further on.
        Swapped(usize),
    }

    const HARMS: [Harm; 6] =
        [Harm::Removed, Harm::Renamed, Harm::Unreadable, Harm::Swapped(1), Harm::Swapped(2), Harm::Swapped(9)];

    fn histories() -> Vec<History> {
        let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals/v1.db");
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("v1.db");
        std::fs::copy(checked_in, &copy).unwrap();
        let (records, _) = Records::new(&copy).after(Seq(0), None, usize::MAX, usize::MAX).unwrap();
        // The first version has no numbers of this kind.
        let rows: Vec<Row> = records.into_iter().map(|record| Row { record, nth: None }).collect();
        assert!(rows.len() > 100, "there is something to harm");
        let first = History { name: "v1".to_owned(), rows, config: Config::default(), tools: tools::catalogue() };
        let simulated = [3u64, 21].map(|seed| {
            let (_, commits) = simulation::history(seed, 14);
            let mut counts = IdMap::<RunId, u64>::default();
            let events = commits.into_iter().flat_map(|(events, _)| events);
            let rows = events.map(|event| {
                let nth = event.run.map(|run| {
                    let count = counts.entry(run).or_default();
                    *count += 1;
                    *count
                });
                Row { record: Record::Event(event), nth }
            });
            let rows: Vec<Row> = rows.collect();
            History { name: format!("seed {seed}"), rows, config: simulation::config(), tools: simulation::tools() }
        });
        std::iter::once(first).chain(simulated).collect()
    }

    fn harm(rows: &mut [Option<Row>], at: usize, harm: Harm) {
        let Some(row) = rows[at].clone() else { return };
        let (seq, run) = (row.record.seq(), row.record.run());
        rows[at] = match harm {
            Harm::Removed => None,
            Harm::Renamed => {
                let record = Record::Unknown(seq, run, Arc::new(serde_json::json!({"kind": "later-kind"})));
                Some(Row { record, ..row })
            }
            Harm::Unreadable => Some(Row { record: Record::Unreadable(seq, run, "cut".to_owned()), nth: None }),
            Harm::Swapped(by) => {
                let Some(Some(other)) = rows.get(at + by).cloned() else { return };
                rows[at + by] = Some(numbered(row, other.record.seq()));
                Some(numbered(other, seq))
            }
        };
    }

    fn numbered(row: Row, seq: Seq) -> Row {
        let record = match row.record {
            Record::Event(event) => Record::Event(Arc::new(Event { seq, ..(*event).clone() })),
            Record::Unknown(_, run, event) => Record::Unknown(seq, run, event),
            Record::Unreadable(_, run, why) => Record::Unreadable(seq, run, why),
        };
        Row { record, ..row }
    }

    fn fold(history: &History, rows: impl Iterator<Item = Row>) -> (Engine, Fold) {
        let mut engine = Engine::new(history.config.clone(), history.tools.clone(), 5);
        let mut fold = Fold::default();
        rows.for_each(|row| fold.take(&mut engine, row));
        (engine, fold)
    }

    fn now(history: &History, seconds: u64) -> Now {
        let last = history.rows.iter().rev().find_map(|row| match &row.record {
            Record::Event(event) => Some(event.at),
            _ => None,
        });
        Now { wall: last.unwrap_or_default() + Span::from_secs(seconds), mono: Span::from_secs(seconds) }
    }

    /// The parts of a run that must stay as they are. What it waits for may be taken by another run.
    fn kept(engine: &Engine, run: RunId, now: Now) -> Option<RunView> {
        engine.view(run, now).map(|view| RunView { waiting_for: None, ..view })
    }

    /// Folds what is left, recovers, goes on for a while without outcomes, and compares the other runs.
    fn check(history: &History, whole: &Engine, harms: &[(usize, Harm)]) {
        let mut rows: Vec<Option<Row>> = history.rows.iter().cloned().map(Some).collect();
        let mut harmed = BTreeSet::new();
        let mut of_daemon = false;
        for &(at, what) in harms {
            let others = if let Harm::Swapped(by) = what { vec![at, at + by] } else { vec![at] };
            for row in others.into_iter().filter_map(|at| history.rows.get(at)) {
                harmed.extend(row.record.run());
                of_daemon |= row.record.run().is_none();
            }
            harm(&mut rows, at, what);
        }
        let told = || format!("{}: {harms:?}", history.name);
        let (mut engine, fold) = fold(history, rows.into_iter().flatten());
        let time = now(history, 1);
        let trees: BTreeSet<RunId> = harmed.iter().filter_map(|run| whole.root_of(*run)).collect();
        let ids: BTreeSet<RunId> = history.rows.iter().filter_map(|row| row.record.run()).collect();
        for &run in
            ids.iter().filter(|run| !of_daemon && whole.root_of(**run).is_none_or(|root| !trees.contains(&root)))
        {
            assert!(harmed.contains(&run) || !fold.unreadable.contains_key(&run), "{}: {run}", told());
            if !harmed.contains(&run) {
                assert_eq!(kept(&engine, run, time), kept(whole, run, time), "{}", told());
            }
        }
        let unreadable = fold.unreadable.iter().filter(|(run, end)| end.is_none() && engine.made_by(**run).is_some());
        let damage = Damage { unreadable: unreadable.map(|(run, _)| *run).collect(), lost: Vec::new() };
        let mut events = engine.recover(time, damage).events.len();
        for seconds in 2..40 {
            events += engine.step(now(history, seconds * 600), Vec::new()).events.len();
        }
        assert!(events < 60 * (ids.len() + 10), "{}: {events} events after the start", told());
    }

    /// A5: any one record removed, renamed, unreadable or in another place: the start ends, and other runs are what
    /// they were.
    #[test]
    fn whichever_record_is_missing_or_wrong_the_start_ends_and_other_runs_stay_what_they_were() {
        for history in histories() {
            let (whole, fold) = fold(&history, history.rows.iter().cloned());
            assert!(fold.unreadable.is_empty(), "{}: {:?}", history.name, fold.unreadable);
            for at in 0..history.rows.len() {
                for what in HARMS {
                    check(&history, &whole, &[(at, what)]);
                }
            }
        }
    }

    /// A5: and any two.
    #[test]
    fn whichever_two_records_are_missing_or_wrong_the_start_ends_and_other_runs_stay_what_they_were() {
        let mut runner = TestRunner::new(Cases::with_cases(600));
        let histories = histories();
        let wholes: Vec<Engine> =
            histories.iter().map(|history| fold(history, history.rows.iter().cloned()).0).collect();
        let harm = || (proptest::prelude::any::<proptest::sample::Index>(), 0..HARMS.len());
        runner
            .run(&(0..histories.len(), harm(), harm()), |(which, (first, one), (second, other))| {
                let history = &histories[which];
                let (first, second) = (first.index(history.rows.len()), second.index(history.rows.len()));
                check(history, &wholes[which], &[(first, HARMS[one]), (second, HARMS[other])]);
                Ok(())
            })
            .unwrap();
    }

    /// A5: the last record of a run may be missing unnoticed; the run goes on from what is there, once.
    #[test]
    fn a_run_whose_last_records_are_missing_goes_on_from_what_is_there() {
        for history in histories() {
            let whole = fold(&history, history.rows.iter().cloned()).0;
            for kept in (0..history.rows.len()).step_by(7) {
                let rows: Vec<Row> = history.rows[..kept].to_vec();
                let (mut engine, fold) = fold(&history, rows.into_iter());
                assert!(fold.unreadable.is_empty(), "{} cut after {kept}", history.name);
                let live =
                    engine.counts().iter().filter(|(state, _)| !state.is_terminal()).map(|(_, n)| n).sum::<u32>();
                let events = engine.recover(now(&history, 1), Damage::default()).events.len();
                assert!(events < 20 * (live as usize + 5), "{events}");
            }
            assert!(whole.last_seq().0 > 0 && Timestamp::default() < now(&history, 0).wall);
        }
    }
}
