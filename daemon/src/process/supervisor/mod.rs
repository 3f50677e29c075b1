//! Starts, watches and ends the processes of a call, as a *keeper*: a process of ours between the daemon and these
//! processes (`harnessd keeper`).
//!
//! ```text
//!              start                 ended, alone
//!   idle ───────────────▶ running ────────────────▶ idle
//!                            │ ended, others left       ▲ the last of them is gone: empty
//!                            ├─────────────────▶ left ──┤
//!                            └─ end, socket closed ─▶ ending: SIGTERM, 2 s, SIGKILL until no child is left
//! ```
//!
//! A keeper leads a session without a terminal and is a subreaper: every descendant of a call, however it leaves its
//! parents, becomes the keeper's child at last, so "no child" means that nothing is left. It must not do anything else:
//! it is single-threaded, knows no run, and opens nothing but `/dev/null`, `/proc`, the file by which it enters its
//! cgroup, and the folders in which calls start. When the daemon is gone, the keeper's socket is closed, and the keeper
//! ends everything below it (SIGTERM, 1.3 s, SIGKILL), then itself.
//!
//! A keeper whose limits, priority or processors were changed serves no further call: it ends before it reads the next
//! request. It holds the time limit of its call as well, so that a daemon that hangs lets no command run on.
//!
//! Where SIGKILL does not end what is below it ([`unkillable`]), a keeper says so and stays until that is gone. It
//! serves no further call, and no longer holds its lock: nothing is executed there any more.

mod keeper_attributes;
pub mod launch;
pub(super) mod protocol;
mod start;

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, setsid};
use rustix::process::{getpriority_process, setpriority_process};
use wait4::Wait4;

use super::owner::survivors;
use super::rlimits;
use super::supervisor::keeper_attributes::Untouched;
use super::supervisor::protocol::{Answer, Request, Start, Used, VERSION, What, first_frame};
use super::supervisor::start::spawn;
use super::timing::{GRACE, HIGHEST_PRIORITY, RUNS_AFTER};
use super::tree::Tree;
use super::tree::kill::Found;
use super::unkillable::{self, Step, Stuck};
use crate::fd_passing;

/// How long a tree may take to end by itself when the daemon is gone.
const GRACE_WITHOUT_DAEMON: Duration = Duration::from_millis(1_300);
/// Pause between two passes of SIGKILL: the first one, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// The pause once what is left has been given up.
const PAUSE_OF_STUCK: Duration = Duration::from_secs(1);
/// Dead children that are reaped before the keeper does anything else: others may die faster than it reaps.
const MOST_REAPED: usize = 256;
/// Bytes of one read.
const PIECE: usize = 64 * 1024;
/// Signals that would end or stop a keeper, and can be caught. They get a handler without effect, not `SIG_IGN`, which
/// would be inherited.
const HARMLESS: &[i32] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGSTKFLT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSYS,
];

/// Prefix of the argument with the mark of its processes.
pub const MARK: &str = "mark=";
/// Prefix of the argument with the file by which it enters its cgroup.
pub(super) const ENTER: &str = "enter=";

/// Runs a keeper to its end. `arguments` are the limits of its processes, as
/// [`Limits::words`](super::rlimits::Limits::words) gives them, and their mark.
///
/// On any error it ends: the daemon sees the closed socket.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    match Keeper::new(arguments).and_then(|mut keeper| keeper.serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

struct Keeper {
    /// Only held: a daemon that starts waits until no keeper of an earlier one holds it.
    lock: Option<OwnedFd>,
    socket: UnixStream,
    /// `None` once the daemon is gone.
    listening: bool,
    children_changed: UnixStream,
    /// Bytes of an unfinished frame.
    read: Vec<u8>,
    passed: Vec<OwnedFd>,
    own: i32,
    /// The daemon has said which version of the protocol it speaks.
    greeted: bool,
    /// The priority that it was started with, which its processes get.
    nice: i32,
    seq: u32,
    call: Option<Running>,
    /// Children of this call, or of an earlier one.
    children: Children,
    /// The daemon waits for the message that the last child is gone.
    owes_empty: bool,
    ending: Option<Ending>,
    untouched: Untouched,
}

/// The state of the keeper's children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Children {
    None,
    /// All dead ones are reaped.
    Living,
    /// There may be dead ones to reap.
    Unreaped,
}

