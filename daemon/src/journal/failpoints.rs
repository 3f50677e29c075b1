//! Kills the daemon at a failpoint, if a test asks for it, to see the state that a crash leaves.
//!
//! With the feature `failpoints`, `HARNESS_CRASH_AT=POINT:N` kills the process with SIGKILL when it passes the point
//! for the N-th time. Without the feature, as the daemon is shipped, a point is nothing and no variable is read. The
//! only place with the names of the points.

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

#[cfg(feature = "failpoints")]
pub use armed::{VARIABLE, here};

/// Does nothing: only a daemon of tests dies here.
#[cfg(not(feature = "failpoints"))]
pub const fn here(_: Point) {}

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::Point;

    /// The variable of the environment that says where to die, and at which pass: `POINT:N`.
    pub const VARIABLE: &str = "HARNESS_CRASH_AT";

    impl Point {
        const NAMES: [(&str, Self); 5] = [
            ("before-write", Self::BeforeWrite),
            ("written", Self::Written),
            ("synced", Self::Synced),
            ("before-effect", Self::BeforeEffect),
            ("after-effect", Self::AfterEffect),
        ];
    }

    /// The point to die at, and the number of passes until then.
    struct Plan {
        point: Point,
        left: AtomicU64,
    }

    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();

    fn plan() -> Option<Plan> {
        let text = std::env::var(VARIABLE).ok()?;
        let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
        let (_, point) = Point::NAMES.into_iter().find(|(known, _)| *known == name)?;
        Some(Plan { point, left: AtomicU64::new(count.parse().ok()?) })
    }

    /// Kills this process if the plan says so.
    pub fn here(point: Point) {
        let Some(plan) = PLAN.get_or_init(plan) else { return };
        if plan.point == point && plan.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // This cannot fail: a process may signal itself.
            let _ = kill(Pid::this(), Signal::SIGKILL);
        }
    }
}
