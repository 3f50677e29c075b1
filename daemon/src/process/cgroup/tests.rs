//! Tests with real cgroups, without controllers, because on many machines version 1 has these. The tests of limits are
//! end to end, in `tests/behaviour/processes_cgroups.rs`.
#![allow(clippy::unwrap_used)]

use super::*;
use std::process::{Child, Command, Stdio};

const ONE: RunId = RunId::from_u64(1);

/// A cgroup to divide, without a process in it.
fn own(name: &str, controllers: Controllers) -> Arc<Groups> {
    let text = |path: &str| fs::read_to_string(path).unwrap();
    let found = find::path(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
    let own = found.unwrap().join(format!("harness-test-{}-{name}", std::process::id()));
    let groups = of(own, controllers);
    fs::create_dir_all(&groups.calls).unwrap();
    groups
}

fn of(own: PathBuf, controllers: Controllers) -> Arc<Groups> {
    Arc::new(Groups::new(own, &state(Path::new("/nowhere")), controllers))
}

fn state(dir: &Path) -> StateName {
    StateName::new(dir, 7)
}

fn sleeper_in(entrance: &Path) -> Child {
    let sleeper = Command::new("sleep").arg("60").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    fs::write(entrance, sleeper.id().to_string()).unwrap();
    sleeper
}

#[test]
#[ignore = "needs root and cgroups of version 2"]
fn the_cgroup_of_a_call_goes_with_the_last_of_its_processes() {
    let groups = own("call", Controllers::default());
    let (one, other) = (groups.make(ONE, &CallLimits::default()).unwrap(), groups.make(ONE, &CallLimits::default()));
    let (path, other) = (one.path.clone(), other.unwrap().path.clone());
    assert!(path.exists() && path.starts_with(groups.calls.join(format!("run-{ONE}"))));
    assert!(!other.exists(), "it had nobody in it and was dropped");
    let mut sleeper = sleeper_in(&one.entrance());
    // A process in it may divide it further.
    fs::create_dir(path.join("more")).unwrap();
    drop(one);
    groups.tidy();
    assert!(path.exists());
    kill(&path);
    sleeper.wait().unwrap();
    groups.tidy();
    fs::remove_dir(&groups.calls).expect("nothing is in it");
    fs::remove_dir(&groups.own).unwrap();
}

#[test]
#[ignore = "needs root and cgroups of version 2"]
fn leftovers_of_an_earlier_daemon_are_ended_and_removed_and_nothing_else() {
    let groups = own("left", Controllers::default());
    let foreign = groups.own.join("foreign");
    fs::create_dir(&foreign).unwrap();
    let left = groups.make(ONE, &CallLimits::default()).unwrap();
    let (mut ours, mut theirs) = (sleeper_in(&left.entrance()), sleeper_in(&foreign.join(PROCESSES)));
    of(groups.own.clone(), Controllers::default()).remove_calls();
    assert!(!groups.calls.exists());
    assert!(!ours.wait().unwrap().success());
    assert!(theirs.try_wait().unwrap().is_none());
    theirs.kill().unwrap();
    theirs.wait().unwrap();
    drop(left);
    fs::remove_dir(&foreign).unwrap();
    fs::remove_dir(&groups.own).unwrap();
}

/// A13: survivors of a daemon are ended wherever the next daemon starts. The cgroup of another state directory is not
/// touched, even if the file names it; neither is a directory that is not a cgroup.
#[test]
#[ignore = "needs root and cgroups of version 2"]
fn leftovers_in_the_recorded_cgroup_are_ended_and_nothing_else() {
    let groups = own("noted", Controllers::default());
    let dir = tempfile::tempdir().unwrap();
    let (one, another) = (state(dir.path()), StateName::new(dir.path(), 8));
    let mut left = sleeper_in(&groups.calls.join(PROCESSES));
    one.end_left();
    let link = dir.path().join("elsewhere").join(one.calls());
    fs::create_dir(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&groups.own, &link).unwrap();
    for not_its_own in [groups.own.as_path(), Path::new("/"), Path::new(""), &dir.path().join(one.calls()), &link] {
        one.note(not_its_own).unwrap();
        one.end_left();
    }
    one.note(&groups.calls).unwrap();
    another.end_left();
    assert!(left.try_wait().unwrap().is_none());
    one.end_left();
    assert!(!left.wait().unwrap().success());
    fs::remove_dir(&groups.calls).unwrap();
    fs::remove_dir(&groups.own).unwrap();
}

#[test]
fn limits_are_set_by_a_cgroup_where_it_has_the_controller_and_on_each_process_otherwise() {
    let limits = CallLimits {
        address_space_bytes: Some(1 << 30),
        processes: Some(9),
        open_files: Some(64),
        ..CallLimits::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let rest = |memory, pids| {
        let groups = of(dir.path().to_owned(), Controllers { memory, pids });
        let sets = groups.sets(&limits);
        assert_eq!(groups.want(&limits), memory || pids);
        assert!(!groups.want(&CallLimits { open_files: Some(64), ..CallLimits::default() }));
        let group = Group { groups, path: dir.path().join("x"), sets, before: Counts::default() };
        group.rest(limits).set().map(|(limit, _)| limit).collect::<Vec<_>>()
    };
    assert_eq!(rest(true, true), [CallLimit::OpenFiles]);
    assert_eq!(rest(false, true), [CallLimit::AddressSpaceBytes, CallLimit::OpenFiles]);
    assert_eq!(rest(true, false), [CallLimit::OpenFiles, CallLimit::Processes]);
    assert_eq!(Controllers { memory: true, pids: true }.change('+'), "+memory +pids");
    assert_eq!(Controllers { memory: false, pids: true }.change('-'), "-pids");
}

#[test]
fn the_process_that_met_a_limit_is_told_by_the_counts_of_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("call");
    fs::create_dir(&path).unwrap();
    let (groups, sets) = (of(dir.path().to_owned(), Controllers::default()), Controllers { memory: true, pids: true });
    let group = Group { groups, path, sets, before: Counts { killed: 4, not_forked: 4 } };
    let (none, kept, met, others) = (Meeting::NotSet, Meeting::Kept, Meeting::Met, Meeting::MetByOthers);
    for (of_call, of_run, memory, processes) in [
        ((0, 0), (4, 4), kept, kept),
        ((1, 0), (5, 4), met, kept),
        ((0, 0), (5, 4), others, kept),
        // Older kernels count at the cgroup of the fork, newer ones at that of the limit.
        ((0, 7), (4, 4), kept, met),
        ((0, 0), (4, 5), kept, met),
    ] {
        for (at, (killed, refused)) in [(&group.path, of_call), (&dir.path().to_owned(), of_run)] {
            let events = format!("low 0\nhigh 0\nmax 3\noom 1\noom_kill {killed}\noom_group_kill 9\n");
            fs::write(at.join("memory.events"), events).unwrap();
            fs::write(at.join("pids.events"), format!("max {refused}\n")).unwrap();
        }
        assert_eq!(group.grouped(), Grouped { memory, processes }, "{of_call:?} {of_run:?}");
    }
    let group =
        Group { sets: Controllers::default(), groups: Arc::clone(&group.groups), path: group.path.clone(), ..group };
    assert_eq!(group.grouped(), Grouped { memory: none, processes: none });
}
