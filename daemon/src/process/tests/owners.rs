//! Whose processes a keeper has: it serves one owner all its life, and below it no process has an operator's rights.

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::*;

const ALL: [Owner; 4] = [Owner::Run, Owner::Server, Owner::Check, Owner::Hook];

/// A shell that tells the pid of its parent, the keeper, and the name that this one has in lists of processes. In a
/// test the keeper is one thread among others.
const WHO: &str = "echo $PPID; cat /proc/$PPID/task/*/comm | grep ^keeper";

impl Bench {
    /// The words that a command of `owner` writes.
    async fn of(&self, owner: Owner, command: &str) -> Vec<String> {
        let launch = Launch { owner, ..self.launch(command) };
        let (_canceller, mut cancel) = canceller();
        let outputs = self.outputs.of_call(RUN, CALL, self.quota);
        let ran = run(launch, self.bounds(), RUN, &self.keepers, &outputs, &mut cancel, &mut |_, _, _| {}).await;
        text(&ran.unwrap().stdout.kept).split_whitespace().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn a_keeper_of_one_owner_is_used_again_for_that_owner_and_for_no_other() {
    let bench = Bench::new();
    let mut first = Vec::new();
    for owner in ALL {
        first.push(bench.of(owner, WHO).await);
    }
    let names: Vec<&str> = first.iter().map(|words| &*words[1]).collect();
    assert_eq!(names, ["keeper-run", "keeper-server", "keeper-check", "keeper-hook"]);
    let pids: std::collections::BTreeSet<&str> = first.iter().map(|words| &*words[0]).collect();
    assert_eq!(pids.len(), ALL.len(), "{first:?}");
    for (owner, first) in ALL.into_iter().zip(&first) {
        assert_eq!(&bench.of(owner, WHO).await, first);
    }
}

#[tokio::test]
async fn below_a_keeper_no_process_is_an_operator_whatever_the_keeper_serves() {
    for owner in ALL {
        let bench = Bench::new();
        let words = bench.of(owner, "sh -c 'echo $$; exec sleep 100 >/dev/null 2>&1' &").await;
        let pid = pid(&words[0]);
        assert!(is_alive(pid), "{owner:?}");
        let process = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let lineage = bench.keepers.trace(Some(process.as_fd()), Keepers::LONGEST);
        match owner {
            Owner::Run | Owner::Server | Owner::Check => assert_eq!(lineage, Lineage::Of(RUN), "{owner:?}"),
            Owner::Hook => assert!(matches!(lineage, Lineage::Unknown(_)), "{lineage:?}"),
        }
        release(RUN, &bench.keepers, false).await;
        assert!(!is_alive(pid), "{owner:?}");
    }
}
