//! A daemon in a place of its own, driven over its socket, and a view of the processes of the machine.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub const HARNESSD: &str = env!("CARGO_BIN_EXE_harnessd");
/// Longer than anything here takes, and only waited for when something is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks at what has no notification.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub struct Place {
    pub dir: tempfile::TempDir,
    daemon: Child,
}

impl Drop for Place {
    fn drop(&mut self) {
        _ = self.daemon.kill();
        _ = self.daemon.wait();
    }
}

impl Place {
    pub fn new() -> Self {
        Self::behind("", "")
    }

    /// A daemon that is started after `before` in a shell, with this configuration.
    pub fn behind(before: &str, config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.toml"), config).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{before}\nexec \"$@\""), "sh", HARNESSD, "--on-demand"]);
        for (option, name) in [("--socket", "run/socket"), ("--state-dir", "state"), ("--config", "config.toml")] {
            command.arg(option).arg(dir.path().join(name));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).env_remove("HARNESS_LOG");
        let mut daemon = command.spawn().unwrap();
        let mut said = BufReader::new(daemon.stdout.take().unwrap()).lines().map_while(Result::ok);
        let last = said.find(|line| !line.starts_with("doing "));
        assert_eq!(last.as_deref(), Some("ready"));
        fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir, daemon }
    }

    pub fn pid(&self) -> i32 {
        self.daemon.id().cast_signed()
    }

    pub fn work(&self, name: &str) -> PathBuf {
        self.dir.path().join("work").join(name)
    }

    /// Kills the daemon, without a chance to do anything.
    pub fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }

    /// Stops the daemon as a service manager does.
    pub fn stop(&mut self) {
        signal(self.pid(), nix::sys::signal::Signal::SIGTERM);
        assert!(self.daemon.wait().unwrap().success());
    }

    pub fn ask(&self, method: &str, params: &Value) -> Value {
        let mut socket = UnixStream::connect(self.dir.path().join("run/socket")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        writeln!(socket, "{request}").unwrap();
        let mut line = String::new();
        BufReader::new(socket).read_line(&mut line).unwrap();
        let mut reply: Value = serde_json::from_str(&line).unwrap();
        assert!(reply.get("error").is_none(), "{reply}");
        reply["result"].take()
    }

    /// Submits a run that makes these calls, each in a turn of its own.
    pub fn submit(&self, calls: &[Value]) -> String {
        let turn = |call: &Value| json!({"call": [{"tool": "shell", "args": call}]});
        let mut turns: Vec<Value> = calls.iter().map(turn).collect();
        turns.push(json!({"text": "done"}));
        self.submit_turns(&turns)
    }

    pub fn submit_turns(&self, turns: &[Value]) -> String {
        let spec = json!({"script": {"turn": turns}, "workdir": self.dir.path().join("work")});
        self.ask("run.submit", &json!({ "spec": spec }))["id"].as_str().unwrap().to_owned()
    }

    /// Waits until a run has ended, and gives the results of its calls.
    pub fn results(&self, run: &str) -> Vec<Value> {
        self.ask("run.wait", &json!({ "run": run }));
        let shown = self.ask("run.show", &json!({"run": run, "transcript": true}));
        let entries = shown["transcript"].as_array().unwrap();
        entries.iter().filter(|entry| entry["role"] == "result").map(|entry| entry["result"].clone()).collect()
    }

    /// Runs one command to its end.
    pub fn call(&self, call: &Value) -> Value {
        let run = self.submit(std::slice::from_ref(call));
        self.results(&run).pop().unwrap()
    }

    pub fn shell(&self, command: &str) -> Value {
        self.call(&json!({ "command": command }))
    }
}

pub fn envelope(result: &Value) -> &str {
    result["envelope"].as_str().unwrap()
}

pub fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

/// A process as `/proc` has it: number, parent, state, command line.
pub struct Seen {
    pub pid: i32,
    pub parent: i32,
    pub state: char,
    pub line: String,
}

pub fn processes() -> Vec<Seen> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| number(entry.ok()?));
    pids.filter_map(|pid| {
        let dir = Path::new("/proc").join(pid.to_string());
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        let mut fields = stat[stat.rfind(')')? + 2..].split(' ');
        let (state, parent) = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
        let line = String::from_utf8_lossy(&fs::read(dir.join("cmdline")).ok()?).replace('\0', " ");
        Some(Seen { pid, parent, state, line })
    })
    .collect()
}

/// The living processes whose command line has `mark`.
pub fn marked(mark: &str) -> Vec<i32> {
    processes().into_iter().filter(|seen| seen.state != 'Z' && seen.line.contains(mark)).map(|seen| seen.pid).collect()
}

pub fn children(of: i32) -> Vec<Seen> {
    processes().into_iter().filter(|seen| seen.parent == of).collect()
}

/// Polls until a condition holds for which there is no notification; gives the time that it took.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(LOOK_AGAIN);
    }
    begun.elapsed()
}
