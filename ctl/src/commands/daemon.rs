//! `daemon`: starts, stops, drains, reloads and shows the daemon, and backs up and restores its journal.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use harness_protocol::rpc::{BackupParams, DaemonStatusReply, DrainParams, Empty, ReloadReply, method};
use harness_protocol::run::exit;
use harness_protocol::time::Span;

use crate::cli::values;
use crate::client::timeouts::PATIENCE;
use crate::commands::stop_daemon::{self, Stopped};
use crate::context::Ctx;
use crate::error::Failure;
use crate::launch;
use crate::launch::error::StartError;
use crate::output::note;
use crate::render;
use crate::render::text::one_line;
use crate::render::units::now;
use crate::select::confirm;

const BACKUP: &str = "\
Example: harnessctl daemon backup /var/backups/harness.db

The copy is complete: it has every run that was acknowledged before.
To continue from it: harnessctl daemon restore FILE.
The outputs of calls are files beside the journal. With --outputs they are copied too, and restored with it.";
const RESTORE: &str = "\
Example: harnessctl daemon restore /var/backups/harness.db

The old journal is moved into the directory `replaced` of the state directory; nothing is deleted. Outputs beside the
backup (FILE.outputs) replace the present outputs. The next start begins a new epoch of events: their numbers continue
far behind the last number, and followers are told of the gap.";

/// Arguments of `daemon`.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    #[command(subcommand)]
    pub(crate) what: DaemonVerb,
}

/// Changes and views of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub(crate) enum DaemonVerb {
    /// Start the daemon, if it does not run
    #[command(after_help = "Example: harnessctl daemon start")]
    Start,
    /// Stop the daemon, and wait until it has ended. Running calls are interrupted; nothing is lost, and all runs
    /// continue with the next start
    #[command(after_help = "Example: harnessctl daemon drain --timeout 5m; harnessctl daemon stop")]
    Stop {
        /// Do not ask, even if runs are live
        #[arg(short, long)]
        yes: bool,
    },
    /// Show the health of the daemon, and its counts
    #[command(after_help = "Example: harnessctl daemon status --json")]
    Status,
    /// Start no new work, and wait until nothing executes
    #[command(after_help = "Example: harnessctl daemon drain --timeout 5m")]
    Drain {
        /// Wait at most this long (exit code 8 if something still executes)
        #[arg(long, value_name = "DURATION", value_parser = values::duration)]
        timeout: Option<Span>,
    },
    /// End a drain: start new work again
    #[command(after_help = "Example: harnessctl daemon undrain")]
    Undrain,
    /// Read the configuration again
    #[command(after_help = "Example: harnessctl daemon reload")]
    Reload,
    /// Copy the journal to a new file, while the daemon serves
    #[command(after_help = BACKUP)]
    Backup {
        /// The file to write; it must not exist. The daemon writes it, as its own user
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Also copy the outputs of calls, into FILE.outputs
        #[arg(long)]
        outputs: bool,
    },
    /// Stop the daemon, and replace its journal by a backup
    #[command(after_help = RESTORE)]
    Restore {
        /// The backup, made by `daemon backup`
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Do not ask, even if runs are live
        #[arg(short = 'y', long)]
        yes: bool,
    },
}

/// How long a reload may take: some seconds for each file that does not answer.
const RELOAD_LIMIT: Duration = Duration::from_secs(240);

pub(super) fn run(ctx: &mut Ctx, verb: &DaemonVerb) -> Result<u8, Failure> {
    if *verb != DaemonVerb::Start {
        // A daemon is never started only to be looked at or stopped.
        ctx.session.never_start();
    }
    if matches!(verb, DaemonVerb::Stop { .. } | DaemonVerb::Status) {
        ctx.session.across_versions();
    }
    match verb {
        DaemonVerb::Start => start_one(ctx),
        DaemonVerb::Stop { yes } => stop(ctx, *yes),
        DaemonVerb::Status => status(ctx),
        DaemonVerb::Drain { timeout } => drain(ctx, *timeout),
        DaemonVerb::Undrain => {
            ctx.session.call::<method::DaemonUndrain>(&Empty {})?;
            note(ctx.notes.dim("new work starts again"));
            ctx.done()
        }
        DaemonVerb::Reload => reload(ctx),
        DaemonVerb::Backup { file, outputs } => backup(ctx, file, *outputs),
        DaemonVerb::Restore { file, yes } => restore(ctx, file, *yes),
    }
}

