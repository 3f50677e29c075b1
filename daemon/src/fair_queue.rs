//! Decides whose turn it is: round robin, over parties or over what else is to be served fairly.
//!
//! A party that comes anew goes before those that always have something, three in a row at most. So a party with many
//! requests delays another one by its own turn in the round only. Has the order of turns; the queues are elsewhere.
//! Pure: no clock, no lock.

use std::collections::{BTreeMap, VecDeque};

use harness_protocol::id::RunId;

/// Most turns of fresh keys in a row before a key that has waited is served.
const FRESH_IN_A_ROW: u32 = 3;

/// The parties among which turns are shared: many connections of one process are one party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// The daemon itself.
    Daemon,
    /// All processes of one run.
    Run(RunId),
    /// One process outside of any run.
    Process(u32),
    /// One connection, where the kernel names no process for it.
    Connection(u64),
}

/// A round robin of keys.
///
/// A key that enters while it is not in the round is *fresh*, and is served before the *steady* keys, which always have
/// something. A key that was served stays in the round until its place comes up again: leaving and coming back gives no
/// advantage.
#[derive(Debug)]
pub struct Round<K> {
    fresh: VecDeque<K>,
    steady: VecDeque<K>,
    /// The keys of both.
    present: BTreeMap<K, ()>,
    fresh_in_a_row: u32,
}

impl<K> Default for Round<K> {
    fn default() -> Self {
        Self { fresh: VecDeque::new(), steady: VecDeque::new(), present: BTreeMap::new(), fresh_in_a_row: 0 }
    }
}

impl<K: Copy + Ord> Round<K> {
    /// Enters a key that has something to be served.
    pub fn enter(&mut self, key: K) {
        if self.present.insert(key, ()).is_none() {
            self.fresh.push_back(key);
        }
    }

    /// The next key in turn that is ready. Keys that are not ready leave the round when their place comes up.
    pub fn next(&mut self, mut is_ready: impl FnMut(K) -> bool) -> Option<K> {
        loop {
            let fresh_first = self.fresh_in_a_row < FRESH_IN_A_ROW || self.steady.is_empty();
            let (key, was_fresh) = match (fresh_first, self.fresh.pop_front()) {
                (true, Some(key)) => (key, true),
                (false, Some(key)) => {
                    self.fresh.push_front(key);
                    (self.steady.pop_front()?, false)
                }
                (_, None) => (self.steady.pop_front()?, false),
            };
            if !is_ready(key) {
                self.present.remove(&key);
                continue;
            }
            self.fresh_in_a_row = if was_fresh { self.fresh_in_a_row + 1 } else { 0 };
            self.steady.push_back(key);
            return Some(key);
        }
    }

    /// Whether no key is in the round.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `count` turns. Returns the keys, in order; `waiting` counts what each key has.
    fn turns(round: &mut Round<u32>, waiting: &mut BTreeMap<u32, u32>, count: usize) -> Vec<u32> {
        let mut served = Vec::new();
        for _ in 0..count {
            let ready = |key| waiting.get(&key).is_some_and(|left| *left > 0);
            let Some(key) = round.next(ready) else { break };
            waiting.entry(key).and_modify(|left| *left -= 1);
            served.push(key);
        }
        served
    }

    #[test]
    fn everybody_has_a_turn_in_each_round() {
        let (mut round, mut waiting) = (Round::default(), BTreeMap::from([(1, 100), (2, 2), (3, 100)]));
        [1, 2, 3].into_iter().for_each(|key| round.enter(key));
        assert_eq!(turns(&mut round, &mut waiting, 8), [1, 2, 3, 1, 2, 3, 1, 3]);
    }

    #[test]
    fn a_new_key_does_not_wait_for_keys_that_always_have_something() {
        let (mut round, mut waiting) = (Round::default(), BTreeMap::new());
        for key in 0..500 {
            waiting.insert(key, 1_000);
            round.enter(key);
        }
        turns(&mut round, &mut waiting, 1_500);
        waiting.insert(900, 1);
        round.enter(900);
        assert_eq!(turns(&mut round, &mut waiting, 1), [900]);
    }

    #[test]
    fn coming_and_going_is_no_advantage() {
        let (mut round, mut waiting) = (Round::default(), BTreeMap::from([(1, 1_000), (2, 1)]));
        [1, 2].into_iter().for_each(|key| round.enter(key));
        assert_eq!(turns(&mut round, &mut waiting, 2), [1, 2]);
        let mut served = Vec::new();
        for _ in 0..10 {
            // The key comes again as soon as it was served.
            waiting.insert(2, 1);
            round.enter(2);
            served.extend(turns(&mut round, &mut waiting, 1));
        }
        assert_eq!(served.iter().filter(|key| **key == 2).count(), 5);
    }

    #[test]
    fn keys_that_come_anew_all_the_time_do_not_keep_the_others_away() {
        let (mut round, mut waiting) = (Round::default(), BTreeMap::from([(0, 1_000)]));
        round.enter(0);
        turns(&mut round, &mut waiting, 1);
        let mut served = Vec::new();
        for key in 1..=40 {
            waiting.insert(key, 1);
            round.enter(key);
            waiting.insert(key + 100, 1);
            round.enter(key + 100);
            served.extend(turns(&mut round, &mut waiting, 1));
        }
        assert!(served.iter().filter(|key| **key == 0).count() >= 8, "{served:?}");
    }
}