/// The process of the present call.
struct Running {
    child: Child,
    begun: Instant,
    told: bool,
    /// When the keeper ends it, in case that the daemon has not. Its clock is that of the daemon's own time limit: a
    /// machine that was suspended gives the command the rest of its time.
    ends_at: Option<Instant>,
    expired: bool,
}

struct Ending {
    kill_at: Instant,
    pause: Duration,
    stuck: Stuck,
    /// The daemon knows that it is stuck.
    told_stuck: bool,
}

impl Keeper {
    fn new(arguments: impl Iterator<Item = String>) -> io::Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // A keeper that a person starts by hand must not change the session of a terminal.
        socket.peer_addr()?;
        let (children_changed, written) = UnixStream::pair()?;
        children_changed.set_nonblocking(true)?;
        let _ = setsid();
        prctl::set_child_subreaper(true)?;
        prctl::set_dumpable(false)?;
        // A stopped keeper must still notice that the daemon is gone.
        prctl::set_pdeathsig(Signal::SIGCONT)?;
        let ignored = Arc::new(AtomicBool::new(false));
        for signal in HARMLESS {
            signal_hook::flag::register(*signal, Arc::clone(&ignored))?;
        }
        signal_hook::low_level::pipe::register(libc::SIGCHLD, written)?;
        // The lock on its standard output is not for the processes that it starts.
        let lock = io::stdout().as_fd().try_clone_to_owned()?;
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        let (marks, limits): (Vec<String>, Vec<String>) = arguments.partition(|argument| argument.starts_with(MARK));
        let mark = marks.iter().find_map(|mark| mark.strip_prefix(MARK)?.parse::<u64>().ok());
        if let Some(mark) = mark {
            // Processes below can lower this limit further, and never raise it. Another process may have lowered ours.
            survivors::lower(mark)?;
        }
        for argument in limits {
            match argument.strip_prefix(ENTER) {
                // If it cannot, it works all the same: the daemon has logged what cgroups hold, and marks hold, too.
                Some(entrance) => {
                    _ = std::fs::OpenOptions::new().write(true).open(entrance).and_then(|mut file| file.write_all(b"0"))
                }
                None => rlimits::give_back(&argument),
            }
        }
        Ok(Self {
            lock: Some(lock),
            socket,
            listening: true,
            children_changed,
            read: Vec::new(),
            passed: Vec::new(),
            own: i32::try_from(std::process::id()).unwrap_or(i32::MAX),
            greeted: false,
            nice: getpriority_process(None)?,
            seq: 0,
            call: None,
            children: Children::None,
            owes_empty: false,
            ending: None,
            untouched: Untouched::now(),
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        while self.listening || self.children != Children::None {
            let (asked, changed) = self.wait()?;
            if changed || self.children == Children::Unreaped {
                self.reap();
            }
            if asked && self.is_idle() && !self.untouched.is_so() {
                // A request that it does not read was never made: the daemon takes another keeper.
                return Err(ErrorKind::Other.into());
            }
            if asked {
                self.receive();
            }
            self.look_at_the_clock();
        }
        Ok(())
    }

    /// Whether nothing is left of the last call.
    fn is_idle(&self) -> bool {
        self.children == Children::None && self.call.is_none() && self.ending.is_none() && self.read.is_empty()
    }

    /// Waits until the daemon sends a message, a child changes, or the next time limit comes. Returns whether there was
    /// a message, and whether a child changed.
    fn wait(&self) -> io::Result<(bool, bool)> {
        let next_look = if self.children == Children::Unreaped { Some(now()) } else { self.next_look() };
        let timeout = next_look.map_or(PollTimeout::NONE, |at| {
            // Rounded up: a poll that ends just before its time would only be repeated.
            let wait = at.saturating_duration_since(now()) + Duration::from_micros(999);
            PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
        });
        let changed = PollFd::new(self.children_changed.as_fd(), PollFlags::POLLIN);
        let mut waited = [changed, PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        // A closed socket would be reported again and again.
        let waited = if self.listening { &mut waited[..] } else { &mut waited[..1] };
        match poll(waited, timeout) {
            // The signal handler has written the byte that the next round reads.
            Err(Errno::EINTR) | Ok(0) => Ok((false, false)),
            Err(errno) => Err(errno.into()),
            Ok(_) => {
                let is_ready = |index: usize| waited.get(index).and_then(PollFd::any).unwrap_or(false);
                Ok((is_ready(1), is_ready(0)))
            }
        }
    }

    fn next_look(&self) -> Option<Instant> {
        let runs = self.call.as_ref().filter(|call| !call.told).map(|call| call.begun + RUNS_AFTER);
        let ends = self.call.as_ref().filter(|call| !call.expired).and_then(|call| call.ends_at);
        let kill = self.ending.as_ref().map(|ending| ending.kill_at);
        runs.into_iter().chain(ends).chain(kill).min()
    }

    fn look_at_the_clock(&mut self) {
        let Some(at) = self.next_look() else { return };
        if at > now() {
            return;
        }
        if let Some(call) = self.call.as_mut().filter(|call| !call.told && call.begun + RUNS_AFTER <= now()) {
            call.told = true;
            let pid = i32::try_from(call.child.id()).unwrap_or(i32::MAX);
            self.say(What::Runs { pid });
        }
        let is_over = |call: &&mut Running| !call.expired && call.ends_at.is_some_and(|at| at <= now());
        if let Some(call) = self.call.as_mut().filter(is_over) {
            call.expired = true;
            self.owes_empty = true;
            self.end(GRACE);
        }
        if self.ending.as_ref().is_some_and(|ending| ending.kill_at <= now()) {
            self.kill();
        }
    }

    fn kill(&mut self) {
        // Only its own `wait4` tells the use of resources by the process of the call.
        let reap = |pid| {
            let pid = Pid::from_raw(pid);
            let reaped = |status| status != WaitStatus::StillAlive;
            !self.is_call(pid) && waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_ok_and(reaped)
        };
        let found = Tree::below(self.own).kill(&reap);
        if let Some(ending) = &mut self.ending {
            ending.kill_at = now() + ending.pause;
            // Processes that were not found at once get no time to become more.
            ending.pause = if found == Found::Part { PAUSES.0 } else { (ending.pause * 2).min(PAUSES.1) };
        }
        self.reap();
        self.look_at_the_stuck(found);
    }

    /// Ends the waits of what SIGKILL does not end; says at last that they do not end.
    fn look_at_the_stuck(&mut self, found: Found) {
        let Some(ending) = &mut self.ending else { return };
        let is_whole = found == Found::Whole;
        let left = if is_whole { Tree::below(self.own).members() } else { Vec::new() };
        let left: Vec<i32> = left.iter().map(|member| member.pid).collect();
        let is_all = is_whole && left.iter().all(|&pid| unkillable::is_past_end(pid));
        match ending.stuck.step(is_all) {
            Step::Wait => {}
            Step::Abort => _ = unkillable::end_waits(left),
            Step::GiveUp => {
                ending.kill_at = now() + PAUSE_OF_STUCK;
                if !std::mem::replace(&mut ending.told_stuck, true) {
                    self.lock = None;
                    self.say(What::Stuck);
                }
            }
        }
    }

    /// Reaps dead children. The process of the call goes first and alone, because only its own `wait4` tells its use of
    /// resources.
    fn reap(&mut self) {
        let mut drained = [0; 256];
        while matches!((&self.children_changed).read(&mut drained), Ok(count) if count == drained.len()) {}
        let mut ended = self.take_ended();
        self.children = (0..MOST_REAPED).find_map(|_| self.reap_next(&mut ended)).unwrap_or(Children::Unreaped);
        if let Some((used, expired)) = ended {
            let alone = self.children == Children::None;
            self.say(What::Ended { used, alone, expired });
            self.owes_empty |= !alone;
        }
        if self.children == Children::None {
            if self.ending.take().is_some() {
                self.run_with(self.nice);
            }
            if std::mem::take(&mut self.owes_empty) {
                self.say(What::Empty);
            }
        }
    }

    /// Reaps one child; gives the state of the others where none is dead.
    fn reap_next(&mut self, ended: &mut Option<(Used, bool)>) -> Option<Children> {
        if self.call.is_none() {
            return match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => Some(Children::Living),
                Ok(_) | Err(Errno::EINTR) => None,
                Err(_) => Some(Children::None),
            };
        }
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::All, peek).map(|status| status.pid()) {
            Ok(None) => return Some(Children::Living),
            Ok(Some(pid)) if self.is_call(pid) => *ended = self.take_ended(),
            Ok(Some(pid)) => _ = waitpid(pid, Some(WaitPidFlag::WNOHANG)),
            Err(Errno::EINTR) => {}
            Err(_) => return Some(Children::None),
        }
        None
    }

