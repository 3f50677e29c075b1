//! Starts the process `harnessd`: sets itself up step by step, serves, and maps errors to exit codes.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use harness_files::remove_left;
use harness_protocol::run::exit;
use harness_protocol::terminal_safe::{self, chain};
use harnessd::blocking;
use harnessd::cli::{self, Cli, NotUtf8, Paths, Verb};
use harnessd::config::{ConfigSource, LoadError, Loaded};
use harnessd::control::socket::listener::Listener;
use harnessd::control::socket::lock::{LockError, StateDir};
use harnessd::control::socket::peer::{GroupError, Members};
use harnessd::control::{Activated, BindError, Bound, adopt, lock_path};
use harnessd::driver::Clock;
use harnessd::inference::http::Variables;
use harnessd::journal::backup::{PutBackError, check, put_back};
use harnessd::journal::made_inside_run::{Made, made};
use harnessd::journal::salvage::{SalvageError, salvage};
use harnessd::observe::log::{self, Target};
use harnessd::observe::notify::Notifier;
use harnessd::process::supervisor::launch;
use harnessd::process::{
    Freed, InsideError, KeepersLock, Standing, StateOf, TakeOverError, deputy, end_false_holders,
    end_false_holders_of_socket, may_mend, supervisor,
};
use harnessd::startup::daemonize::{self, Inherited, Starting};
use harnessd::startup::scrub_env::shed;
use harnessd::startup::signals::Signals;
use harnessd::startup::{ServeError, Setup, serve};

/// How often opening a state directory is retried when its locks were held by a process without a right to them.
const TRIES_FOR_STATE: u32 = 20;
/// Pids of ended processes that the log names at most.
const MOST_NAMED: usize = 20;
/// Bytes of the stack of the daemon's main thread.
const STACK: usize = 8 << 20;
/// How long threads that block are waited for at the end.
const LAST_WAIT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    // Before anything is opened: a keeper is a small thing.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == "keeper" => {
            return supervisor::main(arguments.filter_map(|argument| argument.into_string().ok()));
        }
        Some(first) if first == "launch" => return launch::main(arguments),
        Some(first) if first == deputy::DEPUTY => return deputy::main(),
        _ => {}
    }
    match std::thread::Builder::new().stack_size(STACK).spawn(on_own_stack).map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(_panicked)) => ExitCode::from(exit::INTERNAL),
        Err(error) => {
            complain(&format_args!("cannot start a thread: {error}"));
            ExitCode::from(exit::INTERNAL)
        }
    }
}

/// All but the keepers: on a stack that is large enough, whatever the limit of the shell (`ulimit -s`) leaves the first
/// thread.
fn on_own_stack() -> ExitCode {
    // Once, and before anything is waited for: others may change later what it tells.
    let standing = Standing::read();
    // What reads the words would not say which of them it cannot read.
    if let Err(error) = cli::readable(&|name| std::env::var_os(name)) {
        complain(&error);
        return ExitCode::from(exit::USAGE);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // What was typed may have characters that drive a terminal.
        Err(error) if error.use_stderr() => {
            _ = write!(io::stderr(), "{}", terminal_safe::clean(&error.to_string()));
            return ExitCode::from(exit::USAGE);
        }
        Err(help) => help.exit(),
    };
    if let Some(verb) = &cli.verb {
        return match mend(&cli, verb, &standing) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&chain(&*error));
                ExitCode::from(exit_code(&error))
            }
        };
    }
    let starting = Starting { on_demand: cli.on_demand };
    let variables = match shed(|| keys_of(&cli, starting)) {
        Ok(variables) => Variables(variables),
        Err(error) => {
            complain(&match error.kind() {
                io::ErrorKind::ArgumentListTooLong => {
                    "the arguments of harnessd are too long to start it anew".to_owned()
                }
                _ => format!("cannot start anew without the secrets of the environment: {error}"),
            });
            return ExitCode::from(exit::INTERNAL);
        }
    };
    // The order matters: descriptors are adopted, then the others closed, then ours opened.
    let adopted = adopt();
    let keep: Vec<_> = adopted.iter().flatten().map(AsRawFd::as_raw_fd).collect();
    let inherited = match daemonize::settle(&keep) {
        Ok(inherited) => inherited,
        Err(too_low) => {
            complain(&too_low);
            return ExitCode::from(exit::USAGE);
        }
    };
    match adopted.map_err(Into::into).and_then(|activated| run(&cli, activated, inherited, variables, standing)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&chain(&*error));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The variables that hold keys, as far as the configuration can be read. What is wrong with it is told later.
fn keys_of(cli: &Cli, starting: Starting) -> BTreeSet<String> {
    let paths = cli.paths().ok();
    let config = paths.and_then(|paths| load(&paths.config, starting).ok());
    config.map(|loaded| loaded.config.variables_with_keys()).unwrap_or_default()
}

