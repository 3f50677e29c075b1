//! A program that a run executes to gain its operator's rights, in ways that a shell cannot express.
//!
//! Each way prints the daemon's answers, a line for each request. It asserts nothing: the test that started it checks
//! the answers, and the daemon. Without `unsafe`: instead of forking, it starts itself again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod lingering;
mod own_files;

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Rlimit, prlimit};

/// What only an operator may do, as a line.
const PAUSE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"lane.pause","params":{"lane":"tool"}}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":2,"method":"lane.list","params":{}}"#;
/// Longer than anything takes that is waited for, and between two looks whether it is there.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    match words.as_slice() {
        // The ways.
        ["connect-and-die", count] => connect_and_die(count.parse().unwrap(), &["connect"]),
        ["connect-in-a-grandchild", count] => connect_and_die(count.parse().unwrap(), &["connect-below"]),
        ["connect-in-another-session", count] => connect_and_die(count.parse().unwrap(), &["setsid", "connect"]),
        ["speak-before-it-dies", count] => speak_and_die(count.parse().unwrap()),
        ["pass-it-on"] => pass_it_on(),
        ["kill-the-keeper"] => without_the_keeper(Signal::SIGKILL),
        ["stop-the-keeper"] => without_the_keeper(Signal::SIGSTOP),
        ["outlive", daemon] => outlive(daemon.parse().unwrap(), None, &[], by_itself),
        ["outlive-and-lower-the-mark", daemon] => outlive(daemon.parse().unwrap(), Some(1), &[], by_itself),
        ["outlive-and-hold", daemon, locks @ ..] => outlive(daemon.parse().unwrap(), None, locks, by_itself),
        ["outlive-hold-and-lower", daemon, locks @ ..] => outlive(daemon.parse().unwrap(), Some(1), locks, by_itself),
        ["outlive-hold-by-a-child", daemon, locks @ ..] => outlive(daemon.parse().unwrap(), None, locks, by_a_child),
        ["outlive-hold-by-a-child-and-lower", daemon, locks @ ..] => {
            outlive(daemon.parse().unwrap(), Some(1), locks, by_a_child);
        }
        ["lock-the-journal", state] => lock_the_journal(state),
        ["forge", state, facts] => forge(state, facts),
        ["take"] => flock(standard_input(), FlockOperation::LockExclusive).unwrap(),
        ["lower", pid, limit] => println!("{:?}", lower(pid.parse().unwrap(), limit.parse().unwrap())),
        ["lower-the-next-daemon", state, socket] => lower_the_next_daemon(state, socket),
        ["churn", count] => churn(count.parse().unwrap()),
        ["hold", count] => hold(count.parse().unwrap(), b""),
        ["half-frames", count] => hold(count.parse().unwrap(), &vec![b'a'; 8_000_000]),
        ["leave-lingering", way] => lingering::leave(way),
        ["wait-in-own-files", way, file] => own_files::wait(way, file),
        ["wait-in-own-files-without-a-keeper", way, file] => {
            let keeper = keeper();
            // The daemon ends this process as soon as it misses the keeper: it waits by then.
            std::thread::spawn(move || {
                found(|| std::path::Path::new("waiting").exists().then_some(()));
                kill(keeper, Signal::SIGKILL).unwrap();
            });
            own_files::wait(way, file);
        }
        ["outlive-in-own-files", file, daemon, locks @ ..] => {
            end_what_is_above(daemon.parse().unwrap());
            let _held: Vec<std::fs::File> = locks.iter().map(|path| by_itself(path)).collect();
            own_files::wait("waits", file);
        }
        ["serve-files"] => own_files::serve_others(),
        ["pass-a-folder", folder, line] => {
            let stream = UnixStream::connect(path()).unwrap();
            send_beside(&stream, &std::fs::File::open(folder).unwrap(), format!("{line}\n").as_bytes());
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).unwrap();
            println!("{answer}");
        }
        // With the command line of a keeper, which any process may choose.
        ["keeper", program, words @ ..] => drop(Command::new(program).args(words).status()),
        ["ask-once", line] => match UnixStream::connect(path()) {
            Ok(stream) => println!("{}", ask_over(stream, line)),
            Err(error) => println!("not connected: {error}"),
        },
        ["ask", line] => println!("{}", ask_over(UnixStream::connect(path()).unwrap(), line)),
        // Lines of standard input, each over a connection of its own.
        ["ask-each"] => {
            for line in std::io::stdin().lines() {
                println!("{}", ask_over(UnixStream::connect(path()).unwrap(), &line.unwrap()));
            }
        }
        // What the ways start.
        ["connect"] => connect_to(&standard_input()),
        ["connect-below"] => {
            let below = again(&["connect"], standard_input());
            // It outlives us, as the second of a double fork does.
            drop(below);
        }
        ["setsid", rest @ ..] => {
            nix::unistd::setsid().unwrap();
            again(rest, standard_input()).wait().unwrap();
        }
        ["passes-its-socket"] => passes_its_socket(),
        other => panic!("no such way: {other:?}"),
    }
}

