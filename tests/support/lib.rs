//! Provides what several end-to-end tests need: isolated homes, daemons, runs, scripts, raw connections, processes.
//!
//! It drives the real binaries over real sockets. It must not look inside them: a test sees what a user or a client
//! sees.

mod aimock;
mod cgroup;
pub mod chat;
mod client;
mod command;
mod daemon;
mod descriptor_client;
mod disk;
mod faults;
mod isolated_home;
mod llama;
mod notify;
mod process;
mod programs;
mod relay;
mod run;
mod schema;
mod script;
mod signals;
pub mod storm;
mod terminal;
mod timed_reader;
mod unprivileged;

use std::time::{Duration, Instant};

pub use aimock::Aimock;
pub use cgroup::Cgroup;
pub use client::Client;
pub use command::{Output, Running};
pub use daemon::Daemon;
pub use descriptor_client::{MOST_PASSED, folder};
pub use disk::{Disk, Frozen, Slow};
pub use faults::{Answer, FaultServer, Gate, Recorded};
pub use isolated_home::Place;
pub use llama::Llama;
pub use notify::Notify;
pub use process::Process;
pub use programs::{copy_program, need, need_root, program};
pub use relay::Relay;
pub use run::Run;
pub use schema::Schemas;
pub use script::{Script, runs, says, turn};
pub use serde_json::{Value, json};
pub use storm::TOKENS;
pub use terminal::OnTerminal;
pub use timed_reader::Patient;

/// Longer than anything takes, and only waited for when something is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Looks until `condition` holds. The only place that sleeps, because what it looks at is in other processes.
///
/// # Panics
/// Where it never holds.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    found(what, || condition().then_some(()));
}

/// Looks until there is something.
///
/// # Panics
/// Where there never is.
#[track_caller]
pub fn found<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    found_within(PATIENCE, what, look)
}

/// Looks until there is something, for at most so long.
///
/// # Panics
/// Where there is nothing by then.
#[track_caller]
pub fn found_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(now() < end, "waited {limit:?} in vain: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The clock, for time limits and for the measure of how long something took.
#[expect(clippy::disallowed_methods, reason = "a test stands outside of the world, as whoever looks at a watch does")]
pub fn now() -> Instant {
    Instant::now()
}
