//! How the daemon starts and stops: drives the real binary, and looks at it from outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const HARNESSD: &str = env!("CARGO_BIN_EXE_harnessd");
/// Longer than anything here takes, and only waited for when something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// A place for one daemon. systemd is played by a socket of our own, so that nothing here waits by sleeping.
struct Place {
    dir: tempfile::TempDir,
    notify: UnixDatagram,
}

/// A daemon, killed at the latest when the test ends.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Daemon {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).unwrap();
    }

    fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.0.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(0), None));
    }
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        notify.set_read_timeout(Some(PATIENCE)).unwrap();
        let place = Self { dir, notify };
        place.configure("");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("run/control.sock")
    }

    fn configure(&self, text: &str) {
        fs::write(self.path("config.toml"), text).unwrap();
    }

    /// The command line of a daemon in this place, behind `before`. An option may be given once: `changed` replaces
    /// them.
    fn command(&self, before: &[&str], changed: &[(&str, &Path)]) -> Command {
        let line = [before, &[HARNESSD]].concat();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]);
        let usual =
            [("--socket", self.socket()), ("--state-dir", self.path("state")), ("--config", self.path("config.toml"))];
        for (option, path) in &usual {
            let path = changed.iter().find(|(name, _)| name == option).map_or(path.as_path(), |(_, path)| path);
            command.arg(option).arg(path);
        }
        command.env("NOTIFY_SOCKET", self.path("notify")).env_remove("JOURNAL_STREAM").env_remove("HARNESS_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A daemon that has said that it is ready.
    fn start(&self) -> Daemon {
        let daemon = Daemon(self.command(&[], &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        self.wait_for("READY=1");
        daemon
    }

    /// The next message that has a line which begins so.
    fn wait_for(&self, line: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            let length = match self.notify.recv(&mut buffer) {
                Ok(length) => length,
                // A receive with a time limit is never restarted by the system.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("no {line}: {error}"),
            };
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if message.lines().any(|found| found.starts_with(line)) {
                return message;
            }
        }
    }

    /// The exit code of a daemon that does not start, and what it says.
    fn refused(&self, changed: &[(&str, &Path)], more: &[&str]) -> (Option<i32>, String) {
        let output = self.command(&[], changed).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.lines().all(|line| line.starts_with("doing ")), "{said}");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn proc_file(pid: u32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

/// What comes until the other end closes.
fn until_closed(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn signal_mask(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(proc_file(pid, "status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":")).unwrap();
    // Of the classic signals; above them are two that the C library keeps to itself.
    u64::from_str_radix(line.trim(), 16).unwrap() & 0x7FFF_FFFF
}

#[test]
fn it_says_when_it_is_ready_and_when_it_stops_and_leaves_no_socket() {
    let place = Place::new();
    let daemon = place.start();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(place.socket()), mode(place.path("run")), mode(place.path("state"))), (0o600, 0o700, 0o700));
    UnixStream::connect(place.socket()).unwrap();
    daemon.stop();
    place.wait_for("STOPPING=1");
    assert!(!place.socket().exists());
}

#[test]
fn a_hangup_reads_the_configuration_again_and_a_bad_one_changes_nothing() {
    let place = Place::new();
    let daemon = place.start();
    for text in ["[lane.tool]\nwidth = 2\n", "nonsense", ""] {
        place.configure(text);
        daemon.signal(Signal::SIGHUP);
        let message = place.wait_for("RELOADING=1");
        assert!(message.contains("MONOTONIC_USEC="), "{message}");
        place.wait_for("READY=1");
    }
    daemon.stop();
}

#[test]
fn a_watchdog_is_fed() {
    let place = Place::new();
    let daemon = Daemon(place.command(&[], &[]).env("WATCHDOG_USEC", "100000").spawn().unwrap());
    for _ in 0..3 {
        place.wait_for("WATCHDOG=1");
    }
    daemon.stop();
}

#[test]
fn a_second_daemon_is_refused_even_when_the_first_stands_still() {
    let place = Place::new();
    let daemon = place.start();
    daemon.signal(Signal::SIGSTOP);
    let (code, message) = place.refused(&[], &[]);
    assert_eq!(code, Some(75), "{message}");
    assert!(message.contains(&format!("(pid {})", daemon.0.id())), "{message}");
    // The same socket with another state directory, then also without the lock file beside the socket.
    let elsewhere = place.path("elsewhere");
    let (code, message) = place.refused(&[("--state-dir", &elsewhere)], &[]);
    assert_eq!(code, Some(75), "{message}");
    fs::remove_file(place.path("run/control.sock.lock")).unwrap();
    let (code, message) = place.refused(&[("--state-dir", &elsewhere)], &[]);
    assert_eq!(code, Some(75), "{message}");
    assert!(place.socket().exists());
    daemon.signal(Signal::SIGCONT);
    daemon.stop();
}

#[test]
fn of_many_that_start_at_once_one_serves() {
    let place = Place::new();
    let mut command = place.command(&[], &[]);
    let mut daemons: Vec<_> = (0..10).map(|_| Daemon(command.spawn().unwrap())).collect();
    place.wait_for("READY=1");
    UnixStream::connect(place.socket()).unwrap();
    // All but one end by themselves; which one does not is in the lock file.
    let pid: u32 =
        fs::read_to_string(place.path("state/harnessd.lock")).unwrap().lines().next().unwrap().parse().unwrap();
    let serving = daemons.iter().position(|daemon| daemon.0.id() == pid).unwrap();
    let serving = daemons.swap_remove(serving);
    for daemon in &mut daemons {
        assert_eq!(daemon.0.wait().unwrap().code(), Some(75));
    }
    serving.stop();
}

#[test]
fn after_a_kill_the_next_one_takes_the_place() {
    let place = Place::new();
    drop(place.start());
    assert!(place.socket().exists());
    let second = place.start();
    UnixStream::connect(place.socket()).unwrap();
    second.stop();
}

#[test]
fn wrong_use_and_a_wrong_configuration_end_with_2_and_say_why() {
    let place = Place::new();
    assert_eq!(place.refused(&[], &["--nonsense"]).0, Some(2));
    assert_eq!(place.refused(&[], &["--log", "loud"]).0, Some(2));
    let (code, message) = place.refused(&[("--config", &place.path("missing.toml"))], &[]);
    assert!(code == Some(2) && message.contains("missing.toml"), "{message}");
    let (code, message) = place.refused(&[("--socket", &place.path(&"x".repeat(120)))], &[]);
    assert!(code == Some(2) && message.contains("longest possible"), "{message}");
    place.configure("[lane.tool]\nwidht = 3\n");
    let (code, message) = place.refused(&[], &[]);
    let told = "config.toml:2: unknown key `widht` in [lane.tool]; did you mean `width`?";
    assert!(code == Some(2) && message.contains(told), "{message}");
    place.configure("[control]\ngroup = \"no-such-group-here\"\n");
    assert_eq!(place.refused(&[], &[]).0, Some(2));
    assert!(!place.socket().exists());
}

#[test]
fn on_demand_it_says_ready_and_keeps_nothing_of_whoever_started_it() {
    let place = Place::new();
    let lock = place.path("a script's lock");
    fs::write(&lock, "").unwrap();
    // Signals ignored, as under `nohup` and in background jobs; an open descriptor; a narrow limit.
    let script = "trap '' HUP INT QUIT USR1; ulimit -S -n 200; umask 0; exec 7<\"$1\"; shift; exec \"$@\"";
    let before = ["sh", "-c", script, "sh", lock.to_str().unwrap()];
    let mut daemon = Daemon(place.command(&before, &[]).arg("--on-demand").spawn().unwrap());
    let mut stdout = BufReader::new(daemon.0.stdout.take().unwrap());
    // What it does until then may take its time, and is said.
    let (mut line, mut doing) = (String::new(), String::new());
    while !line.ends_with("ready\n") {
        doing.push_str(&line);
        line.clear();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "it says that it is ready: {doing}");
    }
    assert!(doing.lines().all(|line| line.starts_with("doing ")), "{doing}");
    assert!(doing.contains(&format!("doing reading the journal in {}\n", place.path("state").display())), "{doing}");
    // Both streams are closed, so that their readers see an end.
    assert_eq!(until_closed(stdout), "");
    assert_eq!(until_closed(daemon.0.stderr.take().unwrap()), "");

    let pid = daemon.0.id();
    for stream in 0..3 {
        assert_eq!(fs::read_link(proc_file(pid, &format!("fd/{stream}"))).unwrap(), Path::new("/dev/null"));
    }
    let open = fs::read_dir(proc_file(pid, "fd")).unwrap();
    let open: Vec<_> = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).collect();
    assert!(open.len() > 3 && !open.contains(&lock), "{open:?}");
    assert_eq!(fs::read_link(proc_file(pid, "cwd")).unwrap(), Path::new("/"));
    // Nothing is inherited as ignored or blocked by what it starts; SIGPIPE is given back by the standard library.
    assert_eq!((signal_mask(pid, "SigIgn"), signal_mask(pid, "SigBlk")), (1 << (Signal::SIGPIPE as i32 - 1), 0));
    let limits = fs::read_to_string(proc_file(pid, "limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let files: Vec<_> = files.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(files[0], files[1]);
    let log = place.path("state/harnessd.log");
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.stop();
    assert!(fs::read_to_string(&log).unwrap().contains("stopping"));
}

#[test]
fn on_demand_an_error_reaches_whoever_started_it() {
    let place = Place::new();
    let daemon = place.start();
    let (code, message) = place.refused(&[], &["--on-demand"]);
    assert!(code == Some(75) && message.contains("another daemon"), "{message}");
    daemon.stop();
}

#[test]
fn standard_streams_that_are_closed_or_that_nobody_reads_are_no_trouble() {
    let place = Place::new();
    let before = ["sh", "-c", "exec 0<&- 1>&- 2>&-; exec \"$@\"", "sh"];
    let daemon = Daemon(place.command(&before, &[]).spawn().unwrap());
    place.wait_for("READY=1");
    daemon.stop();
    let mut broken = Daemon(place.command(&[], &[]).args(["--log", "trace"]).spawn().unwrap());
    drop((broken.0.stdout.take(), broken.0.stderr.take()));
    place.wait_for("READY=1");
    broken.stop();
}

#[test]
#[ignore = "needs systemd-socket-activate"]
fn a_socket_passed_by_systemd_is_served_and_left_there() {
    let activate = "/usr/bin/systemd-socket-activate";
    let place = Place::new();
    fs::create_dir(place.path("run")).unwrap();
    let socket = place.socket();
    let notify = format!("NOTIFY_SOCKET={}", place.path("notify").display());
    let before = [activate, "-E", &notify, "--fdname=control", "-l", socket.to_str().unwrap()];
    let mut daemon = Daemon(place.command(&before, &[]).spawn().unwrap());
    // It says that it listens, and starts the daemon at the first connection, which the daemon finds waiting.
    let mut stderr = BufReader::new(daemon.0.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("Listening on"), "{line}");
    let _client = UnixStream::connect(&socket).unwrap();
    place.wait_for("READY=1");
    let inode = fs::metadata(&socket).unwrap().ino();
    daemon.stop();
    assert_eq!(fs::metadata(&socket).unwrap().ino(), inode);
    assert!(!place.path("run/control.sock.lock").exists());
}

#[test]
fn what_is_passed_and_is_no_listening_unix_socket_is_refused() {
    let place = Place::new();
    let file = place.path("file");
    fs::write(&file, "").unwrap();
    let script = "exec 3<\"$1\"; shift; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let before = ["sh", "-c", script, "sh", file.to_str().unwrap()];
    let output = place.command(&before, &[]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && message.contains("socket activation"), "{message}");
    assert!(!place.socket().exists());
}

#[test]
fn what_was_passed_to_another_process_is_not_taken() {
    let place = Place::new();
    let daemon = Daemon(place.command(&[], &[]).env("LISTEN_FDS", "1").env("LISTEN_PID", "1").spawn().unwrap());
    place.wait_for("READY=1");
    assert!(UnixListener::bind(place.socket()).is_err());
    daemon.stop();
}
