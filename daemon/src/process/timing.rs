//! Has the time limits and priorities that the daemon and its keepers share: constants only.

use std::time::Duration;

/// How long a tree may take to end after SIGTERM before it gets SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to end a tree after SIGKILL before the tree is given up: its processes hang in a device
/// or a dead file system.
pub(super) const KILL_WAIT: Duration = Duration::from_secs(5);
/// The priority of a process that kills others, where it may have that: among hundreds of forking processes it would
/// hardly get to run.
pub(super) const HIGHEST_PRIORITY: i32 = -20;
/// A keeper says that a process runs when it has run for this long.
pub(super) const RUNS_AFTER: Duration = Duration::from_millis(20);
