//! Points at which a test can tell the daemon to die, to see which state a crash leaves there.
//!
//! `HARNESS_CRASH_AT=POINT:N` kills the process with SIGKILL when it passes the point for the N-th time. Without the
//! variable a point costs one comparison.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Points of the path of a commit, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Nothing is written yet.
    BeforeWrite,
    /// All is written, nothing is committed.
    Written,
    /// The commit is done, and synced if that was promised; its events have not been shown.
    Synced,
    /// It was shown; nothing of what it announces is done.
    BeforeEffect,
    /// One thing that it announces is done.
    AfterEffect,
}

impl Point {
    const NAMES: [(&str, Self); 5] = [
        ("before-write", Self::BeforeWrite),
        ("written", Self::Written),
        ("synced", Self::Synced),
        ("before-effect", Self::BeforeEffect),
        ("after-effect", Self::AfterEffect),
    ];
}

/// Where to die, and the number of passes until then.
struct Plan {
    point: Point,
    left: AtomicU64,
}

static PLAN: OnceLock<Option<Plan>> = OnceLock::new();

fn plan() -> Option<Plan> {
    let text = std::env::var("HARNESS_CRASH_AT").ok()?;
    let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
    let (_, point) = Point::NAMES.into_iter().find(|(known, _)| *known == name)?;
    Some(Plan { point, left: AtomicU64::new(count.parse().ok()?) })
}

/// Dies here, if that is the plan.
pub fn here(point: Point) {
    let Some(plan) = PLAN.get_or_init(plan) else { return };
    if plan.point == point && plan.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        // It cannot fail: it is this process.
        let _ = kill(Pid::this(), Signal::SIGKILL);
    }
}
