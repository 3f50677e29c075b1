//! How the daemon starts and stops, looked at from outside; a socket of the test plays systemd.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness_tests::{Daemon, Notify, Output, PATIENCE, Patient, Place, Running, need, program};
use nix::sys::signal::Signal;

/// A place whose daemons tell the test what a service manager is told.
struct Managed {
    place: Place,
    notify: Notify,
}

impl Deref for Managed {
    type Target = Place;
    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Managed {
    fn new() -> Self {
        let place = Place::new();
        let notify = Notify::listen(&place);
        Self { place, notify }
    }

    /// The command line of a daemon in this place, behind `before`.
    fn daemon_behind(&self, before: &[&str]) -> Command {
        let harnessd = program("harnessd");
        let line = [before, &[harnessd.to_str().unwrap()]].concat();
        let mut command = self.command(line[0]);
        let (name, path) = Notify::variable(self);
        command.args(&line[1..]).env(name, path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// A daemon of which nothing is awaited.
    fn spawn(&self, command: &mut Command) -> Daemon {
        Daemon::adopt(self, command.spawn().unwrap())
    }

    /// A daemon that has said that it is ready.
    fn start(&self) -> Daemon {
        let daemon = self.spawn(&mut self.daemon_behind(&[]));
        self.notify.told("READY=1");
        daemon
    }

    /// How a daemon with these arguments ends that does not start.
    fn refused<W: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = W>) -> Output {
        let mut command = self.daemon_behind(&[]);
        command.args(arguments);
        let output = Running::start(command).finish();
        assert!(output.stdout.lines().all(|line| line.starts_with("doing ")), "{output}");
        output
    }
}

fn stop(mut daemon: Daemon) {
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.ended(PATIENCE).code(), Some(0));
}

fn proc_file(daemon: &Daemon, name: &str) -> PathBuf {
    Path::new("/proc").join(daemon.process().0.to_string()).join(name)
}

/// What comes until the other end closes.
fn until_closed(stream: &mut impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn signal_mask(daemon: &Daemon, name: &str) -> u64 {
    let status = fs::read_to_string(proc_file(daemon, "status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":")).unwrap();
    // Of the classic signals; above them are two that the C library keeps to itself.
    u64::from_str_radix(line.trim(), 16).unwrap() & 0x7FFF_FFFF
}

#[test]
fn it_says_when_it_is_ready_and_when_it_stops_and_leaves_no_socket() {
    let place = Managed::new();
    let daemon = place.start();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(place.socket()), mode(place.path("run/harness")), mode(place.state(""))), (0o600, 0o700, 0o700));
    UnixStream::connect(place.socket()).unwrap();
    stop(daemon);
    place.notify.told("STOPPING=1");
    assert!(!place.socket().exists());
}

#[test]
fn a_hangup_reads_the_configuration_again_and_a_bad_one_changes_nothing_and_is_told() {
    let place = Managed::new();
    let log = place.path("log");
    let daemon = place.spawn(place.daemon_behind(&[]).stderr(fs::File::create(&log).unwrap()));
    place.notify.told("READY=1");
    let width = "[lane.tool]\nwidth = 2\n";
    let wrong = "config.toml:1: not TOML";
    for (text, told) in [(width, None), ("nonsense", Some(wrong)), (width, None), ("nonsense", Some(wrong)), ("", None)]
    {
        place.configure(text);
        daemon.signal(Signal::SIGHUP);
        let message = place.notify.told("RELOADING=1");
        assert!(message.contains("MONOTONIC_USEC="), "{message}");
        // It is ready again when the configuration is in force, or is what it was; the status says which.
        let message = place.notify.told("READY=1");
        match told {
            None => assert!(message.lines().any(|line| line == "STATUS=serving"), "{message}"),
            Some(told) => {
                assert!(message.contains("STATUS=serving; the last reload failed: ") && message.contains(told));
            }
        }
    }
    stop(daemon);
    let log = fs::read_to_string(&log).unwrap();
    let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert!(errors.len() == 2 && errors.iter().all(|line| line.contains(wrong)), "{log}");
}

#[test]
fn a_watchdog_is_fed() {
    let place = Managed::new();
    let daemon = place.spawn(place.daemon_behind(&[]).env("WATCHDOG_USEC", "100000"));
    for _ in 0..3 {
        place.notify.told("WATCHDOG=1");
    }
    stop(daemon);
}

#[test]
fn a_second_daemon_is_refused_even_when_the_first_stands_still() {
    let place = Managed::new();
    let daemon = place.start();
    daemon.signal(Signal::SIGSTOP);
    let nothing: [&str; 0] = [];
    place.refused(nothing).exits(75).tells(&format!("(pid {})", daemon.process().0));
    // The same socket with another state directory, then also without the lock file beside the socket.
    let elsewhere = place.path("elsewhere");
    let elsewhere = ["--state-dir", elsewhere.to_str().unwrap()];
    place.refused(elsewhere).exits(75);
    fs::remove_file(place.path("run/harness/control.sock.lock")).unwrap();
    place.refused(elsewhere).exits(75);
    assert!(place.socket().exists());
    daemon.signal(Signal::SIGCONT);
    stop(daemon);
}

#[test]
fn of_many_that_start_at_once_one_serves() {
    let place = Managed::new();
    let mut command = place.daemon_behind(&[]);
    let mut daemons: Vec<_> = (0..10).map(|_| place.spawn(&mut command)).collect();
    place.notify.told("READY=1");
    UnixStream::connect(place.socket()).unwrap();
    // All but one end by themselves; which one does not is in the lock file.
    let serving = place.daemon_process().unwrap();
    let serving = daemons.iter().position(|daemon| daemon.process() == serving).unwrap();
    let serving = daemons.swap_remove(serving);
    for daemon in &mut daemons {
        assert_eq!(daemon.ended(PATIENCE).code(), Some(75));
    }
    stop(serving);
}

#[test]
fn after_a_kill_the_next_one_takes_the_place() {
    let place = Managed::new();
    place.start().crash();
    assert!(place.socket().exists());
    let second = place.start();
    UnixStream::connect(place.socket()).unwrap();
    stop(second);
}

#[test]
fn wrong_use_and_a_wrong_configuration_end_with_2_and_say_why() {
    let place = Managed::new();
    place.refused(["--nonsense"]).exits(2);
    place.refused(["--log", "loud"]).exits(2);
    place.refused(["--config", "missing.toml"]).exits(2).tells("missing.toml");
    place.refused(["--socket".into(), place.path(&"x".repeat(120))]).exits(2).tells("longest possible");
    let nothing: [&str; 0] = [];
    place.configure("[lane.tool]\nwidht = 3\n");
    let told = "config.toml:2: unknown key `widht` in [lane.tool]; did you mean `width`?";
    place.refused(nothing).exits(2).tells(told);
    place.configure("[control]\ngroup = \"no-such-group-here\"\n");
    place.refused(nothing).exits(2);
    assert!(!place.socket().exists());
}

#[test]
fn on_demand_it_says_ready_and_keeps_nothing_of_its_starter() {
    let place = Managed::new();
    let lock = place.path("a script's lock");
    fs::write(&lock, "").unwrap();
    // Signals ignored, as under `nohup` and in background jobs; an open descriptor; a narrow limit.
    let script = "trap '' HUP INT QUIT USR1; ulimit -S -n 200; umask 0; exec 7<\"$1\"; shift; exec \"$@\"";
    let mut command = place.daemon_behind(&["sh", "-c", script, "sh", lock.to_str().unwrap()]);
    let mut child = command.arg("--on-demand").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(Patient::new(child.stdout.take().unwrap(), "the daemon"));
    let mut stderr = Patient::new(child.stderr.take().unwrap(), "the daemon");
    let daemon = Daemon::adopt(&place, child);
    // What it does until then may take its time, and is said.
    let (mut line, mut doing) = (String::new(), String::new());
    while !line.ends_with("ready\n") {
        doing.push_str(&line);
        line.clear();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "it says that it is ready: {doing}");
    }
    assert!(doing.lines().all(|line| line.starts_with("doing ")), "{doing}");
    let state = place.state("");
    let journal = format!("doing reading the journal in {}\n", state.to_str().unwrap().trim_end_matches('/'));
    assert!(doing.contains(&journal), "{doing}");
    // Both streams are closed, so that their readers see an end.
    assert_eq!(until_closed(&mut stdout), "");
    assert_eq!(until_closed(&mut stderr), "");

    for stream in 0..3 {
        assert_eq!(fs::read_link(proc_file(&daemon, &format!("fd/{stream}"))).unwrap(), Path::new("/dev/null"));
    }
    let open = fs::read_dir(proc_file(&daemon, "fd")).unwrap();
    let open: Vec<_> = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect();
    assert!(open.len() > 3 && !open.contains(&lock), "{open:?}");
    assert_eq!(fs::read_link(proc_file(&daemon, "cwd")).unwrap(), Path::new("/"));
    // Nothing is inherited as ignored or blocked by what it starts; SIGPIPE is given back by the standard library.
    assert_eq!(
        (signal_mask(&daemon, "SigIgn"), signal_mask(&daemon, "SigBlk")),
        (1 << (Signal::SIGPIPE as i32 - 1), 0)
    );
    let limits = fs::read_to_string(proc_file(&daemon, "limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let files: Vec<_> = files.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(files[0], files[1]);
    let log = place.state("harnessd.log");
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    stop(daemon);
    assert!(fs::read_to_string(&log).unwrap().contains("stopping"));
}

#[test]
fn on_demand_an_error_reaches_whoever_started_it() {
    let place = Managed::new();
    let daemon = place.start();
    place.refused(["--on-demand"]).exits(75).tells("another daemon");
    stop(daemon);
}

#[test]
fn standard_streams_that_are_closed_or_that_nobody_reads_are_no_trouble() {
    let place = Managed::new();
    let before = ["sh", "-c", "exec 0<&- 1>&- 2>&-; exec \"$@\"", "sh"];
    let daemon = place.spawn(&mut place.daemon_behind(&before));
    place.notify.told("READY=1");
    stop(daemon);
    let mut command = place.daemon_behind(&[]);
    let mut broken = command.args(["--log", "trace"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((broken.stdout.take(), broken.stderr.take()));
    place.notify.told("READY=1");
    stop(Daemon::adopt(&place, broken));
}

#[test]
#[ignore = "needs systemd-socket-activate"]
fn a_socket_passed_by_systemd_is_served_and_left_there() {
    need("systemd-socket-activate", "systemd");
    let place = Managed::new();
    fs::create_dir(place.path("run/harness")).unwrap();
    let socket = place.socket();
    let (name, path) = Notify::variable(&place);
    let notify = format!("{name}={path}");
    let pass = ["-E", "HOME", "-E", "XDG_RUNTIME_DIR", "-E", &notify, "--fdname=control"];
    let before = [&["systemd-socket-activate"][..], &pass, &["-l", socket.to_str().unwrap()]].concat();
    let mut child = place.daemon_behind(&before).stderr(Stdio::piped()).spawn().unwrap();
    // It says that it listens, and starts the daemon at the first connection, which the daemon finds waiting.
    let mut stderr = BufReader::new(Patient::new(child.stderr.take().unwrap(), "systemd-socket-activate"));
    let daemon = Daemon::adopt(&place, child);
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("Listening on"), "{line}");
    let _client = UnixStream::connect(&socket).unwrap();
    place.notify.told("READY=1");
    let inode = fs::metadata(&socket).unwrap().ino();
    stop(daemon);
    assert_eq!(fs::metadata(&socket).unwrap().ino(), inode);
    assert!(!place.path("run/harness/control.sock.lock").exists());
}

#[test]
fn what_is_passed_and_is_no_listening_unix_socket_is_refused() {
    let place = Managed::new();
    let file = place.file("file", "");
    let script = "exec 3<\"$1\"; shift; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let command = place.daemon_behind(&["sh", "-c", script, "sh", &file]);
    Running::start(command).finish().exits(2).tells("socket activation");
    assert!(!place.socket().exists());
}

#[test]
fn what_was_passed_to_another_process_is_not_taken() {
    let place = Managed::new();
    let daemon = place.spawn(place.daemon_behind(&[]).env("LISTEN_FDS", "1").env("LISTEN_PID", "1"));
    place.notify.told("READY=1");
    assert!(UnixListener::bind(place.socket()).is_err());
    stop(daemon);
}
