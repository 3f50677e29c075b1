//! Commands and work through a socket that systemd activates. How the daemon itself starts and stops: `startup`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use harness_tests::{Notify, Patient, Place, Process, eventually, found_within, json, need, program, runs, turn};
use nix::sys::signal::Signal;

/// A daemon that is started by the first connection, with systemd played by its own tool and by a socket of the test's.
struct Activated {
    place: Place,
    notify: Notify,
    child: Child,
}

impl Activated {
    fn new() -> Self {
        need("systemd-socket-activate", "systemd");
        let place = Place::new();
        fs::create_dir(place.path("run/harness")).unwrap();
        let notify = Notify::listen(&place);
        let mut command = place.command("systemd-socket-activate");
        // Of its own environment it passes on only what is named.
        for name in ["HOME", "XDG_RUNTIME_DIR", "PATH"] {
            command.args(["-E", name]);
        }
        let (name, path) = Notify::variable(&place);
        command.arg("-E").arg(format!("{name}={path}"));
        command.arg("--fdname=control").arg("-l").arg(place.socket()).arg(program("harnessd"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(Patient::new(child.stderr.take().unwrap(), "systemd-socket-activate"));
        let mut line = String::new();
        while !line.contains("Listening on") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended");
        }
        std::thread::spawn(move || std::io::copy(&mut stderr.into_inner().into_inner(), &mut std::io::sink()));
        Self { place, notify, child }
    }

    fn ends(&mut self) {
        let status = found_within(Duration::from_secs(5), "the daemon ends", || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Activated {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[test]
#[ignore = "needs systemd-socket-activate"]
fn the_first_command_activates_it_and_a_stop_leaves_the_socket_to_systemd() {
    let mut activated = Activated::new();
    let socket = activated.place.socket();
    let before = inode(&socket);
    let script = activated.place.script_file(&runs("echo through systemd"));
    // The command finds a socket on which systemd listens, and starts nothing itself.
    assert_eq!(activated.place.ctl(["submit", "--wait", "--script", &script]).ok(), "done\n");
    activated.notify.told("READY=1");
    let status = activated.place.ctl(["daemon", "status", "--json"]).json();
    assert_eq!((&status["socket_activated"], &status["pid"]), (&json!(true), &json!(activated.child.id())));
    activated.place.ctl(["daemon", "stop"]).ok();
    activated.notify.told("STOPPING=1");
    activated.ends();
    assert_eq!(inode(&socket), before);
}

#[test]
#[ignore = "needs systemd-socket-activate"]
fn a_stop_by_systemd_is_told_and_soon_whatever_is_at_hand() {
    let mut activated = Activated::new();
    let place = activated.place.clone();
    let asking = place.submit(&turn("").ask("well?").turn("never"));
    activated.notify.told("READY=1");
    eventually("it asks", || !asking.questions().is_empty());
    place.submit(&runs("echo $$ > pid; exec sleep 600"));
    eventually("a call executes", || !place.written("pid").is_empty());
    let mut stalled = place.connect();
    stalled.subscribe(json!({"after": 0}));
    Process(activated.child.id()).signal(Signal::SIGTERM);
    activated.notify.told("STOPPING=1");
    activated.ends();
    Process(place.written("pid").trim().parse().unwrap()).is_gone_soon();
    assert!(place.socket().exists());
}