fn start_one(ctx: &mut Ctx) -> Result<u8, Failure> {
    ctx.session.asked_to_start();
    let status = ctx.session.call::<method::DaemonStatus>(&Empty {})?;
    if ctx.json {
        ctx.json(&status)?;
    } else {
        let how = if ctx.session.started() { "started" } else { "already running" };
        note(ctx.notes.dim(format_args!("{how}: pid {}, socket {}", status.pid, status.socket)));
    }
    ctx.done()
}

fn status(ctx: &mut Ctx) -> Result<u8, Failure> {
    let status = ctx.session.call::<method::DaemonStatus>(&Empty {})?;
    if ctx.json {
        ctx.json(&status)?;
    } else {
        let look = ctx.look();
        render::status::write(&mut ctx.out, look, &status, now())?;
    }
    ctx.done()
}

fn stop(ctx: &mut Ctx, yes: bool) -> Result<u8, Failure> {
    let agreed = |status: &DaemonStatusReply| {
        let live = live(status);
        confirm::more_than_one(
            live,
            yes,
            &format!("{live} runs are live, and go on with the next start; stop the daemon?"),
        )
    };
    match stop_daemon::stop(ctx, &agreed)? {
        Stopped::DidNotRun => note(ctx.notes.dim("the daemon does not run")),
        Stopped::Asked(status) => {
            let (pid, state_dir) = (status.pid, &status.state_dir);
            note(
                ctx.notes
                    .dim(format_args!("stopped: pid {pid}, with its state in {state_dir}{}", what_goes_on(&status))),
            );
        }
        Stopped::BySignal { pid, state_dir } => {
            let state_dir = state_dir.display();
            note(ctx.notes.dim(format_args!(
                "stopped: pid {pid}, with its state in {state_dir}, by a signal: it could not be asked"
            )));
        }
    }
    ctx.done()
}

/// Number of runs that have not ended.
fn live(status: &DaemonStatusReply) -> usize {
    let live: u32 = status.runs.iter().filter(|(state, _)| !state.is_terminal()).map(|(_, runs)| *runs).sum();
    usize::try_from(live).unwrap_or(usize::MAX)
}

/// What happens to the work in progress after a stop.
fn what_goes_on(status: &DaemonStatusReply) -> String {
    match (live(status), status.executing) {
        (0, _) => String::new(),
        (1, 0) => "; 1 run goes on with the next start".to_owned(),
        (live, 0) => format!("; {live} runs go on with the next start"),
        (live, _) => format!(
            "; what executed was interrupted, and {} on with the next start",
            match live {
                1 => "1 run goes".to_owned(),
                live => format!("{live} runs go"),
            }
        ),
    }
}

fn drain(ctx: &mut Ctx, timeout: Option<Span>) -> Result<u8, Failure> {
    let params = DrainParams { timeout_seconds: timeout };
    let limit = timeout.map(|span| span.to_std() + PATIENCE);
    let reply = ctx.session.call_within::<method::DaemonDrain>(&params, limit)?;
    if ctx.json {
        ctx.json(&reply)?;
    }
    ctx.done()?;
    if reply.executing == 0 {
        note(ctx.notes.dim("nothing executes, and nothing new starts; undo it: harnessctl daemon undrain"));
        return ctx.done();
    }
    Err(Failure::Other {
        code: exit::STILL_RUNNING,
        message: format!("{} still executing; nothing new starts", reply.executing),
        hint: Some("drain again to wait on, or undo it: harnessctl daemon undrain".to_owned()),
    })
}

fn backup(ctx: &mut Ctx, file: &Path, outputs: bool) -> Result<u8, Failure> {
    // The daemon has another working directory than we have.
    let to =
        std::path::absolute(file).map_err(|source| Failure::Write { path: file.to_owned(), source, hint: None })?;
    let Some(to) = to.to_str() else {
        return Err(Failure::usage(format!("{} is no UTF-8, and cannot be told to the daemon", to.display())));
    };
    // A copy has no time limit: it depends on the disk.
    let done = ctx.session.call_within::<method::DaemonBackup>(&BackupParams { to: to.to_owned(), outputs }, None)?;
    if ctx.json {
        ctx.json(&serde_json::json!({ "file": to, "bytes": done.bytes, "output_bytes": done.output_bytes }))?;
    } else {
        use std::io::Write;
        writeln!(ctx.out, "{to}: {} bytes", done.bytes)?;
        if let Some(bytes) = done.output_bytes {
            writeln!(ctx.out, "{to}.outputs: {bytes} bytes")?;
        }
    }
    ctx.done()?;
    if !outputs {
        note(ctx.notes.dim("what calls wrote is beside the journal, and not in it: --outputs copies that as well"));
    }
    ctx.done()
}

