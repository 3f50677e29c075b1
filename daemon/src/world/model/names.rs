//! Finds live runs by name. Runs of operators share one namespace; the children of each tree have their own.
//!
//! So a child can take no name away from an operator or from another tree. Must know a run by its id only.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use harness_protocol::id::RunId;

/// The names of all live runs.
#[derive(Debug, Default)]
pub(crate) struct Names {
    tops: HashMap<Arc<str>, RunId>,
    /// By name, then by the root of the tree.
    children: BTreeMap<(Arc<str>, RunId), RunId>,
}

impl Names {
    /// The live run of that name which an operator submitted.
    pub(crate) fn top(&self, name: &str) -> Option<RunId> {
        self.tops.get(name).copied()
    }

    /// The live run of that name in the tree below `root`, which may be that root.
    pub(crate) fn in_tree(&self, name: &str, root: RunId) -> Option<RunId> {
        let child = self.children.get(&(Arc::from(name), root)).copied();
        child.or_else(|| self.top(name).filter(|&top| top == root))
    }

    /// At most `most` live children of that name, of all trees.
    pub(crate) fn children(&self, name: &str, most: usize) -> Vec<RunId> {
        let (first, last) = (RunId::from_u64(0), RunId::from_u64(u64::MAX));
        let name: Arc<str> = Arc::from(name);
        self.children.range((Arc::clone(&name), first)..=(name, last)).map(|(_, &run)| run).take(most).collect()
    }

    /// Gives `run` a name: as a child of the tree below `root`, or as a run of an operator.
    pub(crate) fn insert(&mut self, name: Arc<str>, root: Option<RunId>, run: RunId) {
        match root {
            Some(root) => self.children.insert((name, root), run),
            None => self.tops.insert(name, run),
        };
    }

    /// Takes a name from `run`, if that has it.
    pub(crate) fn remove(&mut self, name: Arc<str>, root: Option<RunId>, run: RunId) {
        match root {
            Some(root) => {
                let key = (name, root);
                if self.children.get(&key) == Some(&run) {
                    self.children.remove(&key);
                }
            }
            None => {
                if self.tops.get(&name) == Some(&run) {
                    self.tops.remove(&name);
                }
            }
        }
    }

    /// All of them in order, for a digest of the world.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Vec<(&str, Option<RunId>, RunId)> {
        let tops = self.tops.iter().map(|(name, &run)| (&**name, None, run));
        let children = self.children.iter().map(|((name, root), &run)| (&**name, Some(*root), run));
        let mut all: Vec<_> = tops.chain(children).collect();
        all.sort();
        all
    }
}
