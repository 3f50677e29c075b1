//! Holds the files of texts while a reader reads them after the journal. A prune meanwhile removes their names alone,
//! and the writer removes the files later.
//!
//! Shared by the writer and the readers of a journal. A reader must take the hold before it reads the journal. Must not
//! know which files there are, and removes none: the writer does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The holds of a journal's files. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Holds(Arc<Mutex<usize>>);

/// No file goes until this is dropped.
#[derive(Debug)]
#[must_use]
pub(in crate::journal) struct Hold(Holds);

impl Holds {
    /// Holds the files. What the journal names after this is there until the hold is dropped.
    pub(in crate::journal) fn hold(&self) -> Hold {
        *self.count() += 1;
        Hold(self.clone())
    }

    /// Does this, which removes files, unless there is a hold. A new hold waits for its end.
    pub(super) fn unless_held(&self, remove: impl FnOnce()) {
        let count = self.count();
        if *count == 0 {
            remove();
        }
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        *self.0.count() -= 1;
    }
}
