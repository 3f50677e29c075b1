//! Limits the number of connections, by kind of peer, so that no run can keep its operator out.
//!
//! Operators may use all places. A quarter of the places is kept for them; all runs together have the rest, one run has
//! a few, and peers that cannot be identified have fewer still. It counts only, and closes no connection: a peer
//! without a place is refused by the listener.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use harness_protocol::id::RunId;

use crate::control::rights::Who;

/// Most connections of one run.
pub const OF_A_RUN: u32 = 64;
/// Most connections of all unidentified peers together.
pub const OF_NOBODY: u32 = 16;

/// The counts of connections. Clones share them.
#[derive(Debug, Clone)]
pub struct Crowd(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    max: u32,
    all: u32,
    nobody: u32,
    runs: HashMap<RunId, u32>,
}

/// Why a connection has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// All places are taken.
    #[error("there are {0} connections already (limits.connections); try again later")]
    All(u32),
    /// The rest of the places is kept for operators.
    #[error("runs have {0} connections already, and the rest is kept for operators; try again later")]
    Runs(u32),
    /// This run has all places that one run may have.
    #[error("run {0} has {OF_A_RUN} connections already; close some")]
    Run(RunId),
    /// The peers that cannot be identified have all the places that they may have.
    #[error("there are {OF_NOBODY} connections already of which it cannot be told whose they are; try again later")]
    Nobody,
}

/// A place. Dropping it makes room for another connection.
#[derive(Debug)]
pub struct Slot {
    crowd: Crowd,
    run: Option<RunId>,
    is_nobodys: bool,
}

impl Crowd {
    /// At most `max` at once.
    pub fn new(max: u32) -> Self {
        Self(Arc::new(Mutex::new(Counts { max, ..Counts::default() })))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of connections now.
    pub fn len(&self) -> u32 {
        self.counts().all
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Allows `max` connections from now on. Open ones stay.
    pub fn allow(&self, max: u32) {
        self.counts().max = max;
    }

    /// Takes a place for one more connection.
    ///
    /// # Errors
    /// If there is no place for such a peer.
    pub fn enter(&self, who: &Who) -> Result<Slot, Full> {
        let mut counts = self.counts();
        if counts.all >= counts.max {
            return Err(Full::All(counts.max));
        }
        let of_runs: u32 = counts.runs.values().sum::<u32>() + counts.nobody;
        let most_of_runs = counts.max - counts.max.div_ceil(4);
        let (run, is_nobodys) = match who {
            Who::Operator { .. } => (None, false),
            Who::Run { .. } | Who::Nobody { .. } if of_runs >= most_of_runs => return Err(Full::Runs(of_runs)),
            Who::Run { run, .. } if counts.runs.get(run).is_some_and(|count| *count >= OF_A_RUN) => {
                return Err(Full::Run(*run));
            }
            Who::Run { run, .. } => (Some(*run), false),
            Who::Nobody { .. } if counts.nobody >= OF_NOBODY => return Err(Full::Nobody),
            Who::Nobody { .. } => (None, true),
        };
        counts.all += 1;
        counts.nobody += u32::from(is_nobodys);
        if let Some(run) = run {
            *counts.runs.entry(run).or_default() += 1;
        }
        Ok(Slot { crowd: self.clone(), run, is_nobodys })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.crowd.counts();
        counts.all = counts.all.saturating_sub(1);
        counts.nobody = counts.nobody.saturating_sub(u32::from(self.is_nobodys));
        if let Some(run) = self.run
            && let Some(count) = counts.runs.get_mut(&run)
        {
            *count -= 1;
            if *count == 0 {
                counts.runs.remove(&run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::control::rights::Origin;

    fn operator() -> Who {
        Who::new(1000, 1000, Origin::Outside)
    }

    fn run(number: u64) -> Who {
        Who::new(1000, 1000, Origin::Run(RunId::from_u64(number)))
    }

    fn nobody() -> Who {
        Who::new(1000, 1000, Origin::Unknown("gone".to_owned()))
    }

    fn count(slots: &[Slot]) -> u32 {
        u32::try_from(slots.len()).unwrap()
    }

    /// As many places as there are for these.
    fn fill(crowd: &Crowd, who: &Who) -> (Vec<Slot>, Full) {
        let mut slots = Vec::new();
        loop {
            match crowd.enter(who) {
                Ok(slot) => slots.push(slot),
                Err(full) => return (slots, full),
            }
        }
    }

    /// A7: whatever runs hold, a quarter is there for operators.
    #[test]
    fn runs_and_strangers_never_take_what_is_kept_for_operators() {
        for max in [1, 2, 3, 16, 64, 100, 1_024] {
            let crowd = Crowd::new(max);
            let mut held = Vec::new();
            for number in 0..40 {
                held.extend(fill(&crowd, &run(number)).0);
            }
            held.extend(fill(&crowd, &nobody()).0);
            let left = fill(&crowd, &operator());
            assert!(count(&left.0) >= max.div_ceil(4), "{max}: {}", left.0.len());
            assert_eq!(left.1, Full::All(max));
            drop(held);
            assert_eq!(crowd.len() as usize, left.0.len());
        }
    }

    #[test]
    fn one_run_has_few_and_its_end_makes_room_again() {
        let crowd = Crowd::new(1_024);
        let (first, full) = fill(&crowd, &run(1));
        assert_eq!((count(&first), full), (OF_A_RUN, Full::Run(RunId::from_u64(1))));
        let (strangers, full) = fill(&crowd, &nobody());
        assert_eq!((count(&strangers), full), (OF_NOBODY, Full::Nobody));
        crowd.enter(&run(2)).unwrap();
        drop(first);
        assert_eq!(crowd.len(), OF_NOBODY);
        assert_eq!(count(&fill(&crowd, &run(1)).0), OF_A_RUN);
        drop(strangers);
        assert!(crowd.is_empty() && crowd.counts().runs.is_empty());
    }

    #[test]
    fn a_smaller_bound_lets_in_nobody_until_there_is_room() {
        let crowd = Crowd::new(4);
        let (mut slots, _) = fill(&crowd, &operator());
        crowd.allow(2);
        slots.truncate(2);
        assert_eq!(crowd.enter(&operator()).unwrap_err(), Full::All(2));
        slots.truncate(1);
        crowd.enter(&operator()).unwrap();
    }
}
