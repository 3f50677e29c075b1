//! Connects a command with the daemon: finds the daemon, starts it if the command wants that, and repeats requests
//! where that is safe.
//!
//! The only place that decides what is repeated, except for submits: these carry keys, and `submit_once` repeats them.
//! A request that the daemon may have read is repeated only if it changes nothing. Must not start a daemon in place of
//! one that has served this command, because an operator may have stopped it on purpose: the session waits for one that
//! another process starts, and fails if none comes. A daemon that left before it read a request is replaced at once.

pub(crate) mod long_poll;
pub(crate) mod submit_once;
pub(crate) mod submit_retry_delay;
pub(crate) mod wait_reasons;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use harness_protocol::paths::{Environment, Variables};
use harness_protocol::rpc::Method;

use crate::client::interrupt::Interrupt;
use crate::client::timeouts::PATIENCE;
use crate::client::{Client, ClientError, Taken};
use crate::error::Failure;
use crate::launch::{self, Found, Place};

/// Time between two updates of the progress line, during a long request.
const SECOND: Duration = Duration::from_secs(1);
/// Requests that change nothing. Whether they were taken does not matter.
const READS: &[&str] = &[
    "daemon.hello",
    "daemon.status",
    "run.list",
    "run.show",
    "run.wait",
    "run.output",
    "run.export",
    "blob.get",
    "interaction.list",
    "lane.list",
    "event.subscribe",
];
/// How many daemons are replaced that leave before they read anything.
const ATTEMPTS: u32 = 5;
/// Time between two looks for a daemon that comes back.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A command's session with the daemon.
#[derive(Debug)]
pub(crate) struct Session {
    place: Place,
    may_start: bool,
    /// The user asked for a daemon, and for nothing else.
    asked_to_start: bool,
    client: Option<Client>,
    started: bool,
    /// A daemon has read a request, or may have.
    reached: bool,
    /// The connection was lost at least once.
    lost: bool,
    /// Until when a daemon may come back that has not answered since the loss.
    gone_until: Option<Instant>,
    /// Until when the user waits for a daemon, where that is longer than usual.
    patient_until: Option<Instant>,
    /// Daemons of every version are asked.
    across: bool,
    /// Number of daemons that left before they read any request, one after the other.
    replaced: u32,
    interrupt: Option<Interrupt>,
}

