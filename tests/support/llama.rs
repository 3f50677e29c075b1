//! Starts the server of llama.cpp with a small model: a real model behind a real server, over the three APIs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::found;

/// A server. It ends with this.
pub struct Llama {
    child: Child,
    dir: TempDir,
    port: u16,
}

impl Llama {
    /// The key that it wants.
    pub const KEY: &str = "sk-of-a-small-model";

    /// Starts what `tests/models/run` installed.
    ///
    /// # Panics
    /// Where it did not say what that is.
    #[track_caller]
    pub fn start() -> Self {
        Self::taking(8192)
    }

    /// The same, with prompts and answers that have so many tokens together at most.
    ///
    /// # Panics
    /// Where it did not say what that is.
    #[track_caller]
    pub fn taking(tokens: u32) -> Self {
        let said = |name: &str| std::env::var_os(name).map(PathBuf::from).expect("started by tests/models/run test");
        let (folder, model) = (said("HARNESS_LLAMA"), said("HARNESS_MODEL"));
        let dir = tempfile::Builder::new().prefix("harness-llama-").tempdir().unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new(folder.join("llama-server"));
        command.arg("--model").arg(model).arg("--jinja").arg("--chat-template-file").arg(folder.join("template.jinja"));
        // One thread: with more than the machine has idle cores it spins instead of computing.
        command.args(["--host", "127.0.0.1", "--port", "0", "-np", "2", "-t", "1"]);
        // It is shared by the two that it serves at once.
        command.arg("-c").arg((2 * tokens).to_string());
        command.args(["--offline", "--api-key", Self::KEY]);
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        let mut server = Self { child: command.spawn().unwrap(), dir, port: 0 };
        server.port = found("the model server listens", || {
            let log = server.log();
            assert!(server.child.try_wait().unwrap().is_none(), "it ended at once: {log}");
            let (_, rest) = log.split_once("listening on http://127.0.0.1:")?;
            rest.split_once('\n')?.0.trim().parse().ok()
        });
        found("the model is loaded", || server.health().starts_with("HTTP/1.1 200").then_some(()));
        server
    }

    /// The URL with the version.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    fn health(&self) -> String {
        let mut reply = String::new();
        let asked = TcpStream::connect(("127.0.0.1", self.port)).and_then(|mut stream| {
            stream.set_read_timeout(Some(crate::PATIENCE))?;
            stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            stream.read_to_string(&mut reply)
        });
        asked.map_or_else(|error| error.to_string(), |_| reply)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- llama-server ---\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}
