//! A run becomes another user of the machine, as far as it may, and outlives its keeper and its daemon: the next daemon
//! ends what it has left, or names it. See `adversary.rs` for the arena.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use harness_tests::{Daemon, Place, Process, eventually, json, need, need_root, turn};

use crate::adversary::daemon_of;

/// A user with subordinate ones, the first of these, and one that is no subordinate one. No other test has them.
const USER: u32 = 61_305;
const FIRST: u32 = 1_700_000;
const STRANGER: u32 = 61_306;

/// Starts a daemon whose user has subordinate users, as far as its processes can see.
fn start_with_subordinates(place: &Place) -> Daemon {
    need("newuidmap", "uidmap");
    let ids = format!("runner:{FIRST}:65536\n");
    let files = [
        ("/etc/subuid", ids.clone()),
        ("/etc/subgid", ids),
        ("/etc/passwd", format!("root:x:0:0::/root:/bin/sh\nrunner:x:{USER}:{USER}::/:/bin/sh\n")),
    ];
    let mounts = files.map(|(file, text)| {
        let own = place.path(file.rsplit('/').next().unwrap());
        fs::write(&own, text).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o644)).unwrap();
        // A machine without such users may have no such file.
        format!("touch {file} && mount --bind {} {file} && ", own.display())
    });
    let shell = format!("{}exec \"$@\"", mounts.concat());
    place.start_as(USER, &["unshare", "--mount", "sh", "-c", &shell, "sh"])
}

/// A run leaves this command, which becomes another user, and ends the daemon and its keeper. Gives the process.
fn leave(place: &Place, daemon: Daemon, user: u32, prepare: &str, command: &str) -> Process {
    let script = format!(
        "trap '' TERM HUP; K=$1; {prepare}
         exec 9<{lock}; (setsid {command} & echo $! > started); P=$(cat started)
         until grep -q '^Uid:.{user}.{user}' /proc/$P/status; do sleep 0.02; done
         kill -STOP $K; kill -9 {daemon}; kill -9 $K; echo $P > left.part; mv left.part left",
        lock = place.state("harnessd.lock").display(),
        daemon = daemon_of(place),
    );
    fs::write(place.work().join("script"), script).unwrap();
    // Nothing else is left, beside which it would be found.
    let run = daemon.submit(&turn("").shell("setsid sh script $PPID > said 2>&1 & wait").turn("tried"));
    eventually("a process is left", || place.work().join("left").exists());
    drop((run, daemon));
    let left = Process(place.written("left").trim().parse().unwrap());
    assert!(left.is_alive(), "{}", place.written("said"));
    // A start looks at the latest processes of the machine first: this one is none of them any more.
    for _ in 0..100 {
        assert!(Command::new("true").status().unwrap().success());
    }
    left
}

/// In a user namespace of the run, and outside of one by a program with the set-user-id bit.
const IN_A_NAMESPACE: &str = "unshare --user --map-auto --map-root-user setpriv --reuid=5 --regid=5 --clear-groups";
const BY_A_PROGRAM: &str = "./theirs --ruid=1700004";
const MAKES_THE_PROGRAM: &str = "unshare --user --map-auto --map-root-user sh -c 'cp $(command -v setpriv) theirs; \
                                 chown 5:5 theirs; chmod 4755 theirs';";

/// Try 27: what has become a subordinate user, or another user below root's daemon, is ended by the next start, also
/// where it holds the lock of the daemon.
#[test]
#[ignore = "needs root, newuidmap and setpriv"]
fn what_a_run_has_left_under_another_user_is_ended_by_the_next_start() {
    need_root();
    let stays = "sh -c 'trap \"\" TERM HUP; sleep 61999 & wait; sleep 61999'";
    let locks = "sh -c 'until flock --nonblock 9; do sleep 0.02; done; exec sleep 61999'";
    for (what, prepare, how) in
        [("in a namespace", "", IN_A_NAMESPACE), ("by a program", MAKES_THE_PROGRAM, BY_A_PROGRAM)]
    {
        for command in [stays, "sleep 61999", locks] {
            let place = Place::new();
            let daemon = start_with_subordinates(&place);
            let left = leave(&place, daemon, FIRST + 4, prepare, &format!("{how} {command}"));
            let next = start_with_subordinates(&place);
            assert!(!left.is_alive(), "{what}, {command}");
            let status = next.rpc("daemon.status", json!({}));
            assert_eq!(status.get("left_processes"), None, "{what}, {command}: {status}");
            assert!(!next.lane("tool").paused, "{what}, {command}");
        }
    }
    for command in [stays, "sleep 61999", locks] {
        let place = Place::new();
        let become_them = format!("setpriv --reuid={STRANGER} --regid={STRANGER} --clear-groups");
        let left = leave(&place, place.start(), STRANGER, "", &format!("{become_them} {command}"));
        let next = place.start();
        assert!(!left.is_alive(), "root's daemon, {command}");
        assert!(!next.lane("tool").paused, "root's daemon, {command}");
    }
}

