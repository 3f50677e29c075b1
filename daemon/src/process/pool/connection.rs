//! Talks to one keeper: has its process, its socket, and its latest messages.
//!
//! Must not decide which call may use a keeper, or what is done when a keeper is gone: `pool` and `running_call` do. A
//! wait for a message can be dropped and begun again. After a `send` that was dropped the keeper must get no other
//! frame, because half of one may have gone.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use harness_protocol::inside_run::KEEPER;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::close_threads::Apart;
use crate::fd_passing;

use super::sealed_program::Sealed;
use crate::process::cgroup::Group;
use crate::process::output::pipe::watch;
use crate::process::owner::survivors::KeepersLock;
use crate::process::supervisor::protocol::{Answer, Owner, Request, What, first_frame};
use crate::process::timing::KILL_WAIT;

/// The program of keepers, and its surroundings.
#[derive(Debug, Clone)]
pub struct KeeperProgram {
    /// The sealed copy of the daemon's program.
    pub program: Sealed,
    /// Arguments that make the program a keeper.
    pub args: Vec<String>,
    /// Environment of the keeper; usually empty.
    pub env: Vec<(String, String)>,
    /// The lock that each keeper holds as long as it lives, beside this process.
    pub lock: Option<KeepersLock>,
}

/// The connection to one keeper, with its process.
#[derive(Debug)]
pub(in crate::process) struct Link {
    child: Child,
    /// Whose processes it has, for all its life.
    pub(in crate::process) owner: Owner,
    /// On some kernels the close of any socket collects what others have left in flight.
    socket: Apart<UnixStream>,
    /// Number of its latest call.
    seq: u32,
    /// Bytes of an unfinished frame.
    read: Vec<u8>,
    /// The cgroup of its latest call, if it has one.
    pub(in crate::process) group: Option<Box<Group>>,
}

/// A keeper that ends, with its processes.
#[derive(Debug)]
pub(in crate::process) struct Closed {
    pub(in crate::process) child: Child,
    _group: Option<Box<Group>>,
}

/// A descriptor that becomes readable when process `pid` ends.
pub(in crate::process) fn end_of(pid: i32) -> io::Result<AsyncFd<OwnedFd>> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(ErrorKind::InvalidInput)?;
    watch(pidfd_open(pid, PidfdFlags::empty())?)
}

impl Link {
    /// Starts a keeper for processes of `owner`.
    pub(in crate::process) fn open(program: &KeeperProgram, owner: Owner) -> io::Result<Self> {
        let (mut ours, theirs) = Pair::pair()?;
        // A new socket has room for it.
        ours.write_all(&Request::hello(owner))?;
        ours.set_nonblocking(true)?;
        let socket = Apart::new(UnixStream::from_std(ours)?);
        let lock = match &program.lock {
            Some(lock) => Stdio::from(lock.file().try_clone()?),
            None => Stdio::null(),
        };
        let child = Command::new(program.program.path())
            .arg0(KEEPER[0])
            .args(&program.args)
            .env_clear()
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            // The keeper moves the lock elsewhere at once; only as a standard stream can a descriptor be inherited
            // without `unsafe`.
            .stdout(lock)
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, owner, socket, seq: 0, read: Vec::new(), group: None })
    }

    pub(in crate::process) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }

    /// The number of the next call.
    pub(in crate::process) fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    /// Sends a frame, with descriptors beside it.
    pub(in crate::process) async fn send(&self, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let (mut rest, mut beside) = (frame, descriptors);
        // A short frame is sent at once, unless the keeper has not read for long.
        while !rest.is_empty() {
            match self.socket.try_io(Interest::WRITABLE, || fd_passing::send(&self.socket, rest, beside)) {
                Ok(sent) => (rest, beside) = (&rest[sent..], &[]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.socket.writable().await?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for its next message about its latest call.
    ///
    /// # Errors
    /// If the keeper is gone, or sends nonsense.
    pub(in crate::process) async fn next(&mut self) -> io::Result<What> {
        loop {
            if let Some(what) = self.try_next()? {
                return Ok(what);
            }
            self.socket.readable().await?;
        }
    }

    /// The next message about its latest call that the daemon has not read yet, if there is one.
    pub(in crate::process) fn try_next(&mut self) -> io::Result<Option<What>> {
        loop {
            if let Some(answer) = self.heard()? {
                if answer.seq == self.seq {
                    return Ok(Some(answer.what));
                }
                continue;
            }
            let mut buffer = [0; 512];
            let socket: &UnixStream = &self.socket;
            match socket.try_io(Interest::READABLE, || fd_passing::receive(socket, &mut buffer, &mut Vec::new())) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.read.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn heard(&mut self) -> io::Result<Option<Answer>> {
        let frame = first_frame(&self.read).map_err(|_| ErrorKind::InvalidData)?;
        let Some((length, frame)) = frame else { return Ok(None) };
        let answer = Answer::decode(frame).ok_or(ErrorKind::InvalidData)?;
        self.read.drain(..length);
        Ok(Some(answer))
    }

    /// Continues the keeper, if it was stopped.
    pub(in crate::process) fn wake(&self) {
        // Its pid is not reused before it is reaped.
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGCONT);
    }

    /// Whether it has ended; reaps it.
    pub(in crate::process) fn is_dead(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it and waits until it is dead. The daemon adopts its processes. Gives whether it is dead: a keeper that
    /// hangs in a file system that does not answer is not waited for.
    pub(in crate::process) async fn kill(&mut self) -> bool {
        let _ = self.child.kill();
        if !self.is_dead()
            && let Ok(end) = end_of(self.pid())
        {
            let _ = timeout(KILL_WAIT, end.readable()).await;
        }
        self.is_dead()
    }

    /// Closes the connection: the keeper ends its processes, then itself. Reap the result before it is dropped.
    pub(in crate::process) fn close(self) -> Closed {
        self.wake();
        Closed { child: self.child, _group: self.group }
    }
}
