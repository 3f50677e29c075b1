//! Provides a substitute for the daemon on a real socket, for the unit tests of this crate.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use serde_json::Value;
use tempfile::TempDir;

/// The handling of one connection.
pub(crate) type Step = Box<dyn FnOnce(UnixStream) + Send>;

/// A listening socket.
pub(crate) struct Fake {
    dir: TempDir,
    listener: UnixListener,
}

impl Fake {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        Self { dir, listener }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Accepts a connection for each step, one after the other.
    pub(crate) fn serve(&self, steps: Vec<Step>) -> JoinHandle<()> {
        let listener = self.listener.try_clone().unwrap();
        std::thread::spawn(move || {
            for step in steps {
                step(listener.accept().unwrap().0);
            }
        })
    }
}

/// Reads one request. If a greeting comes first, it is answered.
pub(crate) fn request(stream: &UnixStream) -> Value {
    loop {
        let mut line = String::new();
        BufReader::with_capacity(1, stream).read_line(&mut line).unwrap();
        let request: Value = serde_json::from_str(&line).unwrap();
        if request["method"] != "daemon.hello" {
            return request;
        }
        answer(stream, &request, HELLO);
    }
}

/// The greeting of a daemon.
const HELLO: &str = r#"{"version":"9","protocol_major":1,"protocol_minor":1,"max_frame_bytes":8388608}"#;

/// Reads one request and answers it.
#[expect(clippy::needless_pass_by_value, reason = "it ends with its connection")]
pub(crate) fn reply(stream: UnixStream, result: &str) {
    let request = request(&stream);
    answer(&stream, &request, result);
}

/// Answers a request.
pub(crate) fn answer(mut stream: &UnixStream, request: &Value, result: &str) {
    writeln!(stream, r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request["id"]).unwrap();
}

/// Refuses a request with this error.
pub(crate) fn refuse_with(mut stream: &UnixStream, request: &Value, error: &harness_protocol::rpc::RpcError) {
    let line = serde_json::json!({"jsonrpc": "2.0", "id": request["id"], "error": error});
    writeln!(stream, "{line}").unwrap();
}

/// Refuses a request.
pub(crate) fn refuse(mut stream: &UnixStream, request: &Value, kind: &str, exit_code: u8) {
    let data = format!(r#"{{"kind":"{kind}","retry_after_seconds":null,"exit_code":{exit_code}}}"#);
    writeln!(
        stream,
        r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-32000,"message":"refused","data":{data}}}}}"#,
        request["id"]
    )
    .unwrap();
}
