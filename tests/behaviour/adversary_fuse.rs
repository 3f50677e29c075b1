//! A run serves a file system itself (FUSE) and waits in it, so that SIGKILL does not end it. It takes no permit, no
//! lock and no thread from others. See `../adversary/own_files.rs`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness_protocol::run::RunState;
use harness_tests::{
    Daemon, Place, Process, Run, copy_program, eventually, found, json, need, need_root, runs, says, turn,
};

use crate::adversary::daemon_of;

const ADVERSARY: &str = env!("CARGO_BIN_EXE_adversary");
/// A user that no other test has.
const USER: u32 = 61_307;
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Longer than a daemon takes to stop, and to refuse a start.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// Whether the kernel's list of connections, by which one is aborted, is mounted for the daemon.
#[derive(Clone, Copy, PartialEq)]
enum List {
    Mounted,
    Absent,
}

/// Words before a command line: a mount namespace with that list, or without it.
fn behind(list: List) -> [String; 7] {
    let mount = match list {
        List::Mounted => format!("mountpoint -q {CONNECTIONS} || mount -t fusectl none {CONNECTIONS}"),
        List::Absent => format!("! mountpoint -q {CONNECTIONS} || umount {CONNECTIONS}"),
    };
    let line = format!("{{ {mount}; }} && exec \"$@\"");
    ["unshare", "--mount", "--propagation", "private", "sh", "-c", &line].map(str::to_owned)
}

fn words<'a>(behind: &'a [String; 7], more: &[&'a str]) -> Vec<&'a str> {
    behind.iter().map(String::as_str).chain(["sh"]).chain(more.iter().copied()).collect()
}

/// A place with what a run needs for that: the device as udev gives it to all users, and the program.
fn place() -> Place {
    need_root();
    need("unshare", "util-linux");
    let place = Place::configured("[lane.tool]\nwidth = 1\n");
    copy_program(Path::new(ADVERSARY), &place.path("adversary"));
    let device = place.path("fuse").display().to_string();
    let made = Command::new("sh").args(["-c", &format!("mknod {device} c 10 229 && chmod 666 {device}")]).status();
    assert!(made.unwrap().success());
    fs::write(place.path("work/own"), "").unwrap();
    place
}

fn start(place: &Place, list: List) -> Daemon {
    place.start_as(USER, &words(&behind(list), &[]))
}

/// A command that mounts a file of its own, and goes on with the adversary in this way.
fn in_own_files(place: &Place, way: &str, more: &str) -> String {
    let options = "fd=0,rootmode=100644,user_id=0,group_id=0";
    let (fuse, adversary) = (place.path("fuse"), place.path("adversary"));
    let mount = format!("exec 0<>{}; mount -i -t fuse -o {options} none $PWD/own", fuse.display());
    let adversary = adversary.display();
    match way {
        "without-a-keeper" => {
            format!("unshare -Urm sh -c '{mount} && exec {adversary} wait-in-own-files-without-a-keeper waits own'")
        }
        // The first process of a pid namespace waits for those in it.
        "below-the-first" => {
            format!(
                "unshare -Urmpf sh -c '{mount} || exit; exec 3<&0; {adversary} wait-in-own-files waits own <&3 & wait'"
            )
        }
        "outlive" => format!("unshare -Urm sh -c '{mount} && exec {adversary} outlive-in-own-files own {more}'"),
        way => format!("unshare -Urm sh -c '{mount} && exec {adversary} wait-in-own-files {way} own'"),
    }
}

/// The process that says that it waits.
fn waiting(place: &Place) -> Process {
    let pid = found("it waits in its own file system", || place.written("waiting").trim().parse().ok());
    Process(pid)
}

/// The states of the threads of a process: the first of them may have ended before the others.
fn states(process: Process) -> Vec<char> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.0)).into_iter().flatten().flatten();
    let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    threads.filter_map(|thread| state(fs::read_to_string(thread.path().join("stat")).ok()?)).collect()
}

fn lives(process: Process) -> bool {
    states(process).iter().any(|state| !"ZX".contains(*state))
}

/// Whether a thread waits uninterruptibly, and all others have ended.
fn has_only_waits(process: Process) -> bool {
    let states = states(process);
    states.contains(&'D') && states.iter().all(|state| "DZX".contains(*state))
}

fn wait_in_own_files(daemon: &Daemon, way: &str) -> (Run, Process) {
    let run = daemon.submit(&turn("").shell(&in_own_files(daemon, way, "")).turn("tried"));
    (run, waiting(daemon))
}

