//! Reloads the configuration, on a signal or on request.
//!
//! ```text
//!  asked ─▶ prepare, off the driver ─▶ turn: put in force in every part, step ─▶ committed ─▶ reply, READY
//!              │ changes nothing          cannot fail
//!              └─ cannot be put in force ─▶ the error, READY; all stays as it was
//! ```
//!
//! Preparations are made one after another, each with the files as they are then, and are put in force in that order.
//! So of two reloads the later one counts, and a file that is changed after it was read counts with the next reload.
//!
//! A prepared configuration is put in force whole, in one turn. It must not read a file on the driver's thread:
//! `startup::reload` prepares the configuration elsewhere.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use harness_protocol::rpc::{ConfigProblem, ConfigReport, FailedReload, ReloadReply};
use harness_protocol::time::Timestamp;
use tracing::{error, info};

use super::journal_lookups::Hold;
use super::signals::Reloading;
use super::{Driver, Pending};
use crate::blocking::Blocking;
use crate::config::{Config, LoadError, ReloadError, diff};
use crate::control::request::{ConnectionId, Request, Responder, Wanted};
use crate::fair_queue::Party;
use crate::inbox::Inbox;
use crate::journal::Journal;
use crate::refusal::{ConfigurationFault, Refusal};
use crate::world::api::{Caller, Command, Input};

/// A configuration that was read and checked, with all that it takes to put it in force. Nothing has changed yet.
pub struct Prepared {
    /// The whole new configuration.
    pub config: Config,
    /// The files that it was read from, in the order in which they count.
    pub files: Vec<PathBuf>,
    /// What cannot be used yet, in words: a key that cannot be read.
    pub warnings: Vec<String>,
    /// Puts it in force outside of the world. Cannot fail, and does not block.
    pub put_in_force: Box<dyn FnOnce() + Send>,
}

/// Prepares the configuration that the files have now. May block for a while, and changes nothing.
pub type Prepare = Arc<dyn Fn() -> Result<Prepared, ReloadError> + Send + Sync>;

/// How configurations are made, and the first one.
pub struct Reload {
    /// The configuration that the daemon was started with. Some of it stays in force until a restart.
    pub started_with: Config,
    /// Prepares another one.
    pub prepare: Prepare,
}

/// The client or the signal that a reload is for.
struct Asker {
    /// The client; `None` for a signal.
    client: Option<(ConnectionId, Caller, Responder)>,
    /// Keeps the connection of the client held until the reload is over.
    _hold: Option<Hold>,
    reloading: Reloading,
}

/// A preparation that has ended and waits for its turn.
struct Ended {
    what: Result<Prepared, ReloadError>,
    asker: Asker,
}

/// What to tell once a new configuration is in force and committed.
pub(super) struct InForce {
    reply: ReloadReply,
    responder: Option<Responder>,
    reloading: Reloading,
}

impl InForce {
    /// The step of the reload is committed.
    pub(super) fn tell(self) {
        self.reloading.ends(Ok(()));
        if let Some(responder) = self.responder {
            responder.send(Ok(self.reply));
        }
    }

    /// The step of the reload was refused, or may never be committed.
    pub(super) fn refuse(self, error: Refusal) {
        self.reloading.ends(Err(error.to_string()));
        if let Some(responder) = self.responder {
            responder.send::<()>(Err(error));
        }
    }
}

/// Reloads that are under way, and the configuration in force.
pub(super) struct Reloads {
    /// One preparation at a time. A place of its own: one that hangs keeps no other read waiting.
    place: Blocking,
    prepare: Prepare,
    ended: Arc<Mutex<Vec<Ended>>>,
    started_with: Config,
    in_force: Config,
}

impl Reloads {
    pub(super) fn new(reload: Reload, blocking: &Blocking) -> Self {
        let Reload { started_with, prepare } = reload;
        let in_force = started_with.clone();
        Self { place: blocking.beside(1), prepare, ended: Arc::default(), started_with, in_force }
    }

    fn begin(&self, inbox: Inbox<Request>, party: Party, asker: Asker) {
        let (prepare, ended) = (Arc::clone(&self.prepare), Arc::clone(&self.ended));
        self.place.run(party, move || {
            let what = catch_unwind(AssertUnwindSafe(|| prepare())).unwrap_or(Err(ReloadError::Fault));
            ended.lock().unwrap_or_else(PoisonError::into_inner).push(Ended { what, asker });
            inbox.wake();
        });
    }

