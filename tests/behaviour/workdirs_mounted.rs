//! Working directories in other mount namespaces, below other mounts, and on mounts that do not answer. All of these
//! need root.

use std::fs;
use std::path::Path;
use std::process::Command;

use harness_protocol::run::RunState;
use harness_tests::{Daemon, Place, Running, eventually, json, need, need_root, now, runs, says};

use crate::workdirs::{at, id, reason, waits_then_writes};

fn run(line: &str) {
    let status = Command::new("sh").args(["-c", line]).status().unwrap();
    assert!(status.success(), "{line}");
}

/// A daemon in a mount namespace of its own, in which `mount` was done first; the directory of the place is `$1`.
fn daemon_behind(place: &Place, mount: &str) -> Daemon {
    need_root();
    need("unshare", "util-linux");
    let line = format!("cd \"$1\" && {mount} && shift && exec \"$@\"");
    let dir = place.path("").display().to_string();
    place.start_behind(&["unshare", "-m", "--propagation", "private", "sh", "-c", &line, "sh", &dir])
}

/// U22: six of six runs "succeeded" in the wrong folder, and no user was told.
#[test]
#[ignore = "needs root, for a mount namespace"]
fn a_client_in_another_mount_namespace_is_told_and_nothing_is_executed_in_the_wrong_folder() {
    for (mount, told) in [
        ("mount -t tmpfs none work", "another folder for the daemon than for you"),
        ("mkdir other && mount --bind other work", "another folder for the daemon than for you"),
        ("mount --bind / work", "another folder for the daemon than for you"),
        ("mount --bind home work", "another folder for the daemon than for you"),
        ("mkdir -p b/work && mount --bind b b && mount --move b work && mkdir -p work/sub", "another folder"),
    ] {
        let place = Place::new();
        fs::create_dir(place.path("work/sub")).unwrap();
        let daemon = daemon_behind(&place, mount);
        let script = place.script_file(&runs("touch executed"));
        for words in [vec!["submit", "--script", &script], vec!["submit", "--wait", "--script", &script]] {
            let refused = daemon.ctl(words).exits(2).tells(told).tells("mount namespace");
            assert_eq!(refused.stdout, "");
        }
        let batch = place.file("home/batch.jsonl", &format!("{}\n", json!({"script": runs("touch executed").json()})));
        daemon.ctl(["submit", "--batch", &batch]).exits(2).tells(told);
        let below = daemon.ctl(["submit", "-C", "sub", "--script", &script]).exits(2);
        assert!(below.stderr.contains("another folder") || below.stderr.contains("does not exist for the daemon"));
        assert!(!place.path("work/executed").exists() && !place.path("other/executed").exists());
        // A folder that is the same for both is accepted.
        let answer = daemon.ctl(["submit", "--wait", "-C", place.path("run").to_str().unwrap(), "--script", &script]);
        assert_eq!(answer.line(), "done");
        assert!(place.path("run/executed").exists());
    }
}

#[test]
#[ignore = "needs root, for a mount namespace"]
fn a_client_in_a_sandbox_is_told_that_the_daemon_is_not() {
    need_root();
    let daemon = Daemon::start();
    let script = daemon.script_file(&runs("touch executed"));
    for (mount, told) in [
        ("mount -t tmpfs none work", "another folder for the daemon than for you"),
        (
            "mount -t tmpfs none work && mkdir work/new && cd work/new",
            "does not exist for the daemon, though it is there for you",
        ),
        ("mkdir -p twin && mount --bind twin work", "another folder for the daemon than for you"),
        ("mount -t tmpfs none home", ""),
        ("mount --bind work run/../work", ""),
    ] {
        let mut command = daemon.command("unshare");
        let dir = daemon.path("");
        let go = if mount.contains("cd ") { "true" } else { "cd work" };
        let script_copy = "/tmp/harness-script.$$";
        let line = format!(
            "cp {script} {script_copy}; cd {}; {mount} && {go} && harnessctl submit --wait --script {script_copy}; \
             code=$?; rm {script_copy}; exit $code",
            dir.display()
        );
        command.args(["-m", "--propagation", "private", "sh", "-c", &line]);
        let output = Running::start(command).finish();
        if told.is_empty() {
            assert_eq!(output.line(), "done", "{mount}");
            fs::remove_file(daemon.work().join("executed")).unwrap();
        } else {
            output.exits(2).tells(told).tells("mount namespace");
        }
        assert!(!daemon.work().join("executed").exists(), "{mount}");
    }
}