fn path() -> std::ffi::OsString {
    std::env::var_os("HARNESS_SOCKET").expect("a socket")
}

fn standard_input() -> OwnedFd {
    std::io::stdin().as_fd().try_clone_to_owned().unwrap()
}

/// Searches until something is found, but not for ever.
fn found<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        match look() {
            None if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
            found => return found,
        }
    }
}

/// This program once more.
fn again(words: &[&str], input: OwnedFd) -> Child {
    Command::new("/proc/self/exe").args(words).stdin(Stdio::from(input)).stdout(Stdio::inherit()).spawn().unwrap()
}

fn unconnected() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

fn connect_to(socket: &OwnedFd) {
    // The daemon may be full; then there is nothing to be gained.
    let _ = connect(socket, &SocketAddrUnix::new(path()).unwrap());
}

fn ask_over(mut stream: UnixStream, line: &str) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    if let Err(error) = writeln!(stream, "{line}") {
        return format!("closed: {error}");
    }
    let mut answer = String::new();
    match BufReader::new(stream).read_line(&mut answer) {
        Ok(0) => "closed".to_owned(),
        Ok(_) => answer.trim_end().to_owned(),
        Err(error) => format!("closed: {error}"),
    }
}

fn said(who: &str, answer: std::io::Result<String>) {
    match answer {
        Ok(answer) => println!("{who}: {answer}"),
        Err(error) => println!("{who}: not connected: {error}"),
    }
}

/// A1: others connect these sockets and exit; we speak on them.
fn connect_and_die(count: usize, how: &[&str]) {
    let sockets: Vec<OwnedFd> = (0..count).map(|_| unconnected()).collect();
    let mut children: Vec<Child> = sockets.iter().map(|socket| again(how, socket.try_clone().unwrap())).collect();
    for child in &mut children {
        child.wait().unwrap();
    }
    for socket in sockets {
        let stream = UnixStream::from(socket);
        // Where the daemon was full, it never is.
        found(|| stream.peer_addr().ok());
        println!("{}", ask_over(stream, PAUSE));
    }
}

/// The request is in the socket before the process that connected it has gone.
fn speak_and_die(count: usize) {
    for _ in 0..count {
        let line = format!("printf '%s\\n' '{PAUSE}' '{LIST}'");
        let socket = unconnected();
        connect_to(&socket);
        let stream = UnixStream::from(socket);
        Command::new("sh").args(["-c", &line]).stdout(OwnedFd::from(stream.try_clone().unwrap())).status().unwrap();
        println!("{}", ask_over(stream, LIST));
    }
}

/// A sibling that began before connects, and gives us its socket.
fn pass_it_on() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut sibling = again(&["passes-its-socket"], theirs.into());
    let passed = receive(&ours);
    sibling.wait().unwrap();
    println!("{}", ask_over(UnixStream::from(passed), PAUSE));
}

fn passes_its_socket() {
    let way = UnixStream::from(standard_input());
    let stream = UnixStream::connect(path()).unwrap();
    send(&way, &stream);
}

fn send(way: &UnixStream, stream: &UnixStream) {
    send_beside(way, stream, b"x");
}

