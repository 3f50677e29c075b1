//! Makes ids: counters mapped by a keyed bijection, so that ids are unique by construction and do not reveal how many
//! there are.
//!
//! Pure. Must not advance the counters: `apply` does, and a start sets them past all ids that were used (`catch_up`).
//! The key is an argument.

use bevy_ecs::resource::Resource;
use harness_protocol::id::{CallId, InteractionId, ReliefId, RunId};

/// The counters, and the key.
#[derive(Resource, Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids {
    key: u64,
    /// Runs made so far. The number of a run is this counter's value when it was made.
    pub(crate) runs: u64,
    pub(crate) calls: u64,
    pub(crate) interactions: u64,
    pub(crate) reliefs: u64,
}

impl Ids {
    pub(crate) fn new(key: u64) -> Self {
        Self { key, runs: 0, calls: 0, interactions: 0, reliefs: 0 }
    }

    #[cfg(test)]
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Number and id of the next run.
    pub(crate) fn next_run(&self) -> (u64, RunId) {
        let number = self.runs + 1;
        (number, self.run(number))
    }

    /// Id of the run with that number.
    pub(crate) fn run(&self, number: u64) -> RunId {
        RunId::from_u64(permute(number, self.key, 1))
    }

    /// Id of the call that comes `ahead` after the last one made; 0 is the next.
    pub(crate) fn next_call(&self, ahead: u64) -> CallId {
        CallId::from_u64(permute(self.calls + 1 + ahead, self.key, 2))
    }

    pub(crate) fn next_interaction(&self) -> InteractionId {
        InteractionId::from_u64(permute(self.interactions + 1, self.key, 3))
    }

    pub(crate) fn next_relief(&self) -> ReliefId {
        ReliefId::from_u64(permute(self.reliefs + 1, self.key, 4))
    }
}

/// A bijection of 64 bits: a Feistel network of six rounds, whatever its round function is.
fn permute(value: u64, key: u64, kind: u64) -> u64 {
    let (mut left, mut right) = ((value >> 32) as u32, (value & 0xFFFF_FFFF) as u32);
    for round in 0..6u64 {
        (left, right) = (right, left ^ mix(u64::from(right), key, kind << 8 | round));
    }
    (u64::from(left) << 32) | u64::from(right)
}

/// Spreads its arguments over 32 bits (the finaliser of MurmurHash3, by Austin Appleby).
fn mix(half: u64, key: u64, tweak: u64) -> u32 {
    let mut x = half ^ key ^ tweak.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    (x >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_differ_by_number_by_kind_and_by_key() {
        let mut seen = BTreeSet::new();
        for key in [1, 2] {
            let ids = Ids::new(key);
            for number in 0..10_000 {
                assert!(seen.insert(ids.run(number).as_u64()));
                assert!(seen.insert(ids.next_call(number).as_u64()));
            }
        }
    }
}