#[test]
#[ignore = "needs root, to mount"]
fn a_mount_over_a_folder_is_another_folder_for_the_next_call() {
    need_root();
    let daemon = Daemon::start();
    for (index, mount) in
        ["mount -t tmpfs none", "mount --bind /tmp", "mount --bind /", "mount -t proc none"].iter().enumerate()
    {
        let path = daemon.path(&format!("folder-{index}"));
        fs::create_dir(&path).unwrap();
        let spec = at(&daemon, &waits_then_writes("x"), &path, json!({}));
        let reply = daemon.rpc("run.submit", json!({"spec": spec}));
        let one = daemon.run(reply["id"].as_str().unwrap());
        one.reach(RunState::Waiting);
        run(&format!("{mount} {}", path.display()));
        one.reply("go");
        eventually("it asks again", || one.results().len() == 2 && !one.questions().is_empty());
        let result = one.results()[1].clone();
        run(&format!("umount {}", path.display()));
        assert!(result.envelope.contains("is another folder now"), "{mount}: {}", result.envelope);
        assert_eq!((result.exit_code, result.is_error), (None, true), "{mount}");
        one.reply("go");
        assert_eq!(one.answer(), "done");
        assert_eq!(one.results()[3].exit_code, Some(0), "{mount}");
    }
}

#[test]
#[ignore = "needs root, to be another user"]
fn a_folder_that_the_daemons_user_may_not_enter_is_refused_at_the_door() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    for (name, mode) in [("shut", 0o700), ("listed", 0o744), ("nothing", 0), ("entered", 0o711), ("above", 0o700)] {
        fs::create_dir(place.path(name)).unwrap();
        fs::create_dir(place.path(name).join("below")).unwrap();
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let user = 61_235;
    let daemon = place.start_as(user, &[]);
    for name in ["shut", "listed", "nothing", "entered", "above"] {
        nix::unistd::chown(&place.path(name), Some(0.into()), Some(0.into())).unwrap();
    }
    for (name, refused) in [
        ("shut", true),
        ("listed", true),
        ("nothing", true),
        ("entered", false),
        ("above/below", true),
        ("entered/below", false),
    ] {
        let spec = at(&daemon, &says("x"), &place.path(name), json!({"workdir_id": id(&place.path(name))}));
        let answer = daemon.connect().try_call("run.submit", json!({"spec": spec}));
        assert_eq!(answer.is_err(), refused, "{name}: {answer:?}");
        if let Err(error) = answer {
            assert_eq!(reason(&error), ("invalid", "no-workdir"), "{error}");
            assert!(error["message"].as_str().unwrap().contains("may not be entered for the daemon"), "{error}");
        }
    }
}

/// A mount whose server never answers.
pub struct Hanging {
    pub at: String,
    /// Keeps the server's end open.
    server: std::process::Child,
}

impl Hanging {
    pub fn at(path: &Path) -> Self {
        fs::create_dir(path).unwrap();
        let at = path.display().to_string();
        let options = "fd=3,rootmode=40000,user_id=0,group_id=0";
        let line = format!("exec 3<>/dev/fuse; mount -i -t fuse -o {options} none {at} && exec sleep 1000");
        let server = Command::new("sh").args(["-c", &line]).spawn().unwrap();
        eventually("it is mounted", || {
            fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {at} "))
        });
        Self { at, server }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        _ = self.server.kill();
        _ = self.server.wait();
        _ = Command::new("umount").args(["-l", &self.at]).status();
    }
}

/// U22: a mount that hangs delays only the client that asks for it.
#[test]
#[ignore = "needs root, to mount"]
fn a_mount_that_does_not_answer_holds_up_its_own_run_alone() {
    need_root();
    let daemon = Daemon::start();
    let soon = daemon.path("soon");
    fs::create_dir(&soon).unwrap();
    let spec = at(&daemon, &waits_then_writes("x"), &soon, json!({}));
    let reply = daemon.rpc("run.submit", json!({"spec": spec}));
    let caught = daemon.run(reply["id"].as_str().unwrap());
    caught.reach(RunState::Waiting);

    let hanging = Hanging::at(&daemon.path("hanging"));
    let mut clients: Vec<_> = (0..40).map(|_| daemon.connect()).collect();
    let spec = at(&daemon, &says("x"), Path::new(&hanging.at), json!({}));
    let ids: Vec<u64> = clients.iter_mut().map(|client| client.send("run.submit", json!({"spec": spec}))).collect();
    // Others are served meanwhile, also submits from processes of their own.
    for _ in 0..5 {
        let begun = now();
        daemon.rpc("daemon.status", json!({}));
        assert!(begun.elapsed().as_secs() < 3, "a status waits for a mount");
        let script = daemon.script_file(&runs("true"));
        assert_eq!(daemon.ctl(["submit", "--wait", "--script", &script]).line(), "done");
    }
    for (client, id) in clients.iter_mut().zip(ids) {
        let reply = client.reply(id);
        assert_eq!(reason(&reply["error"]), ("busy", "workdir-silent"), "{reply}");
    }
    // The same client asks again, and is not served by a second thread that hangs.
    let error = clients[0].try_call("run.submit", json!({"spec": spec})).unwrap_err();
    assert_eq!(reason(&error), ("busy", "workdir-silent"), "{error}");
    clients[0].call("daemon.status", json!({}));

    // A run whose folder has become one that hangs: its call ends at its time limit, and the others go on.
    fs::rename(&soon, daemon.path("soon.aside")).unwrap();
    std::os::unix::fs::symlink(&hanging.at, &soon).unwrap();
    caught.reply("go");
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
    caught.cancel();
    caught.wait();
    assert!(daemon.lane_is_idle());
    drop(hanging);
}
