//! Defines the types by which a peer is traced to its origin. The tracing itself is passed in by `startup`, from
//! `process`.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::control::rights::Origin;

/// How far a chain of parents is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// A few steps, which are enough for most processes.
    Short,
    /// The longest chain that is ever followed.
    Whole,
}

/// Traces the process behind a descriptor to its origin; `None` where its chain of parents is longer than the reach.
pub type Trace = dyn Fn(Option<BorrowedFd<'_>>, Reach) -> Option<Origin> + Send + Sync;
/// Whether the process with this pid has the mark of a run, or cannot be looked at. Waits for nothing.
pub type IsMarked = dyn Fn(u32) -> bool + Send + Sync;

/// Identifies the peers of connections.
pub struct Tracing {
    /// The quick look, which gives no rights.
    pub is_marked: Box<IsMarked>,
    /// The whole trace, which may take long.
    pub trace: Arc<Trace>,
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracing").finish_non_exhaustive()
    }
}
