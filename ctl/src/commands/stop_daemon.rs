//! Stops a daemon: asks it, and sends SIGTERM where it cannot be asked (no answer, an answer that cannot be read,
//! another version of the protocol).
//!
//! The only place that decides when that signal is sent, and to which process: the one that has the lock of the state
//! directory, which is checked once more before the signal. Must never send SIGKILL, or any signal from inside a run.
//! Must not report a stop before the daemon has gone: a daemon that is there after the time limit is an error. Where
//! systemd has the socket, the closed connection counts as gone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness_protocol::rpc::{DaemonStatusReply, Empty, ErrorKind, METHOD_NOT_FOUND, method};
use harness_protocol::run::exit;

use crate::client::connect::connect;
use crate::client::timeouts::PATIENCE;
use crate::client::{Client, ClientError};
use crate::context::Ctx;
use crate::error::Failure;
use crate::launch::error::StartError;
use crate::launch::inside_run::inside;
use crate::launch::lock_holder::Holder;
use crate::launch::{self, Found};

/// Time between two looks at a daemon that is about to end.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// How the daemon ended.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// There was no daemon.
    DidNotRun,
    /// It stopped on request.
    Asked(Box<DaemonStatusReply>),
    /// It could not be asked; a signal ended it.
    BySignal {
        /// Pid of the daemon.
        pid: u32,
        /// The state directory that it held.
        state_dir: PathBuf,
    },
}

/// Stops the daemon, if `agreed` accepts its status, and waits until it has ended.
pub(crate) fn stop(
    ctx: &mut Ctx,
    agreed: &dyn Fn(&DaemonStatusReply) -> Result<(), Failure>,
) -> Result<Stopped, Failure> {
    let until = Instant::now() + PATIENCE;
    let status = match status(ctx, until) {
        Ok(None) => return Ok(Stopped::DidNotRun),
        Ok(Some(status)) => status,
        Err(failure) => return by_signal(ctx, failure, until),
    };
    agreed(&status)?;
    // The question may have taken the user a while, so the time limit begins again.
    let until = until.max(Instant::now() + PATIENCE);
    let client = ctx.session.client()?;
    let told = client.call::<method::DaemonStop>(&Empty {}).map_err(Failure::from);
    let closed = match told {
        // Another client stopped it at the same time.
        Err(failure) if failure.is_loss() => true,
        Err(failure) => return by_signal(ctx, failure, until),
        Ok(_) => client.closed(until.saturating_duration_since(Instant::now()))?,
    };
    ctx.session.hang_up();
    // A socket of systemd stays; that of any other daemon is removed, or belongs to another daemon.
    while !(closed && (status.socket_activated || is_gone(ctx, status.pid)?)) {
        if Instant::now() >= until || !closed {
            return Err(still_there(status.pid));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(Stopped::Asked(Box::new(status)))
}

/// The status of the daemon, or `None` where none runs. If it is leaving already, its end is waited for.
fn status(ctx: &mut Ctx, until: Instant) -> Result<Option<DaemonStatusReply>, Failure> {
    loop {
        let asked = match launch::find(ctx.session.place()) {
            Err(StartError::NotRunning { .. } | StartError::NoSocket { .. }) => return Ok(None),
            // It has not recorded its socket: it starts, or leaves.
            Err(StartError::Unreachable { settled: false, .. }) if Instant::now() < until => {
                std::thread::sleep(LOOK_AGAIN);
                continue;
            }
            Err(error) => return Err(error.into()),
            Ok(_) => ctx.session.client(),
        };
        match asked.and_then(|client| Ok(client.call::<method::DaemonStatus>(&Empty {})?)) {
            Err(failure) if failure.is_loss() && Instant::now() < until => {
                ctx.session.hang_up();
                std::thread::sleep(LOOK_AGAIN);
            }
            status => return status.map(Some),
        }
    }
}

/// Ends a daemon that cannot be asked, if its process is known for certain; otherwise `failure` says why not.
fn by_signal(ctx: &mut Ctx, failure: Failure, until: Instant) -> Result<Stopped, Failure> {
    let cannot_be_asked = match &failure {
        Failure::Start(StartError::Unreachable { .. })
        | Failure::Client(ClientError::Garbled(_) | ClientError::Silent { .. }) => true,
        // It does not know the request, or speaks another protocol. A caller without the right is only told so.
        Failure::Refused(error) => error.code == METHOD_NOT_FOUND || error.kind() == ErrorKind::Version,
        _ => false,
    };
    if !cannot_be_asked || inside().is_some() {
        return Err(failure);
    }
    let state_dir = ctx.session.place().state_dir.clone();
    let Ok(Some(holder)) = Holder::of(&state_dir) else { return Err(failure) };
    let pid = holder.pid;
    // Where a link leads to it, a run may have made that, and another daemon is meant.
    if holder.by_link {
        let socket = holder.socket.unwrap_or_else(|| ctx.session.place().socket.clone());
        return Err(StartError::Linked { pid, socket, state_dir }.into());
    }
    // A state directory that is not that of the daemon that we spoke to says nothing of it.
    if ctx.session.peer().is_some_and(|peer| peer != pid) {
        return Err(failure);
    }
    holder.end(&state_dir).map_err(|error| Failure::Other {
        code: exit::INTERNAL,
        message: format!("the daemon (pid {pid}) cannot be asked to stop, nor ended: {error}"),
        hint: None,
    })?;
    ctx.session.hang_up();
    // The stop begins now, and so does its time limit.
    let until = until.max(Instant::now() + PATIENCE);
    while holds(&state_dir, pid) {
        if Instant::now() >= until {
            return Err(still_there(pid));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(Stopped::BySignal { pid, state_dir })
}

fn holds(state_dir: &Path, pid: u32) -> bool {
    Holder::of(state_dir).is_ok_and(|holder| holder.is_some_and(|holder| holder.pid == pid))
}

fn is_gone(ctx: &mut Ctx, pid: u32) -> Result<bool, Failure> {
    let place = ctx.session.place();
    if holds(&place.state_dir, pid) && connect(&place.socket, PATIENCE).is_err() {
        return Ok(false);
    }
    match launch::find(place) {
        Err(error) if error.is_absent() => Ok(true),
        Err(error) => Err(error.into()),
        Ok(Found { stream, .. }) => {
            let other = Client::new(stream, None).ok().and_then(|client| client.pid());
            Ok(other.is_some_and(|other| other != pid))
        }
    }
}

/// Whether a thread of a process waits for a disk, and for nothing else: no signal ends that.
fn waits_for_a_disk(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats.any(|stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('D')))
}

fn still_there(pid: u32) -> Failure {
    if waits_for_a_disk(pid) {
        return Failure::Other {
            code: exit::TRY_LATER,
            message: format!(
                "the daemon (pid {pid}) was told to stop, and goes once its disk answers: it waits for that"
            ),
            hint: Some("what was acknowledged is in the journal; look at the disk of the state directory".to_owned()),
        };
    }
    Failure::Other {
        code: exit::INTERNAL,
        message: format!("the daemon (pid {pid}) was told to stop and has not gone after {} s", PATIENCE.as_secs()),
        hint: Some(format!(
            "it may be ending what executes; look again: harnessctl daemon status. One that hangs is ended by kill -9 \
             {pid}: what it has acknowledged is not lost, and unfinished runs go on after the next start"
        )),
    }
}