fn load(source: &ConfigSource, starting: Starting) -> Result<Loaded, LoadError> {
    if let Some(there) = source.there() {
        starting.doing(format_args!("reading the configuration {}", there.display()));
    }
    source.load()
}

fn run(
    cli: &Cli,
    activated: Option<Activated>,
    inherited: Inherited,
    variables: Variables,
    standing: Standing,
) -> anyhow::Result<()> {
    let paths = cli.paths().context("cannot tell where the files are")?;
    if cli.on_demand {
        daemonize::leave_session().context("cannot enter /")?;
    }
    let starting = Starting { on_demand: cli.on_demand };
    let read_at = Clock::start().now().wall;
    let Loaded { config, files, .. } = load(&paths.config, starting)?;
    let members = config.control.group.as_deref().map(Members::of_group).transpose()?;
    starting.doing(format_args!("locking the state directory {}", paths.state_dir.display()));
    let (state_dir, ended) = open_state(&paths, &standing)?;
    let log = log::init(&cli.log, cli.on_demand.then(|| state_dir.path())).context("cannot set up the log")?;
    if !ended.is_empty() {
        tracing::warn!(
            count = ended.len(), pids = ?ended.iter().take(MOST_NAMED).collect::<Vec<_>>(),
            "processes that an earlier daemon's runs had left held the locks of the state directory, and were ended"
        );
    }
    if let Err(error) = remove_left(state_dir.path()) {
        tracing::warn!(%error, "cannot look for copies that were begun and not ended");
    }
    let served = catch_unwind(AssertUnwindSafe(|| {
        // Before the recovery, and before any client can connect.
        starting.doing("waiting until nothing is left of the calls of an earlier daemon");
        let keepers_lock = KeepersLock::take_over(state_dir.path(), state_of(state_dir.path()), standing)?;
        keepers_lock.mark_this_process()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let background = blocking::background()?;
        let result = runtime.block_on(async {
            daemonize::take_over_ignored_signals();
            // Before any client can connect: from here on a signal is a request to stop, and does not end the process
            // by itself.
            let signals = Signals::listen()?;
            let setup = Setup {
                listener: Listener::open(
                    bind(activated, &paths, members, keepers_lock.standing())?,
                    config.limits.connections,
                )?,
                signals,
                background: background.handle().clone(),
                notifier: Notifier::from_env(),
                config_source: paths.config,
                config_files: files,
                config_read_at: read_at,
                starting,
                config,
                state_dir,
                keepers_lock,
                inherited,
                variables,
            };
            serve(setup).await?;
            Ok(())
        });
        runtime.shutdown_timeout(LAST_WAIT);
        background.shutdown_timeout(LAST_WAIT);
        result
    }));
    let result =
        served.unwrap_or_else(|_| Err(anyhow::anyhow!("an internal error (bug) ended the daemon; see its log")));
    if let (Err(error), false) = (&result, log.target == Target::Stderr) {
        tracing::error!("{}", chain(&**error));
    }
    result
}

/// Locks the state directory. Ends processes that were left by a run of an earlier daemon and hold its locks, because
/// no daemon could start otherwise. Returns the pids of these as well.
fn open_state(paths: &Paths, standing: &Standing) -> anyhow::Result<(StateDir, BTreeSet<i32>)> {
    let dir = &paths.state_dir;
    let mut all = BTreeSet::new();
    for _ in 0..TRIES_FOR_STATE {
        match StateDir::open(dir) {
            Err(error) if error.is_held() => {
                let freed = end_false_holders(dir, &StateDir::lock_file(dir), standing);
                if !freed.may_succeed() {
                    return Err(held_by(error.into(), &freed));
                }
                all.extend(freed.ended);
            }
            opened => return Ok((opened?, all)),
        }
    }
    Ok((StateDir::open(dir)?, all))
}

/// The error that a lock is held, with the processes that may hold it if no daemon does. They are for a person to
/// judge: one of them may be a shell.
fn held_by(error: anyhow::Error, freed: &Freed) -> anyhow::Error {
    if let Some(stuck) = &freed.stuck {
        return error.context(format!("processes that hold a lock, or may hold it, do not end: {stuck}"));
    }
    if !freed.out_of_reach.is_empty() {
        let pids: Vec<String> = freed.out_of_reach.iter().take(MOST_NAMED).map(|left| left.pid.to_string()).collect();
        let users: BTreeSet<u32> = freed.out_of_reach.iter().take(MOST_NAMED).map(|left| left.user).collect();
        return error.context(format!(
            "a run has left processes of other users ({users:?}) that hold a lock, or may hold it, and that your user \
             may not end. As root: kill -9 {}",
            pids.join(" ")
        ));
    }
    if freed.may_hold.is_empty() {
        return error;
    }
    let pids = freed.may_hold.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    error.context(format!(
        "a lock is held, and no daemon that holds it is to be seen. Processes of yours have the limit of file locks \
         that runs get (RLIMIT_LOCKS), and may hold it: a run has left them, or has lowered the limit of your own. \
         Look at them (ps -o pid,ppid,tty,lstart,args -p {}), and end those that are not yours: kill -9 {pids}",
        pids.replace(' ', ",")
    ))
}

