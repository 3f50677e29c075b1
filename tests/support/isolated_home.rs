//! Makes an isolated [`Place`] for daemons and their clients: a home, a runtime directory, a configuration and a
//! working directory of its own.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use harness_protocol::event::Event;
use harness_protocol::lane::LaneReport;
use harness_protocol::rpc::JournalReport;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::programs::directory;
use crate::{Client, Daemon, OnTerminal, Output, Process, Run, Running, Script};

/// A place. Clones are the same one; with the last of them everything in it goes, daemons started on demand included.
#[derive(Clone)]
pub struct Place(Arc<Inner>);

struct Inner {
    dir: TempDir,
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

impl Place {
    /// An empty place: no configuration, no daemon.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("harness-").tempdir().unwrap();
        for (name, mode) in [("home", 0o700), ("run", 0o700), ("work", 0o755)] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        Self(Arc::new(Inner { dir }))
    }

    /// A place with this configuration.
    pub fn configured(config: &str) -> Self {
        let place = Self::new();
        place.configure(config);
        place
    }

    /// Writes the configuration.
    pub fn configure(&self, config: &str) {
        let path = self.path("home/.config/harness/config.toml");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, config).unwrap();
    }

    /// Starts a daemon here and waits until it serves.
    pub fn start(&self) -> Daemon {
        Daemon::start_in(self, &[])
    }

    /// The same with these words before the command line.
    pub fn start_behind(&self, before: &[&str]) -> Daemon {
        Daemon::start_in(self, before)
    }

    /// A path of this place.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.dir.path().join(name)
    }

    /// The directory in which calls start.
    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// What a call wrote into a file of the working directory; nothing where it wrote none.
    pub fn written(&self, name: &str) -> String {
        fs::read_to_string(self.work().join(name)).unwrap_or_default()
    }

    /// Writes a file, and gives its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Writes a script as a file.
    pub fn script_file(&self, script: &Script) -> String {
        let names = fs::read_dir(self.path("home")).unwrap().count();
        self.file(&format!("home/script-{names}.toml"), &script.toml())
    }

    /// A file of the state directory.
    pub fn state(&self, name: &str) -> PathBuf {
        self.path("home/.local/state/harness").join(name)
    }

    /// The output files of calls, wherever below the state directory's `outputs` they are, by their names.
    pub fn output_files(&self) -> BTreeSet<String> {
        fn walk(dir: &Path, found: &mut BTreeSet<String>) {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, found);
                } else {
                    found.insert(path.file_name().unwrap().to_string_lossy().into_owned());
                }
            }
        }
        let mut found = BTreeSet::new();
        walk(&self.state("outputs"), &mut found);
        found
    }

    /// What the daemon says of its journal.
    #[track_caller]
    pub fn journal_report(&self) -> JournalReport {
        serde_json::from_value(self.rpc("daemon.status", json!({}))["journal"].clone()).unwrap()
    }

    /// Moves the journal away: the next daemon knows nothing.
    pub fn lose_the_journal(&self) {
        for name in ["harness.db", "harness.db-wal", "harness.db-shm"] {
            drop(fs::rename(self.state(name), self.path(name)));
        }
    }

    /// Where the daemon listens.
    pub fn socket(&self) -> PathBuf {
        self.path("run/harness/control.sock")
    }

    /// A command with the environment of this place, our programs on its path.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        crate::signals::give_defaults_to_children();
        let mut path = directory().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.env_clear().env("PATH", path).env("LANG", "C").env("HOME", self.path("home"));
        command.env("XDG_RUNTIME_DIR", self.path("run")).current_dir(self.work());
        command
    }

    /// Runs `harnessctl` with these arguments, to its end.
    #[track_caller]
    pub fn ctl<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Output {
        self.spawn_ctl(words).finish()
    }

    /// Starts `harnessctl` and does not wait for it.
    pub fn spawn_ctl<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Running {
        let mut command = self.command(crate::program("harnessctl"));
        command.args(words);
        Running::start(command)
    }

    /// Starts `harnessctl` on a terminal.
    pub fn ctl_on_terminal<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> OnTerminal {
        let mut command = self.command(crate::program("harnessctl"));
        command.args(words);
        OnTerminal::start(command)
    }

    /// Starts `harnessctl` on a terminal that controls no process.
    pub fn ctl_on_uncontrolled_terminal<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> OnTerminal {
        let mut command = self.command(crate::program("harnessctl"));
        command.args(words);
        OnTerminal::start_uncontrolled(command)
    }

    /// Runs a line in a shell.
    #[track_caller]
    pub fn sh(&self, line: &str) -> Output {
        let mut command = self.command("sh");
        command.args(["-c", line]);
        Running::start(command).finish()
    }

    /// A connection to the daemon.
    #[track_caller]
    pub fn connect(&self) -> Client {
        Client::connect(&self.socket())
    }

    /// Calls a method, and gives its result.
    #[track_caller]
    pub fn rpc(&self, method: &str, params: Value) -> Value {
        self.connect().call(method, params)
    }

    /// Calls a method that is to be refused, and gives the error.
    #[track_caller]
    pub fn refused(&self, method: &str, params: Value) -> Value {
        self.connect().try_call(method, params).unwrap_err()
    }

    /// Submits a script.
    #[track_caller]
    pub fn submit(&self, script: &Script) -> Run {
        self.submit_with(script, json!({}))
    }

    /// Submits a script with more of a specification.
    #[track_caller]
    pub fn submit_with(&self, script: &Script, more: Value) -> Run {
        let reply = self.rpc("run.submit", json!({"spec": self.spec(script, more)}));
        Run::new(self, &reply)
    }

    /// Submits a prompt to the provider `local`, with more of a specification.
    #[track_caller]
    pub fn ask_with(&self, prompt: &str, more: Value) -> Run {
        let mut spec = self.spec(&Script::default(), more);
        let map = spec.as_object_mut().unwrap();
        map.remove("script");
        map.insert("prompt".to_owned(), prompt.into());
        map.entry("provider").or_insert_with(|| "local".into());
        Run::new(self, &self.rpc("run.submit", json!({"spec": spec})))
    }

    /// Submits a prompt to the provider `local`.
    #[track_caller]
    pub fn ask(&self, prompt: &str) -> Run {
        self.ask_with(prompt, json!({}))
    }

    /// Submits as many of them over one connection, without waiting in between.
    #[track_caller]
    pub fn submit_many(&self, count: usize, script: &Script) -> Vec<Run> {
        let params = json!({"spec": self.spec(script, json!({}))});
        let mut client = self.connect();
        let replies = client.pipeline((0..count).map(|_| ("run.submit", params.clone())));
        replies.iter().map(|reply| Run::new(self, &reply["result"])).collect()
    }

    /// The specification of a run with this script.
    pub fn spec(&self, script: &Script, more: Value) -> Value {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut spec = json!({
            "script": script.json(),
            "workdir": self.work(),
            "env": {"PATH": format!("{}:{path}", directory().display())},
        });
        if let Value::Object(more) = more {
            spec.as_object_mut().unwrap().extend(more);
        }
        spec
    }

    /// What happened to a run so far.
    #[track_caller]
    pub fn events(&self, run: &Run) -> Vec<Event> {
        let exported = self.rpc("run.export", json!({"run": run.id}));
        serde_json::from_value(exported["events"].clone()).unwrap()
    }

    /// The run that a name means.
    pub fn run(&self, name: &str) -> Run {
        Run::named(self, name)
    }

    /// The report of a lane.
    #[track_caller]
    pub fn lane(&self, name: &str) -> LaneReport {
        let lanes = self.rpc("lane.list", json!({}));
        let lane = lanes["lanes"].as_array().unwrap().iter().find(|lane| lane["name"] == name);
        serde_json::from_value(lane.unwrap_or_else(|| panic!("no lane {name}: {lanes}")).clone()).unwrap()
    }

    /// Whether nothing is queued, busy, parked or resuming in the tool lane.
    #[track_caller]
    pub fn lane_is_idle(&self) -> bool {
        let lane = self.lane("tool");
        [lane.queued, lane.busy, lane.parked, lane.resuming, lane.permits] == [0; 5] && !lane.saturated
    }

    /// The daemon by its lock file, wherever it comes from.
    pub fn daemon_process(&self) -> Option<Process> {
        self.0.daemon_process()
    }
}

impl Inner {
    fn daemon_process(&self) -> Option<Process> {
        let lock = self.dir.path().join("home/.local/state/harness/harnessd.lock");
        let pid = fs::read_to_string(lock).ok()?.lines().next()?.parse().ok()?;
        let process = Process(pid);
        process.is_alive().then_some(process).filter(|process| process.is_called("harnessd"))
    }

    fn tell(&self, name: &str) {
        let text = fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        if !lines.is_empty() {
            eprintln!("--- {name} ---\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon_process() {
            daemon.end();
        }
        if std::thread::panicking() {
            self.tell("daemon.log");
            self.tell("home/.local/state/harness/harnessd.log");
        }
    }
}

/// Shows the directory of the place, for messages.
impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Place").field(&Path::new(self.0.dir.path())).finish()
    }
}