/// Does what root is told to do, where the list of connections is mounted.
fn as_root(line: &str) {
    let list = behind(List::Mounted);
    let words = words(&list, &["sh", "-c", line]);
    assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "{line}");
}

/// The command for root in a text.
fn advice(text: &str) -> String {
    let (_, from) = text.split_once("echo 1 > ").unwrap_or_else(|| panic!("no command for root: {text}"));
    let (path, _) = from.split_once("/abort").unwrap();
    format!("echo 1 > {path}/abort")
}

fn goes_on(daemon: &Daemon, way: &str) {
    eventually("the permit is free", || daemon.lane_is_idle());
    assert_eq!(daemon.submit(&runs("true")).answer(), "done", "{way}");
}

/// What is cancelled, and what goes on by itself since it has killed its keeper.
fn end(run: &Run, way: &str) {
    if way == "without-a-keeper" {
        assert_eq!(run.answer(), "tried");
    } else {
        run.cancel();
        assert_eq!(run.wait().state, RunState::Cancelled, "{way}");
    }
}

const WAYS: [&str; 4] = ["waits", "exits", "below-the-first", "without-a-keeper"];

#[test]
#[ignore = "needs root, and /dev/fuse"]
fn the_wait_of_a_run_in_a_file_system_of_its_own_is_ended() {
    for way in WAYS {
        let place = place();
        let daemon = start(&place, List::Mounted);
        let (run, left) = wait_in_own_files(&daemon, way);
        end(&run, way);
        eventually("it is gone", || !lives(left));
        goes_on(&daemon, way);
    }
}

/// Where the wait cannot be ended, what waits executes nothing any more: its run ends, and its permit is free.
#[test]
#[ignore = "needs root, and /dev/fuse"]
fn a_run_ends_although_the_kernel_keeps_its_process() {
    for way in WAYS {
        let place = place();
        let mut daemon = start(&place, List::Absent);
        let (run, left) = wait_in_own_files(&daemon, way);
        end(&run, way);
        assert!(lives(left), "{way}: it cannot be ended here, and this test shows nothing");
        let result = run.results()[0].clone();
        assert!(result.is_error && result.envelope.contains("execute nothing any more"), "{way}: {}", result.envelope);
        assert_eq!(result.cancelled, way != "without-a-keeper", "{way}");
        goes_on(&daemon, way);
        let log = fs::read_to_string(daemon.path("daemon.log")).unwrap();
        assert!(log.contains("SIGKILL does not end") && log.contains(&left.0.to_string()), "{way}: {log}");
        daemon.ctl(["daemon", "stop"]).ok();
        daemon.ended(STOPS_WITHIN);
        // The next daemon is not kept from starting, and root's command is the right one.
        let next = start(&place, List::Absent);
        goes_on(&next, way);
        assert!(lives(left), "{way}");
        as_root(&advice(&log));
        eventually("root has ended it", || !lives(left));
    }
}

/// A run that has killed its daemon and has taken the locks of it.
fn outlive(place: &Place, daemon: Daemon) -> Process {
    let locks = [place.state("harnessd.lock"), place.state("")].map(|path| path.display().to_string()).join(" ");
    let run = daemon.submit(&turn("").shell(&in_own_files(place, "outlive", &format!("{} {locks}", daemon_of(place)))));
    let left = waiting(place);
    drop((run, daemon));
    left
}

#[test]
#[ignore = "needs root, and /dev/fuse"]
fn what_waits_in_a_file_system_of_its_own_keeps_no_lock_from_the_next_daemon() {
    let place = place();
    let daemon = start(&place, List::Mounted);
    let left = outlive(&place, daemon);
    let next = start(&place, List::Mounted);
    assert!(!lives(left));
    goes_on(&next, "outlive");
}