impl Session {
    /// A session on `socket`, or on the socket that the environment names.
    ///
    /// # Errors
    /// If a variable that names the socket or the state directory cannot be read.
    pub(crate) fn new(socket: Option<PathBuf>, may_start: bool) -> Result<Self, Failure> {
        let var = |name: &str| std::env::var_os(name);
        let variables = Variables::new(&var);
        let uid = nix::unistd::geteuid().as_raw();
        let around =
            Environment { var: &|name| variables.get(name), uid, exists: &|path| path.symlink_metadata().is_ok() };
        let named = socket.is_some() || variables.get("HARNESS_SOCKET").is_some_and(|path| !path.is_empty());
        // The daemon has another working directory than we have.
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let place = Place {
            socket: absolute(socket.unwrap_or_else(|| around.socket())),
            named,
            state_dir: absolute(around.state_dir()),
        };
        variables.all_were_readable().map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Self {
            place,
            may_start,
            asked_to_start: false,
            client: None,
            started: false,
            reached: false,
            lost: false,
            gone_until: None,
            patient_until: None,
            across: false,
            replaced: 0,
            interrupt: None,
        })
    }

    /// The place where the daemon is looked for, or where it was found.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// No daemon is started from here on.
    pub(crate) fn never_start(&mut self) {
        self.may_start = false;
    }

    /// The user asked for a daemon, and for nothing else.
    pub(crate) fn asked_to_start(&mut self) {
        self.asked_to_start = true;
    }

    /// A daemon with another protocol version is asked, too, from here on.
    pub(crate) fn across_versions(&mut self) {
        self.across = true;
    }

    /// Whether the daemon was started for this session.
    pub(crate) fn started(&self) -> bool {
        self.started
    }

    /// From here on Ctrl-C ends waiting with [`ClientError::Interrupted`] instead of the process.
    pub(crate) fn heed_interrupts(&mut self) -> Result<(), Failure> {
        if self.interrupt.is_none() {
            let interrupt = Interrupt::install().map_err(ClientError::Io)?;
            if let Some(client) = &mut self.client {
                client.heed(interrupt.clone());
            }
            self.interrupt = Some(interrupt);
        }
        Ok(())
    }

    /// The connection. A daemon is started for the first connection only: an operator may have stopped the one that
    /// served us on purpose.
    pub(crate) fn client(&mut self) -> Result<&mut Client, Failure> {
        if self.client.is_none() {
            let found = match (self.reached, self.may_start) {
                (true, _) => match launch::find(&self.place) {
                    Err(error) if error.is_absent() => return Err(ClientError::Lost { taken: Taken::No }.into()),
                    found => found?,
                },
                (false, true) => launch::find_or_start(&self.place, self.asked_to_start)?,
                (false, false) => launch::find(&self.place)?,
            };
            self.started |= found.started;
            self.connected(found)?;
        }
        match &mut self.client {
            Some(client) => Ok(client),
            None => Err(Failure::Client(ClientError::Lost { taken: Taken::No })),
        }
    }

    fn connected(&mut self, found: Found) -> Result<(), Failure> {
        self.place.socket = found.socket;
        let mut client = Client::new(found.stream, self.interrupt.clone()).map_err(ClientError::Io)?;
        if self.across {
            client.across_versions();
        }
        self.client = Some(client);
        Ok(())
    }

    /// Waits for a daemon that has gone until this time, where that is longer than usual.
    pub(crate) fn be_patient_until(&mut self, until: Option<Instant>) {
        self.patient_until = until;
    }

    /// Drops the connection; the next request makes a new one, and starts no daemon for it.
    pub(crate) fn hang_up(&mut self) {
        self.reached |= self.client.take().is_some();
    }

    /// Pid of the daemon at the other end of the connection, where there is one.
    pub(crate) fn peer(&self) -> Option<u32> {
        self.client.as_ref().and_then(Client::pid)
    }

    /// Whether a daemon was lost, so that the present one may be another.
    pub(crate) fn was_lost(&self) -> bool {
        self.lost
    }

    /// Makes a request, within 10 s.
    pub(crate) fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Reply, Failure> {
        self.ask::<M>(params, Some(PATIENCE), READS.contains(&M::NAME))
    }

    /// Makes a request within `limit`, or without a limit.
    pub(crate) fn call_within<M: Method>(
        &mut self,
        params: &M::Params,
        limit: Option<Duration>,
    ) -> Result<M::Reply, Failure> {
        self.ask::<M>(params, limit, READS.contains(&M::NAME))
    }

    /// Makes a request without a limit, such as a change of many runs; calls `each_second` while there is no reply.
    pub(crate) fn call_watched<M: Method>(
        &mut self,
        params: &M::Params,
        mut each_second: impl FnMut(),
    ) -> Result<M::Reply, Failure> {
        loop {
            let reply = self.client().and_then(|client| {
                let ticket = client.send::<M>(params)?;
                loop {
                    match client.reply(ticket, Some(SECOND)) {
                        Err(ClientError::Silent { .. }) => each_second(),
                        reply => return Ok(reply?),
                    }
                }
            });
            match reply {
                Err(failure) if failure.is_unread() => self.recover(&failure)?,
                other => return other,
            }
        }
    }

    fn ask<M: Method>(
        &mut self,
        params: &M::Params,
        limit: Option<Duration>,
        repeatable: bool,
    ) -> Result<M::Reply, Failure> {
        loop {
            match self.client().and_then(|client| Ok(client.call_within::<M>(params, limit)?)) {
                Err(failure) if failure.is_unread() || (repeatable && failure.is_loss()) => self.recover(&failure)?,
                other => return other,
            }
        }
    }

    /// After a loss: a daemon that left before it read any request is replaced at once; a daemon that served us is
    /// waited for.
    pub(crate) fn recover(&mut self, failure: &Failure) -> Result<(), Failure> {
        if failure.is_unread() && !self.reached && self.replaced < ATTEMPTS {
            self.replaced += 1;
            self.client = None;
            return Ok(());
        }
        self.come_back(failure)
    }

    /// Waits for a daemon that comes back by itself, 10 s unless the user is more patient, and connects to it.
    fn come_back(&mut self, failure: &Failure) -> Result<(), Failure> {
        let served = self.client.as_ref().is_some_and(Client::was_answered) && !failure.is_stopping();
        self.client = None;
        self.reached = true;
        self.lost = true;
        // A daemon that takes connections but never answers has not come back.
        let until = match self.gone_until {
            Some(until) if !served => until,
            _ => Instant::now() + PATIENCE,
        };
        self.gone_until = Some(until);
        let (since, until) = (Instant::now(), self.patient_until.map_or(until, |patient| patient.max(until)));
        loop {
            self.pause()?;
            match launch::find(&self.place) {
                Ok(found) if Instant::now() < until => return self.connected(found),
                Err(error) if error.is_absent() && Instant::now() < until => {}
                Err(error) if !error.is_absent() => return Err(error.into()),
                Ok(_) | Err(_) => {
                    let seconds = since.elapsed().max(PATIENCE).as_secs();
                    return Err(Failure::Gone { socket: self.place.socket.clone(), seconds });
                }
            }
        }
    }

    fn pause(&self) -> Result<(), Failure> {
        match &self.interrupt {
            Some(interrupt) if interrupt.sleep(LOOK_AGAIN) => Err(ClientError::Interrupted.into()),
            Some(_) => Ok(()),
            None => {
                std::thread::sleep(LOOK_AGAIN);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::client::testing::{Fake, reply};
    use harness_protocol::rpc::{Empty, METHODS, method};

    #[test]
    fn what_may_be_repeated_are_methods_that_exist() {
        assert!(READS.iter().all(|name| METHODS.contains(name)));
    }

    #[test]
    fn a_request_that_a_leaving_daemon_did_not_read_is_sent_to_the_next_one() {
        let fake = Fake::new();
        let mut session = Session::new(Some(fake.path()), false).unwrap();
        let server = fake.serve(vec![
            // The first one takes the connection and leaves without reading.
            Box::new(drop),
            Box::new(|stream| reply(stream, "{}")),
        ]);
        session.call::<method::DaemonUndrain>(&Empty {}).unwrap();
        server.join().unwrap();
    }
}
