//! Connects the parts of the daemon with each other, and serves until it is told to stop. The parts themselves do the
//! work.

pub mod daemonize;
pub mod rebuild;
mod reload;
pub mod scrub_env;
pub mod signals;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use harness_protocol::id::{RunId, Seq};
use harness_protocol::inside_run::KEEPER;
use harness_protocol::rpc::{DiskUsage, JournalReport, ProcessView};
use harness_protocol::run::exit;
use harness_protocol::script::Script;
use harness_protocol::time::{Span, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::blocking::Blocking;
use crate::close_threads;
use crate::config::{Config, ConfigSource};
use crate::control::connection;
use crate::control::limits::memory::Memory;
use crate::control::request::{ConnectionId, Request};
use crate::control::rights::Origin;
use crate::control::services::Services;
use crate::control::socket::arrivals::{Arrival, Arrivals};
use crate::control::socket::listener::Listener;
use crate::control::socket::lock::StateDir;
use crate::control::socket::tracing::{Reach, Tracing};
use crate::driver::{self, Clock, Driver, Order, Orders, Parts, Reload, ReloadCounts, Service};
use crate::feed::Feed;
use crate::folders::{self, Folders};
use crate::inbox::Inbox;
use crate::inference::http::{BuildError, Environment, Providers, Variables};
use crate::inference::scripted::validate::ScriptError;
use crate::jobs::{Executor, ExecutorConfig, PlanExecutor, Scripts};
use crate::journal::disk;
use crate::journal::history::History;
use crate::journal::{Ballast, CommitError, Store};
use crate::observe::notify::Notifier;
use crate::process::{
    KeeperProgram, Keepers, KeepersLock, Lineage, OutOfReach, Outputs, Process, Sealed, Untraced, supervisor,
};
use crate::refusal::SpecRefusal;
use crate::startup::daemonize::{Inherited, Starting};
use crate::startup::rebuild::{RestoreError, Restored};
use crate::startup::signals::{Asked, Signals};
use crate::tools;

/// How long connections may take to end when the daemon stops.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Reads of the journal, and of `/proc`, at once.
const READS: usize = 4;
/// Large requests that are parsed at once.
const PARSED: usize = 1;
/// Pages of the journal in memory for subscriptions of operators, and as many for those of others.
const PAGES: usize = 4;
/// Most processes of a run in a view.
const PROCESSES_SHOWN: usize = 100;
/// Time between two looks at the socket file. No notification tells of its removal: the directories above it may go,
/// too.
const LOOK_AFTER_SOCKET: Duration = Duration::from_secs(1);
/// Greatest age of a count of the outputs' bytes.
const COUNTED_EVERY: Span = Span::from_secs(30);

/// Everything of the system that a daemon needs, set up, before it works.
#[derive(Debug)]
pub struct Setup {
    /// The configuration, checked.
    pub config: Config,
    /// The source of the configuration, for a reload.
    pub config_source: ConfigSource,
    /// The files that it was read from.
    pub config_files: Vec<PathBuf>,
    /// When they were read.
    pub config_read_at: Timestamp,
    /// The listening socket. Connections wait until they are accepted.
    pub listener: Listener,
    // After the listener: a daemon that gets this lock next finds the socket gone.
    /// The state directory, locked.
    pub state_dir: StateDir,
    /// The lock that its keepers hold: nothing of an earlier daemon is left.
    pub keepers_lock: KeepersLock,
    /// SIGTERM, SIGINT, SIGHUP.
    pub signals: Signals,
    /// The runtime for long work: its threads have a lower priority.
    pub background: Handle,
    /// The connection to systemd.
    pub notifier: Notifier,
    /// Settings that tools get back.
    pub inherited: Inherited,
    /// Variables that were removed from the environment, because tools must not see them.
    pub variables: Variables,
    /// Reports the steps of the start to the process that started us on demand.
    pub starting: Starting,
}

/// Why the daemon could not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The journal, or the world in it, cannot be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The daemon cannot adopt the leftovers of killed keepers.
    #[error("cannot become the parent of what is left behind: {0}")]
    Keepers(io::Error),
    /// A step could never be committed.
    #[error("{0}; what was acknowledged is there with the next start")]
    Commit(CommitError),
    /// A configured provider cannot be used.
    #[error(transparent)]
    Provider(#[from] BuildError),
    /// There is no thread for the driver, or for closing connections.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The driver's thread has ended without a result.
    #[error("an internal error (bug) ended the driver; see the log")]
    Driver,
}

impl ServeError {
    /// The exit code of the daemon.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Provider(_) => exit::USAGE,
            Self::Restore(_) | Self::Keepers(_) | Self::Commit(_) | Self::Thread(_) | Self::Driver => exit::INTERNAL,
        }
    }
}