/// Whose a state directory is, by what its journal says.
fn state_of(dir: &Path) -> StateOf {
    match made(dir) {
        Made::Nowhere => StateOf::Nobody,
        Made::Inside => StateOf::Inside,
        Made::Outside => StateOf::Outside,
    }
}

/// Does something about a journal that no daemon serves.
fn mend(cli: &Cli, verb: &Verb, standing: &Standing) -> anyhow::Result<()> {
    let mut out = io::stdout();
    let paths = || cli.paths().context("cannot tell where the files are");
    match verb {
        Verb::Restore { file, check: true } => check(&paths()?.state_dir, file)?,
        Verb::Restore { file, check: false } => {
            let paths = paths()?;
            may_mend(&paths.state_dir, state_of(&paths.state_dir), standing)?;
            let (state_dir, _) = open_state(&paths, standing)?;
            let done = put_back(state_dir.path(), file)?;
            let dir = state_dir.path().display();
            let told = format!("{} is in place in {dir}; a start goes on from it, in a new epoch", file.display());
            tell(&mut out, &told)?;
            if let Some(before) = done.before {
                tell(&mut out, &format_args!("what was there is in {}", before.display()))?;
            }
        }
        Verb::Salvage { from, to } => {
            // The new journal may be meant for the place of the old one.
            for file in [from, to] {
                let at = std::path::absolute(file).unwrap_or_else(|_| file.clone());
                let dir = at.parent().unwrap_or(file);
                may_mend(dir, state_of(dir), standing)?;
            }
            let saved = salvage(from, to)?;
            let told = format!("{} events of {} runs were saved into {}", saved.events, saved.runs, to.display());
            tell(&mut out, &format_args!("{told}; {} places could not be read", saved.holes))?;
        }
    }
    Ok(())
}

/// Takes the socket. What a run that is over has left to hold the lock beside it is ended.
fn bind(
    activated: Option<Activated>,
    paths: &Paths,
    members: Option<Members>,
    standing: &Standing,
) -> anyhow::Result<Bound> {
    if let Some(passed) = activated {
        return Ok(Bound::activated(passed, &paths.socket, members)?);
    }
    let lock = lock_path(&paths.socket);
    for _ in 0..TRIES_FOR_STATE {
        match Bound::bind(&paths.socket, members.clone()) {
            Err(BindError::Lock(error)) if error.is_held() => {
                let freed = end_false_holders_of_socket(&lock, standing);
                if !freed.may_succeed() {
                    return Err(held_by(BindError::Lock(error).into(), &freed));
                }
                let ended = freed.ended;
                tracing::warn!(
                    count = ended.len(), pids = ?ended.iter().take(MOST_NAMED).collect::<Vec<_>>(),
                    "processes of runs held the lock of the socket, and were ended"
                );
            }
            bound => return Ok(bound?),
        }
    }
    Ok(Bound::bind(&paths.socket, members)?)
}

/// The exit code for what ended us: wrong use, another daemon, or a fault.
fn exit_code(error: &anyhow::Error) -> u8 {
    let is_usage = error.is::<LoadError>()
        || error.is::<GroupError>()
        || error.is::<NotUtf8>()
        || error.is::<InsideError>()
        || error.downcast_ref::<SalvageError>().is_some_and(SalvageError::is_usage)
        || error.downcast_ref::<PutBackError>().is_some_and(PutBackError::is_usage)
        || error.downcast_ref::<LockError>().is_some_and(LockError::is_usage)
        || error.downcast_ref::<TakeOverError>().is_some_and(|error| matches!(error, TakeOverError::Inside { .. }))
        || error.downcast_ref::<BindError>().is_some_and(BindError::is_usage);
    let is_held = error.downcast_ref::<LockError>().is_some_and(LockError::is_held)
        || error.downcast_ref::<BindError>().is_some_and(BindError::is_held)
        || error.downcast_ref::<PutBackError>().is_some_and(|error| matches!(error, PutBackError::NoRoom { .. }));
    match (is_usage, is_held) {
        (true, _) => exit::USAGE,
        (_, true) => exit::TRY_LATER,
        _ => error.downcast_ref::<ServeError>().map_or(exit::INTERNAL, ServeError::exit_code),
    }
}

/// Writes an error for the person or program that started the daemon. A failed write is ignored: standard error may be
/// closed.
fn complain(message: &dyn Display) {
    _ = tell(&mut io::stderr(), &format_args!("harnessd: {message}"));
}

/// Writes a line for people. All that this process says of itself goes this way: it names files, and a run may call a
/// file as it likes.
fn tell(out: &mut dyn Write, line: &dyn Display) -> io::Result<()> {
    writeln!(out, "{}", terminal_safe::clean(&line.to_string()))
}