/// Try 27: what no signal of the daemon reaches is named wherever one looks, and has no rights.
#[test]
#[ignore = "needs root and setpriv"]
fn what_a_start_may_not_end_is_named_and_has_no_rights() {
    need_root();
    let place = Place::new();
    let daemon = place.start_as(USER, &[]);
    let theirs = tempfile_for(STRANGER);
    let (dir, socket) = (theirs.path().display(), place.socket());
    let pause = json!({"jsonrpc": "2.0", "id": 1, "method": "lane.pause", "params": {"lane": "tool"}});
    let asks = format!(
        "sh -c 'until test -e {dir}/ask; do sleep 0.02; done; \
         HARNESS_SOCKET={} {dir}/adversary ask-once \"$ASK\" > {dir}/part; mv {dir}/part {dir}/answer; \
         exec sleep 61999'",
        socket.display()
    );
    let prepare = format!("export ASK='{pause}';");
    let left = leave(&place, daemon, STRANGER, &prepare, &format!("{dir}/become --ruid={STRANGER} {asks}"));
    let next = place.start_as(USER, &[]);
    assert!(left.is_alive());
    let status = next.rpc("daemon.status", json!({}));
    assert_eq!(status["left_processes"], json!([{"pid": left.0, "user": STRANGER}]), "{status}");
    let words = format!("as root, kill -9 {}", left.0);
    for command in [["daemon", "status"].as_slice(), &["doctor"]] {
        let output = next.ctl(command);
        assert!(output.stdout.contains(&words), "{command:?}: {output}");
    }
    // As if the operator had opened the way to the socket for all.
    for (path, mode) in [(place.path(""), 0o711), (place.path("run"), 0o711), (place.path("run/harness"), 0o711)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(theirs.path().join("ask"), "").unwrap();
    eventually("it has asked", || theirs.path().join("answer").exists());
    let answer = fs::read_to_string(theirs.path().join("answer")).unwrap();
    assert!(!answer.contains("\"result\""), "{answer}");
    assert!(!next.lane("tool").paused, "{answer}");
    left.try_signal(nix::sys::signal::Signal::SIGKILL);
    eventually("it is told no more", || next.rpc("daemon.status", json!({})).get("left_processes").is_none());
}

/// Try 27: what no signal of the daemon reaches and holds its lock keeps the next one from starting, which names it.
#[test]
#[ignore = "needs root and setpriv"]
fn what_holds_the_lock_and_may_not_be_ended_is_named_by_the_start_that_it_prevents() {
    need_root();
    let place = Place::new();
    let daemon = place.start_as(USER, &[]);
    let theirs = tempfile_for(STRANGER);
    let locks = "sh -c 'until flock --nonblock 9; do sleep 0.02; done; exec sleep 61999'";
    let become_them = format!("{}/become --ruid={STRANGER} {locks}", theirs.path().display());
    let left = leave(&place, daemon, STRANGER, "", &become_them);
    eventually("it holds the lock", || {
        let file = fs::File::open(place.state("harnessd.lock")).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err()
    });
    let mut command = place.command("setpriv");
    command.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned()]);
    let output = command.arg(place.path("harnessd")).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{told}");
    let named = told.split_once("As root: kill -9 ").map(|(_, pids)| pids.starts_with(&format!("{}:", left.0)));
    assert_eq!(named, Some(true), "{told}");
    left.try_signal(nix::sys::signal::Signal::SIGKILL);
    eventually("it is gone", || !left.is_alive());
    drop(place.start_as(USER, &[]));
}

/// A directory of another user, with a program by which every process becomes that user, and the adversary.
fn tempfile_for(user: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let setpriv = Path::new("/usr/bin/setpriv");
    for (from, name) in [(setpriv, "become"), (Path::new(env!("CARGO_BIN_EXE_adversary")), "adversary")] {
        let to = dir.path().join(name);
        harness_tests::copy_program(from, &to);
        chown(&to, Some(user), Some(user)).unwrap();
        // A change of the owner takes this bit away.
        let mode = if name == "become" { 0o4755 } else { 0o755 };
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).unwrap();
    }
    chown(dir.path(), Some(user), Some(user)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}