/// Serves until it is told to stop.
///
/// # Errors
/// If it cannot start, or an internal error ends it.
pub async fn serve(mut setup: Setup) -> Result<(), ServeError> {
    close_threads::start().map_err(ServeError::Thread)?;
    let state_dir = setup.state_dir.path().to_path_buf();
    let config = setup.config.clone();
    let clock = Clock::start();
    let around = Environment {
        variables: std::mem::take(&mut setup.variables),
        credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
        now: Arc::new(move || clock.now().wall),
    };
    setup.starting.doing("reading the keys of the providers");
    let providers = Arc::new(Providers::new(&config, around)?);
    for (name, why) in providers.without_keys() {
        warn!("{}", reload::no_key(&name, &why));
    }
    setup.starting.doing(format_args!("reading the journal in {}", state_dir.display()));
    let Restored { engine, store, history, damage, report, epochs, is_the_one } =
        rebuild::restore(&state_dir, &config, setup.keepers_lock.standing().is_inside())?;
    let report = Arc::new(Mutex::new(report));
    let listener = Arc::new(setup.listener);
    let (inbox, feed) = (Inbox::<Request>::new(config.limits.inbox as usize), feed(&config, engine.last_seq()));
    let outputs = Outputs::new(&state_dir);
    sweep_outputs(outputs.clone(), history.clone(), is_the_one, Arc::clone(&report));
    let ballast = Ballast::new(&state_dir);
    if let Err(error) = ballast.take() {
        warn!(%error, "there is no room to keep back for a full disk");
    }
    let standing = setup.keepers_lock.standing().clone();
    let out_of_reach = setup.keepers_lock.out_of_reach();
    let keepers = Keepers::new(keeper_program(&setup.inherited, setup.keepers_lock), standing)
        .grouped()
        .adopting()
        .map_err(ServeError::Keepers)?;
    let keepers = Arc::new(keepers);
    tokio::spawn(Arc::clone(&keepers).mind());
    let most_waiting = config.limits.inbox as usize;

    let scripts = Arc::new(Scripts::new(setup.background.clone()));
    let blocking = Blocking::on(setup.background.clone(), READS);
    let folders = Folders::new(folders::boot());
    let reading = (feed.clone(), history.clone(), (setup.background.clone(), blocking.clone()), folders.clone());
    let services = services(&config, inbox.clone(), reading, (&keepers, &outputs), (&providers, &scripts));
    let services = Arc::new(services);
    let around = (std::env::vars_os(), listener.path());
    let keepers_of_calls = Arc::clone(&keepers);
    let calls =
        PlanExecutor::new(tools::catalogue(), &config.shell, around, outputs.clone(), keepers_of_calls, folders);
    let executor_config = ExecutorConfig {
        calls: Arc::new(calls),
        providers: Arc::clone(&providers),
        scripts,
        keepers: Arc::clone(&keepers),
    };
    let reports = inbox.clone();
    let executor = Executor::new(executor_config, Arc::new(move |report| reports.report(report)), feed.deltas());
    let counted = Arc::clone(&listener);
    let shown = Arc::clone(&keepers);
    let service = Service {
        started_at: clock.now().wall,
        socket: listener.path().display().to_string(),
        state_dir: state_dir.display().to_string(),
        socket_activated: listener.is_activated(),
        connections: Box::new(move || counted.connections()),
        processes: Arc::new(move |run| processes(&shown, run)),
        uid: nix::unistd::geteuid().as_raw(),
        held: None,
        stuck: false,
        silent: false,
        disk: usage(&state_dir, outputs.clone()),
        left_processes: Arc::new(move || OutOfReach::told(&out_of_reach)),
        journal: report,
        epochs,
        config: driver::report_configuration(&setup.config_files, &setup.config_source.places, setup.config_read_at),
    };
    let prepare = reload::preparing(setup.config_source, Arc::clone(&listener), providers);
    let orders = Orders::default();
    let parts = Parts {
        engine,
        journal: store,
        history,
        ballast: Some(ballast),
        damage,
        executor,
        feed,
        inbox: inbox.clone(),
        clock,
        service,
        blocking: blocking.clone(),
        most_waiting,
        erase: Box::new(move |runs| remove_outputs(outputs.clone(), runs)),
    };
    let reload = Reload { started_with: config, prepare };
    let mut driver = drive(Driver::new(parts, reload, orders.clone())).map_err(ServeError::Thread)?;

    info!(socket = %listener.path().display(), state_dir = %state_dir.display(), "serving");
    setup.notifier.ready("serving");
    if setup.starting.on_demand
        && let Err(error) = daemonize::leave_streams()
    {
        error!(%error, "the standard streams stay as they are");
    }
    tell_socket(&mut setup.state_dir, Some(listener.path()));
    let mut look_after = tokio::time::interval(LOOK_AFTER_SOCKET);
    look_after.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stop = CancellationToken::new();
    let mut connections = JoinSet::new();
    let watched = setup.notifier.watchdog();
    let mut watchdog = tokio::time::interval(watched.unwrap_or(Duration::from_secs(3600)));
    let (mut reloads, mut told, mut beats) = (orders.reloads(), 0, 0);
    let mut number = 0;
    let driven = loop {
        tokio::select! {
            driven = &mut driver => break driven,
            arrival = listener.accept(&services.arrivals) => {
                number += 1;
                let served = receive(arrival, ConnectionId(number), listener.clone(), services.clone(), stop.clone());
                connections.spawn(served);
            }
            _ = connections.join_next(), if !connections.is_empty() => {}
            _ = look_after.tick() => listener.look_after(),
            _ = watchdog.tick(), if watched.is_some() => {
                // The daemon is alive if the driver moves: an idle driver is woken for that.
                let moved = orders.beats();
                if moved != beats {
                    beats = moved;
                    setup.notifier.alive();
                }
                inbox.wake();
            }
            _ = reloads.changed() => {
                let counts = reloads.borrow_and_update().clone();
                tell_of_reloads(&setup.notifier, &counts, &mut told);
            }
            asked = setup.signals.next() => match asked {
                Asked::Reload => {
                    listener.look_after();
                    orders.give(Order::Reload);
                }
                Asked::Stop => {
                    info!("stopping");
                    setup.notifier.stopping("stopping");
                    orders.give(Order::Stop);
                }
            },
        }
    };
    setup.notifier.stopping("stopping");
    // A client that finds no socket from now on knows that this daemon leaves. A disk that does not answer is not
    // waited for. The lock stays until the end.
    let mut state_dir = setup.state_dir;
    let told = tokio::task::spawn_blocking(move || {
        tell_socket(&mut state_dir, None);
        state_dir
    });
    let _state_dir = tokio::time::timeout(LAST_WAIT, told).await;
    stop.cancel();
    let _ = tokio::time::timeout(LAST_WAIT, async { while connections.join_next().await.is_some() {} }).await;
    info!("stopped");
    driven.map_err(|_| ServeError::Driver)?.map_err(ServeError::Commit)
}