/// What a start that is refused says.
fn refused(place: &Place, user: u32) -> String {
    let list = behind(List::Absent);
    let (user, own) = (user.to_string(), place.path("harnessd").display().to_string());
    let become_them = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", &own];
    let words = words(&list, &become_them);
    let mut command = place.command(words[0]);
    let output = command.args(&words[1..]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{told}");
    told
}

#[test]
#[ignore = "needs root, and /dev/fuse"]
fn a_start_names_what_waits_in_a_file_system_of_its_own_with_a_lock_and_what_ends_it() {
    let place = place();
    let daemon = start(&place, List::Absent);
    let left = outlive(&place, daemon);
    let told = refused(&place, USER);
    assert!(told.contains(&format!("SIGKILL does not end {}:", left.0)), "{told}");
    as_root(&advice(&told));
    eventually("root has ended it", || !lives(left));
    goes_on(&start(&place, List::Absent), "outlive");
}

/// A line of a shell that mounts a folder whose server answers nothing, says which process serves it, and executes the
/// words that follow.
fn behind_a_silent_folder(place: &Place, folder: &Path) -> String {
    fs::create_dir(folder).unwrap();
    let options = "fd=3,rootmode=40000,user_id=0,group_id=0,allow_other";
    format!(
        "cd {work}; exec 3<>{fuse}; {{ mount -i -t fuse -o {options} none {at} \
         && exec {adversary} serve-files <&3 3>&-; }} & \
         echo $! > {server}; until grep -q {at} /proc/self/mountinfo; do sleep 0.02; done; exec \"$@\" 3>&-",
        work = place.work().display(),
        fuse = place.path("fuse").display(),
        at = folder.display(),
        adversary = place.path("adversary").display(),
        server = place.path("server").display(),
    )
}

/// A daemon of which a thread waits in an operator's folder is killed: it keeps its locks, and the next start names it.
#[test]
#[ignore = "needs root, and /dev/fuse"]
fn a_start_names_a_killed_daemon_that_waits_with_its_locks() {
    let place = place();
    let silent = place.path("silent");
    let line = behind_a_silent_folder(&place, &silent);
    let daemon = place.start_as(USER, &["unshare", "--mount", "--propagation", "private", "sh", "-c", &line, "sh"]);
    let server = Process(fs::read_to_string(place.path("server")).unwrap().trim().parse().unwrap());
    let mut spec = daemon.spec(&says("x"), json!({}));
    spec["workdir"] = silent.to_str().unwrap().into();
    let error = daemon.refused("run.submit", json!({"spec": spec}));
    assert_eq!(error["data"]["reason"], "workdir-silent", "{error}");
    let former = daemon.process();
    former.signal(nix::sys::signal::Signal::SIGKILL);
    eventually("all of it but a thread that waits has ended", || has_only_waits(former));
    let told = refused(&place, USER);
    server.signal(nix::sys::signal::Signal::SIGKILL);
    assert!(told.contains(&format!("SIGKILL does not end {}:", former.0)), "{told}");
    assert!(told.contains("requests wait") || told.contains("/abort"), "{told}");
    eventually("the former daemon is gone", || !lives(former));
    goes_on(&start(&place, List::Absent), "the next daemon");
}

/// A path through a link of `/proc` leads into the file systems of another process; a descriptor may be of one. Neither
/// is looked at for a run.
#[test]
#[ignore = "needs root, and /dev/fuse"]
fn no_folder_of_a_runs_own_file_system_is_looked_at() {
    let place = place();
    let daemon = start(&place, List::Mounted);
    let (run, left) = wait_in_own_files(&daemon, "waits");
    let mut spec = daemon.spec(&says("x"), json!({}));
    let own = format!("/proc/{}/root{}", left.0, place.path("work/own").display());
    for path in [own, format!("/proc/{}/cwd", left.0)] {
        spec["workdir"] = path.into();
        let error = daemon.refused("run.submit", json!({"spec": spec}));
        assert_eq!(error["data"]["reason"], "no-workdir", "{error}");
        assert!(error["message"].as_str().unwrap().contains("a link of /proc"), "{error}");
    }
    run.cancel();
    run.wait();
    eventually("it is gone", || !lives(left));
}

/// The folder of a submit inside of a run is told by its numbers: nothing that a run passes is received.
#[test]
fn a_run_passes_no_descriptor_and_submits_all_the_same() {
    let place = Place::new();
    let daemon = place.start_unprivileged(&[Path::new(ADVERSARY)]);
    let inner = daemon.script_file(&runs("pwd"));
    let mut spec = daemon.spec(&says("x"), json!({}));
    spec["workdir"] = daemon.work().to_str().unwrap().into();
    let params = json!({"spec": spec, "passes_workdir": true});
    let line = json!({"jsonrpc": "2.0", "id": 1, "method": "run.submit", "params": params});
    fs::write(daemon.path("work/line"), line.to_string()).unwrap();
    let script = turn("")
        .shell("adversary pass-a-folder . \"$(cat line)\"")
        .turn("")
        .shell(&format!("harnessctl submit --wait --script {inner}"))
        .turn("tried");
    let run = daemon.submit_with(&script, json!({"env": crate::adversary::Arena::environment(&daemon)}));
    assert_eq!(run.answer(), "tried");
    let envelopes = run.envelopes();
    assert!(envelopes[0].contains("descriptors are not taken from processes of runs"), "{envelopes:?}");
    assert_eq!(envelopes[1], "Exit code: 0\ndone\n");
}
