//! A hostile client: `hostile KIND SOCKET` repeats one attack that would keep the daemon from its other clients, until
//! it is ended. [`KINDS`] lists the attacks; see `behaviour/hostile_clients.rs`.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

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
        // Until the daemon says something to one of them, or closes it; a second at most.
        for stream in held.iter().take(1) {
            closed(stream)?;
        }
        Ok(())
    }),
    ("connections", |socket| {
        let mut held: Vec<UnixStream> = (0..200).map_while(|_| UnixStream::connect(socket).ok()).collect();
        // All are there once the last one is answered, or refused.
        let Some(last) = held.last_mut() else { return Ok(()) };
        last.write_all(call(1, "daemon.status", "{}").as_bytes())?;
        closed(last)
    }),
    ("unread answers", |socket| {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let asked: String = (0..1_000).map(|id| call(id, "run.list", r#"{"limit":1000}"#)).collect();
        let _ = stream.write_all(asked.as_bytes());
        deaf(&stream)
    }),
    ("deaf readers", |socket| {
        let asked: String = (0..16).map(|id| call(id, "event.subscribe", r#"{"after":0}"#)).collect();
        let held: Vec<UnixStream> = (0..64)
            .map(|_| {
                let mut stream = UnixStream::connect(socket)?;
                stream.write_all(asked.as_bytes())?;
                Ok(stream)
            })
            .collect::<std::io::Result<_>>()?;
        held.iter().take(3).try_for_each(deaf)
    }),
    ("patterns", |socket| {
        // Each takes long to compile; the last one is refused for its size, so that nothing is queued.
        flood(socket, |id| {
            let many: Vec<String> = (0..12).map(|n| format!(r#""{id}{n}[\\w\\pL]{{24}}""#)).collect();
            let turn = format!(r#"{{"text":"x","expect_regex":[{},"{id}\\w{{400}}"]}}"#, many.join(","));
            call(id, "run.submit", &format!(r#"{{"spec":{{"workdir":"/","script":{{"turn":[{turn}]}}}}}}"#))
        })
    }),
    ("expansions", |socket| {
        // Runs whose next turn would come to 600 MB, a few at a time.
        let shell = r#"{"tool":"shell","args":{"command":"head -c 30000 /dev/zero | tr '\\0' a"}}"#;
        let large = format!(r#"{{"text":"{}","capture":{{"a":"(a+)"}}}}"#, "${a}".repeat(20_000));
        let spec = format!(r#"{{"workdir":"/","script":{{"turn":[{{"call":[{shell}]}},{large}]}}}}"#);
        let mut stream = UnixStream::connect(socket)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut ask = |line: String| -> std::io::Result<serde_json::Value> {
            stream.write_all(line.as_bytes())?;
            let mut answer = String::new();
            reader.read_line(&mut answer)?;
            Ok(serde_json::from_str(&answer)?)
        };
        for id in 0.. {
            let made = ask(call(id, "run.submit", &format!(r#"{{"spec":{spec}}}"#)))?;
            if id % 4 == 3 {
                let waits = format!(r#"{{"run":{}}}"#, made["result"]["id"]);
                ask(call(id, "run.wait", &waits))?;
            }
        }
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

/// Reads nothing; a second long it is looked whether the daemon closes the connection.
fn deaf(stream: &UnixStream) -> std::io::Result<()> {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    poll(&mut polled, PollTimeout::from(1_000_u16))?;
    Ok(())
}

/// Waits until the daemon says something on a connection, or closes it; a second at most.
fn closed(mut stream: &UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    match stream.read(&mut [0; 4096]) {
        Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset) => Err(error),
        _ => Ok(()),
    }
}

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
    // It ends with the test that has started it.
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        // A refused client tries again at once.
        drop(once(socket));
    }
    ExitCode::SUCCESS
}
