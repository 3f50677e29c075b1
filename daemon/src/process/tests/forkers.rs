//! Tests that processes that fork and exit all the time are ended, however many there are.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use super::*;

/// The program, in a directory of its own: its path identifies its processes.
pub(crate) struct Forkers {
    dir: tempfile::TempDir,
}

impl Forkers {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("forkers.c"), include_str!("forkers.c")).unwrap();
        let mut compile = std::process::Command::new("cc");
        compile.args(["-O1", "-o", "forkers", "forkers.c"]).current_dir(dir.path());
        assert!(compile.status().expect("a C compiler").success());
        Self { dir }
    }

    /// The command that starts the forkers.
    pub(crate) fn command(&self, how: &str) -> String {
        format!("exec {}/forkers {how}", self.dir.path().display())
    }

    /// Whether all of them end: a killed one may take a moment until it is dead; a missed one goes on forking.
    pub(crate) fn are_gone(&self) -> bool {
        let until = Instant::now() + Duration::from_secs(5);
        while let Some(pid) = self.living().first() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // It may have ended since it was found.
            let Ok(process) = pidfd_open(rustix::process::Pid::from_raw(*pid).unwrap(), PidfdFlags::empty()) else {
                continue;
            };
            let timeout = PollTimeout::try_from(left).unwrap();
            poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], timeout).unwrap();
        }
        true
    }

    /// The pids of the living ones.
    fn living(&self) -> Vec<i32> {
        let name = self.dir.path().to_str().unwrap();
        let pids =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_one = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(name) && is_alive(*pid)
        };
        pids.filter(is_one).collect()
    }
}

/// B11: the keeper ends them all, and is not given up as lost.
#[tokio::test]
async fn however_many_fork_and_exit_all_the_time_they_are_ended() {
    let forkers = Forkers::new();
    for how in [
        "60",
        "60 deaf",
        "120 deaf setsid",
        "200 deaf",
        "200 setsid",
        "60 deaf twice",
        "60 deaf brood setsid",
        "60 deaf traced",
        "60 deaf stopped setsid",
        "60 deaf wakes",
    ] {
        let bench = Bench::new();
        let finished = bench
            .run_and_when_it_speaks(&forkers.command(how), |_, canceller| {
                canceller.stop(true);
                Some(canceller)
            })
            .await;
        assert!(finished.cancelled && !finished.keeper_lost && finished.end.is_some(), "{how}: {finished:?}");
        assert!(forkers.are_gone(), "{how}");
        assert_eq!(bench.keepers.processes_of(RUN, 100), [], "{how}");
    }
}

/// They have the time to become many, and to leave thousands of zombies.
#[tokio::test]
async fn processes_that_ignore_sigterm_are_ended_after_their_grace() {
    let forkers = Forkers::new();
    let mut bench = Bench::new();
    bench.timeout = Duration::from_millis(300);
    let finished = bench.run(&forkers.command("60 deaf setsid")).await;
    assert!(finished.timed_out && !finished.keeper_lost && finished.end.is_some(), "{finished:?}");
    assert!(forkers.are_gone());
}