/// Tells systemd that a reload has begun, and once none is under way that the daemon is ready: the configuration is in
/// force in every part, or is what it was. `told` is the number of reloads that it was told of.
fn tell_of_reloads(notifier: &Notifier, counts: &ReloadCounts, told: &mut u64) {
    if counts.begun > *told {
        *told = counts.begun;
        notifier.reloading();
    }
    if counts.are_over() {
        let failed = counts.failed.as_ref().map(|why| format!("serving; the last reload failed: {why}"));
        notifier.ready(failed.as_deref().unwrap_or("serving"));
    }
}

/// Serves a peer, if it may connect.
async fn receive(
    arrival: Arrival,
    id: ConnectionId,
    listener: Arc<Listener>,
    services: Arc<Services>,
    stop: CancellationToken,
) {
    let admitted = stop.run_until_cancelled(listener.admit(arrival, &services.arrivals)).await.flatten();
    drop(listener);
    if let Some(accepted) = admitted {
        connection::serve(accepted, id, services, stop).await;
    }
}

fn tell_socket(state_dir: &mut StateDir, socket: Option<&Path>) {
    if let Err(error) = state_dir.tell_socket(socket) {
        warn!(%error, "the lock file of the state directory does not tell the socket");
    }
}

/// Runs the driver on a thread of its own, so that neither it nor the other threads block each other.
fn drive(driver: Driver<Store>) -> io::Result<oneshot::Receiver<Result<(), CommitError>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let (tell, driven) = oneshot::channel();
    let drive = move || {
        // The receiver may be gone. The log reports a panic, and so does the dropped sender.
        drop(tell.send(runtime.block_on(driver.run())));
    };
    thread::Builder::new().name("driver".to_owned()).spawn(drive)?;
    Ok(driven)
}

fn feed(config: &Config, last: Seq) -> Feed {
    let bytes = usize::try_from(config.limits.event_bytes).unwrap_or(usize::MAX);
    Feed::new(config.limits.events as usize, bytes, last)
}

/// Handles outputs of runs that the journal does not know, in the background.
fn sweep_outputs(outputs: Outputs, history: History, is_the_one: bool, report: Arc<Mutex<JournalReport>>) {
    tokio::task::spawn_blocking(move || match rebuild::sweep(&outputs, &history, is_the_one) {
        Ok(found) => report.lock().unwrap_or_else(PoisonError::into_inner).findings.extend(found),
        Err(error) => error!(%error, "outputs stay as they are"),
    });
}

