//! Starts aimock, a model server of another project, which serves the three APIs from fixtures and plays faults.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::found;

/// Its folder in the cache, as `tests/models/run` makes it.
const FOLDER: &str = "aimock-1.43.0";

/// A server. It ends with this.
pub struct Aimock {
    child: Child,
    dir: TempDir,
    port: u16,
}

impl Aimock {
    /// A server that answers from these fixtures, with more words for its command line.
    ///
    /// # Panics
    /// Where it is not installed: such a test is ignored by default.
    #[track_caller]
    pub fn start(fixtures: &Value, more: &[&str]) -> Self {
        let program = program();
        let dir = tempfile::Builder::new().prefix("harness-aimock-").tempdir().unwrap();
        let file = dir.path().join("fixtures.json");
        fs::write(&file, json!({"fixtures": fixtures}).to_string()).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new("node");
        command.arg(program).args(["--port", "0", "--strict", "--latency", "2", "--fixtures"]).arg(&file).args(more);
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        let child = command.spawn().expect("aimock needs node");
        let mut server = Self { child, dir, port: 0 };
        server.port = found("aimock listens", || {
            let log = server.log();
            assert!(server.child.try_wait().unwrap().is_none(), "aimock ended at once: {log}");
            let (_, rest) = log.split_once("listening on http://127.0.0.1:")?;
            rest.split_once('\n')?.0.trim().parse().ok()
        });
        server
    }

    /// The URL with the version.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// Its requests and answers, in its own words.
    pub fn journal(&self) -> Vec<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(crate::PATIENCE)).unwrap();
        // Of this version it closes the connection at the end, and sends no chunks.
        stream.write_all(b"GET /__aimock/journal HTTP/1.0\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Aimock {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- aimock ---\n{}", self.log());
        }
    }
}

#[track_caller]
fn program() -> PathBuf {
    const CLI: &str = "dist/cli.js";
    let folder = std::env::var_os("HARNESS_AIMOCK").map(PathBuf::from).or_else(|| Some(cache()?.join(FOLDER)));
    let program = folder.expect("there is a home").join(CLI);
    assert!(program.is_file(), "there is no {}; `tests/models/run aimock` installs it", program.display());
    program
}

fn cache() -> Option<PathBuf> {
    let named = std::env::var_os("HARNESS_CACHE").map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/harness")))
}