/// Only the daemon's program knows its files, and no daemon may serve them meanwhile.
fn restore(ctx: &mut Ctx, file: &Path, yes: bool) -> Result<u8, Failure> {
    let file = std::path::absolute(file).map_err(|source| Failure::Read { path: file.to_owned(), source })?;
    let place = ctx.session.place().clone();
    let Some(program) = launch::daemon_program() else {
        return Err(StartError::NoProgram { socket: place.socket }.into());
    };
    // The daemon is not stopped for a file that cannot be put in place.
    let puts_back = |words: &[&OsStr]| {
        let done = std::process::Command::new(&program).args(words).arg(&file).status();
        let done = done.map_err(|source| Failure::Read { path: program.clone(), source })?;
        if done.success() {
            return Ok(());
        }
        Err(Failure::Other {
            code: done.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::INTERNAL),
            message: format!("{} was not put in place", file.display()),
            hint: None,
        })
    };
    let state_dir = place.state_dir.as_os_str();
    puts_back(&["--state-dir".as_ref(), state_dir, "restore".as_ref(), "--check".as_ref()])?;
    // The operator asked for a restore, and it needs the daemon stopped. The journal that is moved aside is the one
    // that a daemon started from here would have, never one that a process at the socket names.
    let agreed = |status: &DaemonStatusReply| {
        is_of(&place.state_dir, status)?;
        let live = live(status);
        let (runs, are) = if live == 1 { ("run", "is") } else { ("runs", "are") };
        let question = format!("{live} live {runs} {are} moved aside with the journal, and go on no more; restore?");
        confirm::any(live, yes, &question)
    };
    drop(stop_daemon::stop(ctx, &agreed)?);
    puts_back(&["--state-dir".as_ref(), state_dir, "restore".as_ref()])?;
    note(ctx.notes.dim("go on from it: harnessctl daemon start"));
    ctx.done()
}

/// Refuses where the daemon that answers has another state directory than `own`.
fn is_of(own: &Path, status: &DaemonStatusReply) -> Result<(), Failure> {
    let told = Path::new(&status.state_dir);
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    if told == own || identity(own).is_some_and(|own| identity(told) == Some(own)) {
        return Ok(());
    }
    let message = format!(
        "the daemon at {} says that its state directory is {}, and that of a start from here is {}; nothing was done",
        one_line(&status.socket),
        one_line(&status.state_dir),
        own.display()
    );
    Err(Failure::usage_hint(
        message,
        "where that one is meant, name it: HARNESS_STATE_DIR=DIR harnessctl daemon restore FILE",
    ))
}

fn reload(ctx: &mut Ctx) -> Result<u8, Failure> {
    use std::io::Write;
    let reply = ctx.session.call_within::<method::DaemonReload>(&Empty {}, Some(RELOAD_LIMIT))?;
    if ctx.json {
        ctx.json(&reply)?;
        return ctx.done();
    }
    for line in reply.changes.iter().chain(&reply.warnings) {
        writeln!(ctx.out, "{}", one_line(line))?;
    }
    ctx.done()?;
    note(ctx.notes.dim(one_line(&what_was_read(&reply))));
    ctx.done()
}

/// The files that a reload has read, in words.
fn what_was_read(reply: &ReloadReply) -> String {
    // An older daemon tells of one file.
    let files = if reply.files.is_empty() { reply.config.as_slice() } else { &reply.files };
    let nothing = if reply.changes.is_empty() { "; nothing changed" } else { "" };
    match (files, reply.places.as_slice()) {
        ([], []) => format!("read no file{nothing}"),
        ([], places) => format!("there is no file {}: the defaults are in force{nothing}", places.join(" or ")),
        (files, _) => format!("read {}{nothing}", files.join(", ")),
    }
}