/// Sends a descriptor beside these bytes.
fn send_beside(way: &UnixStream, passed: &impl AsFd, bytes: &[u8]) {
    let fds = [passed.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(way, &[IoSlice::new(bytes)], &mut beside, SendFlags::empty()).unwrap();
}

fn receive(way: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    recvmsg(way, &mut [IoSliceMut::new(&mut [0])], &mut beside, RecvFlags::empty()).unwrap();
    let passed = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    passed.expect("a socket")
}

/// The keeper above us.
fn keeper() -> Pid {
    let mut pid = getpid().as_raw();
    loop {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        if line.split(|&byte| byte == 0).nth(1) == Some(b"keeper") {
            return Pid::from_raw(pid);
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        pid = stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(pid > 1, "no keeper above us");
    }
}

/// The keeper above us is killed, or stopped, and we speak until the daemon ends us.
fn without_the_keeper(signal: Signal) {
    let _ = kill(keeper(), signal);
    for _ in 0..100 {
        said("left", UnixStream::connect(path()).map(|stream| ask_over(stream, PAUSE)));
    }
    let _ = kill(keeper(), Signal::SIGCONT);
}

/// Ends the keeper and the daemon, sheds what it can of what it was given, and speaks with whatever daemon comes next
/// until one is there and has answered often enough. Says so in files of the working directory.
fn outlive(daemon: i32, lower: Option<u64>, locks: &[&str], take: fn(&str) -> std::fs::File) {
    nix::unistd::setsid().ok();
    if let Some(mark) = lower {
        // Others are not found by it any more. It cannot be raised.
        setrlimit(Resource::RLIMIT_LOCKS, mark, mark).unwrap();
        assert!(setrlimit(Resource::RLIMIT_LOCKS, u64::MAX, u64::MAX).is_err() || nix::unistd::geteuid().is_root());
    }
    std::fs::write("outlived.pid", std::process::id().to_string()).unwrap();
    end_what_is_above(daemon);
    let _held: Vec<std::fs::File> = locks.iter().map(|path| take(path)).collect();
    if !locks.is_empty() {
        // As whom a client would take for the daemon.
        std::fs::write("/proc/self/comm", "harnessd").unwrap();
        std::fs::write(locks[0], format!("{}\n", std::process::id())).unwrap();
    }
    std::fs::write("outlived.ready", "").unwrap();
    for _ in 0..50 {
        let ask = || UnixStream::connect(path()).ok().map(|stream| ask_over(stream, PAUSE));
        if let Some(answer) = found(|| ask().filter(|answer| answer.starts_with('{'))) {
            std::fs::write("outlived.answer", answer).unwrap();
        }
    }
}

/// Ends the daemon and the keeper above us.
fn end_what_is_above(daemon: i32) {
    let keeper = keeper();
    // It would ask us to go as soon as its daemon is gone.
    signal_hook::flag::register(Signal::SIGTERM as i32, std::sync::Arc::default()).unwrap();
    kill(keeper, Signal::SIGSTOP).unwrap();
    // The daemon would end us once it has us, so it goes first.
    kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
    kill(keeper, Signal::SIGKILL).unwrap();
}

fn by_itself(path: &str) -> std::fs::File {
    hold_a_lock(path, FlockOperation::LockExclusive)
}

/// A child takes the lock and ends, so that the kernel names a process that is no more.
fn by_a_child(path: &str) -> std::fs::File {
    let file = std::fs::File::open(path).unwrap();
    assert!(again(&["take"], file.try_clone().unwrap().into()).wait().unwrap().success());
    file
}

fn hold_a_lock(path: &str, how: FlockOperation) -> std::fs::File {
    let file = std::fs::File::open(path).unwrap();
    flock(&file, how).unwrap();
    file
}

/// Every process may lower the limits of another one of its user.
fn lower(pid: i32, limit: u64) -> rustix::io::Result<()> {
    let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
    prlimit(rustix::process::Pid::from_raw(pid), rustix::process::Resource::Locks, limit).map(drop)
}

/// Holds a daemon up while it starts, by the lock of its keepers, gives it meanwhile the very limit that we have, and
/// speaks with it.
fn lower_the_next_daemon(state: &str, socket: &str) {
    let (_, own) = nix::sys::resource::getrlimit(Resource::RLIMIT_LOCKS).unwrap();
    let daemon = || std::fs::read_to_string(format!("{state}/harnessd.lock")).unwrap_or_default();
    let before = daemon();
    let held = hold_a_lock(&format!("{state}/keepers.lock"), FlockOperation::LockShared);
    std::fs::write("holding", "").unwrap();
    let next = found(|| {
        let now = daemon();
        now.lines().next().and_then(|pid| pid.parse().ok()).filter(|_| now != before)
    });
    println!("lowered: {:?}", lower(next.expect("another daemon"), own));
    drop(held);
    let stream = found(|| UnixStream::connect(socket).ok());
    println!("{}", ask_over(stream.expect("it serves"), PAUSE));
}

/// A7: as many connections as there are, each with this much of a frame, until there is a file called `enough`.
fn hold(count: usize, part: &[u8]) {
    let mut held = Vec::new();
    for _ in 0..count {
        let Ok(mut stream) = UnixStream::connect(path()) else { continue };
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        // A refused connection is closed meanwhile.
        let _ = stream.write_all(part);
        held.push(stream);
    }
    std::fs::write("holding", held.len().to_string()).unwrap();
    found(|| std::path::Path::new("enough").exists().then_some(()));
}

/// Processes come and go while one of them speaks, so that numbers and parents change under the daemon while it looks.
fn churn(count: usize) {
    for _ in 0..count {
        let socket = unconnected();
        let child = again(&["connect-below"], socket.try_clone().unwrap());
        connect_to(&socket);
        drop(child);
        println!("{}", ask_over(UnixStream::from(socket), PAUSE));
    }
}

/// Writes into the journal of a daemon that is no more.
fn forge(state: &str, facts: &str) {
    let journal = rusqlite::Connection::open(std::path::Path::new(state).join("harness.db")).unwrap();
    journal.execute_batch(facts).unwrap();
}

/// Takes the lock that every writer of the journal needs (byte 120 of its shared memory, as SQLite's file format has
/// it), and keeps it.
fn lock_the_journal(state: &str) {
    let path = std::path::Path::new(state).join("harness.db-shm");
    let memory = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let lock = nix::libc::flock {
        l_type: i16::try_from(nix::libc::F_WRLCK).unwrap(),
        l_whence: 0,
        l_start: 120,
        l_len: 1,
        l_pid: 0,
    };
    found(|| fcntl(&memory, FcntlArg::F_SETLK(&lock)).ok());
    println!("locked");
    loop {
        std::thread::park();
    }
}
