//! Reloads the configuration: on a signal or on request.
//!
//! Reading blocks, so it is done off the driver; the outcome is applied in a step like any other change. Owns what was
//! read and is not applied yet.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::{error, info, warn};

use super::journal_lookups::Hold;
use super::{Driver, Pending};
use crate::config::Config;
use crate::control::request::{ConnectionId, Request, Responder, Wanted};
use crate::fair_queue::Party;
use crate::journal::Journal;
use crate::refusal::Refusal;
use crate::world::api::{Caller, Command, Input};

/// The outcome of a reload.
#[derive(Debug)]
pub struct Reloaded {
    /// The file that was read, if there is one.
    pub file: Option<String>,
    /// The widths of the lanes.
    pub lanes: Vec<(Arc<str>, u32)>,
    /// The whole new configuration.
    pub config: Config,
    /// The other changes, in words.
    pub changes: Vec<String>,
}

/// Reads the configuration again. May block.
pub type Reload = Arc<Mutex<dyn FnMut() -> Result<Reloaded, String> + Send>>;

/// A read configuration that waits for its turn.
pub(super) struct ReadAgain {
    what: Result<Reloaded, String>,
    /// The client that asked for it; `None` for a signal.
    asked: Option<(ConnectionId, Caller, Responder)>,
    /// Keeps the connection held until it is applied.
    _hold: Option<Hold>,
}

impl<J: Journal> Driver<J> {
    /// On a signal: reads the configuration; a later turn applies it.
    pub(super) fn read_configuration(&self) {
        self.read_off_the_driver(Party::Daemon, None, None);
    }

    /// On request: the same, while the connection is held.
    pub(super) fn read_configuration_for(&self, request: Request) {
        self.parts.inbox.hold(request.connection.0, Vec::new());
        let hold = Hold::new(&self.parts.inbox, &request);
        let Request { connection, caller, party, wanted, .. } = request;
        if let Wanted::Reload(responder) = wanted {
            self.read_off_the_driver(party, Some((connection, caller, responder)), Some(hold));
        }
    }

    fn read_off_the_driver(&self, party: Party, asked: Option<(ConnectionId, Caller, Responder)>, hold: Option<Hold>) {
        let (reload, read) = (Arc::clone(&self.parts.reload), Arc::clone(&self.read_again));
        let inbox = self.parts.inbox.clone();
        self.parts.blocking.run(party, move || {
            {
                let mut reload = reload.lock().unwrap_or_else(PoisonError::into_inner);
                let what = reload();
                // Under the same lock, so that a later read is applied later.
                let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
                read.push(ReadAgain { what, asked, _hold: hold });
            }
            inbox.wake();
        });
    }

    /// Applies the configurations that were read since the last turn.
    pub(super) fn take_over_configuration(&mut self, inputs: &mut Vec<Input>) {
        let read = std::mem::take(&mut *self.read_again.lock().unwrap_or_else(PoisonError::into_inner));
        for ReadAgain { what, asked, _hold } in read {
            match (what, asked) {
                (Ok(reloaded), Some((connection, caller, responder))) => {
                    let Reloaded { file, lanes, config, mut changes } = reloaded;
                    info!(uid = caller.uid, ?changes, "the configuration was read again");
                    self.parts.engine.configure(&config);
                    let is_new =
                        |(lane, width): &&(Arc<str>, u32)| self.parts.engine.configured_width(lane) != Some(*width);
                    let told = |(lane, width): &(Arc<str>, u32)| format!("lane {lane}: width {width}");
                    changes.extend(lanes.iter().filter(is_new).map(told));
                    let pending = Pending::AfterReload(file, changes, responder);
                    inputs.push(self.input(connection, caller, Command::Reconfigure(lanes), pending));
                }
                (Ok(Reloaded { lanes, config, changes, .. }), None) => {
                    info!(?changes, "the configuration was read again");
                    self.parts.engine.configure(&config);
                    let owner = Caller { uid: self.parts.service.uid, run: None };
                    inputs.push(self.input(ConnectionId(0), owner, Command::Reconfigure(lanes), Pending::Nobody));
                    self.orders.reloaded();
                }
                (Err(why), Some((_, caller, responder))) => {
                    warn!(uid = caller.uid, %why, "the configuration stays as it was");
                    responder.send::<()>(Err(Refusal::Configuration { why }));
                }
                (Err(why), None) => {
                    error!(%why, "the configuration stays as it was");
                    self.orders.reloaded();
                }
            }
        }
    }
}