/// Gives the bytes that the state takes on disk. The outputs are counted from time to time.
fn usage(state_dir: &Path, outputs: Outputs) -> Arc<dyn Fn() -> DiskUsage + Send + Sync> {
    let state_dir = state_dir.to_owned();
    let clock = Clock::start();
    let counted = Mutex::new(None::<(Span, u64)>);
    Arc::new(move || {
        let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = match *counted {
            Some((at, bytes)) if clock.now().mono.saturating_sub(at) < COUNTED_EVERY => bytes,
            _ => {
                let bytes = outputs.bytes();
                *counted = Some((clock.now().mono, bytes));
                bytes
            }
        };
        DiskUsage { output_bytes: Some(bytes), ..disk::usage(&state_dir) }
    })
}

/// Removes the files of these runs from the disk, without making a caller wait.
fn remove_outputs(outputs: Outputs, runs: Vec<RunId>) {
    tokio::task::spawn_blocking(move || {
        for run in runs {
            if let Err(error) = outputs.remove(run) {
                error!(%error, %run, "the outputs of a pruned run stay");
            }
        }
    });
}

/// The processes of a run for a view: a bounded number.
fn processes(keepers: &Keepers, run: RunId) -> Vec<ProcessView> {
    let shown = |Process { pid, command }: Process| ProcessView { pid, command: command.chars().take(200).collect() };
    keepers.processes_of(run, PROCESSES_SHOWN).into_iter().map(shown).collect()
}

/// This very program, even if it was replaced on disk. Its processes get back the settings that the daemon has changed
/// for itself.
fn keeper_program(inherited: &Inherited, lock: KeepersLock) -> KeeperProgram {
    let args = std::iter::once(KEEPER[1].to_owned()).chain(inherited.limits.words());
    let args = args.chain([format!("{}{}", supervisor::MARK, lock.mark())]).collect();
    KeeperProgram { program: Sealed::own(), args, env: Vec::new(), lock: Some(lock) }
}

fn services(
    config: &Config,
    inbox: Inbox<Request>,
    (feed, history, (background, blocking), folders): (Feed, History, (Handle, Blocking), Folders),
    (keepers, outputs): (&Arc<Keepers>, &Outputs),
    (providers, scripts): (&Arc<Providers>, &Arc<Scripts>),
) -> Services {
    let outputs = outputs.clone();
    let (listed, checked, scripts) = (Arc::clone(providers), Arc::clone(providers), Arc::clone(scripts));
    let arrivals = Arrivals::new(tracing(keepers), background.clone());
    Services {
        inbox,
        feed,
        history,
        parsing: blocking.beside(PARSED),
        blocking,
        background,
        folders,
        bounds: config.limits.clone(),
        follower_turns: Semaphore::new(thread::available_parallelism().map_or(1, |count| count.get() - 1).max(1)),
        pages: [PAGES; 2].map(|pages| Arc::new(Semaphore::new(pages))),
        memory: Memory::new(config.limits.memory_bytes),
        arrivals,
        check_spec: Box::new(move |spec| {
            let (scripts, script) = (Arc::clone(&scripts), spec.script.clone());
            Box::pin(async move { check_script(&scripts, script.as_ref()).await })
        }),
        list_providers: Box::new(move || listed.views()),
        check_provider: Box::new(move |name, model| {
            let providers = Arc::clone(&checked);
            Box::pin(async move { providers.check(&name, model.as_deref()).await })
        }),
        read_output: Box::new(move |run, call, stream, offset, limit| {
            outputs.read(run, call, stream, offset, limit).map(|range| (range.offset, range.bytes, range.total))
        }),
    }
}

/// Identifies peers by the keepers above them.
fn tracing(keepers: &Arc<Keepers>) -> Tracing {
    let (looked_at, traced) = (Arc::clone(keepers), Arc::clone(keepers));
    Tracing {
        is_marked: Box::new(move |pid| i32::try_from(pid).map_or(true, |pid| looked_at.is_marked(pid))),
        trace: Arc::new(move |process, reach| {
            let longest = if reach == Reach::Short { Keepers::SHORT } else { Keepers::LONGEST };
            match traced.trace(process, longest) {
                Lineage::Outside | Lineage::Beside => Some(Origin::Outside),
                Lineage::Of(run) => Some(Origin::Run(run)),
                Lineage::Unknown(Untraced::TooDeep) if reach == Reach::Short => None,
                Lineage::Unknown(why) => Some(Origin::Unknown(why.to_string())),
            }
        }),
    }
}

async fn check_script(scripts: &Scripts, script: Option<&Arc<Script>>) -> Result<(), SpecRefusal> {
    let Some(script) = script else { return Ok(()) };
    let refused = |error: ScriptError| SpecRefusal::Script {
        reason: error.reason(),
        place: error.place.to_string(),
        fault: error.fault.to_string(),
    };
    scripts.check(script).await.map_err(refused)
}
