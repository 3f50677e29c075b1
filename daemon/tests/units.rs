//! Tests the unit files: systemd accepts them, and they set what the daemon relies on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const INSTALLED: &str = "/usr/bin/harnessd";
const CTL: &str = "/usr/bin/harnessctl";

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd")
}

/// Lets systemd look at the units of `dir`, with the binary of this build in the place of the installed one.
fn verify(dir: &Path, instance: &str, change: impl Fn(String) -> String) -> Result<(), String> {
    let copies = tempfile::tempdir().unwrap();
    let mut command = Command::new("systemd-analyze");
    // Without a runtime directory a user's manager cannot be imagined.
    command.args(["verify", "--man=no", "--recursive-errors=yes", instance]).env("XDG_RUNTIME_DIR", copies.path());
    for name in ["harnessd.service", "harnessd.socket"] {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        // Any program of this build will do for systemd, which looks whether it can be executed.
        let text = [INSTALLED, CTL].iter().fold(text, |text, name| text.replace(name, env!("CARGO_BIN_EXE_harnessd")));
        fs::write(copies.path().join(name), change(text)).unwrap();
        command.arg(copies.path().join(name));
    }
    let output = command.output().expect("this needs systemd-analyze");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(message) }
}

#[test]
#[ignore = "needs systemd-analyze"]
fn systemd_accepts_the_units_and_would_not_accept_others() {
    for (dir, instance) in [(units(), "--system"), (units().join("user"), "--user")] {
        assert_eq!(verify(&dir, instance, |text| text), Ok(()), "{instance}");
        let broken = verify(&dir, instance, |text| text.replace("[Service]", "[Service]\nNonsense=yes"));
        assert!(broken.is_err(), "{instance}");
    }
}

#[test]
fn service_and_socket_name_the_same_path() {
    for (dir, listen) in [(units(), "/run/harness/control.sock"), (units().join("user"), "%t/harness/control.sock")] {
        let service = fs::read_to_string(dir.join("harnessd.service")).unwrap();
        let socket = fs::read_to_string(dir.join("harnessd.socket")).unwrap();
        let start = service.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
        assert!(start.starts_with(&format!("ExecStart={INSTALLED} ")) && start.contains("%t/harness/control.sock"));
        for line in ["Type=notify", "NotifyAccess=main", "KillMode=mixed", "Delegate=memory pids"] {
            assert!(service.lines().any(|found| found == line), "{line}");
        }
        assert!(socket.lines().any(|line| line == format!("ListenStream={listen}")));
        assert!(socket.lines().any(|line| line == "FileDescriptorName=control"));
    }
}

/// A signal would not tell systemd that a reload failed.
#[test]
fn a_reload_asks_the_daemon_at_the_socket_that_it_serves_and_gets_its_answer() {
    for dir in [units(), units().join("user")] {
        let service = fs::read_to_string(dir.join("harnessd.service")).unwrap();
        let reload = format!("ExecReload={CTL} --socket %t/harness/control.sock daemon reload");
        assert!(service.lines().any(|line| line == reload), "{}", dir.display());
    }
}

/// Tools have the daemon's user, and could take the socket away where the directory is that user's.
#[test]
fn the_directory_of_the_systems_socket_is_roots_and_that_of_a_users_outlives_the_service() {
    let read = |name: &str| fs::read_to_string(units().join(name)).unwrap();
    let service = read("harnessd.service");
    assert!(!service.lines().any(|line| line.starts_with("RuntimeDirectory")), "it would be given to User=");
    assert!(service.lines().any(|line| line == "User=harness"));
    assert!(read("harnessd.socket").lines().any(|line| line == "DirectoryMode=0755"));
    let tmpfiles = read("tmpfiles.d/harness.conf");
    let lines = tmpfiles.lines().filter(|line| !line.starts_with('#'));
    let places = lines.filter(|line| line.split_ascii_whitespace().nth(1) == Some("/run/harness"));
    let owners: Vec<Vec<&str>> = places.map(|line| line.split_ascii_whitespace().skip(2).collect()).collect();
    assert_eq!(owners, [["0755", "root", "root", "-"]]);
    assert!(read("user/harnessd.service").lines().any(|line| line == "RuntimeDirectoryPreserve=yes"));
}
