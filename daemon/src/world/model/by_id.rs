//! Maps the ids of runs to their entities.
//!
//! Has two indexes: a hash map for single ids, and an ordered set for ranges of ids and for all in order. Both must
//! hold the same ids, so they change together alone, in `insert` and `remove`; outside of tests only the hooks of
//! `indexes/` call these. Single ids are looked up several times for each event, and the ordered set alone would be
//! slower for that: each look-up visits every level of its tree.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use bevy_ecs::entity::Entity;
use harness_protocol::id::{IdMap, RunId};

/// The runs by their ids.
#[derive(Debug, Default)]
pub(crate) struct ById {
    entities: IdMap<RunId, Entity>,
    in_order: BTreeSet<RunId>,
}

impl ById {
    pub(crate) fn get(&self, run: &RunId) -> Option<&Entity> {
        self.entities.get(run)
    }

    pub(crate) fn insert(&mut self, run: RunId, entity: Entity) {
        self.entities.insert(run, entity);
        self.in_order.insert(run);
    }

    pub(crate) fn remove(&mut self, run: &RunId) {
        self.entities.remove(run);
        self.in_order.remove(run);
    }

    /// Those whose ids are in a range, in the order of their ids.
    pub(crate) fn range(&self, ids: RangeInclusive<RunId>) -> impl Iterator<Item = (RunId, Entity)> {
        self.in_order.range(ids).filter_map(|run| Some((*run, *self.entities.get(run)?)))
    }

    /// All of them, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RunId, Entity)> {
        self.in_order.iter().filter_map(|run| Some((*run, *self.entities.get(run)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_holds_what_one_ordered_map_would_hold(
            changes in prop::collection::vec((0u64..40, any::<bool>()), 0..100),
            low in 0u64..40,
            more in 0u64..40,
        ) {
            let (mut index, mut model) = (ById::default(), BTreeMap::new());
            for (at, (run, is_made)) in (1..).zip(changes) {
                let run = RunId::from_u64(run);
                let entity = Entity::from_raw_u32(at);
                if let Some(entity) = entity.filter(|_| is_made) {
                    index.insert(run, entity);
                    model.insert(run, entity);
                } else {
                    index.remove(&run);
                    model.remove(&run);
                }
            }
            let range = RunId::from_u64(low)..=RunId::from_u64(low + more);
            prop_assert!(index.iter().eq(model.iter().map(|(run, entity)| (*run, *entity))));
            prop_assert!(index.range(range.clone()).eq(model.range(range).map(|(run, entity)| (*run, *entity))));
            prop_assert!((0..40).map(RunId::from_u64).all(|run| index.get(&run) == model.get(&run)));
        }
    }
}
