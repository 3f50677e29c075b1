//! Provides a stand-in for the daemon, and starts the real `harnessctl` that talks to it.
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than anything takes, and only waited for when something is broken.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What the stand-in does with one request.
pub type Handler = dyn Fn(&Value, &mut UnixStream) + Send + Sync;

/// A stand-in on a socket of its own.
pub struct Fake {
    dir: TempDir,
    seen: Arc<Mutex<Vec<Value>>>,
    greets: Arc<AtomicBool>,
}

impl Fake {
    /// A socket that no daemon serves.
    pub fn absent() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), seen: Arc::default(), greets: Arc::default() }
    }

    /// Serves every connection with `handler`.
    pub fn new(handler: impl Fn(&Value, &mut UnixStream) + Send + Sync + 'static) -> Self {
        let fake = Self::absent();
        fake.serve(handler);
        fake
    }

    /// Begins to serve, or serves again after it was cut off.
    pub fn serve(&self, handler: impl Fn(&Value, &mut UnixStream) + Send + Sync + 'static) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let (seen, greets) = (self.seen.clone(), self.greets.clone());
        let handler: Arc<Handler> = Arc::new(handler);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, handler, seen) = (stream.unwrap(), handler.clone(), seen.clone());
                let greets = greets.clone();
                std::thread::spawn(move || {
                    for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                        let Ok(line) = line else { return };
                        let request: Value = serde_json::from_str(&line).unwrap();
                        seen.lock().unwrap().push(request.clone());
                        if request["method"] == "daemon.hello" && !greets.load(Ordering::SeqCst) {
                            let hello = json!({"version": "9", "protocol_major": 1, "protocol_minor": 1,
                                "max_frame_bytes": 8_388_608});
                            answer(&mut stream, &request, &hello);
                            continue;
                        }
                        handler(&request, &mut stream);
                    }
                });
            }
        });
    }

    /// From now on the handler gets greetings as well.
    pub fn greet_by_handler(&self) {
        self.greets.store(true, Ordering::SeqCst);
    }

    /// Takes the socket's name away: connections stay, and no new client gets in.
    pub fn hide(&self) {
        std::fs::remove_file(self.socket()).unwrap();
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file with this text.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// The requests of a method so far.
    pub fn seen(&self, method: &str) -> Vec<Value> {
        self.seen.lock().unwrap().iter().filter(|request| request["method"] == method).cloned().collect()
    }

    /// `harnessctl` on this socket.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_harnessctl"));
        command.args(words).env("HARNESS_SOCKET", self.socket()).env("PATH", "/nowhere").current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts it, with nothing on standard input.
    pub fn spawn(&self, words: &[&str]) -> Child {
        bounded(&mut self.command(words))
    }

    /// Runs it to its end.
    pub fn run(&self, words: &[&str]) -> Ran {
        Ran::from(self.spawn(words).wait_with_output().unwrap())
    }

    /// Runs it with this on standard input.
    pub fn run_with(&self, words: &[&str], input: &[u8]) -> Ran {
        let mut child = bounded(self.command(words).stdin(Stdio::piped()));
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        Ran::from(output)
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Answers a request.
pub fn answer(stream: &mut UnixStream, request: &Value, result: &Value) {
    send(stream, &json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
}

/// Refuses a request.
pub fn refuse(stream: &mut UnixStream, request: &Value, kind: &str, exit_code: u8) {
    let data = json!({"kind": kind, "retry_after_seconds": null, "exit_code": exit_code});
    let error = json!({"code": -32000, "message": format!("refused: {kind}"), "data": data});
    send(stream, &json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
}

/// Sends an event.
pub fn event(stream: &mut UnixStream, seq: u64, run: &str, mut body: Value) {
    let head = json!({"seq": seq, "version": 1, "at": "2026-11-30T11:00:00Z", "run": run, "cause": {"via": "harness"}});
    body.as_object_mut().unwrap().extend(head.as_object().unwrap().clone());
    send(stream, &json!({"jsonrpc": "2.0", "method": "event", "params": {"subscription": 1, "event": body}}));
}

/// The end of a run.
pub fn finished(stream: &mut UnixStream, seq: u64, run: &str, answer: &str) {
    event(stream, seq, run, json!({"kind": "run-finished", "ending": {"state": "succeeded", "answer": answer}}));
}

/// Sends a line. A peer that has left does not matter.
pub fn send(stream: &mut UnixStream, value: &Value) {
    let _gone = stream.write_all(format!("{value}\n").as_bytes());
}

/// A run with this id, made of its number.
pub fn id(number: u64) -> String {
    format!("{number:013}")
}

/// A view of a run.
pub fn view(id: &str, state: &str, exit_code: Option<u8>, answer: Option<&str>, error: Option<&str>) -> Value {
    let usage = json!({"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0, "reasoning_output_tokens": 0, "cost_usd": null});
    json!({"schema": "harness.run/1", "id": id, "name": "nightly", "root": id, "parent": null, "labels": {},
        "share": "default", "priority": "normal", "owner": 0, "state": state, "waiting_for": null, "workdir": "/",
        "provider": "scripted", "model": null, "title": "say hello", "steps": 1, "limits": {},
        "on_interaction": "fail", "submitted_at": "2026-11-30T11:00:00Z", "started_at": null, "ended_at": null,
        "answer": answer, "error": error, "exit_code": exit_code, "usage": usage, "usage_tree": usage,
        "timing": {"queued": 0, "lane": 0, "model": 0, "retry": 0, "tools": 0, "waiting": 0, "paused": 0},
        "denials": []})
}

/// Waits for something that another thread or process does.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "a test stands outside, as one who looks at a watch does")]
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Starts a command that is killed when it has not ended after a while, so that no test waits for ever.
#[expect(clippy::print_stderr, reason = "where a test fails, its output tells why")]
pub fn bounded(command: &mut Command) -> Child {
    let child = command.spawn().unwrap();
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    let told = format!("waited {PATIENCE:?} in vain for the end of {command:?}");
    std::thread::spawn(move || {
        let limit = PollTimeout::try_from(PATIENCE).unwrap();
        if poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], limit) == Ok(0) {
            eprintln!("{told}");
            _ = pidfd_send_signal(&process, Signal::KILL);
        }
    });
    child
}