    fn is_call(&self, pid: Pid) -> bool {
        self.call.as_ref().is_some_and(|call| i64::from(call.child.id()) == i64::from(pid.as_raw()))
    }

    /// How the process of the call ended, if it has, and whether its time limit has ended it.
    fn take_ended(&mut self) -> Option<(Used, bool)> {
        let call = self.call.as_mut()?;
        let expired = call.expired;
        match call.child.try_wait4() {
            Ok(None) => None,
            Ok(Some(used)) => {
                self.call = None;
                let cpu = used.rusage.utime + used.rusage.stime;
                Some((Used { status: used.status.into_raw(), cpu, max_rss_bytes: used.rusage.maxrss }, expired))
            }
            Err(_) => {
                // No other code reaps here, so this does not happen. The daemon would see no end, which is the truth.
                self.call = None;
                None
            }
        }
    }

    fn say(&mut self, what: What) {
        let bytes = Answer { seq: self.seq, what }.encode();
        let mut rest = bytes.as_slice();
        while self.listening && !rest.is_empty() {
            match fd_passing::send(&self.socket, rest, &[]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut writable = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
                    let _ = poll(&mut writable, PollTimeout::NONE);
                }
                Err(_) => self.daemon_is_gone(),
            }
        }
    }

    fn daemon_is_gone(&mut self) {
        self.listening = false;
        self.end(GRACE_WITHOUT_DAEMON);
    }

    fn receive(&mut self) {
        let before = self.read.len();
        self.read.resize(before + PIECE, 0);
        let received = fd_passing::receive(&self.socket, &mut self.read[before..], &mut self.passed);
        self.read.truncate(before + received.as_ref().copied().unwrap_or(0));
        match received {
            Ok(0) => self.daemon_is_gone(),
            Ok(_) => self.obey(),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(_) => self.daemon_is_gone(),
        }
    }

    fn obey(&mut self) {
        loop {
            let request = match first_frame(&self.read) {
                Ok(None) => return,
                Ok(Some((length, frame))) => Request::decode(frame).map(|request| (length, request)),
                Err(_) => None,
            };
            let Some((length, request)) = request else { return self.daemon_is_gone() };
            self.read.drain(..length);
            match request {
                Request::Hello { version, owner } if version == VERSION && !self.greeted => {
                    self.greeted = true;
                    // Only for those who look at lists of processes.
                    _ = owner.map(|owner| prctl::set_name(owner.name()));
                }
                // A daemon of another version does not use this keeper: it starts its own.
                _ if !self.greeted => return self.daemon_is_gone(),
                Request::Hello { .. } => return self.daemon_is_gone(),
                Request::Start(start) => self.start(&start),
                Request::End { force } => {
                    self.owes_empty = true;
                    self.end(if force { Duration::ZERO } else { GRACE });
                }
            }
        }
    }

    fn start(&mut self, start: &Start) {
        self.seq = start.seq;
        self.owes_empty = false;
        let mut passed = std::mem::take(&mut self.passed).into_iter();
        match spawn(start, &mut passed) {
            Ok(child) => {
                let begun = now();
                let ends_at = start.time_limit.and_then(|limit| begun.checked_add(limit));
                self.call = Some(Running { child, begun, told: false, ends_at, expired: false });
                self.children = Children::Living;
            }
            Err(failure) => self.say(What::Failed(failure)),
        }
    }

    /// Sets its own priority, where it may.
    fn run_with(&self, nice: i32) {
        let _ = setpriority_process(None, nice);
    }

    /// Ends everything below, within `grace`; then kills the rest until nothing is left.
    fn end(&mut self, grace: Duration) {
        self.reap();
        if self.children == Children::None {
            return;
        }
        let kill_at = now() + grace;
        match &mut self.ending {
            Some(ending) => {
                ending.kill_at = ending.kill_at.min(kill_at);
                ending.told_stuck = false;
            }
            None => {
                self.run_with(HIGHEST_PRIORITY);
                if grace > Duration::ZERO {
                    Tree::below(self.own).terminate();
                }
                let stuck = Stuck::default();
                self.ending = Some(Ending { kill_at, pause: PAUSES.0, stuck, told_stuck: false });
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a keeper is a process of its own, and has no driver to ask for the time"
)]
fn now() -> Instant {
    Instant::now()
}
