//! A hostile client: `hostile KIND SOCKET` does one thing that would take the daemon from the others, again and again, until it is
//! ended. What each kind does is in [`KINDS`]; see `behaviour/hostile_clients.rs`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// A kind of hostile client, and what it does once. It is done again until the program is ended.
type Kind = (&'static str, fn(&str) -> std::io::Result<()>);

/// All of them.
const KINDS: &[Kind] = &[
    ("statuses", |socket| flood(socket, |id| call(id, "daemon.status", "{}"))),
    ("lanes", |socket| flood(socket, |id| call(id, "lane.list", "{}"))),
    ("listings", |socket| {
        flood(socket, |id| call(id, "run.list", r#"{"limit":1000,"select":{"labels":{"no":"such"}}}"#))
    }),
    ("questions", |socket| flood(socket, |id| call(id, "interaction.list", r#"{"limit":1000}"#))),
    ("unknown names", |socket| {
        flood(socket, |id| call(id, "run.cancel", r#"{"select":{"runs":["no-such-run"]},"force":true}"#))
    }),
    ("prefixes", |socket| flood(socket, |id| call(id, "run.show", r#"{"run":"a"}"#))),
    ("keys", |socket| {
        let spec = r#"{"script":{"turn":[{"text":"x"}]}}"#;
        flood(socket, |id| call(id, "run.submit", &format!(r#"{{"spec":{spec},"idempotency_key":"k{}"}}"#, id % 50)))
    }),
    ("refused submits", |socket| flood(socket, |id| call(id, "run.submit", r#"{"spec":{"prompt":""}}"#))),
    ("drains", |socket| flood(socket, |id| call(id, "daemon.undrain", "{}"))),
    ("noise", |socket| flood(socket, |id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":7}}\n"))),
    ("large selectors", |socket| {
        let names: Vec<String> = (0..20_000).map(|number| format!("\"none-{number}\"")).collect();
        flood(socket, |id| call(id, "run.pause", &format!(r#"{{"select":{{"runs":[{}]}}}}"#, names.join(","))))
    }),
    ("selectors of all", |socket| {
        flood(socket, |id| call(id, "run.resume", r#"{"select":{"labels":{"kept":"yes"}}}"#))
    }),
    ("half frames", |socket| {
        let half = vec![b' '; 4 * 1024 * 1024];
        let held: Vec<UnixStream> = (0..8)
            .map(|_| {
                let mut stream = UnixStream::connect(socket)?;
                stream.set_write_timeout(Some(Duration::from_secs(1)))?;
                // The daemon may take no more of it; that is what is tried.
                let _ = stream.write_all(&half);
                Ok(stream)
            })
            .collect::<std::io::Result<_>>()?;
        thread::sleep(Duration::from_secs(1));
        drop(held);
        Ok(())
    }),
    ("connections", |socket| {
        let held: Vec<UnixStream> = (0..200).map_while(|_| UnixStream::connect(socket).ok()).collect();
        thread::sleep(Duration::from_millis(20));
        drop(held);
        Ok(())
    }),
    ("unread answers", |socket| {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let asked: String = (0..1_000).map(|id| call(id, "run.list", r#"{"limit":1000}"#)).collect();
        let _ = stream.write_all(asked.as_bytes());
        thread::sleep(Duration::from_secs(1));
        Ok(())
    }),
    ("readers of all events", |socket| {
        // A thousand of them, a few on each connection.
        let mut readers = Vec::new();
        for _ in 0..64 {
            let mut stream = UnixStream::connect(socket)?;
            let asked: String = (0..16).map(|id| call(id, "event.subscribe", r#"{"after":0}"#)).collect();
            stream.write_all(asked.as_bytes())?;
            readers.push(thread::spawn(move || {
                let mut bytes = vec![0; 64 * 1024];
                while matches!(stream.read(&mut bytes), Ok(1..)) {}
            }));
        }
        readers.into_iter().for_each(|reader| drop(reader.join()));
        Ok(())
    }),
];

fn call(id: u64, method: &str, params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n")
}

/// Asks without waiting for answers, and reads them beside that.
fn flood(socket: &str, line: impl Fn(u64) -> String) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let reader = stream.try_clone()?;
    let reading = thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut answer = Vec::new();
        while matches!(reader.read_until(b'\n', &mut answer), Ok(1..)) {
            answer.clear();
        }
    });
    for id in 0.. {
        if stream.write_all(line(id).as_bytes()).is_err() {
            break;
        }
    }
    drop(reading.join());
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, socket] = arguments.as_slice() else {
        KINDS.iter().for_each(|(kind, _)| println!("{kind}"));
        return ExitCode::SUCCESS;
    };
    let Some((_, once)) = KINDS.iter().find(|(name, _)| name == kind) else { return ExitCode::from(2) };
    // It ends with whoever has started it.
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        if once(socket).is_err() {
            thread::sleep(Duration::from_millis(10));
        }
    }
    ExitCode::SUCCESS
}