    fn take(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<J: Journal> Driver<J> {
    /// On a signal: prepares the configuration; a later turn puts it in force.
    pub(super) fn reload_on_signal(&self) {
        let asker = Asker { client: None, _hold: None, reloading: self.orders.reload_was_given() };
        self.reloads.begin(self.parts.inbox.clone(), Party::Daemon, asker);
    }

    /// On request: the same, while the connection is held.
    pub(super) fn reload_on_request(&self, request: Request) {
        self.parts.inbox.hold(request.connection.0, Vec::new());
        let hold = Some(Hold::new(&self.parts.inbox, &request));
        let Request { connection, caller, party, wanted, .. } = request;
        if let Wanted::Reload(responder) = wanted {
            info!(uid = caller.uid, "a reload was asked for");
            let client = Some((connection, caller, responder));
            let asker = Asker { client, _hold: hold, reloading: self.orders.reload_begins() };
            self.reloads.begin(self.parts.inbox.clone(), party, asker);
        }
    }

    /// Puts the configurations in force that were prepared since the last turn.
    pub(super) fn take_over_configurations(&mut self, inputs: &mut Vec<Input>) {
        for Ended { what, asker } in self.reloads.take() {
            match what {
                Ok(prepared) => inputs.push(self.put_in_force(prepared, asker)),
                Err(error) => self.stay_as_it_was(&error, asker),
            }
        }
    }

    /// While no commit succeeds: clients are told so, and nothing changes. A signal stays until commits succeed again.
    pub(super) fn refuse_configurations(&mut self) {
        let mut later = Vec::new();
        for Ended { what, asker } in self.reloads.take() {
            match (what, asker) {
                (Err(error), asker) => self.stay_as_it_was(&error, asker),
                (Ok(_), Asker { client: Some((_, _, responder)), reloading, .. }) => {
                    let held = self.held_error();
                    reloading.ends(Err(held.to_string()));
                    responder.send::<()>(Err(held));
                }
                (what, asker) => later.push(Ended { what, asker }),
            }
        }
        let mut ended = self.reloads.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.splice(0..0, later);
    }

    fn put_in_force(&mut self, prepared: Prepared, asker: Asker) -> Input {
        let Prepared { config, files, warnings, put_in_force } = prepared;
        let Asker { client, reloading, .. } = asker;
        let lanes = lanes(&config);
        let mut changes = diff::taken_over(&self.reloads.in_force, &config);
        let is_new = |(lane, width): &&(Arc<str>, u32)| self.parts.engine.configured_width(lane) != Some(*width);
        changes.extend(lanes.iter().filter(is_new).map(|(lane, width)| format!("lane {lane}: width {width}")));
        changes.extend(diff::for_the_next_start(&self.reloads.started_with, &config));
        put_in_force();
        self.parts.engine.configure(&config);
        self.reloads.in_force = config;
        let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        let report = &mut self.parts.service.config;
        report.files.clone_from(&files);
        (report.read_at, report.failed) = (Some(self.parts.clock.now().wall), None);
        info!(?files, ?changes, ?warnings, "a configuration was read again, and is in force");
        let places = report.places.clone();
        let reply = ReloadReply { config: files.first().cloned(), files, places, changes, warnings };
        let (connection, caller, responder) = match client {
            Some((connection, caller, responder)) => (connection, caller, Some(responder)),
            None => (ConnectionId(0), Caller { uid: self.parts.service.uid, run: None }, None),
        };
        let pending = Pending::AfterReload(Box::new(InForce { reply, responder, reloading }));
        self.input(connection, caller, Command::Reconfigure(lanes), pending)
    }

    fn stay_as_it_was(&mut self, error: &ReloadError, asker: Asker) {
        let problems = problems(error);
        let refusal = refusal(error, problems.clone());
        let message = refusal.to_string();
        error!(uid = asker.client.as_ref().map(|(_, caller, _)| caller.uid), "{message}");
        self.parts.service.config.failed =
            Some(FailedReload { at: self.parts.clock.now().wall, message: message.clone(), problems });
        asker.reloading.ends(Err(message));
        if let Some((_, _, responder)) = asker.client {
            responder.send::<()>(Err(refusal));
        }
    }
}

/// The refusal of a reload that changed nothing.
fn refusal(error: &ReloadError, problems: Vec<ConfigProblem>) -> Refusal {
    let fault = match error {
        ReloadError::Load(LoadError::Read(error)) if error.source.kind() == io::ErrorKind::TimedOut => {
            ConfigurationFault::Silent
        }
        ReloadError::Load(_) | ReloadError::Unusable { .. } => ConfigurationFault::Wrong,
        ReloadError::Silent { .. } => ConfigurationFault::Silent,
        ReloadError::Fault => ConfigurationFault::Ours,
    };
    Refusal::Configuration { fault, why: error.to_string(), problems }
}

/// What exactly is wrong with files.
fn problems(error: &ReloadError) -> Vec<ConfigProblem> {
    let problem = |file: &Path, line: Option<usize>, reason: String| ConfigProblem {
        file: file.display().to_string(),
        line: line.and_then(|line| u64::try_from(line).ok()),
        reason,
    };
    match error {
        ReloadError::Load(LoadError::Read(error)) => vec![problem(&error.path, None, error.source.to_string())],
        ReloadError::Load(LoadError::Wrong(error)) => {
            error.problems.iter().map(|found| problem(&found.file, Some(found.line), found.what.clone())).collect()
        }
        ReloadError::Unusable { at, what } | ReloadError::Silent { at, what } => {
            at.iter().map(|(file, line)| problem(file, Some(*line), what.clone())).collect()
        }
        ReloadError::Fault => Vec::new(),
    }
}

/// The widths of all lanes.
fn lanes(config: &Config) -> Vec<(Arc<str>, u32)> {
    let providers = config.providers.iter().map(|(name, provider)| (Arc::clone(name), provider.width));
    std::iter::once(("tool".into(), config.tool_width)).chain(providers).collect()
}

/// The report on a configuration.
pub fn report(files: &[PathBuf], places: &[PathBuf], read_at: Timestamp) -> ConfigReport {
    let told = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect();
    ConfigReport { files: told(files), places: told(places), read_at: Some(read_at), failed: None }
}
